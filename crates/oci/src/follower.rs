//! A process beside the delegate's, for what comes after it: the delegate takes the place of the process that the engine started, so its
//! signals, streams and exit code are those of the delegate alone. Where an `exec` only starts a command, the delegate is a child.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, Process, pid_from_raw};
use penfold_sys::fork::exit_now;
use penfold_sys::{ForkSide, crash_point, descriptors, title};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, WaitOptions, getpid, getppid, pidfd_open, waitpid};

use crate::members::ContainerMembers;
use crate::news::ENDED;
use crate::runtime::{Runtime, words_of};

/// The time in which members must die.
const PATIENCE: Duration = Duration::from_secs(10);

/// The time between two looks for the pid of a command that is being started.
const LOOK: Duration = Duration::from_millis(5);

/// What a follower does after the delegate.
pub(crate) enum FollowerTask {
    /// It ends what is left in these cgroups.
    Exec {
        /// The cgroups of the command.
        leaves: BTreeSet<PathBuf>,
        /// The file to which the delegate writes the pid of the command.
        pid_file: PathBuf,
    },
    /// It ends other containers whose `delete` was refused.
    Refused,
    /// It removes the note with this token.
    Run {
        /// The token of the container.
        token: String,
    },
}

/// Starts a follower of this process, which is no child of it.
///
/// # Errors
/// When a process cannot be made; then there is none.
pub(crate) fn fork_follower(runtime: Runtime, followed: FollowerTask) -> io::Result<()> {
    let delegate = pidfd_open(getpid(), PidfdFlags::empty())?;
    // The parent may be in another pid namespace.
    let caller = getppid().and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    match penfold_sys::fork()? {
        ForkSide::Parent(pid) => {
            let made = match rustix::io::retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty())) {
                Ok(status) => status.is_some_and(|(_, status)| status.exit_status() == Some(0)),
                // The caller ignores SIGCHLD: nobody knows the status.
                Err(Errno::CHILD) => true,
                Err(errno) => return Err(errno.into()),
            };
            if made { Ok(()) } else { Err(io::Error::other("no process can be made")) }
        }
        ForkSide::Child => {
            // The session keeps signals to the engine's process group away.
            let _ = rustix::process::setsid();
            match penfold_sys::fork() {
                Ok(ForkSide::Child) => follow(runtime.begin_again(), followed, &delegate, caller.as_ref()),
                Ok(ForkSide::Parent(_)) => exit_now(0),
                Err(_) => exit_now(1),
            }
        }
    }
}

fn follow(runtime: Runtime, followed: FollowerTask, delegate: &OwnedFd, caller: Option<&OwnedFd>) -> ! {
    let mut kept = vec![delegate.as_fd()];
    kept.extend(caller.map(|caller| caller.as_fd()));
    // The reader of a stream sees its end only once no copy is open. A directory that is in use cannot be unmounted.
    let closed = descriptors::drop_streams().and_then(|()| descriptors::keep_only(&kept));
    if closed.is_err() || rustix::process::chdir("/").is_err() {
        exit_now(1);
    }
    title::set_title(c"penfold-oci", &[&runtime.words.verb, &runtime.words.id]);
    let done = match followed {
        FollowerTask::Exec { leaves, pid_file } => {
            let waits = ExecWait { pid_file, detached: runtime.words.detach, delegate, caller };
            after_exec(&runtime, leaves, &waits)
        }
        FollowerTask::Refused => {
            runtime.complete_refused();
            Ok(())
        }
        FollowerTask::Run { token } => after_run(runtime, &token, delegate),
    };
    exit_now(i32::from(done.is_err()))
}

/// What the follower of an `exec` waits for.
struct ExecWait<'a> {
    pid_file: PathBuf,
    /// Whether the delegate ends before the command.
    detached: bool,
    delegate: &'a OwnedFd,
    caller: Option<&'a OwnedFd>,
}

