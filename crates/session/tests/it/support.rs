//! A session in a temporary directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use penfold_session::session_host::{self, SessionConfig};
use penfold_session::{CommandEnd, SessionClient, ShellCommand};
use penfold_state::log::{LogEntry, LogPosition, Stream};
use tempfile::TempDir;

/// The time that anything may take.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const NAME: &str = "main";

/// The program `host RECORD DIRECTORY`.
pub fn host() {
    let mut words = std::env::args_os().skip(2);
    let record = PathBuf::from(words.next().expect("a record"));
    let directory = words.next().map(PathBuf::from);
    let config =
        SessionConfig { record, name: NAME.to_owned(), directory, shell: "bash".into(), identity: None };
    match session_host::run_session_host(config) {
        Ok(never) => match never {},
        Err(error) => panic!("{error:?}"),
    }
}

/// A host that ends with the test, and all that its commands started.
pub struct Session {
    pub record: TempDir,
    pub _work: TempDir,
    pub host: Child,
}

/// A command's end and output.
#[derive(Debug)]
pub struct Done {
    pub end: CommandEnd,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

impl Done {
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }
}

impl Session {
    pub fn start() -> Session {
        let record = TempDir::new().expect("room");
        let work = TempDir::new().expect("room");
        let program = std::env::current_exe().expect("a path");
        let host = Command::new(program)
            .arg("host")
            .args([record.path(), work.path()])
            .env("FROM_HOST", "1")
            .stdin(Stdio::null())
            .spawn()
            .expect("a process");
        Session { record, _work: work, host }
    }

    pub fn connect(&self) -> SessionClient {
        let dir = open(self.record.path());
        let dir = std::os::fd::AsFd::as_fd(&dir);
        SessionClient::connect_in(dir, self.record.path(), NAME, PATIENCE, || false).expect("a host")
    }

    /// The processes below the host.
    pub fn processes(&self) -> Vec<penfold_process::Stat> {
        let pid = penfold_process::pid_from_raw(i32::try_from(self.host.id()).unwrap()).unwrap();
        let mut all = Vec::new();
        let _ = penfold_process::ProcFs::open().unwrap().descendants(pid, &mut all).unwrap();
        all.retain(|stat| !stat.is_dead());
        all
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let all = self.processes();
        let _ = self.host.kill();
        let _ = self.host.wait();
        let mut proc = penfold_process::ProcFs::open().unwrap();
        for stat in all {
            if let Ok(Some(process)) = penfold_process::Process::open_exact(&mut proc, stat.id()) {
                let _ = process.signal(penfold_process::Signal::KILL);
            }
        }
    }
}

pub fn open(path: &Path) -> OwnedFd {
    std::fs::File::open(path).expect("a directory").into()
}

/// Runs a command to its end.
pub fn run(client: &mut SessionClient, run: &ShellCommand) -> Done {
    let number = client.run(run).expect("accepted");
    wait(client, number)
}

pub fn wait(client: &mut SessionClient, number: u64) -> Done {
    let end = client.wait_end(number, Some(Instant::now() + PATIENCE)).expect("an end");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    if end.began {
        let mut reader = client.log(number, LogPosition::Start).expect("a log");
        while let Some(entry) = reader.next_entry().expect("a readable log") {
            if let LogEntry::Data { stream, bytes, .. } = entry {
                if stream == Stream::Stdout { out.extend(bytes) } else { err.extend(bytes) }
            }
        }
    }
    Done { end, out, err }
}

/// Runs a text to its end.
pub fn sh(client: &mut SessionClient, text: &str) -> Done {
    run(client, &ShellCommand::new(text))
}

/// Repeats until it is true.
pub fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_true() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 2_000_000 });
    }
}
