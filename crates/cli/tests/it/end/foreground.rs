//! Fixtures for foreground sandboxes: the leader and the penfold processes by handle.

use std::path::PathBuf;
use std::process::Command;

use penfold_testkit::proc;
use rustix::process::Signal;

use super::standing::await_sleeps;
use crate::support::{
    Level, Process, Running, TestEnv, children, descendants, entries, is_our_name, kill_at_once, penfold,
    wait_until,
};

/// A leader with a daemon. The leader says when it gets SIGUSR1.
const TREE: &str =
    "trap 'echo usr1 >> $UP' USR1; setsid sleep 1000 & echo lead >> $UP; sleep 1000 & wait; wait";

/// How many processes of penfold stand around the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Launcher and supervisor.
    Pair,
    /// An standby between them, because the launcher had a child already when it started.
    Trio,
}

/// One of the processes of penfold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PenfoldProcess {
    Launcher,
    Standby,
    Supervisor,
}

/// `penfold run` with these flags around a script.
pub fn run_command(env: &TestEnv, shape: Shape, level: Level, flags: &[&str], script: &str) -> Command {
    let mut command = env.run_command(["--contain", level.word()]);
    command.args(flags).args(["--", "sh", "-c", script]);
    match shape {
        Shape::Pair => command,
        // The child of the shell becomes one of penfold's; nobody reaps the child before.
        Shape::Trio => {
            let mut words: Vec<_> =
                std::iter::once(command.get_program()).chain(command.get_args()).collect();
            let place = words.iter().position(|word| *word == penfold().as_os_str()).expect("penfold");
            let between = ["sh", "-c", r#"true & exec "$@""#, "sh"].map(std::ffi::OsStr::new);
            words.splice(place..place, between);
            let mut shell = env.command(words[0]);
            shell.args(&words[1..]);
            shell
        }
    }
}

/// A sandbox in the foreground: all of it was seen alive.
pub struct Foreground {
    /// The launcher, or a shell above it.
    pub run: Running,
    /// From the launcher to the supervisor supervisor.
    line: Vec<Process>,
    pub members: Vec<Process>,
}

impl Foreground {
    /// Starts `penfold run` with these flags.
    #[track_caller]
    pub fn start(env: &TestEnv, shape: Shape, level: Level, flags: &[&str]) -> Foreground {
        let run = Running::start(&mut run_command(env, shape, level, flags, TREE));
        let launcher = run.pid();
        Foreground::standing(env, run, launcher, shape)
    }

    /// Starts the same below a shell, which is the owner then.
    #[track_caller]
    pub fn start_owned(env: &TestEnv, shape: Shape, level: Level, flags: &[&str]) -> Foreground {
        let command = run_command(env, shape, level, flags, TREE);
        let mut owner = env.command("sh");
        owner.args(["-c", r#""$@"; true"#, "sh"]).arg(command.get_program()).args(command.get_args());
        let run = Running::start(&mut owner);
        env.await_up(&["lead"]);
        let launcher = children(run.pid())[0];
        Foreground::standing(env, run, launcher, shape)
    }

    #[track_caller]
    fn standing(env: &TestEnv, run: Running, launcher: i32, shape: Shape) -> Foreground {
        env.await_up(&["lead"]);
        await_sleeps(env, 2);
        std::fs::remove_file(env.path("work/up")).unwrap();
        let is_ours = |process: &Process| {
            !process.has_ended() && proc::stat(process.pid()).is_some_and(|stat| is_our_name(&stat.name))
        };
        let mut line: Vec<Process> = Process::find(launcher).into_iter().filter(is_ours).collect();
        let length = if shape == Shape::Trio { 3 } else { 2 };
        while line.len() < length {
            let last = line.last().expect("the launcher");
            let below = children(last.pid()).into_iter().filter_map(Process::find).find(is_ours);
            line.push(below.expect("a supervisor"));
        }
        let below = descendants(line[length - 1].pid()).into_iter().filter_map(Process::find);
        let members: Vec<Process> = below.filter(|process| !process.has_ended()).collect();
        assert!(members.len() >= 3, "{members:?}");
        Foreground { run, line, members }
    }

    /// The first process of the command.
    pub fn leader(&self) -> &Process {
        self.members.iter().find(|member| member.command_line().starts_with("sh ")).expect("a leader")
    }

    fn process(&self, which: PenfoldProcess) -> &Process {
        match which {
            PenfoldProcess::Launcher => &self.line[0],
            PenfoldProcess::Standby => {
                assert_eq!(self.line.len(), 3, "there is no standby");
                &self.line[1]
            }
            PenfoldProcess::Supervisor => self.line.last().unwrap(),
        }
    }

    pub fn signal(&self, which: PenfoldProcess, signal: Signal) {
        self.process(which).signal(signal);
    }

    /// SIGKILL to these in one instant: none of them can act on the death of another.
    #[track_caller]
    pub fn kill(&self, which: &[PenfoldProcess]) {
        if let [one] = which {
            self.signal(*one, Signal::KILL);
            return self.process(*one).await_end();
        }
        // From the launcher on: one that runs continues its children that are stopped.
        self.line.iter().for_each(Process::stop);
        kill_at_once(&which.iter().map(|&which| self.process(which)).collect::<Vec<_>>());
        self.line.iter().for_each(|process| process.signal(Signal::CONT));
    }

    /// SIGKILL to all processes of penfold in one instant.
    #[track_caller]
    pub fn kill_all(&self) {
        kill_at_once(&self.line.iter().collect::<Vec<_>>());
    }

    #[track_caller]
    pub fn assert_alive(&self) {
        let ended = self.members.iter().filter(|member| member.has_ended()).count();
        assert_eq!(ended, 0, "members have ended");
    }

    /// Waits until all members and all processes of penfold have ended.
    #[track_caller]
    pub fn await_end(&self) {
        self.members.iter().chain(&self.line).for_each(Process::await_end);
    }
}

/// Waits until no process, record, scratch directory and leaf is left.
#[track_caller]
pub fn await_nothing_left(env: &TestEnv) {
    wait_until("no process is left", || env.processes().is_empty());
    wait_until("no file and no leaf is left", || left(env).is_empty());
    env.assert_nothing_left();
}

/// The records, scratch directories and leaves of an environment.
pub fn left(env: &TestEnv) -> Vec<PathBuf> {
    let mut left = entries(&env.path("root/sandboxes"));
    left.extend(entries(&env.path("tmp")));
    if let Some(cgroup) = env.cgroup() {
        left.extend(entries(cgroup).into_iter().filter(|path| path.is_dir()));
    }
    left
}

/// Waits until no process holds the lock of a record.
#[track_caller]
pub fn await_unlocked(env: &TestEnv) {
    wait_until("no record is locked", || {
        let records = entries(&env.path("root/sandboxes"));
        let mut records = records.iter().filter_map(|record| std::fs::File::open(record).ok());
        records.all(|record| record.try_lock().is_ok())
    });
}
