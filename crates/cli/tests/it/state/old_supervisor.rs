//! A supervisor of an older build, kept as it was. Nothing here may be brought up to date: who changes what is said on a
//! control socket, or what is in a record, learns from the tests that use this whether old supervisors still obey.
//!
//! It uses nothing of penfold. Its sandbox has no leaf: it is the subreaper of a tree of sleeping processes.

use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_testkit::proc::{self, Handle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Signal, WaitOptions, WaitStatus, waitpid};
use serde_json::Value;

/// How the whole id begins; it ends with what is shown.
const BEGIN: &str = "01a1fe04-a693-73ed-a101-";
pub(crate) const NAME: &str = "web";

/// The leader says in a file that it was told HUP.
pub(crate) const TREE: &str = "trap 'echo told >\"$UP\"' HUP; setsid sleep 1041 & (setsid sleep 1042 &)
    while :; do sleep 1043 & wait; done";

const INTENT: &str = r#"{"schema":1,"id":"BEGINID","name":"web","command":["sh","-c","sleep"],"boot":"BOOT","made_at_ms":1795263080092,"detached":{"root":"ROOT"}}"#;
const STATE: &str = r#"{"schema":1,"word":"running","supervisors":[SELF],"leader":LEADER,"level":"subreaper","started_at_ms":1795263080093}"#;
const EXIT: &str = r#"{"schema":1,"exit":{"signal":SIGNAL},"cause":"CAUSE","at_ms":1795263082971}"#;
const REPORT: &str = r#"{"schema":1,"id":"ID","name":"web","command":["sh","-c","sleep"],"level":"subreaper","cause":"CAUSE","exit":{"signal":SIGNAL},"started_at_ms":1795263080093,"duration_ms":2888,"ended":[{"pid":4000000,"start_time":660339,"name":"sleep","command":"sleep 1041","how":"kill","stray":true,"why":"setsid"}],"survivors":[],"steps":[{"what":"kill","at_us":0,"took_us":160},{"what":"verify","at_us":665,"took_us":0}],"verified":true,"took_us":782,"cpu_us":4909,"peak_memory_bytes":1683456}"#;
const OUTCOME: &str =
    r#"{"outcome":{"report":REPORT,"totals":{"ended":4,"term":0,"kill":4,"strays":2},"teller":TELLER}}"#;

const HELLO: &str = r#"{"hello":{"protocol":PROTOCOL,"id":"ID"}}"#;
const DONE: &str = r#""done""#;
const KILLING: &str = r#"{"ending":"killing"}"#;
const STOPPING: &str = r#"{"ending":{"stopping":MILLISECONDS}}"#;
const REFUSED: &str = r#"{"refused":"this supervisor (protocol PROTOCOL) does not know that request"}"#;

/// The processes of one such supervisor.
struct Old {
    protocol: u32,
    id: String,
    record: PathBuf,
    leader: i32,
    /// How the leader ended.
    signal: i32,
    clients: Vec<OwnedFd>,
}

/// Why it ends its sandbox, and how.
enum Asked {
    Nothing,
    Stop(Duration),
    Kill,
}

/// Looks after a sandbox until it is told to end it. What it is told is kept in `heard`, a line each.
#[expect(clippy::zombie_processes, reason = "the leader is reaped with all the others")]
pub(crate) fn supervise(protocol: u32, id: &str, root: &Path, heard: &Path) {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
    let record = root.join("sandboxes").join(id);
    DirBuilder::new().recursive(true).mode(0o700).create(&record).unwrap();
    DirBuilder::new().recursive(true).mode(0o700).create(root.join("names")).unwrap();
    let lock = File::open(&record).unwrap();
    rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    let mut name = File::create(root.join("names").join(NAME)).unwrap();
    rustix::fs::flock(&name, FlockOperation::NonBlockingLockExclusive).unwrap();
    name.write_all(id.as_bytes()).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let intent = INTENT.replace("BEGIN", BEGIN).replace("ID", id).replace("BOOT", boot.trim());
    fs::write(record.join("intent.json"), intent.replace("ROOT", &root.display().to_string())).unwrap();
    let listener = listen(&record.join("control.sock"));
    let leader = Command::new("sh")
        .args(["-c", TREE])
        .env("PENFOLD_SANDBOX", id)
        .env("UP", heard.with_extension("told"))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let leader = i32::try_from(leader.id()).unwrap();
    let mut old = Old { protocol, id: id.to_owned(), record, leader, signal: 0, clients: Vec::new() };
    old.say_state();
    old.serve(&listener, heard);
    drop(lock);
}

fn listen(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 16).unwrap();
    socket
}

fn say(client: &OwnedFd, text: &str) {
    let _ = rustix::net::send(client, text.as_bytes(), SendFlags::NOSIGNAL);
}

