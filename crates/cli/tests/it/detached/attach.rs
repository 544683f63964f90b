//! Terminals of detached sandboxes and of commands in them: as any terminal, from wherever one looks.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::support_control::{Fold, Impostor, all_gone, hello};
use crate::support_e2::left::Handle;
use crate::support_e2::terminal::Terminal;
use crate::support_e2::{DEADLINE, Pen, Talk, eventually, pause};
use crate::support_g::wire::Peer;
use crate::support_g::{Actor, Sandbox, kill};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;
use rustix::termios::LocalModes;

/// A shell line of penfold in the pen.
fn line(pen: &Pen, words: &str) -> String {
    let [verb, rest] = words.splitn(2, ' ').collect::<Vec<_>>().try_into().unwrap();
    format!("{} {verb} {rest}", pen.shell().trim_end_matches(" run"))
}

/// So many lines, each with its number.
fn lines(count: u32) -> String {
    let lines: Vec<String> = (1..=count).map(|number| format!("line {number}")).collect();
    lines.join("\n") + "\n"
}

/// Takes a seat by hand: the connection, and what it shows and types through.
#[track_caller]
fn seat(sandbox: &Sandbox<'_>) -> (Peer, OwnedFd) {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    let peer = Peer::greeted(&sandbox.record(), DEADLINE).unwrap();
    peer.say(b"{\"attach\":{\"rows\":24,\"columns\":80}}", &[theirs.as_fd()]);
    assert_eq!(peer.hear(DEADLINE).unwrap(), "done");
    (peer, ours)
}

/// Reads until this was shown; gives all.
#[track_caller]
fn shown(stream: &OwnedFd, wanted: &str) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0_u8; 8192]);
    let (timeout, mut so) = (DEADLINE.try_into().unwrap(), false);
    while !so && poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&timeout)).unwrap() > 0 {
        let length = rustix::io::read(stream, &mut buffer).unwrap();
        text.extend_from_slice(&buffer[..length]);
        so = String::from_utf8_lossy(&text).contains(wanted);
        assert!(so || length > 0, "the end before `{wanted}`");
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(so, "no `{wanted}` in the last of: {}", text.chars().rev().take(300).collect::<String>());
    text
}

#[test]
fn exec_has_a_terminal_of_the_caller_s_size_and_kind() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let Some(terminal) = Terminal::open(&pen) else { return };
    terminal.line("export TERM=xterm; clear");
    for level in actor.levels() {
        let sandbox = actor.detach(&["--contain", level, "--", "sleep", "4301"]);
        let script =
            "stty size; echo $TERM; trap \"stty size; exit 7\" WINCH; echo up; while :; do sleep 0.05; done";
        terminal.line(&line(&pen, &format!("exec -it {} bash -c '{script}'", sandbox.id)));
        terminal.shows("30 100");
        terminal.shows("xterm");
        terminal.shows("up");
        terminal.tmux(&["resize-window", "-x", "90", "-y", "35"]);
        terminal.shows("35 90");
        terminal.ends_with(7);
        // tmux takes its time.
        terminal.tmux(&["resize-window", "-x", "100", "-y", "30"]);
        terminal.line("until [ \"$(stty size)\" = '30 100' ]; do sleep 0.05; done; clear; echo so");
        terminal.shows("so");
        terminal.line("clear");
        sandbox.end();
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn keys_reach_the_shell_inside() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in actor.levels() {
        let sandbox = actor.detach(&["--contain", level, "--", "sleep", "4301"]);
        let inner = "env PS1='inner> ' bash --norc --noprofile -i";
        terminal.line(&line(&pen, &format!("exec -it {} {inner}", sandbox.id)));
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
        assert!(!pen.is_running("sleep 4302"), "{level}");
        sandbox.end();
    }
    drop(terminal);
    pen.assert_nothing_left();
}

/// What the shell does next, typed before: what is typed when a program has just ended is the program's still.
const THEN: &str = "; code=$?; clear; echo code $code";

