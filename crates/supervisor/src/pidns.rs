//! Runs our init, pid 1 of a pid namespace. The kernel ends the namespace with its init, and no process inside can
//! signal it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use penfold_sys::child::{self, PeekResult};
use penfold_sys::launch::{Namespaces, Program, ReleaseResult, launch_program};
use penfold_sys::namespace::map_user;
use penfold_sys::schedule::await_briefly;
use penfold_sys::signal::{SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::ipc;
use crate::pidns_protocol::{InitMessage, RELEASE};
use crate::poll::poll_or_pause;
use crate::signals::CHILD;
use crate::terminal::own_group::lead_foreground_group;

/// Returns the namespaces to create. An unprivileged user can create a pid namespace only in a new user namespace.
pub(crate) fn namespaces_to_create() -> Namespaces {
    Namespaces { pid: true, user: !rustix::process::geteuid().is_root() }
}

/// Runs our init. `ids` are the outer user and group, if init is in a new user namespace; `terminal` is for a command that gets a
/// process group of its own in its foreground; `has_own_ipc` if the members share IPC with nobody else.
pub(crate) fn run_namespace_init(
    program: &mut Program,
    link: &OwnedFd,
    ids: Option<(u32, u32)>,
    terminal: Option<OwnedFd>,
    has_own_ipc: bool,
) -> ! {
    if let Err(reason) = run_init(program, link, ids, terminal, has_own_ipc) {
        let _ = rustix::net::send(link, &InitMessage::Refused(reason).encode(), SendFlags::NOSIGNAL);
    }
    penfold_sys::fork::exit_now(0)
}

fn run_init(
    program: &mut Program,
    link: &OwnedFd,
    ids: Option<(u32, u32)>,
    terminal: Option<OwnedFd>,
    has_own_ipc: bool,
) -> Result<(), String> {
    let failed = |act: &'static str| move |error: io::Error| format!("cannot {act}: {error}");
    // Set first, before any message: init must die with the supervisor.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot set the parent death signal: {error}"))?;
    let kept: Vec<_> =
        program.given().into_iter().chain([link.as_fd()]).chain(terminal.as_ref().map(AsFd::as_fd)).collect();
    penfold_sys::descriptors::make_room(&kept).map_err(failed("close descriptors"))?;
    if let Some(ids) = ids {
        map_user(ids).map_err(failed("map the user"))?;
    }
    mount_proc();
    if has_own_ipc {
        ipc::furnish_ipc_namespace()?;
    }
    let launched = launch_program(program, None, None).map_err(failed("clone a process"))?;
    if !launched.ready().map_err(failed("hear from the cloned process"))? {
        return Err("the cloned process died".to_owned());
    }
    send(link, &InitMessage::Ready)?;
    let mut go = [0_u8; RELEASE.len()];
    await_briefly(link.as_fd());
    if !matches!(rustix::net::recv(link, &mut go, RecvFlags::empty()), Ok((_, length)) if length == go.len())
    {
        return Ok(());
    }
    if let Some(terminal) = terminal {
        // This process stays in the caller's group: in an orphaned group nothing could be stopped, see setpgid(2).
        let _ = lead_foreground_group(&terminal, Some(launched.pid()));
    }
    launched.release().map_err(failed("start the command"))?;
    let _ = poll_or_pause(&mut [PollFd::from_borrowed_fd(launched.link(), PollFlags::IN)], None);
    let outcome = match launched.outcome() {
        Ok(Some(ReleaseResult::Failed(failure))) => InitMessage::Failed(failure),
        _ => InitMessage::Running,
    };
    send(link, &outcome)?;
    let leader = launched.pid();
    drop(launched);
    if penfold_sys::schedule::is_idle() {
        penfold_sys::schedule::leave_idle();
    }
    program.close_given();
    let _ = penfold_sys::descriptors::drop_inherited();
    penfold_sys::memory::drop_unneeded_pages();
    reap_for_ever(link, leader)
}

/// Reaps all children in the namespace and reports the leader's exit, until the supervisor, or its death, ends this
/// process. If init exited itself, its exit could be taken for the leader's.
fn reap_for_ever(link: &OwnedFd, leader: rustix::process::Pid) -> Result<(), String> {
    let signals = SignalFd::open(&SignalSet::of([CHILD])).map_err(|error| error.to_string())?;
    loop {
        while let PeekResult::Ended(pid, exit) = child::peek_child().map_err(|error| error.to_string())? {
            let _ = child::reap_child(pid);
            if pid == leader {
                send(link, &InitMessage::Ended(exit))?;
            }
        }
        send_stops(link, leader);
        let _ = poll_or_pause(&mut [PollFd::new(&signals, PollFlags::IN)], None);
        while let Ok(Some(_)) = signals.take() {}
    }
}

/// Reports that the leader was stopped or continued, which only its parent can see. Never blocks: a leader may stop and
/// continue without end.
fn send_stops(link: &OwnedFd, leader: rustix::process::Pid) {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
    while let Ok(Some(change)) = waitid(WaitId::Pid(leader), options) {
        let message = change.stopping_signal().map_or(InitMessage::Continued, InitMessage::Stopped);
        let _ = rustix::net::send(link, &message.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// The number of retries of a message for which the kernel has no memory, and the delay between them.
const MAX_SENDS: u32 = 100;
const RETRY_DELAY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Sends a message that the supervisor waits for.
///
/// # Errors
/// When the send fails for good. Then only the exit of init informs the supervisor.
fn send(link: &OwnedFd, message: &InitMessage) -> Result<(), String> {
    let text = message.encode();
    for _ in 0..MAX_SENDS {
        match rustix::net::send(link, &text, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INTR) => {
                let _ = rustix::thread::nanosleep(&RETRY_DELAY);
            }
            Err(errno) => return Err(format!("cannot reach the supervisor: {errno}")),
        }
    }
    Err("cannot reach the supervisor: no memory".to_owned())
}

/// Mounts a `/proc` of the namespace. If the host forbids it, the old `/proc` stays: wrong pids inside, but the end is
/// unaffected.
fn mount_proc() {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    if rustix::mount::mount_change("/", flags).is_ok() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let _ = rustix::mount::mount("proc", "/proc", "proc", flags, None);
    }
}
