//! The start of the leader: cloned into its leaf, verified, and only then released.

mod watch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use penfold_cgroup::Leaf;
use penfold_process::Pid;
use penfold_sys::launch::{Launch, LaunchFailure, LaunchStep, ReleaseResult, launch_program};
use penfold_sys::{ForkSide, schedule};
use penfold_teardown::Level;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::outcome::{ExitStatus, StartFailure};
use crate::pidns;
use crate::pidns_protocol::{InitMessage, MAX_MESSAGE_BYTES, RELEASE};
use crate::poll::poll_or_pause;
use crate::sandbox_parts::SandboxParts;
use crate::setup::Setup;
use crate::terminal::own_group::open_for_shell;

pub(crate) use self::watch::{Interruption, LaunchWatch, ReleaseError};

/// The time that an unused child may take to die of SIGKILL.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// A leader that waits for its release, or is about to call execve(2).
#[derive(Debug)]
pub(crate) enum PendingLeader {
    /// The leader is a child of this process.
    Direct(Launch),
    /// The leader is a child of our init in a pid namespace, which reports its state.
    Namespaced {
        /// The pid of our init.
        init: Pid,
        /// The socket to our init.
        link: OwnedFd,
    },
}

/// A change in the state of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LeaderEvent {
    /// The leader executes its program.
    Running,
    /// The leader could not execute its program.
    Failed(StartFailure),
    /// The leader has ended; reported by our init only.
    Ended(ExitStatus),
    /// The leader was stopped by this signal; reported by our init.
    Stopped(i32),
    /// The leader was continued; reported by our init.
    Continued,
}

/// The way in which a leader joins its leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinMethod {
    /// By clone3(2) with `CLONE_INTO_CGROUP`.
    CloneIntoCgroup,
    /// By a write to `cgroup.procs`: for kernels without `CLONE_INTO_CGROUP`, and for cgroups that were killed once.
    CgroupProcs,
}

/// Clones the leader into its leaf and namespaces. It waits there for its release.
pub(crate) fn clone_leader(
    setup: &mut Setup,
    leaf: Option<&Leaf>,
    level: Level,
    join: JoinMethod,
) -> Result<PendingLeader, StartFailure> {
    if level == Level::Pidns {
        return clone_namespaced(setup, leaf);
    }
    if let (Some(leaf), JoinMethod::CloneIntoCgroup) = (leaf, join)
        && let Ok(launched) = launch_program(&mut setup.program, Some(leaf.dir()), None)
    {
        return Ok(PendingLeader::Direct(launched));
    }
    let written =
        leaf.map(Leaf::processes_file).transpose().map_err(|error| other("open the cgroup", &error))?;
    launch_program(&mut setup.program, None, written.as_ref().map(AsFd::as_fd))
        .map(PendingLeader::Direct)
        .map_err(|error| {
            other(if setup.program.has_jail() { "enter the jail" } else { "clone a process" }, &error)
        })
}

/// Tells whether the leader is ready and `/proc/PID/cgroup` shows it in the leaf.
///
/// # Errors
/// When nothing can be started, or the launch was interrupted before the leader was ready.
pub(crate) fn is_in_leaf(
    starting: &PendingLeader,
    parts: &mut SandboxParts,
    watch: &mut LaunchWatch<'_>,
) -> Result<bool, ReleaseError> {
    let mut inside = true;
    if let (Some(leaf), Some(proc)) = (&parts.leaf, &mut parts.proc) {
        let text = proc
            .cgroups(starting.pid())
            .map_err(|error| other("see which cgroup the command is in", &error))?;
        // The read of `/proc` comes first; meanwhile the leader reaches its wait.
        inside = text.is_some_and(|text| leaf.holds(&text));
    }
    if !is_ready(starting, parts, watch)? {
        return Ok(false);
    }
    if let (false, Some(leaf), Some(proc)) = (inside, &parts.leaf, &mut parts.proc) {
        // With [`JoinMethod::CgroupProcs`] the leader has joined only now.
        inside = proc.cgroups(starting.pid()).ok().flatten().is_some_and(|text| leaf.holds(&text));
    }
    Ok(inside)
}

/// Tells whether the leader is ready; false if it died before, or could not join its leaf.
///
/// # Errors
/// When nothing can be started, or the launch was interrupted before the leader was ready.
pub(crate) fn is_ready(
    starting: &PendingLeader,
    parts: &SandboxParts,
    watch: &mut LaunchWatch<'_>,
) -> Result<bool, ReleaseError> {
    schedule::await_briefly(starting.link());
    watch.until_readable(&parts.setup, starting.link())?;
    match starting {
        PendingLeader::Direct(launched) => Ok(launched.ready().unwrap_or(false)),
        PendingLeader::Namespaced { .. } => match starting.recv() {
            Ok(Some(InitMessage::Ready)) => Ok(true),
            Ok(Some(InitMessage::Refused(reason))) => Err(StartFailure::Other(reason).into()),
            _ => Ok(false),
        },
    }
}

fn clone_namespaced(setup: &mut Setup, leaf: Option<&Leaf>) -> Result<PendingLeader, StartFailure> {
    let (link, other_end) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| other("make a socket pair", &error))?;
    let namespaces = pidns::namespaces_to_create();
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // In a jail, the end inside does that.
    let has_keys = setup.keys && setup.spec.jail.is_none();
    let terminal = has_keys.then(|| open_for_shell(&setup.spec.command, setup.group)).flatten();
    let cloned = penfold_sys::launch::clone_process(namespaces, leaf.map(|leaf| leaf.dir()));
    match cloned.map_err(|error| other("make a pid namespace", &error))? {
        ForkSide::Child => {
            drop(link);
            let ids = namespaces.user.then_some(ids);
            pidns::run_namespace_init(&mut setup.program, &other_end, ids, terminal, setup.spec.has_own_ipc())
        }
        ForkSide::Parent(init) => {
            drop(other_end);
            Ok(PendingLeader::Namespaced { init, link })
        }
    }
}

