//! Makes the namespaces of `--ipc private`: System V and POSIX IPC, and a `/dev/shm` of their own.
//!
//! A short-lived child makes them, before anything of the sandbox runs. The supervisor keeps them open, for the command, each exec and
//! the stop command: nobody has to trust the namespaces of a member. A standby keeps them only if it may have to go on with the
//! sandbox. At the level `pidns` our init makes them instead.

use std::ffi::CString;

use penfold_process::{Pid, ProcFs};
use penfold_sys::launch::{IpcEntry, Namespaces, clone_process};
use penfold_sys::namespace::{map_user, unshare_ipc};
use penfold_sys::{ForkSide, fork};
use penfold_teardown::Resource;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FsWord;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::pidns_protocol::MAX_MESSAGE_BYTES;
use crate::poll::poll_or_pause;
use crate::setup::Setup;

/// The descriptors that the namespaces need, and the making of them.
pub(crate) const DESCRIPTORS: usize = 9;

/// The time that the child may take. It waits for nothing, but a frozen cgroup delays it.
const READY: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// The time that the child may take to die of SIGKILL.
const DEATH: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

const SHARED_MEMORY: &str = "/dev/shm";
const QUEUES: &str = "/dev/mqueue";
/// `MQUEUE_MAGIC` of ipc/mqueue.c.
const MQUEUE_MAGIC: FsWord = 0x1980_0202;
/// `TMPFS_MAGIC` of linux/magic.h.
const TMPFS_MAGIC: FsWord = 0x0102_1994;
/// The answer of a child that has made everything; another answer is the reason why not.
const MADE: &[u8] = b"+";

/// Makes the namespaces if the sandbox has some. They are the last resource, and so the first that is released: their mount
/// namespace has copies of the other mounts.
///
/// # Errors
/// The reason, as a sentence. Nothing of them is left then.
pub(crate) fn add_ipc_namespaces(
    setup: &Setup,
    proc: &ProcFs,
    resources: &mut Vec<Box<dyn Resource>>,
) -> Result<(), String> {
    let Some(entry) = setup.program.ipc() else { return Ok(()) };
    make(entry, proc)?;
    resources.push(Box::new(IpcNamespaces(entry.clone())));
    Ok(())
}

/// Makes the namespaces and opens them in `entry`.
fn make(entry: &IpcEntry, proc: &ProcFs) -> Result<(), String> {
    if proc.is_blind() {
        // Without it, or in one of another pid namespace, the child cannot be found.
        return Err(failed(&"/proc cannot be read"));
    }
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let ids = (!user.is_root()).then(|| (user.as_raw(), group.as_raw()));
    let (link, child_link) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(&error))?;
    let born = match ids {
        None => fork().map_err(|error| failed(&error)),
        Some(_) => {
            clone_process(Namespaces { user: true, pid: false }, None).map_err(|error| refused(&error))
        }
    };
    let child = match born? {
        ForkSide::Child => {
            drop(link);
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            let mapped = ids.map_or(Ok(()), map_user).map_err(|error| refused(&error));
            let said = match mapped.and_then(|()| furnish_ipc_namespace()) {
                Ok(()) => MADE.to_vec(),
                Err(reason) => reason.into_bytes(),
            };
            let _ = rustix::net::send(&child_link, &said, SendFlags::NOSIGNAL);
            // Lives until its parent has opened the namespaces.
            let _ = rustix::net::recv(&child_link, &mut [0_u8; 1], RecvFlags::empty());
            penfold_sys::fork::exit_now(0)
        }
        ForkSide::Parent(child) => child,
    };
    drop(child_link);
    let made = hear(&link).and_then(|()| entry.open(child).map_err(|error| failed(&error)));
    drop(link);
    end_child(child);
    made
}

fn failed(error: &dyn std::fmt::Display) -> String {
    format!("cannot make an IPC namespace: {error}")
}

/// Explains why an ordinary user gets no user namespace.
fn refused(error: &std::io::Error) -> String {
    format!("for a user, an IPC namespace needs a user namespace, which this host refuses: {error}")
}

/// Receives the answer of the child.
fn hear(link: &impl std::os::fd::AsFd) -> Result<(), String> {
    let _ = poll_or_pause(&mut [PollFd::new(link, PollFlags::IN)], Some(&READY));
    let mut text = [0_u8; MAX_MESSAGE_BYTES];
    match rustix::net::recv(link, &mut text, RecvFlags::DONTWAIT) {
        Ok((_, length)) if text.get(..length) == Some(MADE) => Ok(()),
        Ok((_, length @ 1..)) => {
            Err(String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned())
        }
        Ok(_) => Err("the process that makes an IPC namespace died".to_owned()),
        Err(errno) => Err(format!("cannot hear from the process that makes an IPC namespace: {errno}")),
    }
}

/// Kills and reaps the child, which may be frozen.
pub(crate) fn end_child(child: Pid) {
    let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) else { return };
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let _ =
        rustix::io::retry_on_intr(|| poll_or_pause(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&DEATH)));
    let _ = penfold_sys::child::reap_child(child);
}

/// Moves this process into a new IPC namespace, and mounts what belongs to it. Mounts of the host still arrive, none leaves.
///
/// # Errors
/// The reason, as a sentence.
pub(crate) fn furnish_ipc_namespace() -> Result<(), String> {
    unshare_ipc().map_err(|error| failed(&error))?;
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags)
        .map_err(|error| format!("cannot separate the mounts from those of the host: {error}"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let mount = |kind: &str, place: &str, options: &str| {
        let options = CString::new(options).unwrap_or_default();
        rustix::mount::mount(kind, place, kind, flags, options.as_c_str())
            .map_err(|error| format!("cannot mount a new `{place}`: {error}"))
    };
    // Without this directory there is no POSIX shared memory, neither for the host nor for the sandbox.
    if let Ok(shared) = rustix::fs::statvfs(SHARED_MEMORY) {
        let bytes = shared.f_blocks.saturating_mul(shared.f_frsize);
        let size =
            if is_of_kind(SHARED_MEMORY, TMPFS_MAGIC) { format!(",size={bytes}") } else { String::new() };
        mount("tmpfs", SHARED_MEMORY, &format!("mode=1777{size}"))?;
    }
    if is_of_kind(QUEUES, MQUEUE_MAGIC) { mount("mqueue", QUEUES, "") } else { Ok(()) }
}

/// Tells whether a file system of this kind is mounted there.
fn is_of_kind(place: &str, magic: FsWord) -> bool {
    rustix::fs::statfs(place).is_ok_and(|found| found.f_type == magic)
}

/// The namespaces, held until no member is left.
struct IpcNamespaces(IpcEntry);

impl Resource for IpcNamespaces {
    fn describe(&self) -> String {
        "IPC namespace".to_owned()
    }

    fn release(&mut self, _forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        self.0.close();
        Ok(())
    }
}
