//! Terminals of detached sandboxes and of commands in them: size, keys, job control, viewers that disconnect and attach again.

use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen};
use rustix::net::{socket_with, socketpair};
use rustix::process::Signal;
use rustix::termios::LocalModes;
use serde_json::json;

use super::sandboxes::{
    await_end_of, await_log, await_rest, await_running, begin, end, exec, exec_command, remove, signals,
};
use crate::support::{
    ControlClient, DEADLINE, Impostor, Level, Running, Sandbox, Terminal, TestEnv, has_program,
    has_terminals, penfold, wait_until,
};

/// A shell line of penfold with these words.
fn line(words: &str) -> String {
    format!("$PENFOLD --root $ROOT {words}")
}

/// So many lines, each with its number.
fn lines(count: u32) -> String {
    let lines: Vec<String> = (1..=count).map(|number| format!("line {number}")).collect();
    lines.join("\n") + "\n"
}

/// Takes a seat as a client of the control socket: the connection, and the stream of the terminal.
#[track_caller]
pub fn seat(sandbox: &Sandbox) -> (ControlClient, OwnedFd) {
    seat_of_size(sandbox, 24, 80)
}

/// The same for a terminal of this size.
#[track_caller]
pub fn seat_of_size(sandbox: &Sandbox, rows: u16, columns: u16) -> (ControlClient, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let client = ControlClient::connect(&sandbox.record).unwrap();
    let request = json!({"attach": {"rows": rows, "columns": columns}}).to_string();
    client.hand_over(request.as_bytes(), &[theirs.as_fd()]);
    assert_eq!(client.hear().unwrap(), "done");
    (client, ours)
}

/// Reads until the stream has shown this; gives all.
#[track_caller]
pub fn shown(stream: &OwnedFd, wanted: &str) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0_u8; 8192]);
    let (timeout, mut found) = (DEADLINE.try_into().unwrap(), false);
    while !found && poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout)).unwrap() > 0 {
        let length = rustix::io::read(stream, &mut buffer).unwrap();
        text.extend_from_slice(&buffer[..length]);
        let end = text.len().saturating_sub(length + wanted.len());
        found = String::from_utf8_lossy(&text[end..]).contains(wanted);
        assert!(found || length > 0, "the end before `{wanted}`");
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(found, "no `{wanted}` in the last of: {}", text.chars().rev().take(300).collect::<String>());
    text
}

/// Writes all of it.
pub fn type_in(stream: &OwnedFd, text: &[u8]) {
    let mut left = text;
    while !left.is_empty() {
        left = &left[rustix::io::write(stream, left).unwrap()..];
    }
}

/// The two sides of a terminal.
pub fn terminal_pair() -> (OwnedFd, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).and_then(|()| unlockpt(&ours)).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    (ours, rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap())
}

/// Starts a command with a terminal as its three streams.
pub fn spawn_at(terminal: &OwnedFd, mut command: Command) -> Running {
    let side = || Stdio::from(terminal.try_clone().unwrap());
    Running::spawn(command.stdin(side()).stdout(side()).stderr(side()))
}

