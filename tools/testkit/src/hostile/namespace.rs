//! Processes in namespaces of their own.

use std::fs::{self, File};

use penfold_sys::ForkSide;
use penfold_sys::launch::{Namespaces, clone_process};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

use super::env::{Never, Step, TestEnv, Trouble};

/// Starts a pid namespace with an init and a child; both have registered when this returns.
pub(super) fn namespace(env: &TestEnv, user: bool) -> Result<Pid, Trouble> {
    let namespaces = Namespaces { pid: true, user };
    match clone_process(namespaces, None).or_skip("cannot make a pid namespace")? {
        ForkSide::Parent(pid) => Ok(pid),
        ForkSide::Child => env.live(|env| {
            env.child(|env| {
                rustix::process::setsid().step("cannot start a session")?;
                env.sleeper()
            })?;
            env.sleeper()
        }),
    }
}

pub(super) fn pidns(env: &TestEnv) -> Never {
    namespace(env, false)?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn user_pidns(env: &TestEnv) -> Never {
    namespace(env, true)?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn mountns_tmpfs(env: &TestEnv) -> Never {
    let point = env.path("mnt");
    fs::create_dir_all(&point).step("cannot create the mount point")?;
    env.daemon(|env| {
        let mut flags = UnshareFlags::NEWNS;
        if !rustix::process::geteuid().is_root() {
            flags |= UnshareFlags::NEWUSER;
        }
        #[expect(deprecated, reason = "only unsharing descriptors is unsound, and that is not asked for")]
        rustix::thread::unshare(flags).or_skip("cannot make a mount namespace")?;
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .or_skip("cannot make the mounts private")?;
        rustix::mount::mount("testkit", &point, "tmpfs", MountFlags::empty(), None)
            .or_skip("cannot mount a tmpfs")?;
        // Root of that namespace: a user without a mapping cannot create files there.
        let _held = File::open(&point).step("cannot open the tmpfs")?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}
