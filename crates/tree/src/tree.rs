//! A tree for programs that wait in threads.

use std::io;
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::time::Duration;

use crate::options::Options;
use crate::processes::{Processes, Proof};
use crate::report::Report;

/// A command and all processes that it starts.
///
/// Like a [`Child`](std::process::Child), but the ends mean the whole tree. A tree that is dropped is killed unless
/// [`kill_on_drop`](Tree::kill_on_drop) is off. The drop waits until the tree is gone, at most 1 s.
#[derive(Debug)]
pub struct Tree {
    /// The input of the command, if it is [`piped`](std::process::Stdio::piped).
    pub stdin: Option<ChildStdin>,
    /// The output of the command, if it is piped. Strays may hold the other end: it is at its end when the tree is.
    pub stdout: Option<ChildStdout>,
    /// The standard error of the command, if it is piped.
    pub stderr: Option<ChildStderr>,
    processes: Processes,
}

impl Tree {
    /// Starts a command with the default [`Options`].
    ///
    /// # Errors
    /// Those of the spawn, and of a `/proc` that does not show the command; nothing is left then.
    pub fn spawn(command: &mut Command) -> io::Result<Tree> {
        Tree::spawn_with(&Options::default(), command)
    }

    /// Starts a command with these options.
    ///
    /// # Errors
    /// Those of [`Tree::spawn`].
    pub fn spawn_with(options: &Options, command: &mut Command) -> io::Result<Tree> {
        let mut processes = Processes::spawn(command, options)?;
        let child = processes.child();
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        Ok(Tree { stdin, stdout, stderr, processes })
    }

    /// Returns the pid of the command. After [`wait`](Tree::wait) it may mean another process.
    pub fn id(&self) -> u32 {
        self.processes.id()
    }

    /// Returns what will prove that the tree is gone, or why nothing can.
    pub fn proof(&self) -> &Proof {
        self.processes.proof()
    }

    /// Sets whether the tree is killed when it is dropped. If not, the drop ends and reaps nothing, as that of a
    /// [`Child`](std::process::Child), and a cgroup of the tree stays.
    pub fn kill_on_drop(&mut self, kill_on_drop: bool) {
        self.processes.kill_on_drop = kill_on_drop;
    }

    /// Closes the input of the command and waits for the command alone. Other members live on.
    ///
    /// # Errors
    /// When other code has reaped the command.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        self.processes.wait()
    }

    /// Returns how the command ended; `None` while it lives.
    ///
    /// # Errors
    /// When other code has reaped the command.
    pub fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.processes.try_wait()
    }

    /// Sends SIGTERM to all members, SIGKILL to those that live after the grace, and verifies that nothing is left.
    pub fn stop(&mut self, grace: Duration) -> Report {
        self.processes.end(grace)
    }

    /// Sends SIGKILL to all members and verifies that nothing is left.
    pub fn kill(&mut self) -> Report {
        self.processes.end(Duration::ZERO)
    }

    /// Waits for the command as [`wait`](Tree::wait) does, then kills whatever it has left.
    ///
    /// # Errors
    /// When other code has reaped the command; then nothing was ended.
    pub fn wait_and_end(&mut self) -> io::Result<Report> {
        self.wait()?;
        Ok(self.kill())
    }
}
