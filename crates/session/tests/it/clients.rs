//! Clients that go away, talk nonsense, or are many.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use penfold_session::protocol::{LONGEST_QUEUE, SessionRequest};
use penfold_session::{EndKind, ShellCommand};
use penfold_state::log::LogPosition;
use penfold_state::wire;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use crate::support::{NAME, PATIENCE, Session, sh, until, wait};

fn socket(session: &Session) -> PathBuf {
    session.record.path().join("sessions").join(NAME).join("socket")
}

/// A connection without a client's manners.
fn dial(session: &Session) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let raw = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&raw, &SocketAddrUnix::new(socket(session).as_os_str().as_bytes())?)?;
    Ok(raw)
}

#[test]
fn command_outlives_its_client() {
    let session = Session::start();
    let mut client = session.connect();
    let number = client.run(&ShellCommand::new("echo begun; sleep 0.2; echo done; exit 3")).unwrap();
    let next = client.run(&ShellCommand::new("echo next")).unwrap();
    drop(client);
    let mut other = session.connect();
    let done = wait(&mut other, number);
    assert_eq!((done.out().as_str(), done.end.code), ("begun\ndone\n", 3));
    assert_eq!(wait(&mut other, next).out(), "next\n");
    assert_eq!(wait(&mut session.connect(), number).end, done.end, "an ended command can be asked for again");
    assert!(other.wait_end(99, None).is_err());
}

#[test]
fn several_clients_wait_for_one_command() {
    let session = Session::start();
    let number = session.connect().run(&ShellCommand::new("sleep 0.2; echo done")).unwrap();
    let mut clients: Vec<_> = (0..5).map(|_| session.connect()).collect();
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(matches!(
        clients[0].wait_end(number, Some(soon)),
        Err(penfold_session::SessionClientError::TimedOut { .. })
    ));
    for client in &mut clients {
        assert_eq!(wait(client, number).end.code, 0);
    }
}

#[test]
fn commands_run_one_after_another_in_order() {
    let session = Session::start();
    let mut clients = [session.connect(), session.connect()];
    let numbers: Vec<u64> = (0..40)
        .map(|index| clients[index % 2].run(&ShellCommand::new("n=$((n+1)); echo $n")).unwrap())
        .collect();
    // Only the last 16 are kept.
    for number in &numbers[24..] {
        assert_eq!(wait(&mut clients[0], *number).out(), format!("{number}\n"));
    }
    let commands = session.record.path().join("sessions").join(NAME).join("commands");
    until("older ones are removed", || std::fs::read_dir(&commands).unwrap().count() == 16);
    clients[0].forget(numbers[39]).unwrap();
    // The host waits until the shell has read all files of the command.
    until("it is forgotten", || clients[1].log(numbers[39], penfold_state::log::LogPosition::Start).is_err());
}

#[test]
fn queue_is_bounded() {
    let session = Session::start();
    let mut client = session.connect();
    let first = client.run(&ShellCommand::new("sleep 1000")).unwrap();
    until("it runs", || session.processes().len() > 1);
    let queued: Vec<u64> =
        (0..LONGEST_QUEUE).map(|_| client.run(&ShellCommand::new("true")).unwrap()).collect();
    let error = client.run(&ShellCommand::new("true")).expect_err("full").to_string();
    assert!(error.contains("256"), "{error}");
    client.interrupt(first).unwrap();
    assert_eq!(wait(&mut client, first).end.how, EndKind::Interrupted);
    wait(&mut client, *queued.last().unwrap());
    assert_eq!(sh(&mut client, "echo usable").out(), "usable\n");
}

