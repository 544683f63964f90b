//! The process below which a tree lives, and the owner between it and the tool.
//!
//! The kernel reparents every process that leaves the tree to the subreaper, which finds the process even if it hides
//! its environment. When its standard input ends, the subreaper ends all of them. If the test was killed, the input
//! ends without a byte before. Tests kill the owner.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::proc::{self, Identity};
use crate::sweep::sweep;
use penfold_sys::child::{Exit, PeekResult, peek_child, reap_child};
use penfold_sys::signal::{SignalFd, SignalSet, block_signals, set_mask};
use rustix::event::{PollFd, PollFlags};

const CHLD: i32 = 17;

/// The directory of a tree, and the owner's user and cgroup.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// Directory of the tree
    #[arg(long)]
    directory: PathBuf,
    /// Mark that every process of the tree carries
    #[arg(long)]
    cookie: String,
    /// Run owner and tool as this user
    #[arg(long)]
    user: Option<u32>,
    /// Run owner and tool in this cgroup
    #[arg(long)]
    cgroup: Option<PathBuf>,
    /// The tool and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn write(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let fresh = directory.join(format!("{name}.new"));
    fs::write(&fresh, text)?;
    fs::rename(fresh, directory.join(name))
}

/// Starts the owner, reaps, and ends everything when the test has finished or is gone.
pub(crate) fn subreaper(place: &Place) -> io::Result<bool> {
    let before = block_signals(&SignalSet::of([CHLD]))?;
    rustix::process::setpgid(None, None)?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // Trees that attack upwards must spare this process.
    write(&place.directory, "subreaper", &proc::this()?.id.to_string())?;
    let signals = SignalFd::open(&SignalSet::of([CHLD]))?;
    let mut owner = Command::new(std::env::current_exe()?);
    owner.arg("owner").args(std::env::args_os().skip(2)).stdin(Stdio::null());
    set_mask(&before)?;
    let owner = owner.spawn()?;
    block_signals(&SignalSet::of([CHLD]))?;
    let own = proc::this()?.id.pid;
    loop {
        // Before the first wait, too: a child may have ended while SIGCHLD had its default disposition.
        while signals.take()?.is_some() {}
        if reap_all(place, &owner) {
            // Exact, unlike a scan: descendants cannot leave a subreaper while it lives.
            write(&place.directory, "childless", "")?;
        }
        let stdin = rustix::stdio::stdin();
        let mut set = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match rustix::event::poll(&mut set, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !set[0].revents().is_empty() {
            break;
        }
    }
    let test_was_killed = rustix::io::read(rustix::stdio::stdin(), &mut [0])? == 0;
    write(&place.directory, "ready.end", "")?;
    let left = sweep(own, &place.cookie, Duration::from_secs(10), || reap_all(place, &owner));
    if !left.is_empty() {
        write(&place.directory, "left", &left.join("\n"))?;
    }
    if test_was_killed {
        // No other process removes these.
        place.cgroup.iter().for_each(|cgroup| crate::remove_delegated(cgroup));
        fs::remove_dir_all(&place.directory)?;
    }
    Ok(left.is_empty())
}

/// Reaps all ended children, and tells whether no child is left.
fn reap_all(place: &Place, owner: &Child) -> bool {
    loop {
        let (pid, exit) = match peek_child() {
            Ok(PeekResult::Ended(pid, exit)) => (pid, exit),
            Ok(PeekResult::NoChild) => return true,
            Ok(PeekResult::NoneEnded) | Err(_) => return false,
        };
        let pid_number = pid.as_raw_nonzero().get();
        // If its owner dies first, the tool becomes a child of the subreaper.
        if u32::try_from(pid_number) != Ok(owner.id()) && tool(place).is_some_and(|id| id.pid == pid_number) {
            drop(write(&place.directory, "tool-exit", &told(exit)));
        }
        if reap_child(pid).is_err() {
            return false;
        }
    }
}

fn tool(place: &Place) -> Option<Identity> {
    fs::read_to_string(place.directory.join("tool")).ok()?.trim().parse().ok()
}

fn told(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("code {code}"),
        Exit::Signal(signal) => format!("signal {signal}"),
    }
}

fn told_status(status: ExitStatus) -> String {
    told(match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    })
}

/// Starts the tool and writes down how the tool ended.
pub(crate) fn owner(place: &Place) -> io::Result<()> {
    if let Some(cgroup) = &place.cgroup {
        fs::write(cgroup.join("cgroup.procs"), "0")?;
    }
    if let Some(user) = place.user {
        // Starts this program again as that user, with the rest of the arguments.
        let mut again = Command::new(std::env::current_exe()?);
        again.arg("owner").arg("--directory").arg(&place.directory).arg("--cookie").arg(&place.cookie);
        return Err(again.arg("--").args(&place.command).uid(user).gid(user).exec());
    }
    rustix::process::setpgid(None, None)?;
    write(&place.directory, "owner", &proc::this()?.id.to_string())?;
    let (program, arguments) = place.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).env("TESTKIT_COOKIE", &place.cookie);
    for (key, name) in [("stdout", "tool.out"), ("stderr", "tool.err")] {
        let file = fs::File::create(place.directory.join(name))?;
        if key == "stdout" {
            command.stdout(file)
        } else {
            command.stderr(file)
        };
    }
    let mut tool = match command.spawn() {
        Ok(tool) => tool,
        Err(error) => return write(&place.directory, "tool-exit", &format!("unstarted {error}")),
    };
    let pid = i32::try_from(tool.id()).unwrap_or(0);
    if let Some(stat) = proc::stat(pid) {
        write(&place.directory, "tool", &stat.id.to_string())?;
    }
    let status = tool.wait()?;
    write(&place.directory, "tool-exit", &told_status(status))
}