#[test]
fn editor_and_pager_work_in_an_exec_and_in_an_attached_terminal() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let Some(terminal) = Terminal::open(&pen) else { return };
    if !crate::support_e2::tool(&["vim", "--version"]) || !crate::support_e2::tool(&["less", "--version"]) {
        return;
    }
    std::fs::write(pen.path("work/numbers"), lines(1000)).unwrap();
    let holder = actor.detach(&["--", "sleep", "4301"]);
    for attached in [false, true] {
        for program in ["vim -u NONE -i NONE file", "less numbers"] {
            let mut seated = None;
            if attached {
                let words: Vec<&str> = program.split(' ').collect();
                let sandbox = actor.detach(&[&["-t", "-e", "TERM=xterm", "--"], &words[..]].concat());
                terminal.line(&(line(&pen, &format!("attach {}", sandbox.id)) + THEN));
                seated = Some(sandbox);
            } else {
                terminal.line(&(line(&pen, &format!("exec -it {} {program}", holder.id)) + THEN));
            }
            // No key before it has drawn for the size of this terminal: less loses one that it reads while it is told of a
            // new size (it jumps out of read(2) when SIGWINCH comes), and whoever sits down brings a new size.
            if program.starts_with("vim") {
                let tildes = || terminal.screen().lines().filter(|line| line.trim_end() == "~").count();
                assert!(eventually(DEADLINE, || tildes() == 28), "{}", terminal.screen());
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
            // An attached terminal is left as the program left it.
            assert!(eventually(DEADLINE, || !pen.is_running(program)));
            terminal.shows("code 0");
            terminal.line("clear");
            if program.starts_with("vim") {
                assert_eq!(std::fs::read_to_string(pen.path("work/file")).unwrap(), "some text\n\n");
                std::fs::remove_file(pen.path("work/file")).unwrap();
            }
            if let Some(sandbox) = seated {
                sandbox.end();
            }
        }
    }
    holder.end();
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn one_leaves_and_comes_back_and_gets_the_code() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let Some(terminal) = Terminal::open(&pen) else { return };
    for level in actor.levels() {
        let script = "while read x; do echo got $x; [ $x = bye ] && exit 9; done";
        let sandbox = actor.detach(&["-t", "--contain", level, "--", "sh", "-c", script]);
        let attach = line(&pen, &format!("attach {}", sandbox.id));
        terminal.line(&attach);
        terminal.line("one");
        terminal.shows("got one");
        terminal.press("C-p");
        terminal.press("C-q");
        terminal.shows(&format!("penfold: left {}*", sandbox.id));
        terminal.ends_with(0);
        assert_eq!(sandbox.status(), "running", "{level}");
        terminal.line(&attach);
        terminal.line("two");
        terminal.shows("got two");
        terminal.line("bye");
        terminal.ends_with(9);
        let log = sandbox.ask(&["logs", "ID"]).with_code(0).out();
        for word in ["got one\r\n", "got two\r\n", "got bye\r\n"] {
            assert!(log.contains(word), "{level}: {log:?}");
        }
        sandbox.end();
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn who_comes_back_to_a_terminal_of_the_same_size_sees_it_drawn() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let Some(terminal) = Terminal::open(&pen) else { return };
    std::fs::write(pen.path("work/numbers"), lines(1000)).unwrap();
    let shell = ["-e", "PS1=inner> ", "--", "bash", "--norc", "--noprofile", "-i"];
    let pager = ["-e", "TERM=xterm", "--", "less", "numbers"];
    for (program, drawn) in [(&shell[..], "inner>"), (&pager[..], "line 29")] {
        if !crate::support_e2::tool(&[program[3], "--version"]) {
            continue;
        }
        let sandbox = actor.detach(&[&["-t"], program].concat());
        for _ in 0..3 {
            terminal.line(&format!("clear; {}", line(&pen, &format!("attach {}", sandbox.id))));
            terminal.shows(drawn);
            terminal.press("C-p");
            terminal.press("C-q");
            terminal.ends_with(0);
        }
        sandbox.end();
    }
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn viewer_stays_when_another_supervisor_goes_on() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script = "while read x; do echo got $x; [ $x = bye ] && exit 9; done";
    for level in actor.levels().into_iter().filter(|&level| level != "pidns") {
        let words = ["-t", "--contain", level, "--on-supervisor-exit", "keep", "--", "sh", "-c", script];
        let sandbox = actor.detach(&words);
        let mut attach = actor.verb(["attach", &sandbox.id]);
        let mut talk = Talk::start(attach.stdin(std::process::Stdio::piped()));
        talk.say("one\n");
        talk.hear("got one", 1);
        kill(*sandbox.supervisors().last().unwrap());
        // What is typed while there is no supervisor reaches nobody.
        let again = || {
            talk.say("two\n");
            talk.heard().contains("got two")
        };
        assert!(eventually(DEADLINE, again), "{level}: {}", talk.heard());
        talk.say("bye\n");
        assert!(talk.end().with_code(9).out().contains("got bye"), "{level}");
        sandbox.end();
    }
    pen.assert_nothing_left();
}

#[test]
fn keys_that_leave_are_those_that_were_asked_for() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let Some(terminal) = Terminal::open(&pen) else { return };
    let sandbox = actor.detach(&["-t", "--", "cat", "-v"]);
    terminal.line(&line(&pen, &format!("attach --detach-keys ctrl-x,d {}", sandbox.id)));
    terminal.is_in_front("cat -v");
    terminal.press("C-p");
    terminal.press("C-x");
    terminal.line("x");
    // Whole, and in its order.
    let typed = || sandbox.ask(&["logs", "ID"]).out().contains("^P^Xx\r\n^P^Xx\r\n");
    assert!(eventually(DEADLINE, typed), "{}", terminal.screen());
    terminal.press("C-x");
    terminal.press("d");
    terminal.shows(&format!("penfold: left {}*", sandbox.id));
    terminal.ends_with(0);
    sandbox.ask(&["attach", "--detach-keys", "ctrl-", "ID"]).refused(125, "`ctrl-`");
    sandbox.end();
    drop(terminal);
    pen.assert_nothing_left();
}

