//! Commands whose whole offspring comes back to this process, so that nothing of it can be overlooked.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use penfold_testkit::LeakGuard;
use penfold_testkit::proc::{self, Handle, Identity};
use rustix::process::{Pid, WaitOptions, waitpid};

/// This process as a subreaper. The guard in it makes tests that share a process take turns.
pub struct Nest {
    guard: LeakGuard,
    own: i32,
}

impl Nest {
    pub fn new() -> Nest {
        let guard = LeakGuard::new();
        Nest { guard, own: i32::try_from(std::process::id()).unwrap() }
    }

    /// Starts a command without output.
    #[expect(clippy::unused_self, reason = "who has no nest must not start what is looked for in one")]
    pub fn spawn(&self, command: &mut Command) -> Child {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Reaps what was left to this process and returns who lives below it.
    pub fn living(&self) -> Vec<String> {
        let all = proc::all();
        let below = proc::descendants(&all, self.own);
        let mut living = Vec::new();
        for process in
            all.iter().filter(|process| below.contains(&process.id.pid) && process.id.pid != self.own)
        {
            if !process.is_dead() {
                living.push(format!("{} {} state {}", process.id, process.name, process.state));
            } else if process.parent == self.own
                && let Some(pid) = Pid::from_raw(process.id.pid)
            {
                // A dead child of this process: the number is still its own.
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        living
    }

    /// Waits until nobody lives below this process, at most this long, and returns who does.
    pub fn await_nobody(&self, patience: Duration) -> Vec<String> {
        let mut living = Vec::new();
        super::until(patience, || {
            living = self.living();
            living.is_empty()
        });
        living
    }

    /// Ends whoever is left, and says what else is.
    pub fn check(self) {
        for process in proc::descendants(&proc::all(), self.own) {
            if let Some(handle) = proc::stat(process).and_then(|stat| Handle::open(stat.id).ok().flatten())
                && handle.id.pid != self.own
            {
                let _ = handle.signal(rustix::process::Signal::KILL);
            }
        }
        self.await_nobody(super::PROMPT);
        self.guard.check();
    }
}

/// The first child of a process, by its main thread.
pub fn child_of(pid: u32) -> Option<Identity> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    let child = text.split_ascii_whitespace().next()?.parse().ok()?;
    proc::stat(child).map(|stat| stat.id)
}

/// A number below `limit` that nobody can foresee.
pub fn random(limit: u64) -> u64 {
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
    u64::from_ne_bytes(bytes) % limit
}
