//! Clients that say and hand over what they should not, or hold what they are given: the supervisor goes on and answers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::support_control::{Fold, Impostor, all_gone, hello};
use crate::support_d::{Started, code, said};
use crate::support_e2::left::Handle;
use crate::support_e2::{Pen, Talk, eventually, pause};
use crate::support_g::wire::{Peer, description, null, request};
use crate::support_g::{Actor, Sandbox};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use serde_json::json;

/// How soon a supervisor greets whoever else there is. It takes a millisecond; tests share the machine.
const SOON: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(10);

#[track_caller]
fn greets(sandbox: &Sandbox<'_>, what: &str) {
    if let Err(late) = Peer::greeted(&sandbox.record(), SOON) {
        panic!("after {what}: {late}");
    }
}

/// The processor time that a process has used, in clock ticks.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Whether it uses nearly no time while nothing is asked of it.
#[track_caller]
fn rests(sandbox: &Sandbox<'_>, what: &str) {
    let supervisors = sandbox.supervisors();
    let before: Vec<u64> = supervisors.iter().map(|&pid| ticks(pid)).collect();
    pause(Duration::from_millis(500));
    for (&pid, before) in supervisors.iter().zip(before) {
        let used = ticks(pid) - before;
        assert!(used < 10, "{what}: {used} ticks of 50 by {pid} of {supervisors:?}");
    }
}

