//! Detached sandboxes as different users start them, and all that can be asked of them by verbs and by hand.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

pub mod wire;

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use penfold_testkit::DelegatedCgroup;
use serde_json::Value;

use crate::support_e2::left::Handle;
use crate::support_e2::{DEADLINE, Ended, Pen, Talk, eventually, penfold, root, skip};

/// An ordinary user.
pub const USER: u32 = 65534;

/// Who starts sandboxes in a pen.
pub struct Actor<'a> {
    pub pen: &'a Pen,
    pub name: &'static str,
    user: bool,
    cgroup: Option<DelegatedCgroup>,
}

impl<'a> Actor<'a> {
    /// Whoever runs the tests.
    pub fn own(pen: &'a Pen) -> Actor<'a> {
        Actor { pen, name: "own", user: false, cgroup: None }
    }

    pub fn called(pen: &'a Pen, name: &str) -> Option<Actor<'a>> {
        match name {
            "user" => Actor::user(pen),
            "delegated" => Actor::delegated(pen),
            _ => Some(Actor::own(pen)),
        }
    }

    /// An ordinary user, who has no cgroup to make leaves in; nothing where that cannot be.
    pub fn user(pen: &'a Pen) -> Option<Actor<'a>> {
        if !root() {
            return None;
        }
        let top = pen.path("");
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["root", "tmp", "work"] {
            chown(pen.path(name), Some(USER), Some(USER)).unwrap();
        }
        Some(Actor { pen, name: "user", user: true, cgroup: None })
    }

    /// The same with a cgroup of its own.
    pub fn delegated(pen: &'a Pen) -> Option<Actor<'a>> {
        match (Actor::user(pen), DelegatedCgroup::new(USER)) {
            (Some(user), Ok(cgroup)) => Some(Actor { name: "delegated", cgroup: Some(cgroup), ..user }),
            (None, _) => None,
            (_, Err(error)) => {
                skip(&format!("no cgroup can be delegated: {error}"));
                None
            }
        }
    }

    /// `penfold --root … VERB …`.
    pub fn verb<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = match &self.cgroup {
            None => self.pen.command(penfold()),
            Some(cgroup) => {
                let script = "echo 0 > \"$1/cgroup.procs\" && shift && exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
                let mut command = self.pen.command("sh");
                command.args(["-c", script, "sh"]).arg(cgroup.path()).arg(penfold());
                command
            }
        };
        if self.user && self.cgroup.is_none() {
            command.uid(USER).gid(USER);
        }
        if self.user {
            // Not that of root, which may hold directories that are closed to others.
            command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        }
        command.arg("--root").arg(self.pen.path("root")).args(words);
        command
    }

    /// The levels that work for it, strongest first.
    pub fn levels(&self) -> Vec<&'static str> {
        let works = |level: &&str| {
            Talk::start(&mut self.verb(["run", "--contain", level, "true"])).end().code() == Some(0)
        };
        let levels: Vec<&str> = ["cgroup", "pidns", "subreaper"].into_iter().filter(works).collect();
        assert!(levels.contains(&"subreaper"), "{}: {levels:?}", self.name);
        levels
    }

    /// Starts a detached sandbox.
    #[track_caller]
    pub fn detach<'b>(&'b self, words: &[&str]) -> Sandbox<'b> {
        let ended = Talk::start(&mut self.verb(["run", "-d"].iter().chain(words))).end().with_code(0);
        Sandbox { actor: self, id: ended.out().trim().to_owned() }
    }
}

/// A detached sandbox.
pub struct Sandbox<'a> {
    pub actor: &'a Actor<'a>,
    pub id: String,
}

impl Sandbox<'_> {
    /// `penfold VERB [WORDS] ID [MORE]`, to its end.
    #[track_caller]
    pub fn ask(&self, words: &[&str]) -> Ended {
        let words: Vec<&str> = words.iter().map(|&word| if word == "ID" { &self.id } else { word }).collect();
        Talk::start(&mut self.actor.verb(words)).end()
    }

    /// `penfold exec ID …`, to its end.
    #[track_caller]
    pub fn exec(&self, words: &[&str]) -> Ended {
        Talk::start(&mut self.exec_command(&[], words)).end()
    }

    pub fn exec_command(&self, flags: &[&str], words: &[&str]) -> Command {
        let mut command = self.actor.verb(["exec"].iter().chain(flags));
        command.arg(&self.id).args(words);
        command
    }

    /// Puts a command in that goes on.
    #[track_caller]
    pub fn put_in(&self, words: &[&str]) {
        Talk::start(&mut self.exec_command(&["-d"], words)).end().with_code(0);
    }

    pub fn record(&self) -> PathBuf {
        self.actor.pen.path("root/sandboxes").join(&self.id)
    }

    /// A file of the record, if it is there and whole.
    pub fn file(&self, name: &str) -> Option<Value> {
        serde_json::from_slice(&std::fs::read(self.record().join(name)).ok()?).ok()
    }

    /// The numbers of the processes that look after it, the supervisor last.
    pub fn supervisors(&self) -> Vec<i32> {
        let state = self.file("state.json").unwrap_or_default();
        pids(state["supervisors"].as_array().map(Vec::as_slice).unwrap_or_default())
    }

    /// The numbers of the processes that look after its execs.
    pub fn keepers(&self) -> Vec<i32> {
        let state = self.file("state.json").unwrap_or_default();
        let execs = state["execs"].as_array().cloned().unwrap_or_default();
        pids(&execs.iter().map(|exec| exec["keeper"].clone()).collect::<Vec<_>>())
    }

    /// What `ps` says of it.
    pub fn status(&self) -> String {
        let seen = self.ask(&["ps", "-a", "--json"]);
        let all: Value = serde_json::from_slice(&seen.out).unwrap_or_default();
        let mine = all.as_array().into_iter().flatten().find(|one| one["id"] == self.id.as_str());
        mine.and_then(|one| one["status"].as_str()).unwrap_or_default().to_owned()
    }

    /// Waits until it is over; gives its report.
    #[track_caller]
    pub fn over(&self) -> Value {
        assert!(eventually(DEADLINE, || self.file("report.json").is_some()), "not over: {}", self.status());
        let gone = || !["running", "stopping"].contains(&self.status().as_str());
        assert!(eventually(DEADLINE, gone), "still looked after");
        self.file("report.json").unwrap()
    }

    /// Ends it, whatever it is doing, and forgets it.
    #[track_caller]
    pub fn end(self) {
        self.ask(&["rm", "-f", "ID"]).with_code(0);
    }
}

fn pids(told: &[Value]) -> Vec<i32> {
    told.iter().filter_map(|id| i32::try_from(id["pid"].as_i64()?).ok()).collect()
}

/// Removes a directory of the tests' own.
#[expect(clippy::disallowed_methods, reason = "it holds nothing but what the test has put there")]
pub fn remove(directory: &std::path::Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(directory)
}

/// SIGKILL by handle.
pub fn kill(pid: i32) {
    Handle::of(pid).signal(rustix::process::Signal::KILL);
}

/// The names of strays in a report.
pub fn strays(report: &Value) -> Vec<String> {
    let ended = report["findings"]["ended"].as_array().or_else(|| report["ended"].as_array());
    let strays = ended.expect("no list of members").iter().filter(|ended| ended["stray"] == true);
    strays.map(|ended| ended["name"].as_str().unwrap_or_default().to_owned()).collect()
}