fn other(act: &str, error: &dyn std::fmt::Display) -> StartFailure {
    StartFailure::Other(format!("cannot {act}: {error}"))
}

impl PendingLeader {
    /// Returns the pid of the child that is the leader, or of our init.
    pub(crate) fn pid(&self) -> Pid {
        match self {
            PendingLeader::Direct(launched) => launched.pid(),
            PendingLeader::Namespaced { init, .. } => *init,
        }
    }

    /// Returns a pidfd of the leader, if it is a child of this process.
    pub(crate) fn pidfd(&self) -> Option<OwnedFd> {
        match self {
            PendingLeader::Direct(launched) => launched.pidfd().try_clone_to_owned().ok(),
            PendingLeader::Namespaced { .. } => None,
        }
    }

    /// Kills and reaps a child that was never released. A child that does not die in time is left to the teardown.
    pub(crate) fn reap(self) {
        let pid = self.pid();
        let pidfd = self.pidfd().or_else(|| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Closing the link ends the child, unless it is stopped or frozen.
        drop(self);
        let Some(pidfd) = pidfd else { return };
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        let timeout = Timespec::try_from(REAP_TIMEOUT).ok();
        let _ = retry_on_intr(|| poll_or_pause(&mut [PollFd::new(&pidfd, PollFlags::IN)], timeout.as_ref()));
        let _ = penfold_sys::child::reap_child(pid);
    }

    /// Releases the leader to call execve(2).
    pub(crate) fn release(&self) -> io::Result<()> {
        match self {
            PendingLeader::Direct(launched) => launched.release()?,
            PendingLeader::Namespaced { link, .. } => {
                rustix::net::send(link, RELEASE, SendFlags::NOSIGNAL)?;
            }
        }
        // The process that was released may wait for this processor.
        rustix::thread::sched_yield();
        Ok(())
    }

    /// Returns the descriptor to poll for events of the leader.
    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        match self {
            PendingLeader::Direct(launched) => launched.link(),
            PendingLeader::Namespaced { link, .. } => link.as_fd(),
        }
    }

    /// Returns the next event of the leader, if there is one.
    pub(crate) fn event(&self) -> io::Result<Option<LeaderEvent>> {
        match self {
            PendingLeader::Direct(launched) => Ok(launched.outcome()?.map(|released| match released {
                ReleaseResult::Running => LeaderEvent::Running,
                ReleaseResult::Failed(failure) => LeaderEvent::Failed(explain(failure)),
            })),
            PendingLeader::Namespaced { .. } => Ok(self.recv()?.and_then(|message| match message {
                InitMessage::Running => Some(LeaderEvent::Running),
                InitMessage::Failed(failure) => Some(LeaderEvent::Failed(explain(failure))),
                InitMessage::Ended(exit) => Some(LeaderEvent::Ended(exit.into())),
                InitMessage::Stopped(signal) => Some(LeaderEvent::Stopped(signal)),
                InitMessage::Continued => Some(LeaderEvent::Continued),
                InitMessage::Ready | InitMessage::Refused(_) => None,
            })),
        }
    }

    /// Receives a message of our init, if there is an init and a message.
    fn recv(&self) -> io::Result<Option<InitMessage>> {
        let PendingLeader::Namespaced { link, .. } = self else { return Ok(None) };
        let mut text = [0_u8; MAX_MESSAGE_BYTES];
        let mut receive = || rustix::net::recv(link, &mut text, RecvFlags::DONTWAIT);
        // A peer that dies with unread messages causes one ECONNRESET, before its own queued messages can be read.
        let received = match receive() {
            Err(rustix::io::Errno::CONNRESET) => receive(),
            other => other,
        };
        match received {
            Err(rustix::io::Errno::AGAIN) => Ok(None),
            Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, length)) => Ok(InitMessage::decode(text.get(..length).unwrap_or_default())),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn explain(failure: LaunchFailure) -> StartFailure {
    match failure.step {
        LaunchStep::Directory => StartFailure::Directory(failure.errno),
        LaunchStep::Network => {
            let error = io::Error::from_raw_os_error(failure.errno);
            StartFailure::Other(format!("the command cannot enter its network namespace: {error}"))
        }
        LaunchStep::Ipc => {
            let error = io::Error::from_raw_os_error(failure.errno);
            StartFailure::Other(format!("the command cannot enter its IPC namespace: {error}"))
        }
        LaunchStep::User => {
            let error = io::Error::from_raw_os_error(failure.errno);
            StartFailure::Other(format!("the command cannot become its user: {error}"))
        }
        LaunchStep::Jail => {
            let error = io::Error::from_raw_os_error(failure.errno);
            StartFailure::Other(format!("the command cannot give up the rights that its jail lacks: {error}"))
        }
        LaunchStep::Signals => StartFailure::Other("cannot set the signal mask of the command".to_owned()),
        LaunchStep::Descriptors => {
            let error = io::Error::from_raw_os_error(failure.errno);
            StartFailure::Other(format!("cannot give the command its own input and output: {error}"))
        }
        LaunchStep::Exec if failure.errno == rustix::io::Errno::NOENT.raw_os_error() => {
            StartFailure::NotFound
        }
        LaunchStep::Exec => StartFailure::NotExecutable(failure.errno),
    }
}
