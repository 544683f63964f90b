//! Many sleeping processes: children of one leader that exits when it is told to.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use penfold_process::ProcFs;
use penfold_sys::{Forked, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::Error;
use crate::wait;

/// The word that makes this program a leader: `bench VERB COUNT SECONDS|follow`.
pub(crate) const VERB: &str = "crowd-leader";

/// A member that everybody forgot ends by itself.
const LIFETIME: Duration = Duration::from_mins(3);

/// What the members are, and do when their leader exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// They are programs, sleep(1), and sleep on.
    Outlive,
    /// They are this program, and exit.
    Follow,
}

/// How long those sleep that outlive their leader: by the fraction it is seen whose they are.
fn seconds() -> String {
    format!("{}.{:07}", LIFETIME.as_secs(), std::process::id())
}

/// How many are left of the crowds of this process whose members outlive their leader.
pub(crate) fn left(proc: &mut ProcFs) -> Result<usize, Error> {
    let mut pids = Vec::new();
    proc.processes(&mut pids).map_err(|source| Error::io("cannot list `/proc`", source))?;
    let line = format!("sleep {}", seconds());
    Ok(pids.into_iter().filter(|&pid| proc.command_line(pid).as_ref() == Some(&line)).count())
}

/// The words that start a leader: to be run as they are, or by what contains them.
pub(crate) fn words(bench: &Path, count: u32, then: Then) -> [std::ffi::OsString; 4] {
    let then = if then == Then::Outlive { seconds() } else { "follow".to_owned() };
    [bench.into(), VERB.into(), count.to_string().into(), then.into()]
}

/// A leader's life: starts its members, says so, exits when its input has a byte or is at its end.
pub(crate) fn lead(mut words: impl Iterator<Item = String>) -> Result<(), Error> {
    let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let sleeps = words.next().filter(|word| word != "follow");
    let cannot = |what: &'static str| move |source: io::Error| Error::io(what, source);
    let pipe =
        || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Error::io("cannot make a pipe", errno.into()));
    let (asleep, here) = pipe()?;
    let (leader_lives, leader) = pipe()?;
    for _ in 0..count {
        if fork().map_err(cannot("cannot fork"))? == Forked::Child {
            if let Some(seconds) = &sleeps {
                become_sleep(&here, seconds);
            }
            drop(leader);
            sleep(&here, &leader_lives);
        }
    }
    drop(here);
    let mut asleep = File::from(asleep);
    let mut heard = 0_u32;
    let mut buffer = [0; 4096];
    // Each of this program says one byte. The others say nothing, and their ends of the pipe are closed as they begin.
    let expected = if sleeps.is_some() { 0 } else { count };
    while heard < expected || sleeps.is_some() {
        let got = asleep.read(&mut buffer).map_err(cannot("cannot hear of the members"))?;
        heard += u32::try_from(got).unwrap_or(u32::MAX);
        if got == 0 {
            break;
        }
    }
    if heard != expected {
        return Err(Error::odd("a member died early, or `sleep` cannot be run"));
    }
    io::stdout().write_all(b"r").and_then(|()| io::stdout().flush()).map_err(cannot("cannot say so"))?;
    io::stdin().read(&mut buffer).map(drop).map_err(cannot("cannot hear when to exit"))
}

/// The life of a member that goes with its leader.
fn sleep(here: &OwnedFd, leader: &OwnedFd) -> ! {
    let _ = rustix::io::write(here, b"h");
    let limit = Timespec::try_from(LIFETIME).ok();
    let _ = poll(&mut [PollFd::new(leader, PollFlags::empty())], limit.as_ref());
    penfold_sys::fork::exit_now(0)
}

/// The life of a member that outlives its leader.
fn become_sleep(here: &OwnedFd, seconds: &str) -> ! {
    let _ = Command::new("sleep").arg(seconds).exec();
    let _ = rustix::io::write(here, b"h");
    penfold_sys::fork::exit_now(1)
}

/// A leader with its members, or a program that contains them.
///
/// Dropping it tells the leader to exit, which ends all but those that outlive it and are not contained.
#[derive(Debug)]
pub(crate) struct Crowd {
    child: Child,
    over: bool,
}

impl Crowd {
    /// Starts `command`, which has the words of a leader, and waits until all members sleep.
    pub(crate) fn gather(command: &mut Command) -> Result<Crowd, Error> {
        Self::gather_by(command.stderr(Stdio::null()), Command::spawn)
    }

    /// As [`Crowd::gather`], started in a way of its own and with the standard error that it has.
    pub(crate) fn gather_by(
        command: &mut Command,
        spawn: impl FnOnce(&mut Command) -> io::Result<Child>,
    ) -> Result<Crowd, Error> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let name = command.get_program().to_string_lossy().into_owned();
        let child = spawn(command).map_err(|source| Error::io(format!("cannot run `{name}`"), source))?;
        let mut crowd = Crowd { child, over: false };
        let Some(out) = &mut crowd.child.stdout else { return Err(Error::odd("there is no pipe")) };
        if !wait::readable(&*out, wait::LIMIT) {
            return Err(wait::late("starting sleeping processes"));
        }
        let mut word = [0];
        match out.read(&mut word) {
            Ok(1) => Ok(crowd),
            _ => Err(Error::odd(format!("`{name}` did not start the processes that were to sleep"))),
        }
    }

    /// Tells the leader to exit and waits until what was started is over.
    pub(crate) fn dismiss(mut self) -> Result<ExitStatus, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<ExitStatus, Error> {
        // Whatever comes of it, the child is reaped and its pid no longer its own.
        self.over = true;
        self.tell();
        wait::exit(&mut self.child, "the end of a sandbox")
    }

    fn tell(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            // A leader that is gone already needs no word.
            let _ = input.write_all(b"x");
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        if !self.over {
            let _ = self.end();
        }
    }
}