/// spec: 13.6
#[test]
fn exec_has_a_terminal_of_the_caller_s_size_and_kind() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    terminal.line("export TERM=xterm; clear");
    for level in env.levels() {
        let sandbox = env.detach(["--contain", level.word(), "--", "sleep", "4301"]);
        let script =
            "stty size; echo $TERM; trap \"stty size; exit 7\" WINCH; echo up; while :; do sleep 0.05; done";
        terminal.line(&line(&format!("exec -it {} bash -c '{script}'", sandbox.id)));
        terminal.shows("30 100");
        terminal.shows("xterm");
        terminal.shows("up");
        terminal.tmux(&["resize-window", "-x", "90", "-y", "35"]);
        terminal.shows("35 90");
        terminal.ends_with(7);
        // tmux resizes its terminal after it has answered.
        terminal.tmux(&["resize-window", "-x", "100", "-y", "30"]);
        terminal.line("until [ \"$(stty size)\" = '30 100' ]; do sleep 0.05; done; clear; echo so");
        terminal.shows("so");
        terminal.line("clear");
        remove(&env, &sandbox);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn keys_reach_the_shell_inside() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels() {
        let sandbox = env.detach(["--contain", level.word(), "--", "sleep", "4301"]);
        let inner = "env PS1='inner> ' bash --norc --noprofile -i";
        terminal.line(&line(&format!("exec -it {} {inner}", sandbox.id)));
        terminal.shows("inner>");
        terminal.line("sleep 4302");
        terminal.is_in_front("sleep 4302");
        terminal.press("C-c");
        terminal.line("echo in''ner $?");
        terminal.shows("inner 130");
        terminal.line("sleep 4302");
        terminal.is_in_front("sleep 4302");
        terminal.press("C-z");
        terminal.shows("[1]+  Stopped*");
        terminal.line("exit 8; exit 8");
        terminal.ends_with(8);
        assert!(!env.is_running("sleep 4302"), "{level:?}");
        remove(&env, &sandbox);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// Types what vim or less, once it has drawn, needs to do its work and to end.
///
/// No key before that: less jumps out of read(2) on SIGWINCH and loses the key. Every new viewer brings a new size.
fn work_with(terminal: &Terminal<'_>, program: &str) {
    if program.starts_with("vim") {
        let tildes = || terminal.screen().lines().filter(|line| line.trim_end() == "~").count();
        wait_until("vim has drawn", || tildes() == 28);
        terminal.press("i");
        terminal.line("some text");
        terminal.press("Escape");
        terminal.shows("some text");
        terminal.line(":wq");
    } else {
        terminal.shows("line 29");
        terminal.press("G");
        terminal.shows("line 1000");
        terminal.press("q");
    }
}

/// spec: 13.6
#[test]
fn editor_and_pager_work_in_an_exec_and_in_an_attached_terminal() {
    // Typed with the command: keys that are pressed when a program has just ended are still the program's.
    const THEN: &str = "; code=$?; clear; echo code $code";
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    if !has_program(&["vim", "--version"]) || !has_program(&["less", "--version"]) {
        return;
    }
    std::fs::write(env.path("work/numbers"), lines(1000)).unwrap();
    let holder = env.detach(["--", "sleep", "4301"]);
    for is_attached in [false, true] {
        for program in ["vim -u NONE -i NONE file", "less numbers"] {
            let mut attached = None;
            if is_attached {
                let words: Vec<&str> = program.split(' ').collect();
                let sandbox = env.detach([&["-t", "-e", "TERM=xterm", "--"], &words[..]].concat());
                terminal.line(&(line(&format!("attach {}", sandbox.id)) + THEN));
                attached = Some(sandbox);
            } else {
                terminal.line(&(line(&format!("exec -it {} {program}", holder.id)) + THEN));
            }
            work_with(&terminal, program);
            wait_until("the program has ended", || !env.is_running(program));
            terminal.shows("code 0");
            terminal.line("clear");
            if program.starts_with("vim") {
                let file = env.path("work/file");
                assert_eq!(std::fs::read_to_string(&file).unwrap(), "some text\n\n");
                std::fs::remove_file(file).unwrap();
            }
            if let Some(sandbox) = attached {
                remove(&env, &sandbox);
            }
        }
    }
    remove(&env, &holder);
    drop(terminal);
    env.assert_nothing_left();
}

/// Answers each line, and ends with 9 at `bye`.
const ANSWERS: &str = "while read x; do echo got $x; [ $x = bye ] && exit 9; done";

/// spec: 13.6
#[test]
fn viewer_leaves_comes_back_and_gets_the_code() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    for level in env.levels() {
        let sandbox = env.detach(["-t", "--contain", level.word(), "--", "sh", "-c", ANSWERS]);
        let attach = line(&format!("attach {}", sandbox.id));
        terminal.line(&attach);
        terminal.line("one");
        terminal.shows("got one");
        terminal.press("C-p");
        terminal.press("C-q");
        terminal.shows(&format!("penfold: left {}*", sandbox.id));
        terminal.ends_with(0);
        assert_eq!(sandbox.status(&env).as_deref(), Some("running"), "{level:?}");
        terminal.line(&attach);
        terminal.line("two");
        terminal.shows("got two");
        terminal.line("bye");
        terminal.ends_with(9);
        let log = sandbox.call(&env, &["logs", "ID"]).with_code(0).out();
        for word in ["got one\r\n", "got two\r\n", "got bye\r\n"] {
            assert!(log.contains(word), "{level:?}: {log:?}");
        }
        remove(&env, &sandbox);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn viewer_that_comes_back_to_a_terminal_of_the_same_size_sees_it_drawn() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    std::fs::write(env.path("work/numbers"), lines(1000)).unwrap();
    let shell = ["-e", "PS1=inner> ", "--", "bash", "--norc", "--noprofile", "-i"];
    let pager = ["-e", "TERM=xterm", "--", "less", "numbers"];
    for (program, drawn) in [(&shell[..], "inner>"), (&pager[..], "line 29")] {
        if !has_program(&[program[3], "--version"]) {
            continue;
        }
        let sandbox = env.detach([&["-t"], program].concat());
        for _ in 0..3 {
            terminal.line(&format!("clear; {}", line(&format!("attach {}", sandbox.id))));
            terminal.shows(drawn);
            terminal.press("C-p");
            terminal.press("C-q");
            terminal.ends_with(0);
        }
        remove(&env, &sandbox);
    }
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn viewer_stays_when_another_supervisor_goes_on() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    for level in env.levels().into_iter().filter(|&level| level != Level::Pidns) {
        let flags = ["-t", "--contain", level.word(), "--on-supervisor-exit", "keep"];
        let sandbox = env.detach([&flags[..], &["--", "sh", "-c", ANSWERS]].concat());
        let mut attach = env.penfold(["attach", &sandbox.id]);
        let mut viewer = Running::start(attach.stdin(Stdio::piped()));
        viewer.say("one\n");
        viewer.hear("got one", 1);
        sandbox.supervisors[1].signal(Signal::KILL);
        // Keys that are typed while there is no supervisor are lost.
        wait_until("the new supervisor takes the keys", || {
            viewer.say("two\n");
            viewer.heard().contains("got two")
        });
        viewer.say("bye\n");
        // At the end of its input it leaves.
        viewer.process().await_end();
        assert!(viewer.finish().with_code(9).out().contains("got bye"), "{level:?}");
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn keys_that_leave_are_those_that_were_asked_for() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    let sandbox = env.detach(["-t", "--", "cat", "-v"]);
    terminal.line(&line(&format!("attach --detach-keys ctrl-x,d {}", sandbox.id)));
    terminal.is_in_front("cat -v");
    terminal.press("C-p");
    terminal.press("C-x");
    terminal.line("x");
    // Half of the keys that leave goes to the program, in its order.
    await_log(&env, &sandbox, "^P^Xx\r\n^P^Xx\r\n");
    terminal.press("C-x");
    terminal.press("d");
    terminal.shows(&format!("penfold: left {}*", sandbox.id));
    terminal.ends_with(0);
    sandbox.call(&env, &["attach", "--detach-keys", "ctrl-", "ID"]).refused(125, "`ctrl-`");
    remove(&env, &sandbox);
    drop(terminal);
    env.assert_nothing_left();
}

/// spec: 13.2
#[test]
fn hangup_of_a_viewer_s_terminal_ends_an_exec_but_no_sandbox() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    // The command prints a word for each new size: a viewer brings one.
    let script = "trap 'echo seen' WINCH; while :; do sleep 0.05; done";
    let sandbox = env.detach(["-t", "--", "sh", "-c", script]);
    let leader = sandbox.leader().unwrap();
    for verb in ["attach", "exec -it"] {
        let Some(terminal) = Terminal::open(&env) else { return };
        let command = "bash -c 'trap \"\" HUP TERM; setsid -f sleep 4304; sleep 4305; :'";
        let rest = if verb == "attach" { "" } else { command };
        terminal.line(&line(&format!("{verb} {} {rest}", sandbox.id)));
        let mut members = Vec::new();
        if verb == "attach" {
            terminal.shows("seen");
        } else {
            members = await_running(&env, &["sleep 4304", "sleep 4305"]);
        }
        let mut clients = env.find(&penfold().display().to_string());
        clients.retain(|process| process.command_line().contains(&format!(" {verb} ")));
        assert_eq!(clients.len(), 1, "{verb}");
        drop(terminal);
        await_end_of(&clients);
        await_end_of(&members);
        // A supervisor that answers has looked at the end of its viewer before.
        exec(&env, &sandbox, &["true"]).with_code(0);
        assert!(!leader.has_ended(), "{verb}");
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.7
#[test]
fn viewer_that_does_not_read_holds_up_nobody() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    // More than the buffers of a viewer hold.
    let script = "read x; seq 100000; echo all; read y; echo got $y; sleep 4306";
    let sandbox = env.detach(["-t", "--", "sh", "-c", script]);
    let (_late, late_stream) = seat(&sandbox);
    let (_other, stream) = seat(&sandbox);
    type_in(&stream, b"go\n");
    shown(&stream, "all\r\n");
    // The late viewer reads how much it missed, and then the rest.
    let late = shown(&late_stream, "bytes not shown]");
    assert!(late.contains("\r\n100\r\n"), "nothing of the beginning");
    type_in(&late_stream, b"late\n");
    shown(&late_stream, "got late\r\n");
    shown(&stream, "got late\r\n");
    let log = sandbox.call(&env, &["logs", "ID"]).with_code(0).out();
    assert!(log.contains("\r\n99999\r\n") && log.contains("got late"), "the log is not whole");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// [`super::promptness`] has how soon.
/// spec: 13.7
#[test]
fn program_that_writes_without_end_leaves_time_for_others() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--", "yes"]);
    exec(&env, &sandbox, &["true"]).with_code(0);
    sandbox.call(&env, &["stop", "-t", "1h", "ID"]).with_code(0);
    // The polite signal has ended it.
    assert_eq!(end(&env, &sandbox), ("killed".into(), "stop".into(), json!({"signal": 15})));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn terminal_that_was_closed_can_be_opened_again() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let script =
        "exec 3>done </dev/null >/dev/null 2>&1; sleep 0.3; echo again >/dev/tty; echo >&3; sleep 4307";
    let sandbox = env.detach(["-t", "--", "sh", "-c", script]);
    await_running(&env, &["sleep 4307"]);
    await_log(&env, &sandbox, "again\r\n");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// Reads so many bytes once the file `go` is there, and prints the number.
fn reads_later(count: usize) -> String {
    format!(
        "stty raw -echo; echo up; until [ -e go ]; do sleep 0.05; done; head -c {count} | wc -c; sleep 4308"
    )
}

/// spec: 13.7
#[test]
fn typed_text_that_nobody_reads_waits() {
    const TYPED: usize = 300_000;
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-t", "--", "sh", "-c", &reads_later(TYPED)]);
    let (_client, stream) = seat(&sandbox);
    await_log(&env, &sandbox, "up");
    let keys = stream.try_clone().unwrap();
    let typing = std::thread::spawn(move || type_in(&keys, &vec![b'x'; TYPED]));
    await_rest("no room for more keys", &sandbox.supervisors);
    // Other clients are served meanwhile.
    ControlClient::connect(&sandbox.record).unwrap();
    assert!(!typing.is_finished(), "all typed into buffers");
    exec(&env, &sandbox, &["touch", "go"]).with_code(0);
    shown(&stream, &TYPED.to_string());
    typing.join().unwrap();
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// The buffers hold a part of a large paste when the keys that leave are pressed: the supervisor has still to read that.
/// spec: 13.7
#[test]
fn keys_typed_before_leaving_reach_the_program() {
    if !has_terminals() {
        return;
    }
    for (size, stopped) in [(150_000, false), (400_000, true)] {
        let env = TestEnv::new();
        let sandbox = env.detach(["-t", "--", "sh", "-c", &reads_later(size)]);
        await_log(&env, &sandbox, "up");
        let (ours, theirs) = terminal_pair();
        let attached = spawn_at(&theirs, env.penfold(["attach", &sandbox.id]));
        // From then on our own terminal passes on every key.
        let is_raw =
            || !rustix::termios::tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ICANON);
        wait_until("the terminal is raw", is_raw);
        if stopped {
            sandbox.stop_supervisors();
            std::fs::write(env.path("work/go"), "").unwrap();
        }
        type_in(&ours, &[vec![b'x'; size], b"\x10\x11".to_vec()].concat());
        wait_until("the client has read all", || rustix::io::ioctl_fionread(&theirs) == Ok(0));
        sandbox.continue_supervisors();
        attached.finish().with_code(0);
        std::fs::write(env.path("work/go"), "").unwrap();
        await_log(&env, &sandbox, &size.to_string());
        remove(&env, &sandbox);
        env.assert_nothing_left();
    }
}

/// The program writes a line for each that it reads. The paste is larger than all buffers between.
/// spec: 13.7
#[test]
fn large_paste_goes_through_whole() {
    const LINES: u32 = 20_000;
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4309"]);
    let (ours, theirs) = terminal_pair();
    // Of its own echo, the kernel may drop a part.
    let script = "stty -echo; echo ready; exec sed 's/^/got /'";
    let launcher = spawn_at(&theirs, exec_command(&env, &sandbox, &["-it"], &["sh", "-c", script]));
    drop(theirs);
    // From then on our own terminal passes on every key.
    shown(&ours, "ready\r\n");
    let keys = ours.try_clone().unwrap();
    let typing = std::thread::spawn(move || type_in(&keys, lines(LINES).as_bytes()));
    let answer = shown(&ours, &format!("got line {LINES}\r\n"));
    typing.join().unwrap();
    let wanted = lines(LINES).replace("line ", "got line ").replace('\n', "\r\n");
    assert!(answer == wanted, "{} bytes instead of {}", answer.len(), wanted.len());
    type_in(&ours, b"\x04");
    launcher.finish().with_code(0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn without_a_terminal_there_is_nothing_to_attach_to() {
    if !has_terminals() {
        return;
    }
    let env = TestEnv::new();
    let plain = env.detach(["--", "sleep", "4310"]);
    let refused = plain.call(&env, &["attach", "ID"]);
    let hint = "`penfold run -d -t` starts one with a terminal";
    assert!(refused.err().contains(hint), "{}", refused.err());
    refused.refused(125, "cannot attach");
    begin(&env, &plain, &["-it"], &["true"]).finish().refused(125, "not a terminal");
    remove(&env, &plain);
    // The client needs no terminal of its own.
    let sandbox = env.detach(["-t", "--", "sh", "-c", "read x; echo got $x; exit 4"]);
    let mut attach = env.penfold(["attach", &sandbox.id]);
    let mut viewer = Running::start(attach.stdin(Stdio::piped()));
    viewer.say("word\n");
    viewer.process().await_end();
    assert!(viewer.finish().with_code(4).out().contains("got word"));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.6
#[test]
fn end_that_is_told_while_the_window_changes_is_not_lost() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--on-supervisor-exit", "keep", "--", "sleep", "4311"]);
    sandbox.kill_supervisors();
    // This test is the supervisor now: it gives a seat, and tells the end before the client sends its next request.
    let lock = std::fs::File::open(&sandbox.record).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let path = sandbox.record.join("control.sock");
    std::fs::remove_file(&path).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let attach = env.begin(["attach", "--no-stdin", &sandbox.id]);
    let socket = accept(&listener).unwrap();
    let client = ControlClient::of(socket.try_clone().unwrap());
    client.say(&Impostor::hello(&sandbox.id).to_string());
    client.say(&json!("done").to_string());
    client.say(&Impostor::all_gone(&sandbox.id).to_string());
    // Requests stay unread: the descriptor in the first is the other side of the terminal.
    let unread = || rustix::io::ioctl_fionread(&socket).unwrap();
    wait_until("a seat is asked for", || unread() > 0);
    let first = unread();
    let has = |set: &str| signals(attach.pid(), set) >> (Signal::WINCH.as_raw() - 1) & 1 == 1;
    wait_until("the client blocks the signal", || has("SigBlk"));
    attach.signal(Signal::WINCH);
    wait_until("the client tells of its window", || unread() > first);
    drop((client, socket, listener));
    attach.finish().with_code(137);
    drop(lock);
}