#[test]
fn descriptors_that_are_not_those_of_an_exec_are_refused() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4201"]);
    let file = pen.path("work/ran");
    let null = null();
    let (pipe, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (sealed, unsealed) = (description(&file, true), description(&file, false));
    let disk: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
    let n = null.as_fd();
    let offers: [(&str, Vec<BorrowedFd<'_>>); 7] = [
        ("none", vec![]),
        ("three", vec![sealed.as_fd(), n, n]),
        ("fourteen", [vec![sealed.as_fd()], vec![n; 13]].concat()),
        ("a pipe that says nothing", vec![pipe.as_fd(), n, n, n]),
        ("memory that can be changed", vec![unsealed.as_fd(), n, n, n]),
        ("a file on disk", vec![disk.as_fd(), n, n, n]),
        ("a device", vec![n, n, n, n]),
    ];
    for (what, fds) in offers {
        let peer = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
        peer.say(&request(), &fds);
        let answer = peer.hear(ANSWER);
        let refused = answer.as_ref().is_some_and(|answer| answer.get("refused").is_some());
        // Of fourteen the kernel hands over what there is room for.
        assert!(refused, "{what}: {answer:?}");
        greets(&sandbox, what);
    }
    assert!(!file.try_exists().unwrap());
    // The same, as it should be.
    let peer = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
    peer.say(&request(), &[sealed.as_fd(), n, n, n]);
    assert!(eventually(ANSWER, || file.try_exists().unwrap()));
    rests(&sandbox, "offers");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn garbage_is_refused() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4202"]);
    let long = vec![b'x'; 150_000];
    let nested = vec![b'['; 100_000];
    let all: [&[u8]; 7] =
        [b"\0", b"{}", b"\"nothing\"", b"{\"killexec\":4294967295}", b"{\"forward\":-1}", &long, &nested];
    for said in all {
        let peer = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
        peer.say(said, &[]);
        let answer = peer.hear(ANSWER);
        assert!(
            answer.as_ref().is_some_and(|answer| answer.get("refused").is_some()),
            "{said:?}: {answer:?}"
        );
    }
    greets(&sandbox, "garbage");
    assert_eq!(sandbox.status(), "running");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn crowd_of_silent_clients_keeps_nobody_out() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    for limit in [1024, 64] {
        let script = format!("ulimit -n {limit}; $PF -d -- sleep 4203");
        let id = pen.script(&script).with_code(0).out().trim().to_owned();
        let sandbox = Sandbox { actor: &actor, id };
        let crowd: Vec<Peer> = (0..300).map(|_| Peer::silent(&sandbox.record()).unwrap()).collect();
        greets(&sandbox, "300 connections");
        sandbox.exec(&["sh", "-c", "exit 6"]).with_code(6);
        rests(&sandbox, "300 connections");
        sandbox.ask(&["kill", "ID"]).with_code(0);
        drop(crowd);
        sandbox.end();
    }
    pen.assert_nothing_left();
}

#[test]
fn crowd_that_has_spoken_once_keeps_nobody_out_and_nobody_who_waits_is_turned_out_for_it() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script = "ulimit -n 64; $PF -d -- sh -c \"trap '' TERM; echo up; while :; do sleep 0.05; done\"";
    let id = pen.script(script).with_code(0).out().trim().to_owned();
    let sandbox = Sandbox { actor: &actor, id };
    assert!(eventually(ANSWER, || sandbox.ask(&["logs", "ID"]).out().contains("up")));
    let stopper = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
    stopper.say(br#"{"stop":{"signal":15,"grace_ms":60000}}"#, &[]);
    assert!(stopper.hear(ANSWER).unwrap().get("ending").is_some());
    let crowd: Vec<Peer> = (0..100)
        .map(|number| {
            let peer =
                Peer::greeted(&sandbox.record(), ANSWER).unwrap_or_else(|why| panic!("{number}: {why}"));
            peer.say(br#"{"forward":18}"#, &[]);
            assert_eq!(peer.hear(ANSWER).unwrap(), "done");
            peer
        })
        .collect();
    greets(&sandbox, "100 clients that have spoken");
    rests(&sandbox, "100 clients that have spoken");
    sandbox.ask(&["kill", "ID"]).with_code(0);
    assert!(stopper.hear(ANSWER).unwrap().get("outcome").is_some());
    drop(crowd);
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn client_that_there_is_no_descriptor_for_waits_and_costs_no_time() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4212"]);
    let supervisor = Pid::from_raw(*sandbox.supervisors().last().unwrap());
    // All numbers below the first free one.
    let number = supervisor.unwrap().as_raw_pid();
    let is_free = |fd: &u64| !std::path::Path::new(&format!("/proc/{number}/fd/{fd}")).is_symlink();
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let full = Rlimit { current: (0..1024).find(is_free), maximum };
    let before = rustix::process::prlimit(supervisor, Resource::Nofile, full).unwrap();
    let peer = Peer::silent(&sandbox.record()).unwrap();
    rests(&sandbox, "no descriptors");
    rustix::process::prlimit(supervisor, Resource::Nofile, before).unwrap();
    assert!(peer.hear(ANSWER).unwrap().get("hello").is_some());
    sandbox.end();
    pen.assert_nothing_left();
}

/// poll(2) fails where the limit is less than what it is to watch.
#[test]
fn supervisors_whose_descriptors_were_taken_away_cost_no_time() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4213"]);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        for pid in sandbox.supervisors() {
            rustix::process::prlimit(Pid::from_raw(pid), Resource::Nofile, Rlimit { current, maximum })
                .unwrap();
        }
    };
    limit(Some(0));
    // For each something happens that it would hear of.
    let peer = Peer::silent(&sandbox.record()).unwrap();
    for pid in sandbox.supervisors() {
        Handle::of(pid).signal(Signal::CHILD);
    }
    rests(&sandbox, "no descriptors");
    limit(maximum);
    assert!(peer.hear(ANSWER).unwrap().get("hello").is_some());
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn more_watchers_than_there_is_room_for_leave_the_supervisor_at_rest() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let id = pen.script("ulimit -n 64; $PF -d -- sleep 4208").with_code(0).out().trim().to_owned();
    let sandbox = Sandbox { actor: &actor, id };
    let watchers: Vec<Talk> = (0..45).map(|_| Talk::start(&mut actor.verb(["wait", &sandbox.id]))).collect();
    let connected = || std::fs::read_dir(format!("/proc/{}/fd", sandbox.supervisors()[1])).unwrap().count();
    assert!(eventually(ANSWER, || connected() > 30), "{} descriptors", connected());
    rests(&sandbox, "45 watchers");
    for _ in 0..5 {
        sandbox.exec(&["sh", "-c", "exit 6"]).with_code(6);
    }
    sandbox.ask(&["kill", "ID"]).with_code(0);
    for watcher in watchers {
        watcher.end().with_code(137);
    }
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn command_that_there_is_no_descriptor_for_is_refused_and_does_not_run() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let id = pen.script("ulimit -n 40; $PF -d -- sleep 4206").with_code(0).out().trim().to_owned();
    let sandbox = Sandbox { actor: &actor, id };
    let put_in = || Talk::start(&mut sandbox.exec_command(&["-d"], &["sleep", "4207"])).end();
    let refused = (0..40).map(|_| put_in()).find(|ended| ended.code() != Some(0));
    refused.expect("descriptors for forty").refused(125, "");
    put_in().refused(125, "");
    let known = sandbox.keepers().len();
    assert!(known > 0);
    assert!(eventually(ANSWER, || pen.running("sleep 4207").len() == known), "{known} are known");
    rests(&sandbox, "as many commands as there can be");
    assert_eq!(sandbox.status(), "running");
    // One that ends makes room for another.
    Handle::of(sandbox.keepers()[0]).signal(Signal::TERM);
    assert!(eventually(ANSWER, || sandbox.keepers().len() < known));
    put_in().with_code(0);
    assert!(eventually(ANSWER, || pen.running("sleep 4207").len() == known), "{known} were known");
    sandbox.end();
    assert!(eventually(ANSWER, || !pen.is_running("sleep 4207")));
    pen.assert_nothing_left();
}

