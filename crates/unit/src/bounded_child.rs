//! Work in a child process, which is killed at a deadline.

use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use penfold_sys::{ForkSide, fork};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, getppid, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal, waitpid,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a child gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// No child could be made or waited for.
    #[error("cannot {act}")]
    System {
        /// The operation, as a verb phrase.
        act: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The deadline passed. The child was killed.
    #[error("no answer within {limit:?}")]
    Late {
        /// The time that the child had.
        limit: Duration,
    },
    /// The child ended without a result.
    #[error("the process that asked has died")]
    Died,
}

fn system<E: Into<io::Error>>(act: &'static str) -> impl FnOnce(E) -> ChildError {
    move |source| ChildError::System { act, source: source.into() }
}

/// Does `work` in a child process and returns its result. The child is gone when this returns.
///
/// This process must have one thread: the child may then start threads and take locks of its own.
pub(crate) fn in_child<T: Serialize + DeserializeOwned>(
    limit: Duration,
    work: impl FnOnce() -> T,
) -> Result<T, ChildError> {
    let until = Instant::now() + limit;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(system("make a pipe"))?;
    let parent = getpid();
    match fork().map_err(system("fork"))? {
        ForkSide::Child => {
            drop(reader);
            answer(parent, writer, work);
            penfold_sys::fork::exit_now(0)
        }
        ForkSide::Parent(child) => {
            drop(writer);
            let text = read_until(reader, until);
            end_child(child);
            match text.map_err(system("read from a pipe"))? {
                Some(text) => serde_json::from_slice(&text).map_err(|_| ChildError::Died),
                None => Err(ChildError::Late { limit }),
            }
        }
    }
}

/// Does the work of the child, and writes the result.
fn answer<T: Serialize>(parent: Pid, writer: OwnedFd, work: impl FnOnce() -> T) {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if getppid() != Some(parent) {
        return;
    }
    // A panic must not unwind into the copy of the caller's frames.
    if let Ok(result) = catch_unwind(AssertUnwindSafe(work))
        && let Ok(text) = serde_json::to_vec(&result)
    {
        let _ = std::fs::File::from(writer).write_all(&text);
    }
}

/// Reads up to EOF; `None` at the deadline.
fn read_until(reader: OwnedFd, until: Instant) -> io::Result<Option<Vec<u8>>> {
    let mut reader = std::fs::File::from(reader);
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => match reader.read(&mut part)? {
                0 => return Ok(Some(text)),
                length => text.extend_from_slice(part.get(..length).unwrap_or_default()),
            },
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Kills and reaps the child.
pub(crate) fn end_child(child: Pid) {
    if let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test in a process with one thread.
    fn alone(test: impl FnOnce()) {
        // The harness runs tests on threads of their own, where fork(2) is refused.
        match in_child(Duration::from_secs(1), || 1) {
            Err(ChildError::System { act: "fork", .. }) => {}
            _ => test(),
        }
    }

    #[test]
    fn a_result_comes_back_and_a_slow_or_dead_child_is_an_error() {
        alone(|| {
            assert_eq!(in_child(Duration::from_secs(30), || "x".repeat(100_000)).unwrap().len(), 100_000);
            let slow = in_child(Duration::from_millis(20), || {
                let _ = poll(&mut [], Some(&Timespec { tv_sec: 60, tv_nsec: 0 }));
            });
            assert!(matches!(slow, Err(ChildError::Late { .. })), "{slow:?}");
            let dead = in_child::<()>(Duration::from_secs(30), || penfold_sys::fork::exit_now(0));
            assert!(matches!(dead, Err(ChildError::Died)), "{dead:?}");
        });
    }
}
