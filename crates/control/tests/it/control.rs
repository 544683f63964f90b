//! The client of a supervisor: the listeners that it trusts, its timeouts, the descriptors that it sends.

use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use penfold_control::Resolver;
use penfold_control::{
    EndLimits, EndMethod, ForgetError, StopResult, SupervisorClient, SupervisorClientError, end_sandboxes,
    remove_record,
};
use penfold_process::{ProcFs, ProcessId, SchedulerState as ProcessState};
use penfold_state::Registry;
use penfold_state::intent::{DetachedIntent, Intent};
use penfold_state::record::{Record, SCHEMA};
use penfold_state::state::{State, Status};
use penfold_state::wire::{self, Answer, PROTOCOL, ReceiveResult, Request};
use penfold_teardown::{Level, Resource as _};
use penfold_testkit::wait_until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::view_support;

pub const LIMIT: Duration = Duration::from_millis(500);
/// The time for an answer that comes, on a busy machine.
const LONG: Duration = Duration::from_secs(20);

pub struct Place {
    dir: tempfile::TempDir,
    pub record: Record,
}

impl Place {
    fn below(name: &str) -> Place {
        Place::with(name, None)
    }

    fn with(name: &str, detached: Option<DetachedIntent>) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join(name);
        let registry = Registry::open(&root).unwrap();
        let intent = Intent { detached, ..view_support::intent() };
        let record = registry.reserve(&intent).unwrap();
        Place { dir, record }
    }

    pub fn new() -> Place {
        Place::below("root")
    }

    fn socket(&self) -> PathBuf {
        self.record.files().path().join("control.sock")
    }

    pub fn listen(&self, kind: SocketType) -> OwnedFd {
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        // Use a short path: the real one may be longer than an address can hold.
        let number = std::os::fd::AsRawFd::as_raw_fd(&self.record.files().dir());
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{number}/control.sock").as_str()).unwrap();
        rustix::net::bind(&socket, &address).unwrap();
        rustix::net::listen(&socket, 8).unwrap();
        socket
    }

    fn connect(&self) -> Result<SupervisorClient, SupervisorClientError> {
        SupervisorClient::connect(self.record.files(), LONG)
    }
}

fn ready(fd: &OwnedFd) {
    let long = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&long)).unwrap(), 1, "nobody came");
}

/// Accepts one client, sends the id, and answers one request; returns the descriptors that came with the request.
fn supervise(listener: OwnedFd, id: String) -> JoinHandle<Vec<OwnedFd>> {
    std::thread::spawn(move || {
        ready(&listener);
        let client = rustix::net::accept(&listener).unwrap();
        wire::send_message(&client, &Answer::Hello { protocol: PROTOCOL, id, by: false }).unwrap();
        ready(&client);
        let (request, fds) = wire::receive_with::<Request>(&client).unwrap();
        assert!(matches!(request, ReceiveResult::Message(Request::Extend(7))));
        wire::send_message(&client, &Answer::Done).unwrap();
        fds
    })
}

/// spec: 11.8
#[test]
fn request_is_answered_and_descriptors_arrive() {
    for name in ["root", &"long".repeat(50)] {
        let place = Place::below(name);
        let supervisor = supervise(place.listen(SocketType::SEQPACKET), place.record.name().to_owned());
        let client = place.connect().unwrap();
        assert_eq!(client.id(), place.record.name());
        let (mut reader, writer) = std::io::pipe().unwrap();
        let answer = client.request_with(&Request::Extend(7), &[writer.as_fd()], LONG).unwrap();
        assert_eq!(answer, Answer::Done);
        drop(writer);
        let fds = supervisor.join().unwrap();
        assert_eq!(fds.len(), 1);
        rustix::io::write(&fds[0], b"through").unwrap();
        drop(fds);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }
}

/// spec: 11.8
#[test]
fn link_to_the_socket_of_another_is_not_followed() {
    let (place, other) = (Place::new(), Place::new());
    let _listener = other.listen(SocketType::SEQPACKET);
    std::os::unix::fs::symlink(other.socket(), place.socket()).unwrap();
    assert!(matches!(place.connect(), Err(SupervisorClientError::Untrusted { .. })));
}