#[test]
fn hangup_of_a_viewer_s_terminal_ends_an_exec_but_no_sandbox() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["-t", "--", "sleep", "4303"]);
    for words in ["attach", "exec -it"] {
        let Some(terminal) = Terminal::open(&pen) else { return };
        let command = "bash -c 'trap \"\" HUP TERM; setsid -f sleep 4304; sleep 4305; :'";
        let rest = if words == "attach" { "" } else { command };
        terminal.line(&line(&pen, &format!("{words} {} {rest}", sandbox.id)));
        if words == "attach" {
            pause(Duration::from_millis(200));
        } else {
            assert!(eventually(DEADLINE, || pen.is_running("sleep 4304") && pen.is_running("sleep 4305")));
        }
        drop(terminal);
        assert!(eventually(DEADLINE, || !pen.is_running("sleep 4304") && !pen.is_running("sleep 4305")));
        assert!(pen.is_running("sleep 4303"), "{words}");
    }
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn who_does_not_look_holds_up_nobody() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script = "read x; seq 400000; echo all; read y; echo got $y; sleep 4306";
    let sandbox = actor.detach(&["-t", "--", "sh", "-c", script]);
    let (_blind, blind_stream) = seat(&sandbox);
    let (_other, stream) = seat(&sandbox);
    rustix::io::write(&stream, b"go\n").unwrap();
    shown(&stream, "all\r\n");
    // It is told what it missed, and sees what follows.
    let late = shown(&blind_stream, "bytes not shown]");
    assert!(late.contains("\r\n100\r\n"), "nothing of the beginning");
    rustix::io::write(&blind_stream, b"late\n").unwrap();
    shown(&blind_stream, "got late\r\n");
    shown(&stream, "got late\r\n");
    let log = sandbox.ask(&["logs", "ID"]).with_code(0).out();
    assert!(log.contains("\r\n399999\r\n") && log.contains("got late"), "the log is not whole");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn program_that_writes_without_end_leaves_time_for_others() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["-t", "--", "yes"]);
    let mut took: Vec<Duration> = (0..20)
        .map(|_| {
            let begun = Instant::now();
            Peer::greeted(&sandbox.record(), Duration::from_secs(1)).unwrap();
            begun.elapsed()
        })
        .collect();
    took.sort_unstable();
    // A millisecond each; on a busy machine some take more.
    assert!(took[took.len() / 2] < Duration::from_millis(100), "{took:?}");
    sandbox.exec(&["true"]).with_code(0);
    // Longer than a command may take: it ends politely.
    sandbox.ask(&["stop", "-t", "60", "ID"]).with_code(0);
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn terminal_that_was_closed_can_be_opened_again() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script =
        "exec 3>done </dev/null >/dev/null 2>&1; sleep 0.3; echo again >/dev/tty; echo >&3; sleep 4307";
    let sandbox = actor.detach(&["-t", "--", "sh", "-c", script]);
    assert!(eventually(DEADLINE, || pen.is_running("sleep 4307")));
    let logged = || sandbox.ask(&["logs", "ID"]).out().contains("again\r\n");
    assert!(eventually(DEADLINE, logged), "not shown");
    sandbox.end();
    pen.assert_nothing_left();
}

