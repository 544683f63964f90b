//! Many sleeping processes: children of one leader that exits on request.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use penfold_process::ProcFs;
use penfold_sys::{ForkSide, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::error::Error;
use crate::wait;

/// The argument that makes this program a leader: `bench VERB COUNT SECONDS|follow`.
pub(crate) const VERB: &str = "crowd-leader";

/// A member ends by itself after this time.
const LIFETIME: Duration = Duration::from_mins(3);

/// The program of the members, and their behaviour when their leader exits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterLeader {
    /// The members run sleep(1), and sleep on.
    Outlive,
    /// The members run this program, and exit.
    Follow,
}

/// The argument of the sleeping members that outlive their leader. The fraction is the pid of the benchmark.
fn seconds() -> String {
    format!("{}.{:07}", LIFETIME.as_secs(), std::process::id())
}

/// Counts the members that have outlived their leader, of all crowds of this process.
pub(crate) fn left(proc: &mut ProcFs) -> Result<usize, Error> {
    let mut pids = Vec::new();
    proc.processes(&mut pids).map_err(|source| Error::io("cannot list `/proc`", source))?;
    let line = format!("sleep {}", seconds());
    Ok(pids.into_iter().filter(|&pid| proc.command_line(pid).as_ref() == Some(&line)).count())
}

/// The command line of a leader; a tool that contains the leader takes it as arguments.
pub(crate) fn words(bench: &Path, count: u32, then: AfterLeader) -> [std::ffi::OsString; 4] {
    let then = if then == AfterLeader::Outlive { seconds() } else { "follow".to_owned() };
    [bench.into(), VERB.into(), count.to_string().into(), then.into()]
}

/// Runs a leader: it starts its members, reports that they stand, and exits on a byte or the end of its input.
pub(crate) fn lead(mut words: impl Iterator<Item = String>) -> Result<(), Error> {
    let count = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let sleeps = words.next().filter(|word| word != "follow");
    let cannot = |what: &'static str| move |source: io::Error| Error::io(what, source);
    let pipe =
        || pipe_with(PipeFlags::CLOEXEC).map_err(|errno| Error::io("cannot make a pipe", errno.into()));
    let (asleep, here) = pipe()?;
    let (leader_lives, leader) = pipe()?;
    for _ in 0..count {
        if fork().map_err(cannot("cannot fork"))? == ForkSide::Child {
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
    // Each member that runs this program writes one byte. The others write nothing: exec closes their ends of the pipe.
    let expected = if sleeps.is_some() { 0 } else { count };
    while heard < expected || sleeps.is_some() {
        let got = asleep.read(&mut buffer).map_err(cannot("cannot read from the members"))?;
        heard += u32::try_from(got).unwrap_or(u32::MAX);
        if got == 0 {
            break;
        }
    }
    if heard != expected {
        return Err(Error::odd("a member died early, or `sleep` cannot be run"));
    }
    io::stdout()
        .write_all(b"r")
        .and_then(|()| io::stdout().flush())
        .map_err(cannot("cannot report the start"))?;
    io::stdin().read(&mut buffer).map(drop).map_err(cannot("cannot read the request to exit"))
}

/// Runs a member that exits with its leader.
fn sleep(here: &OwnedFd, leader: &OwnedFd) -> ! {
    let _ = rustix::io::write(here, b"h");
    let limit = Timespec::try_from(LIFETIME).ok();
    let _ = poll(&mut [PollFd::new(leader, PollFlags::empty())], limit.as_ref());
    penfold_sys::fork::exit_now(0)
}

/// Runs a member that outlives its leader.
fn become_sleep(here: &OwnedFd, seconds: &str) -> ! {
    let _ = Command::new("sleep").arg(seconds).exec();
    let _ = rustix::io::write(here, b"h");
    penfold_sys::fork::exit_now(1)
}

/// A leader with its members, or a program that contains them.
///
/// When this value is dropped, the leader exits. So do all members, except uncontained ones that outlive their leader.
#[derive(Debug)]
pub(crate) struct Crowd {
    child: Child,
    over: bool,
}

impl Crowd {
    /// Starts `command`, which has the arguments of a leader, and waits until all members sleep.
    pub(crate) fn gather(command: &mut Command) -> Result<Crowd, Error> {
        Self::gather_by(command.stderr(Stdio::null()), Command::spawn)
    }

    /// As [`Crowd::gather`], with another way to spawn, and with the standard error of `command`.
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
            _ => Err(Error::odd(format!("`{name}` did not start the sleeping processes"))),
        }
    }

    /// Requests the leader's exit and waits until the started program has ended.
    pub(crate) fn dismiss(mut self) -> Result<ExitStatus, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<ExitStatus, Error> {
        // In any case the child is reaped after this, and the pid is no longer its own.
        self.over = true;
        self.tell();
        wait::exit(&mut self.child, "the end of a sandbox")
    }

    fn tell(&mut self) {
        if let Some(mut input) = self.child.stdin.take() {
            // A leader that has exited needs no request.
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