/// The socket file belongs to this user, and the listener to another.
/// spec: 11.8
#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn listener_of_another_user_is_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let place = Place::new();
    let listen = "import os,socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
os.setresuid(65534,65534,65534)
s.listen(9)
print(flush=True)
while 1: c,_=s.accept(); c.send(b'{\"hello\":{\"protocol\":1,\"id\":\"'+sys.argv[2].encode()+b'\"}}')";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", listen]).arg(place.socket()).arg(place.record.name());
    let mut other = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = [0];
    other.stdout.take().unwrap().read_exact(&mut line).unwrap();
    let connected = place.connect();
    other.kill().unwrap();
    other.wait().unwrap();
    match connected {
        Err(SupervisorClientError::Untrusted { why, .. }) => assert!(why.contains("65534"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// The other supervisor takes over the socket of a killed supervisor that is still unreaped.
/// spec: 11.2
#[test]
fn listener_that_is_a_zombie_is_dead() {
    let place = Place::new();
    let listen = "import os,socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen(9)
s.settimeout(20)
if os.fork(): os._exit(0)
c,_=s.accept()
c.send(b'{\"hello\":{\"protocol\":1,\"id\":\"'+sys.argv[2].encode()+b'\"}}')
sys.stdin.read()";
    let mut command = std::process::Command::new("python3");
    command.args(["-c", listen]).arg(place.socket()).arg(place.record.name());
    let pipe = std::process::Stdio::piped;
    let mut first = command.stdin(pipe()).stdout(pipe()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&first);
    let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), ended).unwrap();
    let connected = SupervisorClient::connect(place.record.files(), Duration::from_secs(10));
    first.wait().unwrap();
    // EOF means that the other supervisor has ended.
    first.stdout.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    assert!(connected.is_ok(), "{connected:?}");
}

/// spec: 11.8
#[test]
fn what_is_no_socket_of_ours_is_not_trusted() {
    let place = Place::new();
    assert!(matches!(place.connect(), Err(SupervisorClientError::Foreground { .. })));
    std::fs::write(place.socket(), "").unwrap();
    assert!(matches!(place.connect(), Err(SupervisorClientError::Untrusted { .. })));
    std::fs::remove_file(place.socket()).unwrap();
    std::fs::create_dir(place.socket()).unwrap();
    assert!(matches!(place.connect(), Err(SupervisorClientError::Untrusted { .. })));
    std::fs::remove_dir(place.socket()).unwrap();
    let stream = place.listen(SocketType::STREAM);
    assert!(matches!(place.connect(), Err(SupervisorClientError::Untrusted { .. })));
    drop(stream);
    std::fs::remove_file(place.socket()).unwrap();
    drop(place.listen(SocketType::SEQPACKET));
    assert!(matches!(place.connect(), Err(SupervisorClientError::Deserted { .. })));
}

/// spec: 11.8
#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn socket_of_another_user_is_not_trusted() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to give a socket away");
        return;
    }
    let place = Place::new();
    let _listener = place.listen(SocketType::SEQPACKET);
    std::os::unix::fs::chown(place.socket(), Some(65534), None).unwrap();
    assert!(matches!(place.connect(), Err(SupervisorClientError::Untrusted { .. })));
}

/// spec: 11.8
#[test]
fn who_speaks_for_another_sandbox_is_not_trusted() {
    let place = Place::new();
    let listener = place.listen(SocketType::SEQPACKET);
    let liar = std::thread::spawn(move || {
        ready(&listener);
        let client = rustix::net::accept(&listener).unwrap();
        let _ = wire::send_message(
            &client,
            &Answer::Hello { protocol: PROTOCOL, id: "0123456789ab".to_owned(), by: false },
        );
    });
    assert!(matches!(place.connect(), Err(SupervisorClientError::Untrusted { .. })));
    liar.join().unwrap();
    assert!(place.dir.path().try_exists().unwrap());
}

/// spec: 11.4
#[test]
fn record_that_somebody_else_puts_away_is_waited_for() {
    let Place { dir, record } = Place::new();
    let resolver = Resolver::new(&dir.path().join("root"));
    let known = resolver.resolve(record.name()).unwrap();
    let limits = EndLimits { patience: Some(Duration::from_millis(10)), ..EndLimits::default() };
    let busy = remove_record(&resolver, &known, &limits);
    assert!(matches!(busy, Err(ForgetError::Busy { .. })), "{busy:?}");
    drop(record);
    remove_record(&resolver, &known, &limits).unwrap();
    assert!(resolver.again().resolve(&known.id).is_err());
    // The record is gone, whichever process removed it.
    remove_record(&resolver, &known, &limits).unwrap();
}