#[test]
fn nonsense_changes_nothing() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "x=1");
    for junk in [
        &b"{}"[..],
        b"\xff\0",
        b"[[[[",
        b"{\"watch\":{\"number\":-1}}",
        b"\"run\"",
        b"x",
        &vec![b'['; 100_000],
    ] {
        let raw = dial(&session).expect("a connection");
        let _ = rustix::net::send(&raw, junk, SendFlags::NOSIGNAL);
    }
    let raw = dial(&session).unwrap();
    // Not sealed, of no use, or too many.
    let file: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    for fd in [file.as_fd(), pipe.as_fd()] {
        wire::send_with(&raw, &SessionRequest::Run, &[fd]).unwrap();
        wire::send_with(&raw, &SessionRequest::Run, &[fd; 8]).unwrap();
    }
    let half = dial(&session).unwrap();
    rustix::net::shutdown(&half, Shutdown::Read).unwrap();
    let other = dial(&session).unwrap();
    rustix::net::shutdown(&other, Shutdown::Write).unwrap();
    // Asks for ever and never reads.
    let deaf = dial(&session).unwrap();
    for _ in 0..10_000 {
        if wire::send_with(&deaf, &SessionRequest::Snapshot, &[]).is_err() {
            break;
        }
    }
    assert_eq!(sh(&mut client, "echo $x").out(), "1\n");
}

#[test]
fn thousands_of_connections_leave_room_for_the_next() {
    let session = Session::start();
    let mut client = session.connect();
    let number = client.run(&ShellCommand::new("sleep 1; echo done")).unwrap();
    let mut idle = Vec::new();
    for _ in 0..3000 {
        idle.extend(dial(&session).ok());
        if idle.len() > 600 {
            idle.remove(0);
        }
    }
    assert_eq!(sh(&mut session.connect(), "echo usable").out(), "usable\n");
    assert_eq!(wait(&mut client, number).out(), "done\n", "a client that waits for an end is not evicted");
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", session.host.id())).unwrap().count();
    assert!(descriptors < 320, "{descriptors}");
}

#[test]
fn second_host_of_a_session_is_refused_and_a_dead_one_is_replaced() {
    let mut session = Session::start();
    sh(&mut session.connect(), "echo one");
    let start = |session: &Session| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.arg("host").arg(session.record.path()).stderr(std::process::Stdio::null());
        command.spawn().unwrap()
    };
    assert!(!start(&session).wait().unwrap().success());
    let before = session.processes();
    session.host.kill().unwrap();
    session.host.wait().unwrap();
    let mut proc = penfold_process::ProcFs::open().unwrap();
    until("the shell of the dead host ends at the end of its input", || {
        before.iter().all(|stat| proc.presence(stat.id()).is_gone())
    });
    session.host = start(&session);
    assert_eq!(sh(&mut session.connect(), "echo two").end.number, 1);
}

#[test]
fn idle_host_is_small() {
    let session = Session::start();
    let mut client = session.connect();
    sh(&mut client, "head -c 3000000 /dev/zero");
    for _ in 0..50 {
        sh(&mut client, "echo small");
    }
    let private = || {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", session.host.id())).unwrap();
        let lines = rollup.lines().filter(|line| line.starts_with("Private_"));
        lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum::<u64>()
    };
    until("the host has settled", || private() <= 1024);
    println!("private {} KiB", private());
}

/// spec: 13.15
#[test]
fn a_client_that_waited_for_an_end_can_read_the_log_however_many_commands_end_meanwhile() {
    let session = Session::start();
    let (mut slow, mut busy) = (session.connect(), session.connect());
    let number = slow.run(&ShellCommand::new("echo kept")).unwrap();
    assert!(slow.wait_end(number, Some(Instant::now() + PATIENCE)).unwrap().began);
    let enough = |client: &mut _| {
        for _ in 0..20 {
            sh(client, "echo more");
        }
    };
    enough(&mut busy);
    assert!(slow.log(number, LogPosition::Start).is_ok());
    assert!(busy.log(number + 1, LogPosition::Start).is_err(), "only the last commands are kept");
    drop(slow);
    enough(&mut busy);
    assert!(busy.log(number, LogPosition::Start).is_err());
}
