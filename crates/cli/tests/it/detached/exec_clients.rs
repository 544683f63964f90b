//! Clients that send invalid messages or never read: the supervisor keeps running, answers other clients and stays idle.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, shutdown, socket_with,
    socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde_json::Value;

use super::sandboxes::{
    await_log, await_rest, await_running, begin, exec, exec_description, exec_request, null, put_in, remove,
    signals,
};
use crate::support::{
    ControlClient, Impostor, Process, Running, Sandbox, TestEnv, has_terminals, wait_until,
};

/// Connects, and takes the greeting.
#[track_caller]
fn greeted(sandbox: &Sandbox) -> ControlClient {
    ControlClient::connect(&sandbox.record).expect("no greeting")
}

fn is_refused(answer: Option<&Value>) -> bool {
    answer.is_some_and(|answer| answer.get("refused").is_some())
}

/// A detached sandbox whose supervisors may open so many files.
#[track_caller]
fn with_open_files(env: &TestEnv, limit: u32, command: &str) -> Sandbox {
    let printed = env.script(&format!("ulimit -n {limit}; $PF -d -- {command}")).with_code(0).out();
    Sandbox::printed(env, &printed)
}

/// spec: 13.5
#[test]
fn descriptors_that_are_not_those_of_an_exec_are_refused() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4201"]);
    let file = env.path("work/ran");
    let null = null();
    let (pipe, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (sealed, unsealed) = (exec_description(&file, true), exec_description(&file, false));
    let disk: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let n = null.as_fd();
    let offers: [(&str, Vec<BorrowedFd<'_>>); 7] = [
        ("none", vec![]),
        ("three", vec![sealed.as_fd(), n, n]),
        // The kernel hands over as many as there is room for.
        ("fourteen", [vec![sealed.as_fd()], vec![n; 13]].concat()),
        ("an empty pipe", vec![pipe.as_fd(), n, n, n]),
        ("memory that can be changed", vec![unsealed.as_fd(), n, n, n]),
        ("a file on disk", vec![disk.as_fd(), n, n, n]),
        ("a device", vec![n, n, n, n]),
    ];
    for (offer, fds) in offers {
        let client = greeted(&sandbox);
        client.hand_over(&exec_request(), &fds);
        let answer = client.hear();
        assert!(is_refused(answer.as_ref()), "{offer}: {answer:?}");
        greeted(&sandbox);
    }
    assert!(!file.try_exists().unwrap());
    let client = greeted(&sandbox);
    client.hand_over(&exec_request(), &[sealed.as_fd(), n, n, n]);
    wait_until("the right descriptors start the command", || file.try_exists().unwrap());
    await_rest("offers", &sandbox.supervisors);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.5
#[test]
fn garbage_is_refused() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4202"]);
    let long = vec![b'x'; 150_000];
    let nested = vec![b'['; 100_000];
    let all: [&[u8]; 7] =
        [b"\0", b"{}", b"\"nothing\"", b"{\"killexec\":4294967295}", b"{\"forward\":-1}", &long, &nested];
    for text in all {
        let client = greeted(&sandbox);
        client.hand_over(text, &[]);
        let answer = client.hear();
        assert!(is_refused(answer.as_ref()), "{:?}: {answer:?}", text.get(..30));
    }
    greeted(&sandbox);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// [`super::promptness`] has how soon the supervisor greets.
/// spec: 13.5
#[test]
fn crowd_of_silent_clients_keeps_nobody_out() {
    let env = TestEnv::new();
    for limit in [1024, 64] {
        let sandbox = with_open_files(&env, limit, "sleep 4203");
        let silent = |_| ControlClient::silent(&sandbox.record).unwrap();
        let crowd: Vec<ControlClient> = (0..300).map(silent).collect();
        greeted(&sandbox);
        exec(&env, &sandbox, &["sh", "-c", "exit 6"]).with_code(6);
        await_rest("300 connections", &sandbox.supervisors);
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
        drop(crowd);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 13.5
#[test]
fn crowd_that_has_spoken_once_keeps_nobody_out_and_evicts_no_waiting_client() {
    let env = TestEnv::new();
    let script = "sh -c \"trap '' TERM; echo up; while :; do sleep 0.05; done\"";
    let sandbox = with_open_files(&env, 64, script);
    await_log(&env, &sandbox, "up");
    let waiting = greeted(&sandbox);
    waiting.say(r#"{"stop":{"signal":15,"grace_ms":60000}}"#);
    assert!(waiting.hear().unwrap().get("ending").is_some());
    let speak = |_| {
        let client = greeted(&sandbox);
        client.say(r#"{"forward":18}"#);
        assert_eq!(client.hear().unwrap(), "done");
        client
    };
    let crowd: Vec<ControlClient> = (0..100).map(speak).collect();
    greeted(&sandbox);
    await_rest("100 clients that have spoken", &sandbox.supervisors);
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    assert!(waiting.hear().unwrap().get("outcome").is_some());
    drop(crowd);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// Sets the limit of open files of another process; gives the limit before.
fn limit_files(process: &Process, current: Option<u64>) -> Rlimit {
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current, maximum };
    rustix::process::prlimit(Pid::from_raw(process.pid()), Resource::Nofile, limit).unwrap()
}

/// spec: 13.5
#[test]
fn client_without_a_free_descriptor_waits_and_costs_no_time() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4212"]);
    let [_, inner] = sandbox.supervisors.as_slice() else { panic!("two supervisors") };
    // The lowest free descriptor is the first that the limit forbids.
    let is_free = |fd: &u64| !std::path::Path::new(&format!("/proc/{}/fd/{fd}", inner.pid())).is_symlink();
    let before = limit_files(inner, (0..1024).find(is_free));
    let client = ControlClient::silent(&sandbox.record).unwrap();
    await_rest("no free descriptor", &sandbox.supervisors);
    limit_files(inner, before.current);
    assert!(client.hear().unwrap().get("hello").is_some());
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// poll(2) fails where the limit is less than the number of descriptors to watch.
/// spec: 13.5
#[test]
fn supervisors_without_descriptors_cost_no_time() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4213"]);
    let limit = |current| {
        for process in &sandbox.supervisors {
            limit_files(process, current);
        }
    };
    limit(Some(0));
    // An event for each of the two that poll(2) would report.
    let client = ControlClient::silent(&sandbox.record).unwrap();
    for process in &sandbox.supervisors {
        process.signal(Signal::CHILD);
    }
    await_rest("no descriptors", &sandbox.supervisors);
    limit(rustix::process::getrlimit(Resource::Nofile).maximum);
    assert!(client.hear().unwrap().get("hello").is_some());
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.5
#[test]
fn more_watchers_than_there_is_room_for_leave_the_supervisor_at_rest() {
    let env = TestEnv::new();
    let sandbox = with_open_files(&env, 64, "sleep 4208");
    let watchers: Vec<Running> = (0..45).map(|_| env.begin(["wait", &sandbox.id])).collect();
    let fds = format!("/proc/{}/fd", sandbox.supervisors[1].pid());
    wait_until("most watchers are connected", || std::fs::read_dir(&fds).unwrap().count() > 30);
    await_rest("45 watchers", &sandbox.supervisors);
    for _ in 0..5 {
        exec(&env, &sandbox, &["sh", "-c", "exit 6"]).with_code(6);
    }
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    for watcher in watchers {
        watcher.finish().with_code(137);
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.4
#[test]
fn command_without_a_free_descriptor_is_refused_and_does_not_run() {
    let env = TestEnv::new();
    let sandbox = with_open_files(&env, 40, "sleep 4206");
    let put_in_one = || begin(&env, &sandbox, &["-d"], &["sleep", "4207"]).finish();
    let refused = (0..40).map(|_| put_in_one()).find(|finished| finished.code() != Some(0));
    refused.expect("descriptors for forty").refused(125, "");
    put_in_one().refused(125, "");
    let supervisors = sandbox.exec_supervisors();
    let known = supervisors.len();
    assert!(known > 0);
    wait_until("all known commands run, and no other", || env.running("sleep 4207").len() == known);
    await_rest("as many commands as there can be", &sandbox.supervisors);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    // A command that ends makes room for another.
    supervisors[0].signal(Signal::TERM);
    wait_until("its end is recorded", || sandbox.exec_supervisors().len() < known);
    put_in(&env, &sandbox, &["sleep", "4207"]);
    wait_until("another has its place", || env.running("sleep 4207").len() == known);
    let members = env.running("sleep 4207");
    remove(&env, &sandbox);
    assert!(members.iter().all(Process::has_ended));
    env.assert_nothing_left();
}

/// The supervisor sees the end of the lease and the renewal late, and at once.
/// spec: 11.7
#[test]
fn lease_of_an_adopted_tree_that_was_renewed_in_time_holds() {
    let env = TestEnv::new();
    let stray = Running::start(env.command("sleep").arg("4231"));
    let pid = stray.pid().to_string();
    let printed = env.call(["adopt", "--ttl", "1s", &pid]).with_code(0).out();
    let sandbox = Sandbox::printed(&env, &printed);
    let client = greeted(&sandbox);
    sandbox.stop_supervisors();
    client.say(r#"{"extend":3600000}"#);
    let expires = sandbox.file("state.json").unwrap()["expires_at_ms"].as_u64().unwrap();
    wait_until("the first lease is over", || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        now > u128::from(expires)
    });
    sandbox.continue_supervisors();
    assert_eq!(client.hear().unwrap(), "done");
    exec(&env, &sandbox, &["true"]).refused(125, "puts no command into it");
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    assert!(stray.is_alive());
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    stray.process().await_end();
    remove(&env, &sandbox);
    drop(stray);
    env.assert_nothing_left();
}

/// The other direction: a supervisor that is not scheduled does not read, until its socket is full.
/// spec: 1.2
#[test]
fn request_to_end_is_not_lost_behind_other_signals() {
    const SIGNALS: usize = 2000;
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4210"]);
    for (ignored, times, code) in [("", 1, 143), ("TERM", 2, 137)] {
        let script = format!("trap '' RTMIN {ignored}; echo up; exec sleep 4211");
        let client = begin(&env, &sandbox, &[], &["bash", "-c", &script]);
        client.hear("up", 1);
        wait_until("the client blocks its signals", || signals(client.pid(), "SigBlk") & (1 << 33) != 0);
        await_running(&env, &["sleep 4211"]);
        let supervisors = sandbox.exec_supervisors();
        supervisors.last().unwrap().stop();
        for _ in 0..SIGNALS {
            client.signal(penfold_sys::signal::signal_of_number(34).unwrap());
        }
        for _ in 0..times {
            client.signal(Signal::TERM);
            wait_until("the client takes its signals", || signals(client.pid(), "ShdPnd") == 0);
        }
        await_rest("a supervisor that does not read", std::slice::from_ref(client.process()));
        supervisors.last().unwrap().signal(Signal::CONT);
        client.finish().with_code(code);
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.5
#[test]
fn client_that_never_reads_holds_nobody_up() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4204"]);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let deaf = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&deaf, &SocketAddrUnix::new(sandbox.record.join("control.sock")).unwrap()).unwrap();
    let is_sent = |_: &u32| send(&deaf, b"{\"extend\":0}", SendFlags::NOSIGNAL).is_ok();
    let sent = (0..20_000).take_while(is_sent).count();
    assert!(sent > 0);
    greeted(&sandbox);
    exec(&env, &sandbox, &["true"]).with_code(0);
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.5
#[test]
fn seat_at_the_terminal_is_for_stream_sockets() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--", "sleep", "4205"]);
    let seat = b"{\"attach\":{\"rows\":20,\"columns\":70}}";
    let (packets, _other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (pipe, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let zero: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let directory: OwnedFd = std::fs::File::open("/").unwrap().into();
    for fds in [vec![], vec![&packets], vec![&pipe], vec![&zero], vec![&directory]] {
        let client = greeted(&sandbox);
        let fds: Vec<BorrowedFd<'_>> = fds.into_iter().map(AsFd::as_fd).collect();
        client.hand_over(seat, &fds);
        // Without a descriptor, the request changes the size only.
        let answer = client.hear();
        assert!(fds.is_empty() || is_refused(answer.as_ref()), "{answer:?}");
    }
    await_rest("no stream socket", &sandbox.supervisors);
    // A viewer that types no more still reads.
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let client = greeted(&sandbox);
    client.hand_over(seat, &[theirs.as_fd()]);
    assert_eq!(client.hear().unwrap(), "done");
    shutdown(&ours, rustix::net::Shutdown::Write).unwrap();
    await_rest("a viewer that types no more", &sandbox.supervisors);
    // The number of seats has a limit.
    let mut seated = 0;
    for _ in 0..100 {
        client.hand_over(seat, &[theirs.as_fd()]);
        seated += i32::from(client.hear().unwrap() == "done");
    }
    assert!((1..100).contains(&seated), "{seated} seats");
    greeted(&sandbox);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.4
#[test]
fn only_a_foreground_sandbox_is_said_to_be_one() {
    const HINT: &str = "only a sandbox of `penfold run -d` accepts";
    let env = TestEnv::new();
    let script = "echo lead >> $UP; sleep 4214";
    let launcher = Running::start(&mut env.run_command(["--name", "fore", "--", "sh", "-c", script]));
    env.await_up(&["lead"]);
    assert!(launcher.is_alive());
    let told = env.call(["exec", "fore", "true"]).with_code(125).err();
    assert!(told.contains(HINT), "{told}");
    let id = env.call(["inspect", "fore"]).json()[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(env.call(["kill", "fore"]).with_code(0).out(), format!("{id}\n"));
    launcher.finish();
    let orphan = env.detach(["--on-supervisor-exit", "keep", "--name", "orphan", "--", "sleep", "4215"]);
    orphan.kill_supervisors();
    let told = env.call(["exec", "orphan", "true"]).with_code(125).err();
    assert!(told.contains("no process listens") && !told.contains(HINT), "{told}");
    remove(&env, &orphan);
}

/// A supervisor sends the outcome to every client, also to one that waits for another answer: its code is not that of a
/// command, and the client waits no longer.
/// spec: 13.1
#[test]
fn end_of_the_sandbox_is_not_taken_for_another_answer() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let members = await_running(&env, &["sleep 4001"]);
    sandbox.kill_supervisors();
    let lock = std::fs::File::open(&sandbox.record).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let id = &sandbox.id;
    let supervisor = Impostor::new(&sandbox.record, vec![Impostor::hello(id), Impostor::all_gone(id)], false);
    let told = env.call(["exec", "-d", id, "true"]).with_code(125);
    assert_eq!(told.out(), "");
    assert!(told.err().contains("the sandbox has ended"), "{}", told.err());
    let told = env.call(["extend", id, "1h"]).with_code(1);
    assert_eq!(told.out(), "");
    assert!(told.err().contains("the sandbox has ended"), "{}", told.err());
    assert_eq!(env.call(["attach", "--no-stdin", id]).with_code(137).out(), "");
    drop((supervisor, lock));
    assert_eq!(env.call(["kill", id]).with_code(0).out(), format!("{id}\n"));
    sandbox.assert_gone(&members);
}