/// Waits for the end of the command, and ends what it has left.
fn after_exec(runtime: &Runtime, leaves: BTreeSet<PathBuf>, waits: &ExecWait<'_>) -> io::Result<()> {
    let mut members = ContainerMembers::of(leaves)?;
    waits.wait(&mut members)?;
    crash_point!("oci-exec-ended");
    let left = words_of(&members.look()?, &[]);
    let survivors = members.end(Instant::now() + PATIENCE)?;
    // Only a file of penfold's own is removed.
    if runtime.words.detach || runtime.words.pid_file.is_none() {
        waits.remove_pid_file()?;
    }
    if survivors.is_empty() {
        members.remove(Instant::now() + PATIENCE)?;
    }
    if !left.is_empty() {
        let (what, outcome) =
            if survivors.is_empty() { (left, ENDED) } else { (words_of(&survivors, &[]), "not gone") };
        runtime.publish(&format!("exec: {what}"), outcome);
    }
    Ok(())
}

impl ExecWait<'_> {
    /// Waits for the end of the command; also for that of its caller and the delegate, if these wait for the command.
    fn wait(&self, members: &mut ContainerMembers) -> io::Result<()> {
        let waiting = self.caller.filter(|_| !self.detached).map(AsFd::as_fd);
        let delegate = Some(self.delegate.as_fd());
        // The file is written while the delegate runs. runc may outlive the command: it waits for the last copy of the streams.
        let mut is_over = false;
        let pid = loop {
            let pid = self.leader();
            if pid.is_some() || is_over {
                break pid;
            }
            is_over = await_one([delegate, waiting, None], Some(LOOK))?;
        };
        let Some(leader) = pid.map(|pid| Process::open(&mut ProcFs::open()?, pid)).transpose()?.flatten()
        else {
            return Ok(());
        };
        // The pid may be that of another process since.
        if members.look()?.iter().any(|member| member.pid() == leader.id().pid) {
            await_one([Some(leader.pidfd()), delegate.filter(|_| !self.detached), waiting], None)?;
        }
        Ok(())
    }

    /// Removes the file, which the delegate may write late, and may leave half written.
    fn remove_pid_file(&self) -> io::Result<()> {
        await_one([Some(self.delegate.as_fd()), None, None], Some(PATIENCE))?;
        let half =
            self.pid_file.file_name().map(|name| [OsStr::new("."), name].into_iter().collect::<OsString>());
        for file in [Some(self.pid_file.clone()), half.map(|name| self.pid_file.with_file_name(name))] {
            let _ = file.map(std::fs::remove_file);
        }
        Ok(())
    }

    /// The pid that the delegate has written.
    fn leader(&self) -> Option<Pid> {
        std::fs::read_to_string(&self.pid_file).ok()?.trim().parse().ok().and_then(pid_from_raw)
    }
}

/// Waits for the delegate. If it has deleted the container, looks whether that is gone.
fn after_run(runtime: Runtime, token: &str, delegate: &OwnedFd) -> io::Result<()> {
    await_one([Some(delegate.as_fd()), None, None], None)?;
    let runtime = runtime.begin_again();
    if runtime.is_known() {
        // Whoever killed the delegate, or the engine, deletes it.
        return Ok(());
    }
    crash_point!("oci-run-ended");
    let mut container = runtime.find().map_err(io::Error::other)?;
    if container.note.as_ref().is_none_or(|note| note.token != token) || runtime.is_known() {
        // The next container has the id.
        return Ok(());
    }
    let only_reports = container.note.as_ref().is_some_and(|note| note.asked.only_reports);
    if !only_reports {
        container.members.end(Instant::now() + PATIENCE)?;
    }
    runtime.finish(container, only_reports).map(|_| ()).map_err(io::Error::other)
}

/// Waits until one of these is readable, as a pidfd is after the end of its process; false if the time is over first.
fn await_one(fds: [Option<BorrowedFd<'_>>; 3], time: Option<Duration>) -> io::Result<bool> {
    let fds = fds.into_iter().flatten();
    let mut polled: Vec<PollFd<'_>> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let time = time.and_then(|time| Timespec::try_from(time).ok());
    Ok(rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, time.as_ref()))? > 0)
}