/// As when its supervisor had no processor while they came.
#[test]
fn of_stops_that_come_at_once_the_shortest_grace_counts() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    // Who says nothing of a grace wants that of the sandbox.
    let stop = |grace_ms: Option<u64>| json!({"stop": {"signal": 15, "grace_ms": grace_ms}}).to_string();
    let (short, long) = (stop(Some(300)), stop(Some(60_000)));
    for (own, asked) in [
        ("60", [&long, &short, &long]),
        ("0.3", [&long, &stop(None), &long]),
        ("0.3", [&stop(None), &long, &long]),
    ] {
        let sandbox = actor.detach(&["--grace", own, "--", "sh", "-c", script]);
        assert!(eventually(ANSWER, || sandbox.ask(&["logs", "ID"]).out().contains("up")));
        let peers: Vec<Peer> = (0..3).map(|_| Peer::greeted(&sandbox.record(), ANSWER).unwrap()).collect();
        let [outer, inner] = sandbox.supervisors().try_into().unwrap();
        let (outer, inner) = (Handle::of(outer), Handle::of(inner));
        outer.signal(Signal::STOP);
        inner.signal(Signal::STOP);
        for (peer, asked) in peers.iter().zip(asked) {
            peer.say(asked.as_bytes(), &[]);
        }
        inner.signal(Signal::CONT);
        outer.signal(Signal::CONT);
        for peer in &peers {
            assert!(peer.hear(ANSWER).unwrap().get("ending").is_some());
            let outcome = peer.hear(ANSWER).expect("it is over in time");
            assert_eq!(outcome.pointer("/outcome/report/cause").unwrap(), "stop", "{outcome}");
        }
        sandbox.end();
    }
    pen.assert_nothing_left();
}