impl Old {
    fn say_state(&self) {
        let id = |pid: i32| {
            let id = proc::stat(pid).unwrap().id;
            format!(r#"{{"pid":{},"start":{}}}"#, id.pid, id.start)
        };
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let text = STATE.replace("SELF", &id(own)).replace("LEADER", &id(self.leader));
        fs::write(self.record.join("state.new"), text).unwrap();
        fs::rename(self.record.join("state.new"), self.record.join("state.json")).unwrap();
    }

    fn serve(&mut self, listener: &OwnedFd, heard: &Path) {
        let mut heard = File::create(heard).unwrap();
        loop {
            let fds = std::iter::once(listener.as_fd()).chain(self.clients.iter().map(AsFd::as_fd));
            let mut fds: Vec<PollFd<'_>> =
                fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            poll(&mut fds, None).unwrap();
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            let mut asked = Asked::Nothing;
            let mut left = Vec::new();
            for (client, ready) in std::mem::take(&mut self.clients).into_iter().zip(&ready[1..]) {
                let mut buffer = vec![0; 1 << 16];
                let length = if *ready {
                    rustix::net::recv(&client, &mut buffer, RecvFlags::empty())
                        .map_or(0, |(length, _)| length)
                } else {
                    usize::MAX
                };
                if let Some(text) = buffer.get(..length).filter(|text| !text.is_empty()) {
                    let text = String::from_utf8_lossy(text);
                    writeln!(heard, "{text}").unwrap();
                    if let new @ (Asked::Stop(_) | Asked::Kill) = self.answer(&client, &text) {
                        asked = new;
                    }
                }
                if length > 0 {
                    left.push(client);
                }
            }
            self.clients = left;
            if let Ok(client) = rustix::net::accept(listener) {
                say(&client, &HELLO.replace("PROTOCOL", &self.protocol.to_string()).replace("ID", &self.id));
                self.clients.push(client);
            }
            match asked {
                Asked::Nothing => {}
                Asked::Stop(grace) => return self.end(grace, "stop"),
                Asked::Kill => return self.end(Duration::ZERO, "kill"),
            }
        }
    }

    fn answer(&self, client: &OwnedFd, text: &str) -> Asked {
        let request: Value = serde_json::from_str(text).unwrap_or_default();
        if request == "kill" {
            // The oldest does it, and says nothing.
            if self.protocol > 0 {
                say(client, KILLING);
            }
            return Asked::Kill;
        }
        let known = self.protocol > 0;
        if let Some(stop) = request.get("stop").filter(|_| known) {
            let ms = stop.get("grace_ms").and_then(Value::as_u64).unwrap_or(10_000);
            say(client, &STOPPING.replace("MILLISECONDS", &ms.to_string()));
            return Asked::Stop(Duration::from_millis(ms));
        }
        if request.get("extend").and_then(Value::as_u64).is_some() && known {
            say(client, DONE);
        } else if let Some(signal) = request.get("forward").and_then(Value::as_i64).filter(|_| known) {
            assert_eq!(signal, 1);
            let leader = proc::stat(self.leader).and_then(|stat| Handle::open(stat.id).ok()?);
            let _ = leader.map(|leader| leader.signal(Signal::HUP));
            say(client, DONE);
        } else {
            say(client, &REFUSED.replace("PROTOCOL", &self.protocol.to_string()));
        }
        Asked::Nothing
    }

    fn end(&mut self, grace: Duration, cause: &str) {
        let begun = Instant::now();
        let mut signal = if grace.is_zero() { Signal::KILL } else { Signal::TERM };
        self.signal_all(signal);
        while self.has_children() {
            if begun.elapsed() >= grace {
                signal = Signal::KILL;
            }
            if signal == Signal::KILL {
                self.signal_all(signal);
            }
            let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
        }
        let fill = |text: &str| {
            text.replace("CAUSE", cause).replace("SIGNAL", &self.signal.to_string()).replace("ID", &self.id)
        };
        fs::write(self.record.join("exit.json"), fill(EXIT)).unwrap();
        fs::write(self.record.join("report.json"), fill(REPORT)).unwrap();
        let own = rustix::process::getpid().as_raw_nonzero().to_string();
        let outcome = OUTCOME.replace("REPORT", &fill(REPORT)).replace("TELLER", &own);
        if self.protocol > 0 {
            self.clients.iter().for_each(|client| say(client, &outcome));
        }
    }

    /// Its descendants, which cannot leave a subreaper.
    #[expect(clippy::unused_self, reason = "they are those of this process")]
    fn signal_all(&self, signal: Signal) {
        let all = proc::all();
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let below = proc::descendants(&all, own);
        for process in all.iter().filter(|process| below.contains(&process.id.pid)) {
            if let Ok(Some(handle)) = Handle::open(process.id) {
                let _ = handle.signal(signal);
            }
        }
    }

    /// Reaps; false when there is nobody left.
    fn has_children(&mut self) -> bool {
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid.as_raw_nonzero().get() == self.leader => {
                    self.signal = WaitStatus::terminating_signal(status).unwrap_or(0);
                }
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}
