//! The start of the leader: cloned into its place, checked, and only then let go.

mod watch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use penfold_cgroup::Leaf;
use penfold_process::Pid;
use penfold_sys::Forked;
use penfold_sys::launch::{Failure, Launch, Released, Step, launch};
use penfold_teardown::Level;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::outcome::{ExitStatus, StartFailure};
use crate::pidns;
use crate::pidns_protocol::{InitMessage, LONGEST, RELEASE};
use crate::poll::poll;
use crate::prepared::Prepared;
use crate::setup::Setup;

pub(crate) use self::watch::{Interruption, NotStarted, Watch};

/// How long a child that was killed before it became anything may take to die.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// A leader that waits to be let go, or is on its way to become its program.
#[derive(Debug)]
pub(crate) enum Starting {
    /// It is a child of this process.
    Direct(Launch),
    /// It is a child of our init in a pid namespace, which speaks for it.
    Namespaced {
        /// Our init.
        init: Pid,
        /// The link to it.
        link: OwnedFd,
    },
}

/// News of a leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// It runs its program.
    Running,
    /// It could not become its program.
    Failed(StartFailure),
    /// It has ended; only our init tells it this way.
    Ended(ExitStatus),
    /// It was stopped, by this signal; of our init, too.
    Stopped(i32),
    /// It goes on; of our init, too.
    Continued,
}

/// How a leader gets into its leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Join {
    /// It is born there (`CLONE_INTO_CGROUP`).
    Born,
    /// It writes itself there: for kernels without the other way, or with the trap in it.
    Written,
}

/// Clones the leader into its leaf and namespaces. It waits there.
pub(crate) fn clone(
    setup: &mut Setup,
    leaf: Option<&Leaf>,
    level: Level,
    join: Join,
) -> Result<Starting, StartFailure> {
    if level == Level::Pidns {
        return clone_namespaced(setup, leaf);
    }
    if let (Some(leaf), Join::Born) = (leaf, join)
        && let Ok(launched) = launch(&mut setup.program, Some(leaf.dir()), None)
    {
        return Ok(Starting::Direct(launched));
    }
    let written =
        leaf.map(Leaf::processes_file).transpose().map_err(|error| other("open the cgroup", &error))?;
    launch(&mut setup.program, None, written.as_ref().map(AsFd::as_fd))
        .map(Starting::Direct)
        .map_err(|error| other("clone a process", &error))
}

/// Whether the leader waits for its word and really is in the leaf, by what the kernel says of it.
///
/// # Errors
/// Why nothing can be started, or what happened before the leader came to its wait.
pub(crate) fn joined(
    starting: &Starting,
    prepared: &mut Prepared,
    watch: &mut Watch<'_>,
) -> Result<bool, NotStarted> {
    let mut inside = true;
    if let (Some(leaf), Some(proc)) = (&prepared.leaf, &mut prepared.proc) {
        let text = proc
            .cgroups(starting.pid())
            .map_err(|error| other("see which cgroup the command is in", &error))?;
        // First the look, which gives the leader time to come to its wait.
        inside = text.is_some_and(|text| leaf.holds(&text));
    }
    if !stands(starting, prepared, watch)? {
        return Ok(false);
    }
    if let (false, Some(leaf), Some(proc)) = (inside, &prepared.leaf, &mut prepared.proc) {
        // It has just written itself there, if it was to.
        inside = proc.cgroups(starting.pid()).ok().flatten().is_some_and(|text| leaf.holds(&text));
    }
    Ok(inside)
}

/// Whether the leader waits for its word; false if it died before, or could not write itself into its leaf.
///
/// # Errors
/// Why nothing can be started, or what happened before the leader came to its wait.
pub(crate) fn stands(
    starting: &Starting,
    prepared: &Prepared,
    watch: &mut Watch<'_>,
) -> Result<bool, NotStarted> {
    watch.until_readable(&prepared.setup, starting.link())?;
    match starting {
        Starting::Direct(launched) => Ok(launched.ready().unwrap_or(false)),
        Starting::Namespaced { .. } => match starting.hear() {
            Ok(Some(InitMessage::Ready)) => Ok(true),
            Ok(Some(InitMessage::Refused(reason))) => Err(StartFailure::Other(reason).into()),
            _ => Ok(false),
        },
    }
}

