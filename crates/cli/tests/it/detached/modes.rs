//! The modes and the size of a terminal.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use rustix::process::Signal;
use rustix::termios::{LocalModes, tcgetattr, tcgetwinsize};

use super::attach::{seat, seat_of_size, shown, spawn_at, terminal_pair, type_in};
use super::sandboxes::{await_log, remove};
use crate::support::{Sandbox, TestEnv, has_terminals, wait_until};

/// As an editor does: alternate screen, keys of the cursor and the pad, mouse, bracketed paste.
const SET_UP: &str =
    r"printf '\033[?1049h\033[?1h\033=\033[?1002;1006h\033[?2004hup'; read x; echo got $x; sleep 4401";
const REPLAY: &str = "\x1b[?1049h\x1b[?1h\x1b[?2004h\x1b[?1006h\x1b[?1002h\x1b=";
const RESET: &str = "\x1b>\x1b[?1l\x1b[?2004l\x1b[?1006l\x1b[?1002l\x1b[?1049l";

/// spec: 13.6
#[test]
fn viewer_is_put_into_the_modes_that_programs_have_set_also_after_a_takeover() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--on-supervisor-exit", "keep", "--", "sh", "-c", SET_UP]);
    await_log(&env, &sandbox, "up");
    let (_client, stream) = seat(&sandbox);
    assert!(shown(&stream, REPLAY).starts_with(REPLAY));
    sandbox.supervisors[1].signal(Signal::KILL);
    sandbox.supervisors[1].await_end();
    wait_until("another supervisor goes on", || sandbox.status(&env).as_deref() == Some("running"));
    let (_client, stream) = seat(&sandbox);
    assert!(shown(&stream, REPLAY).starts_with(REPLAY));
    type_in(&stream, b"x\n");
    shown(&stream, "got x");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn modes_of_a_viewer_s_terminal_are_reset_when_it_leaves_and_at_the_end() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--", "sh", "-c", SET_UP]);
    await_log(&env, &sandbox, "up");
    for (leaves, code) in [(true, 0), (false, 137)] {
        let (ours, theirs) = terminal_pair();
        let attached = spawn_at(&theirs, env.penfold(["attach", &sandbox.id]));
        shown(&ours, REPLAY);
        wait_until("keys go to the sandbox", || {
            !tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ICANON)
        });
        if leaves {
            type_in(&ours, b"\x10\x11");
        } else {
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
        }
        shown(&ours, RESET);
        attached.finish().with_code(code);
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// Rows and columns of the terminal at the command's standard input.
fn size(sandbox: &Sandbox) -> (u16, u16) {
    let terminal = format!("/proc/{}/fd/0", sandbox.leader().unwrap().pid());
    let flags = rustix::fs::OFlags::NOCTTY.bits().cast_signed();
    let terminal = OpenOptions::new().read(true).custom_flags(flags).open(terminal).unwrap();
    let size = tcgetwinsize(terminal).unwrap();
    (size.ws_row, size.ws_col)
}

/// spec: 13.6
#[test]
fn smallest_viewer_that_is_still_there_decides_the_size() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--", "sleep", "4402"]);
    let becomes = |wanted| wait_until("the size", || size(&sandbox) == wanted);
    let (wide, _wide_stream) = seat_of_size(&sandbox, 24, 100);
    becomes((24, 100));
    let (high, high_stream) = seat_of_size(&sandbox, 50, 80);
    becomes((24, 80));
    wide.say(r#"{"resize":{"rows":40,"columns":120}}"#);
    becomes((40, 80));
    wide.say(r#"{"resize":{"rows":60,"columns":70}}"#);
    becomes((50, 70));
    drop((high, high_stream));
    becomes((60, 70));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}