/// spec: 11.4
#[test]
fn supervisor_that_does_not_listen_yet_is_asked_once_it_does() {
    let place = Place::with("root", Some(DetachedIntent::default()));
    let resolver = Resolver::new(&place.dir.path().join("root"));
    let known = [resolver.resolve(place.record.name()).unwrap()];
    let (turned, turns) = channel();
    let ending = std::thread::spawn(move || {
        let limits = EndLimits { answer: LONG, ..EndLimits::default() };
        end_sandboxes(&resolver, &known, EndMethod::Kill, &limits, &mut |_| {
            let _ = turned.send(());
        })
    });
    (0..3).for_each(|_| turns.recv().unwrap());
    let listener = place.listen(SocketType::SEQPACKET);
    ready(&listener);
    let client = rustix::net::accept(&listener).unwrap();
    let hello = Answer::Hello { protocol: PROTOCOL, id: place.record.name().to_owned(), by: false };
    wire::send_message(&client, &hello).unwrap();
    ready(&client);
    assert!(matches!(
        wire::receive_message::<Request>(&client).unwrap(),
        ReceiveResult::Message(Request::Kill)
    ));
    let Place { dir, mut record } = place;
    record.release(false).unwrap();
    drop((record, listener, client));
    assert!(matches!(ending.join().unwrap().as_slice(), [StopResult::Gone]));
    dir.close().unwrap();
}

/// Leaves the files of a supervisor that has exited.
fn ends(record: Record, supervisor: ProcessId) {
    let state = State {
        schema: SCHEMA,
        status: Status::Running,
        supervisors: vec![supervisor],
        leader: None,
        level: Level::Subreaper,
        started_at_ms: 0,
        expires_at_ms: None,
        next_start_at_ms: None,
        execs: Vec::new(),
        missing: Vec::new(),
    };
    record.files().write_state(&state).unwrap();
    std::fs::write(record.files().path().join("report.json"), "{}").unwrap();
    // Dropping the record releases the lock.
    drop(record);
}

/// The lock is released before the client connected: only the record names the supervisor that exits with it.
/// spec: 11.1
#[test]
fn supervisor_that_exits_before_it_listens_is_waited_for() {
    let Place { dir, record } = Place::with("root", Some(DetachedIntent::default()));
    let resolver = Resolver::new(&dir.path().join("root"));
    let known = [resolver.resolve(record.name()).unwrap()];
    // The main thread has exited; another thread lives until its input ends.
    let exits = "import ctypes,os,platform,threading
threading.Thread(target=lambda: (os.read(0,1),os._exit(0))).start()
ctypes.CDLL(None).syscall(60 if platform.machine()=='x86_64' else 93,0)";
    let mut command = std::process::Command::new("python3");
    let mut last = command.args(["-c", exits]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&last);
    let mut proc = ProcFs::open().unwrap();
    let mut stat = || proc.stat(pid).unwrap().unwrap();
    wait_until("its main thread has exited", || stat().state == ProcessState::Zombie);
    let id = stat().id();
    let (over, waits) = channel();
    let (mut turns, mut record) = (0, Some(record));
    let ending = std::thread::spawn(move || {
        let limits = EndLimits { exit: LONG, ..EndLimits::default() };
        end_sandboxes(&resolver, &known, EndMethod::Kill, &limits, &mut |_| {
            turns += 1;
            if turns == 3 {
                ends(record.take().unwrap(), id);
                over.send(()).unwrap();
            }
        })
    });
    waits.recv().unwrap();
    let (clock, _held) = rustix::pipe::pipe().unwrap();
    let moment = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
    poll(&mut [PollFd::new(&clock, PollFlags::IN)], Some(&moment)).unwrap();
    assert!(!ending.is_finished(), "said to be gone, and {id:?} exits");
    drop(last.stdin.take());
    assert!(matches!(ending.join().unwrap().as_slice(), [StopResult::Gone]));
    last.wait().unwrap();
}