fn clone_namespaced(setup: &mut Setup, leaf: Option<&Leaf>) -> Result<Starting, StartFailure> {
    let (link, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|error| other("make a socket pair", &error))?;
    let namespaces = pidns::wanted();
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let cloned = penfold_sys::launch::clone_process(namespaces, leaf.map(|leaf| leaf.dir()));
    match cloned.map_err(|error| other("make a pid namespace", &error))? {
        Forked::Child => {
            drop(link);
            pidns::run(&mut setup.program, &theirs, namespaces.user.then_some(ids))
        }
        Forked::Parent(init) => {
            drop(theirs);
            Ok(Starting::Namespaced { init, link })
        }
    }
}

fn other(act: &str, error: &dyn std::fmt::Display) -> StartFailure {
    StartFailure::Other(format!("cannot {act}: {error}"))
}

impl Starting {
    /// The child of this process that is, or stands for, the leader.
    pub(crate) fn pid(&self) -> Pid {
        match self {
            Starting::Direct(launched) => launched.pid(),
            Starting::Namespaced { init, .. } => *init,
        }
    }

    /// A handle to it, if it is a child of this process.
    pub(crate) fn pidfd(&self) -> Option<OwnedFd> {
        match self {
            Starting::Direct(launched) => launched.pidfd().try_clone_to_owned().ok(),
            Starting::Namespaced { .. } => None,
        }
    }

    /// Ends and reaps a child that never became anything. One that does not die in time is left to the teardown.
    pub(crate) fn reap(self) {
        let pid = self.pid();
        let pidfd = self.pidfd().or_else(|| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Closing its link ends it, but not while it is stopped or frozen.
        drop(self);
        let Some(pidfd) = pidfd else { return };
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        let timeout = Timespec::try_from(REAP_TIMEOUT).ok();
        let _ = retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], timeout.as_ref()));
        let _ = penfold_sys::child::reap(pid);
    }

    /// Lets it become its program.
    pub(crate) fn release(&self) -> io::Result<()> {
        match self {
            Starting::Direct(launched) => launched.release(),
            Starting::Namespaced { link, .. } => {
                rustix::net::send(link, RELEASE, SendFlags::NOSIGNAL)?;
                Ok(())
            }
        }
    }

    /// What to poll for news.
    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        match self {
            Starting::Direct(launched) => launched.link(),
            Starting::Namespaced { link, .. } => link.as_fd(),
        }
    }

    /// The news, if there is any.
    pub(crate) fn news(&self) -> io::Result<Option<News>> {
        match self {
            Starting::Direct(launched) => Ok(launched.outcome()?.map(|released| match released {
                Released::Running => News::Running,
                Released::Failed(failure) => News::Failed(explain(failure)),
            })),
            Starting::Namespaced { .. } => Ok(self.hear()?.and_then(|message| match message {
                InitMessage::Running => Some(News::Running),
                InitMessage::Failed(failure) => Some(News::Failed(explain(failure))),
                InitMessage::Ended(exit) => Some(News::Ended(exit.into())),
                InitMessage::Stopped(signal) => Some(News::Stopped(signal)),
                InitMessage::Continued => Some(News::Continued),
                InitMessage::Ready | InitMessage::Refused(_) => None,
            })),
        }
    }

    /// What our init has said, if there is one and it has.
    fn hear(&self) -> io::Result<Option<InitMessage>> {
        let Starting::Namespaced { link, .. } = self else { return Ok(None) };
        let mut text = [0_u8; LONGEST];
        let mut receive = || rustix::net::recv(link, &mut text, RecvFlags::DONTWAIT);
        // Who dies without having read all makes an error here, which comes before what it has said, and once.
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

fn explain(failure: Failure) -> StartFailure {
    match failure.step {
        Step::Directory => StartFailure::Directory(failure.errno),
        Step::Signals => StartFailure::Other("cannot set the signal mask of the command".to_owned()),
        Step::Descriptors => {
            let error = io::Error::from_raw_os_error(failure.errno);
            StartFailure::Other(format!("cannot give the command its own input and output: {error}"))
        }
        Step::Exec if failure.errno == rustix::io::Errno::NOENT.raw_os_error() => StartFailure::NotFound,
        Step::Exec => StartFailure::NotExecutable(failure.errno),
    }
}
