//! A tree for programs on tokio: the same as [`crate::Tree`], with futures.
//!
//! The runtime needs its I/O driver (`enable_io`). Its own children are not touched, and it reaps none of the tree.
//!
//! # Cancellation
//! - A [`wait`](Tree::wait) that is dropped has no effect.
//! - An end runs on a thread of the runtime, and goes on when its future is dropped. [`kill`](Tree::kill) then cuts its grace short, and so
//!   does the drop of the tree unless [`kill_on_drop`](Tree::kill_on_drop) is off.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use ::tokio::net::unix::pipe;
use ::tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use ::tokio::task::spawn_blocking;

use crate::options::Options;
use crate::processes::{Processes, Proof};
use crate::report::Report;

/// A command and all processes that it starts.
///
/// A tree that is dropped is killed unless [`kill_on_drop`](Tree::kill_on_drop) is off. The drop blocks its thread until the tree is
/// gone, usually a few milliseconds and at most 1 s: nothing else would end the tree before the program may exit.
#[derive(Debug)]
pub struct Tree {
    /// The input of the command, if it is [`piped`](std::process::Stdio::piped).
    pub stdin: Option<ChildStdin>,
    /// The output of the command, if it is piped. Strays may hold the other end: it is at its end when the tree is.
    pub stdout: Option<ChildStdout>,
    /// The standard error of the command, if it is piped.
    pub stderr: Option<ChildStderr>,
    id: u32,
    proof: Proof,
    kill_on_drop: bool,
    /// The pidfd of the command. `AsyncFd` cannot be made by safe code, and this type registers any descriptor that can be polled.
    leader: pipe::Receiver,
    hurry: OwnedFd,
    processes: Arc<Mutex<Processes>>,
}

impl Tree {
    /// Starts a command with the default [`Options`]. Of a [`tokio::process::Command`], pass `as_std_mut()`.
    ///
    /// # Errors
    /// Those of the spawn, and of a `/proc` that does not show the command; nothing is left then.
    ///
    /// # Panics
    /// Outside of a runtime with an I/O driver.
    pub fn spawn(command: &mut Command) -> io::Result<Tree> {
        Tree::spawn_with(&Options::default(), command)
    }

    /// Starts a command with these options.
    ///
    /// # Errors
    /// Those of [`Tree::spawn`].
    ///
    /// # Panics
    /// Outside of a runtime with an I/O driver.
    pub fn spawn_with(options: &Options, command: &mut Command) -> io::Result<Tree> {
        // Until there is a tree, an error ends what was started.
        let mut processes = Processes::spawn(command, &options.kill_on_drop(true))?;
        let leader = pipe::Receiver::from_owned_fd_unchecked(processes.pidfd()?)?;
        let hurry = processes.hurry()?;
        let id = processes.id();
        let child = processes.child();
        let stdin = child.stdin.take().map(ChildStdin::from_std).transpose()?;
        let stdout = child.stdout.take().map(ChildStdout::from_std).transpose()?;
        let stderr = child.stderr.take().map(ChildStderr::from_std).transpose()?;
        let proof = processes.proof().clone();
        processes.kill_on_drop = options.kill_on_drop;
        let processes = Arc::new(Mutex::new(processes));
        let kill_on_drop = options.kill_on_drop;
        Ok(Tree { stdin, stdout, stderr, id, proof, kill_on_drop, leader, hurry, processes })
    }

    /// Returns the pid of the command. After [`wait`](Tree::wait) it may mean another process.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns what will prove that the tree is gone, or why nothing can.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }

    /// Sets whether the tree is killed when it is dropped: see [`crate::Tree::kill_on_drop`].
    pub fn kill_on_drop(&mut self, kill_on_drop: bool) {
        self.kill_on_drop = kill_on_drop;
    }

    /// Closes the input of the command and waits for the command alone. Other members live on.
    ///
    /// # Errors
    /// When other code has reaped the command.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        self.on_thread(Processes::note_foreign).await;
        // The pidfd stays readable once the command has ended.
        self.leader.readable().await?;
        self.on_thread(Processes::wait).await
    }

    /// Returns how the command ended; `None` while it lives, and while an end goes on whose future was dropped.
    ///
    /// # Errors
    /// When other code has reaped the command.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        match self.processes.try_lock() {
            Ok(mut processes) => processes.try_wait(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().try_wait(),
            Err(TryLockError::WouldBlock) => Ok(None),
        }
    }

    /// Sends SIGTERM to all members, SIGKILL to those that live after the grace, and verifies that nothing is left.
    pub async fn stop(&mut self, grace: Duration) -> Report {
        self.on_thread(move |processes| processes.end(grace)).await
    }

    /// Sends SIGKILL to all members and verifies that nothing is left.
    pub async fn kill(&mut self) -> Report {
        self.hurry_up();
        self.on_thread(|processes| processes.end(Duration::ZERO)).await
    }

    /// Waits for the command as [`wait`](Tree::wait) does, then kills whatever it has left.
    ///
    /// # Errors
    /// When other code has reaped the command; then nothing was ended.
    pub async fn wait_and_end(&mut self) -> io::Result<Report> {
        self.wait().await?;
        Ok(self.kill().await)
    }

    /// Ends the grace of an end that goes on.
    fn hurry_up(&self) {
        // The counter of the eventfd cannot be full: nothing else writes.
        let _ = rustix::io::write(&self.hurry, &1_u64.to_ne_bytes());
    }

    /// Works on the processes where that may block.
    async fn on_thread<T: Send + 'static>(
        &self,
        work: impl Fn(&mut Processes) -> T + Send + Sync + 'static,
    ) -> T {
        let processes = Arc::clone(&self.processes);
        let work = Arc::new(work);
        let there = Arc::clone(&work);
        match spawn_blocking(move || there(&mut lock(&processes))).await {
            Ok(done) => done,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down and starts nothing more.
                Err(_) => work(&mut lock(&self.processes)),
            },
        }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if self.kill_on_drop {
            self.hurry_up();
        }
        let kill_on_drop = self.kill_on_drop;
        // The thread of an end that goes on holds the lock; the drop there kills once more, if something is left.
        if let Ok(mut processes) = self.processes.try_lock() {
            processes.kill_on_drop = kill_on_drop;
        }
    }
}

fn lock(processes: &Mutex<Processes>) -> MutexGuard<'_, Processes> {
    processes.lock().unwrap_or_else(PoisonError::into_inner)
}
