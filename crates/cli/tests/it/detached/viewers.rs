//! Viewers of a detached sandbox's terminal: refused viewers, and the end of a viewer.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::termios::{LocalModes, tcgetattr, tcgetwinsize};

use super::attach::{seat, seat_of_size, shown, spawn_at, terminal_pair, type_in};
use super::sandboxes::{await_log, await_running, remove};
use crate::support::{Running, TestEnv, has_terminals, wait_until};

/// Waits until a viewer at this side of a terminal passes on every key: it has its seat then.
#[track_caller]
fn await_raw(terminal: &OwnedFd) {
    let is_raw = || !tcgetattr(terminal).unwrap().local_modes.contains(LocalModes::ICANON);
    wait_until("the viewer is attached", is_raw);
}

/// spec: 13.8
#[test]
fn viewer_of_a_sandbox_that_is_ended_is_told() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let polite = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let cases = [
        (polite, vec!["kill"], 137, "was killed (137)"),
        (polite, vec!["stop"], 0, "was stopped (0)"),
        (deaf, vec!["stop", "-t", "0s"], 137, "was killed (137)"),
    ];
    for (script, verb, code, said) in cases {
        let sandbox = env.detach(["-t", "--name", "o4", "--", "sh", "-c", script]);
        await_log(&env, &sandbox, "up");
        let (ours, theirs) = terminal_pair();
        let attached = spawn_at(&theirs, env.penfold(["attach", "o4"]));
        await_raw(&theirs);
        env.call(verb.iter().chain(&["o4"])).with_code(0);
        shown(&ours, &format!("penfold: `o4` {said}"));
        attached.finish().with_code(code);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn small_viewer_that_leaves_while_a_program_writes_decides_no_more() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--", "yes"]);
    let terminal = std::fs::File::open(format!("/proc/{}/fd/0", sandbox.leader().unwrap().pid())).unwrap();
    let rows = |wanted: u16| wait_until("the size", || tcgetwinsize(&terminal).unwrap().ws_row == wanted);
    // The other does not read, and is no longer waited for.
    let _other = seat_of_size(&sandbox, 50, 100);
    rows(50);
    for _ in 0..5 {
        let small = seat_of_size(&sandbox, 20, 100);
        rows(20);
        drop(small);
        rows(50);
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn viewer_that_missed_output_gets_the_modes_that_were_set_meanwhile() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let script = r"printf '\033[?2004hset'; read x; seq 100000; printf '\033[?2004l\033[?1h'; echo all; read y; echo got $y; sleep 4325";
    let sandbox = env.detach(["-t", "--", "sh", "-c", script]);
    await_log(&env, &sandbox, "set");
    let (_late, late) = seat(&sandbox);
    shown(&late, "\x1b[?2004h");
    let (_other, other) = seat(&sandbox);
    type_in(&other, b"go\n");
    shown(&other, "all\r\n");
    let all = shown(&late, "bytes not shown]\r\n\x1b[?1h");
    assert!(all.contains("\x1b[?2004l\r\n[penfold: "), "the modes of before are left");
    type_in(&late, b"late\n");
    shown(&late, "got late\r\n");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.8
#[test]
fn who_is_inside_of_a_sandbox_cannot_attach_to_it() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let script = "$PENFOLD --root $ROOT attach web 2>marked; echo $? >code; \
        env -i $PENFOLD --root $ROOT attach --no-stdin web 2>seated; echo $? >>code; exec sleep 4324";
    let sandbox = env.detach(["-t", "--name", "web", "--", "sh", "-c", script]);
    await_running(&env, &["sleep 4324"]);
    assert_eq!(std::fs::read_to_string(env.path("work/code")).unwrap(), "125\n125\n");
    for said in ["work/marked", "work/seated"] {
        let said = std::fs::read_to_string(env.path(said)).unwrap();
        assert!(
            said.contains(&format!("cannot attach to {}: this command runs in that sandbox", sandbox.id)),
            "{said}"
        );
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.8
#[test]
fn viewer_without_a_terminal_leaves_at_the_end_of_its_input() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let script = "while read x; do echo got $x; done";
    let sandbox = env.detach(["-t", "--", "sh", "-c", script]);
    let left = format!("penfold: left {} at EOF on standard input; the sandbox keeps running\n", sandbox.id);
    assert_eq!(sandbox.call(&env, &["attach", "ID"]).with_code(0).err(), left);
    let mut attach = env.penfold(["attach", &sandbox.id]);
    let mut viewer = Running::start(attach.stdin(Stdio::piped()));
    viewer.say("word\n");
    assert_eq!(viewer.finish().with_code(0).err(), left);
    await_log(&env, &sandbox, "got word");
    // Who only looks on has no input.
    let watcher = env.begin(["attach", "--no-stdin", &sandbox.id]);
    let (_client, stream) = seat(&sandbox);
    wait_until("the watcher is attached", || {
        type_in(&stream, b"more\n");
        watcher.heard().contains("got more")
    });
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    let told = watcher.finish().with_code(137).err();
    assert!(told.contains("was killed (137)"), "{told}");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}