#[test]
fn typed_text_that_nobody_reads_waits() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let script =
        "stty raw -echo; echo up; until [ -e go ]; do sleep 0.05; done; head -c 300000 | wc -c; sleep 4308";
    let sandbox = actor.detach(&["-t", "--", "sh", "-c", script]);
    let (_peer, stream) = seat(&sandbox);
    assert!(eventually(DEADLINE, || sandbox.ask(&["logs", "ID"]).out().contains("up")));
    let typing = std::thread::spawn({
        let stream = stream.try_clone().unwrap();
        move || {
            let (text, mut typed) = (vec![b'x'; 300_000], 0);
            while typed < text.len() {
                match rustix::io::write(&stream, &text[typed..]) {
                    Ok(length) => typed += length,
                    Err(error) => panic!("cannot type: {error}"),
                }
            }
        }
    });
    pause(Duration::from_millis(300));
    // The other things go on meanwhile.
    Peer::greeted(&sandbox.record(), DEADLINE).unwrap();
    sandbox.exec(&["touch", "go"]).with_code(0);
    shown(&stream, "300000");
    typing.join().unwrap();
    sandbox.end();
    pen.assert_nothing_left();
}

/// Of what is pasted just before the keys that leave, as much as the buffers between hold is still to be read then.
#[test]
fn what_was_typed_before_leaving_reaches_the_program() {
    for (size, stopped) in [(150_000, false), (400_000, true)] {
        let pen = Pen::new();
        let actor = Actor::own(&pen);
        let script = format!(
            "stty raw -echo; echo up; until [ -e go ]; do sleep 0.05; done; head -c {size} | wc -c; sleep 4308"
        );
        let sandbox = actor.detach(&["-t", "--", "sh", "-c", &script]);
        let is_logged = |text: &str| sandbox.ask(&["logs", "ID"]).out().contains(text);
        assert!(eventually(DEADLINE, || is_logged("up")));
        let (ours, theirs) = terminal_pair();
        let end = || Stdio::from(theirs.try_clone().unwrap());
        let mut attach = actor.verb(["attach", &sandbox.id]);
        let mut attached = attach.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        // By then our own terminal passes on everything as it is.
        let is_raw =
            || !rustix::termios::tcgetattr(&theirs).unwrap().local_modes.contains(LocalModes::ICANON);
        assert!(eventually(DEADLINE, is_raw));
        let supervisors: Vec<Handle> = sandbox.supervisors().into_iter().map(Handle::of).collect();
        let tell = |signal| {
            for supervisor in &supervisors {
                supervisor.signal(signal);
            }
        };
        if stopped {
            tell(Signal::STOP);
            std::fs::write(pen.path("work/go"), "").unwrap();
        }
        let text = [vec![b'x'; size], b"\x10\x11".to_vec()].concat();
        let mut left = &text[..];
        while !left.is_empty() {
            left = &left[rustix::io::write(&ours, left).unwrap()..];
        }
        assert!(eventually(DEADLINE, || rustix::io::ioctl_fionread(&theirs) == Ok(0)));
        tell(Signal::CONT);
        assert_eq!(attached.wait().unwrap().code(), Some(0));
        std::fs::write(pen.path("work/go"), "").unwrap();
        assert!(eventually(DEADLINE, || is_logged(&size.to_string())), "{size} typed");
        sandbox.end();
        pen.assert_nothing_left();
    }
}

