//! Our init in a pid namespace: its pid 1, so that the kernel ends all when it ends, and nothing inside can reach it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use penfold_sys::child::{self, Peek};
use penfold_sys::launch::{Namespaces, Program, Released, launch};
use penfold_sys::signal::{SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::pidns_protocol::{InitMessage, RELEASE};
use crate::poll::poll;
use crate::signals::CHILD;

/// The namespaces that this user needs: an ordinary one may have the others only within a user namespace of its own.
pub(crate) fn wanted() -> Namespaces {
    Namespaces { pid: true, user: !rustix::process::geteuid().is_root() }
}

/// Runs our init. `ids` are the user and group outside, if it is in a user namespace of its own.
pub(crate) fn run(program: &mut Program, link: &OwnedFd, ids: Option<(u32, u32)>) -> ! {
    if let Err(reason) = live(program, link, ids) {
        let _ = rustix::net::send(link, &InitMessage::Refused(reason).encode(), SendFlags::NOSIGNAL);
    }
    penfold_sys::fork::exit_now(0)
}

fn live(program: &mut Program, link: &OwnedFd, ids: Option<(u32, u32)>) -> Result<(), String> {
    let told = |act: &'static str| move |error: io::Error| format!("cannot {act}: {error}");
    // First of all, and before the word that lets anything happen: the supervisor's death is ours.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot set the parent death signal: {error}"))?;
    let kept: Vec<_> = program.given().into_iter().chain([link.as_fd()]).collect();
    penfold_sys::descriptors::make_room(&kept).map_err(told("close descriptors"))?;
    if let Some(ids) = ids {
        map_user(ids).map_err(told("map the user"))?;
    }
    mount_proc();
    let launched = launch(program, None, None).map_err(told("clone a process"))?;
    if !launched.ready().map_err(told("hear from the cloned process"))? {
        return Err("the cloned process died".to_owned());
    }
    say(link, &InitMessage::Ready)?;
    let mut go = [0_u8; RELEASE.len()];
    if !matches!(rustix::net::recv(link, &mut go, RecvFlags::empty()), Ok((_, length)) if length == go.len())
    {
        return Ok(());
    }
    launched.release().map_err(told("start the command"))?;
    let _ = poll(&mut [PollFd::from_borrowed_fd(launched.link(), PollFlags::IN)], None);
    let came = match launched.outcome() {
        Ok(Some(Released::Failed(failure))) => InitMessage::Failed(failure),
        _ => InitMessage::Running,
    };
    say(link, &came)?;
    let leader = launched.pid();
    drop(launched);
    if penfold_sys::schedule::is_idle() {
        penfold_sys::schedule::leave_idle();
    }
    program.close_stdio();
    let _ = penfold_sys::descriptors::drop_inherited();
    penfold_sys::memory::drop_text_pages();
    reap_for_ever(link, leader)
}

/// Reaps whatever ends in the namespace and tells how the leader did, until the supervisor, or its death, ends us: an
/// exit of our own could be taken for the leader's.
fn reap_for_ever(link: &OwnedFd, leader: rustix::process::Pid) -> Result<(), String> {
    let signals = SignalFd::open(&SignalSet::of([CHILD])).map_err(|error| error.to_string())?;
    loop {
        while let Peek::Ended(pid, exit) = child::peek().map_err(|error| error.to_string())? {
            let _ = child::reap(pid);
            if pid == leader {
                say(link, &InitMessage::Ended(exit))?;
            }
        }
        tell_stops(link, leader);
        let _ = poll(&mut [PollFd::new(&signals, PollFlags::IN)], None);
        while let Ok(Some(_)) = signals.take() {}
    }
}

/// Tells that the leader was stopped, or goes on: only its parent hears of it. Without waiting, for a leader may do so without end.
fn tell_stops(link: &OwnedFd, leader: rustix::process::Pid) {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
    while let Ok(Some(change)) = waitid(WaitId::Pid(leader), options) {
        let message = change.stopping_signal().map_or(InitMessage::Continued, InitMessage::Stopped);
        let _ = rustix::net::send(link, &message.encode(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }
}

/// How often a message is sent again for which the kernel has no memory, and after how long.
const TRIES: u32 = 100;
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// Tells the supervisor something that it waits for.
///
/// # Errors
/// When it cannot be told: then only our own end tells it something.
fn say(link: &OwnedFd, message: &InitMessage) -> Result<(), String> {
    let text = message.encode();
    for _ in 0..TRIES {
        match rustix::net::send(link, &text, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::NOBUFS | Errno::NOMEM | Errno::AGAIN | Errno::INTR) => {
                let _ = rustix::thread::nanosleep(&PAUSE);
            }
            Err(errno) => return Err(format!("cannot reach the supervisor: {errno}")),
        }
    }
    Err("cannot reach the supervisor: no memory".to_owned())
}

/// Keeps the user and group ids what they were: `user_namespaces(7)`, "Defining user and group ID mappings".
fn map_user((user, group): (u32, u32)) -> io::Result<()> {
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Shows the namespace its own processes. A host that does not let us leaves the old /proc in place, which is ugly
/// inside and changes nothing about the end.
fn mount_proc() {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    if rustix::mount::mount_change("/", flags).is_ok() {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let _ = rustix::mount::mount("proc", "/proc", "proc", flags, None);
    }
}
