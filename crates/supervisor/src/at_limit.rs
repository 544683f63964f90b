//! Describes the processes that run when a time limit is reached.
//!
//! A look at a process can hang: its command line and environment are behind the lock of its memory, and its files may be on a server that
//! does not answer. So a child looks, and the supervisor waits for it a short time only.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_cgroup::Leaf;
use penfold_process::{Listeners, Pid, ProcFs, Stat};
use penfold_state::DescribedProcess;
use penfold_sys::fork::{ForkSide, exit_now, fork};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::ipc::end_child;
use crate::left_behind::describe_process;
use crate::poll::poll_or_pause;

/// The most processes that are described, and the most ports of one.
const DESCRIBED: usize = 8;
/// The time that the end waits for the descriptions.
const PATIENCE: Duration = Duration::from_millis(100);
/// The most bytes of a message.
const MESSAGE: usize = 128 << 10;

/// Describes the youngest of the members without living children, the youngest first. penfold's own processes are left out. What cannot be
/// looked at in time is named only; without a child that looks, nothing is.
pub(crate) fn running(leaf: Option<&Path>) -> Vec<DescribedProcess> {
    let this = rustix::process::getpid();
    let pair =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let Ok((link, child_link)) = pair else { return Vec::new() };
    let child = match fork() {
        Ok(ForkSide::Child) => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            // The lock of the sandbox above all: a child that hangs would keep it.
            if penfold_sys::descriptors::keep_only(&[child_link.as_fd()]).is_ok() {
                look(leaf, this, &child_link);
            }
            exit_now(0)
        }
        Ok(ForkSide::Parent(child)) => child,
        Err(_) => return Vec::new(),
    };
    drop(child_link);
    let found = hear(&link);
    end_child(child);
    found
}

/// Receives the descriptions: first names, then all. The last that come in time count.
fn hear(link: &OwnedFd) -> Vec<DescribedProcess> {
    let until = Instant::now() + PATIENCE;
    let mut message = vec![0; MESSAGE];
    let mut found = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok();
        let _ = poll_or_pause(&mut [PollFd::new(link, PollFlags::IN)], timeout.as_ref());
        match rustix::net::recv(link, message.as_mut_slice(), RecvFlags::DONTWAIT) {
            Ok((_, length @ 1..)) => {
                let text = message.get(..length).unwrap_or_default();
                found = serde_json::from_slice(text).unwrap_or(found);
            }
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) if !left.is_zero() => {}
            // The end, or too late.
            _ => return found,
        }
    }
}

/// Looks at the members, and sends what is found.
fn look(leaf: Option<&Path>, supervisor: Pid, link: &OwnedFd) {
    let Ok(mut proc) = ProcFs::open() else { return };
    let send = |found: &[DescribedProcess]| {
        let text = serde_json::to_vec(found).unwrap_or_default();
        let _ = rustix::net::send(link, &text, SendFlags::NOSIGNAL);
    };
    let mut members = members(&mut proc, leaf, supervisor);
    let own = proc.program(supervisor);
    members.retain(|stat| !stat.is_dead() && (own.is_none() || proc.program(stat.pid) != own));
    let parents: HashSet<_> = members.iter().filter_map(|stat| stat.parent).collect();
    members.retain(|stat| !parents.contains(&stat.pid));
    members.sort_by_key(|stat| Reverse((stat.id().start, stat.pid.as_raw_pid())));
    members.truncate(DESCRIBED);
    let name = |stat: &Stat| {
        DescribedProcess::named(stat.pid.as_raw_pid(), stat.id().start.0, format!("[{}]", stat.comm))
    };
    send(&members.iter().map(name).collect::<Vec<_>>());
    let mut listeners = Listeners::default();
    let describe = |stat: &Stat| {
        let mut described = describe_process(&mut proc, &mut listeners, stat);
        described.ports.truncate(DESCRIBED);
        described
    };
    send(&members.iter().map(describe).collect::<Vec<_>>());
}

/// Lists the members of a leaf, execs included; without one, the descendants of the supervisor.
fn members(proc: &mut ProcFs, leaf: Option<&Path>, supervisor: Pid) -> Vec<Stat> {
    let mut found = Vec::new();
    let Some(Ok(Some(leaf))) = leaf.map(Leaf::open) else {
        let _ = proc.descendants(supervisor, &mut found);
        return found;
    };
    let mut pids = Vec::new();
    let _ = leaf.processes(&mut pids);
    found.extend(pids.into_iter().filter_map(|pid| proc.stat(pid).ok().flatten()));
    found
}