/// Both are seen late, and at once.
#[test]
fn lease_of_an_adopted_tree_that_was_renewed_in_time_holds() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let mut stray = Started::of(pen.command("sleep").arg("4231"));
    let pid = stray.pid().as_raw_pid().to_string();
    let id = Talk::start(&mut actor.verb(["adopt", "--ttl", "3s", &pid])).end().with_code(0).out();
    let sandbox = Sandbox { actor: &actor, id: id.trim().to_owned() };
    let peer = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
    let [outer, inner] = sandbox.supervisors().try_into().unwrap();
    let (outer, inner) = (Handle::of(outer), Handle::of(inner));
    outer.signal(Signal::STOP);
    inner.signal(Signal::STOP);
    peer.say(br#"{"extend":3600000}"#, &[]);
    pause(Duration::from_millis(3300));
    inner.signal(Signal::CONT);
    outer.signal(Signal::CONT);
    assert_eq!(peer.hear(ANSWER).unwrap(), "done");
    sandbox.exec(&["true"]).refused(125, "puts no command into it");
    assert_eq!(sandbox.status(), "running");
    assert!(stray.is_alive());
    sandbox.ask(&["kill", "ID"]).with_code(0);
    assert!(eventually(ANSWER, || !stray.is_alive()));
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn lease_of_what_is_being_ended_is_not_renewed() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let sandbox = actor.detach(&["--ttl", "1m", "--", "sh", "-c", script]);
    assert!(eventually(ANSWER, || sandbox.ask(&["logs", "ID"]).out().contains("up")));
    let stop = Talk::start(&mut actor.verb(["stop", "-t", "60", &sandbox.id]));
    assert!(eventually(ANSWER, || sandbox.status() == "stopping"));
    sandbox.ask(&["extend", "ID", "0.1"]).refused(1, "is being ended");
    pause(Duration::from_millis(200));
    assert_eq!(sandbox.status(), "stopping");
    rests(&sandbox, "a lease that nobody needs");
    sandbox.ask(&["kill", "ID"]).with_code(0);
    stop.end();
    sandbox.end();
    pen.assert_nothing_left();
}

/// The other direction: a supervisor that has no processor does not read, until there is no room for more.
#[test]
fn wish_to_end_is_not_lost_behind_other_signals() {
    const SIGNALS: usize = 2000;
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4210"]);
    for (ignored, asked, code) in [("", 1, 143), ("TERM", 2, 137)] {
        let script = format!("trap '' RTMIN {ignored}; echo up; exec sleep 4211");
        let client = Talk::start(&mut sandbox.exec_command(&[], &["bash", "-c", &script]));
        client.hear("up", 1);
        assert!(eventually(ANSWER, || signals(client.pid(), "SigBlk") & (1 << 33) != 0));
        let keeper = Handle::of(*sandbox.keepers().last().unwrap());
        keeper.signal(Signal::STOP);
        for _ in 0..SIGNALS {
            client.signal(penfold_sys::signal::signal(34).unwrap());
        }
        for _ in 0..asked {
            client.signal(Signal::TERM);
            assert!(eventually(ANSWER, || signals(client.pid(), "ShdPnd") == 0));
        }
        let before = ticks(client.pid());
        pause(Duration::from_millis(500));
        let used = ticks(client.pid()) - before;
        assert!(used < 10, "{used} ticks of 50");
        keeper.signal(Signal::CONT);
        client.end().with_code(code);
    }
    sandbox.end();
    pen.assert_nothing_left();
}

/// A set of signals in the status of a process, proc(5).
fn signals(pid: i32, set: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).unwrap();
    u64::from_str_radix(set.trim(), 16).unwrap()
}

