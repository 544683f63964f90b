//! What the tests of `penfold run` share: a state root of their own, commands with a deadline, and a look at what is
//! left.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

pub mod left;
pub mod talk;
pub mod terminal;

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub use talk::Talk;

/// Longer than anything here may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// In the environment of all that a [`Pen`] starts.
pub const MARK: &str = "PENFOLD_TEST_PEN";

/// A state root, a TMPDIR and a working directory of its own; at the end nothing may be left of what it started.
pub struct Pen {
    dir: tempfile::TempDir,
}

impl Pen {
    pub fn new() -> Pen {
        let dir = tempfile::Builder::new().prefix("penfold-test-").tempdir().unwrap();
        for name in ["root", "tmp", "work"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Pen { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Any command in this pen.
    pub fn command<S: AsRef<OsStr>>(&self, program: S) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).current_dir(self.path("work"));
        command.env(MARK, self.dir.path()).env("TMPDIR", self.path("tmp")).env("PF", self.shell());
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "MAKEFLAGS", "MFLAGS", "PENFOLD_SANDBOX"] {
            command.env_remove(name);
        }
        command
    }

    /// `penfold --root … run` with these words.
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(penfold());
        command.arg("--root").arg(self.path("root")).arg("run").args(words);
        command
    }

    /// The same as text for a shell, also in its `$PF`.
    pub fn shell(&self) -> String {
        format!("{} --root {} run", penfold().display(), self.path("root").display())
    }

    /// Runs to the end.
    #[track_caller]
    pub fn end<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Ended {
        Talk::start(&mut self.run(words)).end()
    }

    /// Runs a script to the end, without penfold but for what the script does with `$PF`.
    #[track_caller]
    pub fn script(&self, script: &str) -> Ended {
        Talk::start(self.command("bash").args(["-c", script])).end()
    }

    /// The processes with this command line that run here.
    pub fn running(&self, command: &str) -> Vec<i32> {
        let all = left::processes(self.dir.path()).into_iter();
        all.filter(|(_, line)| line.trim_end() == command).map(|(pid, _)| pid).collect()
    }

    pub fn is_running(&self, command: &str) -> bool {
        !self.running(command).is_empty()
    }

    /// Panics if a process, record or scratch directory is left; processes of ours may take a moment to exit.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let mut processes = Vec::new();
        let gone = eventually(Duration::from_secs(3), || {
            processes = left::processes(self.dir.path());
            processes.is_empty()
        });
        assert!(gone, "left running: {processes:?}");
        for place in ["root/sandboxes", "tmp"] {
            assert_eq!(left::entries(&self.path(place)), Vec::<PathBuf>::new(), "left in {place}");
        }
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        left::end_processes(self.dir.path());
        penfold_testkit::sweep::remove_leaves(self.dir.path(), Duration::from_secs(2));
    }
}

/// The binary under test.
pub fn penfold() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_penfold"))
}

/// How something ended and what it said.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
    pub took: Duration,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    /// Checks the code, and shows all if it is another.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Ended {
        assert_eq!(self.code(), Some(code), "{:?}: {} {}", self.status, self.out(), self.err());
        self
    }

    /// Checks for a failure as the contract wants it: the code, one sentence on standard error, hints at most after it.
    #[track_caller]
    pub fn refused(self, code: i32, part: &str) {
        let said = self.err();
        assert_eq!(self.code(), Some(code), "{said}");
        assert_eq!(self.out(), "", "{said}");
        let mut lines = said.lines();
        let first = lines.next().unwrap_or_default();
        assert!(first.starts_with("penfold: ") && first.contains(part), "no `{part}` in: {said}");
        assert!(
            !first.ends_with('.') && !said.contains("panicked") && !said.contains("internal error"),
            "{said}"
        );
        assert!(lines.all(|line| line.starts_with("hint: ")), "more than a sentence: {said}");
    }
}

/// Looks until it is so, or the time is over.
pub fn eventually(limit: Duration, mut so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if so() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        pause(Duration::from_millis(10));
    }
}

/// Lets a short time go by: between two looks, or to see that nothing happens.
pub fn pause(time: Duration) {
    let timeout = time.try_into().unwrap();
    let _ = rustix::event::poll(&mut [], Some(&timeout));
}

/// Says why a test is not run. Always true, for `return`.
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
pub fn skip(reason: &str) {
    eprintln!("skipped: {reason}");
}

/// Whether this user is root; says so if not.
pub fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip("needs root");
    }
    root
}

/// Whether a tool is installed and works here; says so if not.
pub fn tool(words: &[&str]) -> bool {
    let [name, rest @ ..] = words else { return false };
    let runs = Command::new(name)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !runs {
        skip(&format!("`{}` does not work here", words.join(" ")));
    }
    runs
}

/// The levels that work for this user.
pub fn levels(pen: &Pen) -> Vec<&'static str> {
    let usable = |level: &&str| pen.end(["--contain", level, "true"]).code() == Some(0);
    let levels: Vec<&str> = ["cgroup", "pidns", "subreaper"].into_iter().filter(usable).collect();
    if levels.len() < 3 {
        skip(&format!("only the levels {levels:?} can be tried here"));
    }
    assert!(levels.contains(&"subreaper"));
    levels
}