/// The program writes a line for each that it reads, while more is pasted than any of the buffers between holds.
#[test]
fn large_paste_goes_through_whole() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let sandbox = actor.detach(&["--", "sleep", "4309"]);
    let (ours, theirs) = terminal_pair();
    let end = || Stdio::from(theirs.try_clone().unwrap());
    // What a terminal echoes by itself the kernel may drop.
    let script = "stty -echo; echo ready; exec sed 's/^/got /'";
    let mut exec = actor.verb(["exec", "-it", &sandbox.id, "sh", "-c", script]);
    let mut front = exec.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    drop((exec, theirs));
    // By then our own terminal passes on everything as it is.
    shown(&ours, "ready\r\n");
    let keys = ours.try_clone().unwrap();
    let typing = std::thread::spawn(move || {
        let text = lines(20_000);
        let mut left = text.as_bytes();
        while !left.is_empty() {
            left = &left[rustix::io::write(&keys, left).unwrap()..];
        }
    });
    let answer = shown(&ours, "got line 20000\r\n");
    typing.join().unwrap();
    let wanted = lines(20_000).replace("line ", "got line ").replace('\n', "\r\n");
    assert!(answer == wanted, "{} bytes instead of {}", answer.len(), wanted.len());
    rustix::io::write(&ours, b"\x04").unwrap();
    assert_eq!(front.wait().unwrap().code(), Some(0));
    sandbox.end();
    pen.assert_nothing_left();
}

/// The two sides of a terminal.
fn terminal_pair() -> (OwnedFd, OwnedFd) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).and_then(|()| unlockpt(&ours)).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
    (ours, rustix::fs::open(name, flags, rustix::fs::Mode::empty()).unwrap())
}

#[test]
fn without_a_terminal_there_is_nothing_to_attach_to() {
    let pen = Pen::new();
    let actor = Actor::own(&pen);
    let plain = actor.detach(&["--", "sleep", "4310"]);
    let ended = plain.ask(&["attach", "ID"]);
    assert!(ended.err().contains("hint: a terminal is given with `penfold run -d -t`"), "{}", ended.err());
    ended.refused(125, "cannot attach");
    plain.end();
    // Our own is not needed.
    let sandbox = actor.detach(&["-t", "--", "sh", "-c", "read x; echo got $x; exit 4"]);
    let mut attach = actor.verb(["attach", &sandbox.id]);
    let mut talk = Talk::start(attach.stdin(std::process::Stdio::piped()));
    talk.say("word\n");
    assert!(talk.end().with_code(4).out().contains("got word"));
    sandbox.end();
    let refused = actor.detach(&["--", "sleep", "4310"]);
    let ended = Talk::start(&mut refused.exec_command(&["-it"], &["true"])).end();
    ended.refused(125, "no terminal");
    refused.end();
    pen.assert_nothing_left();
}

#[test]
fn end_that_is_told_while_the_window_changes_is_not_lost() {
    let fold = Fold::new();
    let sandbox = fold.start(&["--on-supervisor-exit", "keep"], "sleep 1000");
    sandbox.kill_supervisors();
    // We are the supervisor now: a seat is given, and the end is told before anybody asks for anything else.
    let lock = std::fs::File::open(&sandbox.record).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let words = vec![hello(&sandbox.id), "done".into(), all_gone(&sandbox.id)];
    let supervisor = Impostor::new(&sandbox, words, false);
    let attach = fold.begin(&["attach", "--no-stdin", &sandbox.id]);
    let window = rustix::process::Signal::WINCH;
    let pid = rustix::process::Pid::from_raw(i32::try_from(attach.id()).unwrap()).unwrap();
    let has = |line: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", attach.id())).unwrap();
        let set = status.lines().find_map(|text| text.strip_prefix(line)).unwrap().trim().to_owned();
        u64::from_str_radix(&set, 16).unwrap() >> (window.as_raw() - 1) & 1 == 1
    };
    assert!(eventually(DEADLINE, || has("SigBlk:")), "it does not listen");
    crate::support_d::signal(pid, window);
    assert!(eventually(DEADLINE, || !has("ShdPnd:")), "it does not hear");
    pause(Duration::from_millis(100));
    drop(supervisor);
    let done = attach.wait_with_output().unwrap();
    assert_eq!(crate::support_d::code(&done), 137, "{}", crate::support_d::said(&done));
    drop(lock);
}
