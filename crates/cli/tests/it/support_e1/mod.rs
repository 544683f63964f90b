//! What the tests against hostile trees share: who runs `penfold run`, where, and what of it is left.

#![allow(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    reason = "every test binary takes its own part of this, and looks from outside by short polls with a deadline"
)]

pub mod house;
pub mod nest;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use penfold_testkit::until;
use penfold_testkit::{DelegatedCgroup, Tool};

/// The ordinary user.
pub const USER: u32 = 65534;
/// What the guarantee allows after a process of ours was killed.
pub const PROMPT: Duration = Duration::from_secs(1);

/// Who runs penfold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Root,
    /// An ordinary user in a cgroup of its own.
    Delegated,
    /// An ordinary user in a cgroup that is not its own.
    Plain,
}

/// The containment asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Cgroup,
    Pidns,
    Subreaper,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::Cgroup, Level::Pidns, Level::Subreaper];

    pub fn word(self) -> &'static str {
        match self {
            Level::Cgroup => "cgroup",
            Level::Pidns => "pidns",
            Level::Subreaper => "subreaper",
        }
    }
}

/// How many processes of ours stand around the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Front and supervisor.
    Pair,
    /// An outer process between them, because the front had a child already when it started.
    Trio,
}

/// A state root and a cgroup that nobody else uses: whatever is in them afterwards was left.
pub struct Ground {
    pub who: Who,
    dir: tempfile::TempDir,
    cgroup: Option<DelegatedCgroup>,
}

impl Ground {
    /// # Errors
    /// Why this host cannot have it.
    pub fn new(who: Who) -> Result<Ground, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("not root".to_owned());
        }
        let dir =
            tempfile::Builder::new().prefix("penfold-e1-").tempdir().map_err(|error| error.to_string())?;
        let user = if who == Who::Root { 0 } else { USER };
        std::os::unix::fs::chown(dir.path(), Some(user), Some(user)).map_err(|error| error.to_string())?;
        let cgroup = match who {
            Who::Plain => None,
            Who::Root | Who::Delegated => {
                Some(DelegatedCgroup::new(user).map_err(|error| format!("no cgroup of its own: {error}"))?)
            }
        };
        let ground = Ground { who, dir, cgroup };
        let version = ground.command(["version"]).output();
        version.map_err(|error| format!("user {user} cannot execute penfold: {error}"))?;
        Ok(ground)
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// A file in the directory of this ground.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The cgroup that penfold is started in, if it has one of its own.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(DelegatedCgroup::path)
    }

    /// `penfold run` around a tree.
    pub fn tool(&self, shape: Shape, level: Level, options: &[&str]) -> Tool {
        let mut words = self.words(shape, level, options);
        words.push("{cmd}".into());
        let mut tool = Tool::new(words);
        if self.who != Who::Root {
            tool = tool.user(USER);
        }
        if let Some(cgroup) = &self.cgroup {
            tool = tool.cgroup(cgroup.path());
        }
        tool
    }

    /// `penfold run` without its command.
    fn words(&self, shape: Shape, level: Level, options: &[&str]) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        if shape == Shape::Trio {
            // The child of the shell becomes one of penfold's; nobody reaps it before.
            words.extend(["sh", "-c", "true & exec \"$@\"", "sh"].map(Into::into));
        }
        words.extend([env!("CARGO_BIN_EXE_penfold").into(), "--root".into(), self.root().into_os_string()]);
        words.extend(["run", "--contain", level.word()].map(Into::into));
        words.extend(options.iter().map(Into::into));
        words.push("--".into());
        words
    }

    /// `penfold run` around a command, inside this ground's cgroup and with its scratch directory here; for root.
    pub fn shaped(&self, shape: Shape, level: Level, options: &[&str], command: &[&str]) -> Command {
        let cgroup = self.cgroup.as_ref().map_or(Path::new("/dev/null"), |cgroup| cgroup.path());
        let mut started = Command::new("sh");
        started.args(["-c", "echo 0 > \"$0/cgroup.procs\"; exec \"$@\""]).arg(cgroup);
        started.args(self.words(shape, level, options)).args(command).env("TMPDIR", self.dir.path());
        started
    }

    /// Any penfold command as the same user, outside of the cgroup of this ground.
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_penfold"));
        command.arg("--root").arg(self.root()).args(words).stdin(Stdio::null());
        if self.who != Who::Root {
            command.uid(USER).gid(USER);
        }
        command
    }

    /// The next command of the same user, which looks after what nobody looks after any more; a process that is on
    /// its way out still does.
    pub fn next_command(&self) -> Result<(), String> {
        // Storms of other trees may hold up those that are still to die.
        until(Duration::from_secs(10), || self.is_unlocked());
        let output = self.command(["run", "--contain", "subreaper", "--", "true"]).output();
        let output = output.map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            Ok(())
        } else {
            Err(format!("the next command: {}: {said}", output.status))
        }
    }

    /// Waits until no record has anybody to look after it.
    pub fn await_unlocked(&self) {
        until(Duration::from_secs(10), || self.is_unlocked());
    }

    fn is_unlocked(&self) -> bool {
        let records = std::fs::read_dir(self.root().join("sandboxes")).into_iter().flatten().flatten();
        let mut records = records.filter_map(|entry| std::fs::File::open(entry.path()).ok());
        records.all(|record| record.try_lock().is_ok())
    }

    /// Records, leaves and scratch directories.
    pub fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        if let Ok(entries) = std::fs::read_dir(self.dir.path()) {
            let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
            left.extend(
                names.filter(|name| name.starts_with("penfold")).map(|name| format!("scratch {name}")),
            );
        }
        if let Ok(entries) = std::fs::read_dir(self.root().join("sandboxes")) {
            let told = |entry: std::fs::DirEntry| {
                let inside = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
                let files: Vec<_> = inside.map(|file| file.file_name()).collect();
                format!("record {} with {files:?}", entry.path().display())
            };
            left.extend(entries.flatten().map(told));
        }
        if let Some(cgroup) = &self.cgroup {
            let leaves = cgroup.children().into_iter().filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("penfold"))
            });
            left.extend(leaves.map(|path| format!("cgroup {}", path.display())));
        }
        left
    }

    /// Waits until neither record nor leaf is there, at most this long, and returns what is.
    pub fn await_clean(&self, patience: Duration) -> Vec<String> {
        let deadline = Instant::now() + patience;
        loop {
            let left = self.left();
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            sleep(Duration::from_millis(2));
        }
    }
}
