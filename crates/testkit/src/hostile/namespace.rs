//! Processes in namespaces of their own.

use std::fs::{self, File};

use penfold_sys::Forked;
use penfold_sys::launch::{Namespaces, clone_process};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::process::Pid;
use rustix::thread::UnshareFlags;

use super::yard::{Never, Step, Trouble, Yard};

/// Starts a pid namespace with an init and a child; both are registered once it stands.
pub(super) fn namespace(yard: &Yard, user: bool) -> Result<Pid, Trouble> {
    let namespaces = Namespaces { pid: true, user };
    match clone_process(namespaces, None).or_skip("cannot make a pid namespace")? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => yard.live(|yard| {
            yard.child(|yard| {
                rustix::process::setsid().step("cannot start a session")?;
                yard.sleeper()
            })?;
            yard.sleeper()
        }),
    }
}

pub(super) fn pidns(yard: &Yard) -> Never {
    namespace(yard, false)?;
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn user_pidns(yard: &Yard) -> Never {
    namespace(yard, true)?;
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn mountns_tmpfs(yard: &Yard) -> Never {
    let point = yard.path("mnt");
    fs::create_dir_all(&point).step("cannot create the mount point")?;
    yard.daemon(|yard| {
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
        // Its root: a user without a mapping cannot create files there.
        let _held = File::open(&point).step("cannot open the tmpfs")?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}
