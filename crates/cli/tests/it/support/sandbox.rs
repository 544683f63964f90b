//! A detached sandbox: what its record says, and its processes by handle.

use std::path::PathBuf;

use penfold_testkit::proc::Identity;
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use serde_json::Value;

use super::{Finished, Process, TestEnv, json, kill_at_once, wait_until};

/// A tree that ends by itself only after long: a daemon, one that ignores TERM, and the leader.
pub const TREE: &str =
    "setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; echo deaf >> $UP; sleep 1000 & wait' &)
    echo lead >> $UP; sleep 1000 & wait";

/// A detached sandbox; it ends with its [`TestEnv`].
#[derive(Debug)]
pub struct Sandbox {
    pub id: String,
    /// The directory of its record.
    pub record: PathBuf,
    /// Those that `state.json` named when this was started, outer and inner.
    pub supervisors: Vec<Process>,
    /// The leaf that `intent.json` named then.
    pub leaf: Option<PathBuf>,
}

impl Sandbox {
    /// The one whose id `run -d` has printed.
    #[track_caller]
    pub fn printed(env: &TestEnv, out: &str) -> Sandbox {
        let id = out.strip_suffix('\n').unwrap_or_default();
        let short = id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(short, "{out:?} is no id");
        let record = env.root().join("sandboxes").join(id);
        let leaf = json(&record.join("intent.json"));
        let leaf = leaf.and_then(|intent| intent["leaf"].as_str().map(PathBuf::from));
        let mut sandbox = Sandbox { id: id.to_owned(), record, supervisors: Vec::new(), leaf };
        sandbox.supervisors = sandbox.supervisors_now();
        sandbox
    }

    /// A file of the record, if it is there and whole.
    pub fn file(&self, name: &str) -> Option<Value> {
        json(&self.record.join(name))
    }

    /// The living supervisors that `state.json` names now: standby, supervisor.
    pub fn supervisors_now(&self) -> Vec<Process> {
        let state = self.file("state.json").unwrap_or_default();
        let told = state.get("supervisors").and_then(Value::as_array).cloned().unwrap_or_default();
        told.iter().filter_map(identity).filter_map(Process::open).collect()
    }

    /// The leader, if it lives.
    pub fn leader(&self) -> Option<Process> {
        Process::open(identity(self.file("state.json")?.get("leader")?)?)
    }

    /// The supervisors of the commands that `exec` put into it.
    pub fn exec_supervisors(&self) -> Vec<Process> {
        let state = self.file("state.json").unwrap_or_default();
        let execs = state["execs"].as_array().cloned().unwrap_or_default();
        execs.iter().filter_map(|exec| identity(&exec["keeper"])).filter_map(Process::open).collect()
    }

    /// All living processes with its marker in their environment, supervisors left out.
    pub fn members(&self, env: &TestEnv) -> Vec<Process> {
        let entry = format!("PENFOLD_SANDBOX={}", self.id);
        let mut found = env.processes();
        found.retain(|process| {
            let text = std::fs::read(format!("/proc/{}/environ", process.pid())).unwrap_or_default();
            text.split(|&byte| byte == 0).any(|one| one == entry.as_bytes())
                && !self.supervisors.iter().any(|supervisor| supervisor.id() == process.id())
        });
        found
    }

    /// Why it ended, once it has: by `exit.json`, or by the report where the command never ran.
    pub fn cause(&self) -> Option<String> {
        let from = |name: &str| Some(self.file(name)?.get("cause")?.as_str()?.to_owned());
        from("exit.json").or_else(|| from("report.json"))
    }

    /// Whether it has ended, by its report.
    pub fn has_ended(&self) -> bool {
        self.record.join("report.json").is_file()
    }

    /// Waits until it has ended and its supervisors are gone; gives its report.
    #[track_caller]
    pub fn await_end(&self) -> Value {
        wait_until("the sandbox has ended", || self.has_ended());
        self.supervisors.iter().for_each(Process::await_end);
        self.supervisors_now().iter().for_each(Process::await_end);
        self.file("report.json").unwrap()
    }

    /// The status that `ps -a` tells.
    #[track_caller]
    pub fn status(&self, env: &TestEnv) -> Option<String> {
        let all = env.call(["ps", "-a", "--json"]).json();
        let one = all.as_array()?.iter().find(|one| one["id"] == self.id.as_str())?.clone();
        Some(one["status"].as_str()?.to_owned())
    }

    /// Runs `penfold` with these words, `ID` standing for its id, to the end.
    #[track_caller]
    pub fn call(&self, env: &TestEnv, words: &[&str]) -> Finished {
        env.call(words.iter().map(|&word| if word == "ID" { self.id.as_str() } else { word }))
    }

    /// SIGKILL to both supervisors at once: neither can act on the death of the other. The init of a pid namespace, which holds the
    /// lock a moment longer, is waited for.
    #[track_caller]
    pub fn kill_supervisors(&self) {
        let both = self.supervisors_now();
        assert_eq!(both.len(), 2, "supervisors");
        kill_at_once(&both.iter().collect::<Vec<_>>());
        wait_until("its lock is free", || !self.is_locked());
    }

    fn is_locked(&self) -> bool {
        let shared = FlockOperation::NonBlockingLockShared;
        std::fs::File::open(&self.record).is_ok_and(|dir| rustix::fs::flock(dir, shared).is_err())
    }

    /// Stops both supervisors, the outer one first, for it continues the other.
    #[track_caller]
    pub fn stop_supervisors(&self) {
        let both = self.supervisors_now();
        assert_eq!(both.len(), 2, "supervisors");
        for process in &both {
            process.signal(Signal::STOP);
        }
        wait_until("both are stopped", || both.iter().all(|process| process.state() == Some('T')));
    }

    pub fn continue_supervisors(&self) {
        self.supervisors_now().iter().for_each(|process| process.signal(Signal::CONT));
    }

    /// Panics if one of these members, a supervisor or the leaf is there.
    #[track_caller]
    pub fn assert_gone(&self, members: &[Process]) {
        for process in members.iter().chain(&self.supervisors) {
            assert!(process.has_ended(), "{} `{}` is alive", process.id(), process.command_line());
        }
        if let Some(leaf) = &self.leaf {
            assert!(!leaf.try_exists().unwrap(), "{} is left", leaf.display());
        }
    }
}

/// What a file of the record says of a process.
pub fn identity(told: &Value) -> Option<Identity> {
    let pid = i32::try_from(told.get("pid")?.as_i64()?).ok()?;
    Some(Identity { pid, start: told.get("start")?.as_u64()? })
}
