//! What the tests of the verbs that end sandboxes share: detached sandboxes, handles to all in them, supervisors that lie.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::support_d::{self as d, Started, Yard, code, said, until};

/// A tree that ends by itself only after long: a daemon, one that ignores TERM, and the leader.
pub const TREE: &str =
    "setsid sleep 1000 & (setsid sh -c 'trap \"\" TERM; echo deaf >> $UP; sleep 1000 & wait' &)
    echo lead >> $UP; sleep 1000 & wait";

/// A state root; what is in it is ended with this value.
pub struct Fold {
    pub yard: Yard,
}

impl Fold {
    pub fn new() -> Fold {
        Fold { yard: Yard::new() }
    }

    /// Starts a script in a detached sandbox.
    pub fn start(&self, flags: &[&str], script: &str) -> Sandbox {
        let mut command = self.yard.penfold(["run", "-d"]);
        command.args(flags).args(["--", "sh", "-c", script]).env("UP", self.yard.path("up"));
        let done = d::output(&mut command);
        assert_eq!(code(&done), 0, "{}", said(&done));
        let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        let record = self.yard.path("root/sandboxes").join(&id);
        let state = read(&record.join("state.json"));
        let intent = read(&record.join("intent.json"));
        let pids = state["supervisors"].as_array().unwrap().iter().map(|one| pid(&one["pid"]));
        // Those of a short script may be gone by now.
        let open = |pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?));
        let supervisors: Vec<(Pid, OwnedFd)> = pids.filter_map(open).collect();
        let leaf = intent["leaf"].as_str().map(PathBuf::from);
        Sandbox { id, record, supervisors, leaf, leader: pid(&state["leader"]["pid"]), members: Vec::new() }
    }

    /// The same with [`TREE`], once all of it stands; its members are known then.
    pub fn start_tree(&self, flags: &[&str]) -> Sandbox {
        let before = self.sleepers();
        let mut sandbox = self.start(flags, TREE);
        self.yard.await_up(&["deaf", "lead"]);
        until("the tree stands", || self.sleepers() == before + 3);
        std::fs::remove_file(self.yard.path("up")).unwrap();
        let own = |pid: &Pid| sandbox.supervisors.iter().any(|(supervisor, _)| supervisor == pid);
        let id = format!("PENFOLD_SANDBOX={}", sandbox.id);
        let inside = |pid: &Pid| {
            let text = std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
            text.split(|&byte| byte == 0).any(|entry| entry == id.as_bytes())
        };
        let all = self.yard.marked().into_iter().filter(|(pid, _, _)| !own(pid) && inside(pid));
        sandbox.members = all.map(|(_, handle, _)| handle).collect();
        assert!(sandbox.members.len() >= 5, "{:?}", self.yard.marked());
        sandbox
    }

    fn sleepers(&self) -> usize {
        self.yard.find("sleep 1000").len()
    }

    pub fn call(&self, words: &[&str]) -> Output {
        d::output(&mut self.yard.penfold(words))
    }

    /// Calls, and expects the code and the ids on standard output.
    #[track_caller]
    pub fn expect(&self, words: &[&str], expected: i32, ids: &[&str]) -> Output {
        let done = self.call(words);
        let printed = String::from_utf8_lossy(&done.stdout).into_owned();
        let lines: Vec<&str> = printed.lines().collect();
        assert_eq!((code(&done), lines.as_slice()), (expected, ids), "{words:?}: {}", said(&done));
        done
    }

    /// Expects that `ps` with these flags lists none of this state root.
    #[track_caller]
    pub fn expect_none_listed(&self, flags: &[&str]) {
        let words: Vec<&str> = ["ps", "--json"].iter().chain(flags).copied().collect();
        let listed = d::json(&self.call(&words));
        let own: Vec<&Value> =
            listed.as_array().unwrap().iter().filter(|one| one["claimed"] == true).collect();
        assert!(own.is_empty(), "{own:?}");
    }

    /// Calls in the background.
    pub fn begin(&self, words: &[&str]) -> Child {
        self.yard.penfold(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    pub fn status(&self, id: &str) -> String {
        let listed = d::json(&d::output(&mut self.yard.penfold(["inspect", id])));
        listed[0]["status"].as_str().unwrap_or("?").to_owned()
    }
}

impl Drop for Fold {
    fn drop(&mut self) {
        for (_, handle, _) in self.yard.marked() {
            let _ = pidfd_send_signal(&handle, Signal::KILL);
        }
        let _ = self.call(&["kill", "--all", "-f"]);
    }
}

pub fn read(path: &std::path::Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn pid(value: &Value) -> Pid {
    Pid::from_raw(i32::try_from(value.as_i64().unwrap()).unwrap()).unwrap()
}

/// A sandbox with handles to everything in it.
pub struct Sandbox {
    pub id: String,
    pub record: PathBuf,
    pub supervisors: Vec<(Pid, OwnedFd)>,
    pub leader: Pid,
    pub leaf: Option<PathBuf>,
    pub members: Vec<OwnedFd>,
}

impl Sandbox {
    /// Kills both supervisors, the inner one first and both stopped: else one would finish the work of the other.
    pub fn kill_supervisors(&self) {
        self.stop_supervisors();
        for (_, handle) in self.supervisors.iter().rev() {
            pidfd_send_signal(handle, Signal::KILL).unwrap();
            until("it is dead", || d::has_ended(handle));
        }
    }

    /// Sends a signal to both supervisors, to the outer one first.
    fn signal_supervisors(&self, signal: Signal) {
        assert_eq!(self.supervisors.len(), 2);
        for (_, handle) in &self.supervisors {
            pidfd_send_signal(handle, signal).unwrap();
        }
    }

    /// Stops both for good: the outer one first, for it continues the other.
    pub fn stop_supervisors(&self) {
        self.signal_supervisors(Signal::STOP);
        until("both are stopped", || self.supervisors.iter().all(|(pid, _)| d::state(*pid) == Some('T')));
    }

    pub fn continue_supervisors(&self) {
        self.signal_supervisors(Signal::CONT);
    }

    /// First seen alive, then gone: this is the second half.
    #[track_caller]
    pub fn assert_gone(&self) {
        let alive = self.members.iter().filter(|handle| !d::has_ended(handle)).count();
        assert_eq!(alive, 0, "members are alive");
        let alive = self.supervisors.iter().filter(|(_, handle)| !d::has_ended(handle)).count();
        assert_eq!(alive, 0, "supervisors are alive");
        if let Some(leaf) = &self.leaf {
            assert!(!leaf.try_exists().unwrap(), "{} is left", leaf.display());
        }
    }

    #[track_caller]
    pub fn assert_alive(&self) {
        assert!(self.members.iter().all(|handle| !d::has_ended(handle)), "members have ended");
    }
}

/// Runs a shell script that holds the lock of a record, as a command does that puts the sandbox away: the directory is its
/// standard input.
pub fn holder(sandbox: &Sandbox, script: &str) -> Started {
    let dir = std::fs::File::open(&sandbox.record).unwrap();
    rustix::fs::flock(&dir, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    Started::of(Command::new("bash").args(["-c", script]).stdin(dir))
}

/// Listens in the place of a sandbox's supervisor and says the same to all who come.
pub struct Impostor {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    /// Takes over the control socket; `words` are the answers, one after the other, `hangs_up` ends the connection then.
    pub fn new(sandbox: &Sandbox, words: Vec<Value>, hangs_up: bool) -> Impostor {
        let path = sandbox.record.join("control.sock");
        std::fs::remove_file(&path).unwrap();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 64).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut kept = Vec::new();
            while !watched.load(Ordering::Relaxed) {
                let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let mut fds = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
                let _ = rustix::event::poll(&mut fds, Some(&tick));
                while let Ok(client) = rustix::net::accept(&listener) {
                    for word in &words {
                        let text = serde_json::to_vec(word).unwrap();
                        let _ = rustix::net::send(&client, &text, rustix::net::SendFlags::NOSIGNAL);
                    }
                    if !hangs_up {
                        kept.push(client);
                    }
                }
            }
        });
        Impostor { over, thread: Some(thread) }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

pub fn hello(id: &str) -> Value {
    json!({"hello": {"protocol": 1, "id": id}})
}

/// The word of a supervisor that has seen the end.
pub fn all_gone(id: &str) -> Value {
    let findings = json!({"ended": [], "survivors": [], "steps": [], "verified": true, "took_us": 1, "cpu_us": 1,
        "peak_memory_bytes": 1});
    let mut report = json!({"schema": 1, "id": id, "command": [], "level": "cgroup", "cause": "kill",
        "exit": {"signal": 9}, "started_at_ms": 1, "duration_ms": 1});
    report.as_object_mut().unwrap().extend(findings.as_object().unwrap().clone());
    json!({"outcome": {"report": report, "totals": {"ended": 0, "term": 0, "kill": 0, "strays": 0}, "teller": 1}})
}