#[test]
fn client_that_never_reads_holds_nobody_up() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4204"]);
    let deaf = Peer::silent(&sandbox.record()).unwrap();
    rustix::io::ioctl_fionbio(&deaf.0, true).unwrap();
    let asked = (0..20_000)
        .take_while(|_| {
            rustix::net::send(&deaf.0, b"{\"extend\":0}", rustix::net::SendFlags::NOSIGNAL).is_ok()
        })
        .count();
    assert!(asked > 0);
    greets(&sandbox, "a deaf client");
    sandbox.exec(&["true"]).with_code(0);
    sandbox.ask(&["kill", "ID"]).with_code(0);
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn seat_at_the_terminal_is_for_stream_sockets() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["-t", "--", "sleep", "4205"]);
    let seat = b"{\"attach\":{\"rows\":20,\"columns\":70}}";
    let (packets, _other) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let (pipe, _writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let zero: OwnedFd = std::fs::File::open("/dev/zero").unwrap().into();
    let directory: OwnedFd = std::fs::File::open("/").unwrap().into();
    for fds in [vec![], vec![&packets], vec![&pipe], vec![&zero], vec![&directory]] {
        let peer = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
        let fds: Vec<BorrowedFd<'_>> = fds.into_iter().map(AsFd::as_fd).collect();
        peer.say(seat, &fds);
        // Without a seat it is only the size that changes.
        let answer = peer.hear(ANSWER).unwrap_or_default();
        assert!(fds.is_empty() || answer.get("refused").is_some(), "{answer}");
    }
    rests(&sandbox, "seats that are none");
    // Who types no more, and still looks.
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let peer = Peer::greeted(&sandbox.record(), ANSWER).unwrap();
    peer.say(seat, &[theirs.as_fd()]);
    assert_eq!(peer.hear(ANSWER).unwrap(), "done");
    rustix::net::shutdown(&ours, rustix::net::Shutdown::Write).unwrap();
    rests(&sandbox, "a viewer that types no more");
    // As many as there are, and no more.
    let mut seated = 0;
    for _ in 0..100 {
        peer.say(seat, &[theirs.as_fd()]);
        seated += i32::from(peer.hear(ANSWER).unwrap() == "done");
    }
    assert!((1..100).contains(&seated), "{seated} seats");
    greets(&sandbox, "a hundred viewers");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn only_a_foreground_sandbox_is_said_to_be_one() {
    let fold = Fold::new();
    let hint = "only detached sandboxes can be";
    let mut command =
        fold.yard.penfold(["run", "--name", "fore", "--", "sh", "-c", "echo lead >> $UP; sleep 1000"]);
    let mut front = Started::of(command.env("UP", fold.yard.path("up")));
    fold.yard.await_up(&["lead"]);
    assert!(front.is_alive());
    let done = fold.call(&["exec", "fore", "true"]);
    assert!(code(&done) == 125 && said(&done).contains(hint), "{}", said(&done));
    let id = foreground(&fold);
    fold.expect(&["kill", "fore"], 0, &[&id]);
    let orphan = fold.start(&["--on-supervisor-exit", "keep", "--name", "orphan"], "sleep 1000");
    orphan.kill_supervisors();
    let done = fold.call(&["exec", "orphan", "true"]);
    assert!(code(&done) == 125 && said(&done).contains("nobody listens"), "{}", said(&done));
    assert!(!said(&done).contains(hint), "{}", said(&done));
}

/// The id of the only sandbox.
fn foreground(fold: &Fold) -> String {
    let listed = crate::support_d::json(&fold.call(&["inspect", "fore"]));
    listed[0]["id"].as_str().unwrap().to_owned()
}

/// Who looks after a sandbox tells everybody of its end, also who has just asked for something else: the code is not that
/// of a command in it, and nobody waits for another answer.
#[test]
fn end_of_the_sandbox_is_not_taken_for_another_answer() {
    let fold = Fold::new();
    let sandbox = fold.start(&[], "sleep 4001");
    sandbox.kill_supervisors();
    let lock = std::fs::File::open(&sandbox.record).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let supervisor = Impostor::new(&sandbox, vec![hello(&sandbox.id), all_gone(&sandbox.id)], false);
    let told = fold.expect(&["exec", "-d", &sandbox.id, "true"], 125, &[]);
    assert!(said(&told).contains("the sandbox has ended"), "{}", said(&told));
    let told = fold.expect(&["extend", &sandbox.id, "1h"], 1, &[]);
    assert!(said(&told).contains("it has ended"), "{}", said(&told));
    fold.expect(&["attach", "--no-stdin", &sandbox.id], 137, &[]);
    drop((supervisor, lock));
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
}
