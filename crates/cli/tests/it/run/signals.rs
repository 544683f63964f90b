//! Signals to `penfold run`, time limits and the grace.

use std::time::Duration;

use crate::support_e2::left::{Handle, front};
use crate::support_e2::{DEADLINE, Pen, Talk, eventually, left, levels, pause};
use penfold_testkit::proc;
use rustix::process::Signal;

/// A leader and a child that print every signal they get, and `ready` once each.
const LISTEN: &str = r#"
    listen() {
        for s in HUP QUIT USR1 USR2 ALRM WINCH URG RTMIN RTMIN+6 RTMAX TERM INT; do trap "echo $1 got $s." $s; done
        echo $1 ready
        while :; do read -r -t 0.1 <> gate; done
    }
    [ -p gate ] || mkfifo gate
    listen child & listen leader
"#;

/// Longer than bash takes to set its traps on a busy machine.
const LIMIT: &str = "5s";

fn listening(pen: &Pen, words: &[&str]) -> Talk {
    let script = ["bash", "-c", LISTEN];
    let talk = Talk::start(&mut pen.run(words.iter().chain(&script)));
    talk.hear("ready", 2);
    talk
}

#[test]
fn signals_are_forwarded_to_the_leader_only() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let talk = listening(&pen, &["--contain", level, "--grace", "0"]);
        let sent = [
            (Signal::USR1, "USR1"),
            (Signal::USR2, "USR2"),
            (Signal::ALARM, "ALRM"),
            (Signal::WINCH, "WINCH"),
            (Signal::QUIT, "QUIT"),
            (Signal::URG, "URG"),
            (penfold_sys::signal::signal(34).unwrap(), "RTMIN"),
            (penfold_sys::signal::signal(40).unwrap(), "RTMIN+6"),
        ];
        for (signal, name) in sent {
            talk.signal(signal);
            talk.hear(&format!("leader got {name}.\n"), 1);
        }
        assert!(!talk.heard().contains("child got"), "{level}: {}", talk.heard());
        talk.signal(Signal::TERM);
        talk.end().with_code(137);
    }
    pen.assert_nothing_left();
}

#[test]
fn hangup_without_a_terminal_is_forwarded() {
    let pen = Pen::new();
    // In a session of its own there is no terminal.
    let mut command = pen.command("setsid");
    command.args(["-w", "bash", "-c", "exec $PF --grace 0 bash -c \"$LISTEN\""]).env("LISTEN", LISTEN);
    let talk = Talk::start(&mut command);
    talk.hear("ready", 2);
    let front = left::Handle::of(left::front(talk.pid()));
    front.signal(Signal::HUP);
    talk.hear("leader got HUP.\n", 1);
    front.signal(Signal::TERM);
    talk.end().with_code(137);
    pen.assert_nothing_left();
}

#[test]
fn first_term_or_interrupt_stops_all_members_after_the_grace() {
    let pen = Pen::new();
    for level in levels(&pen) {
        // Both graces run at once; they are longer than a shell takes to come to its traps on a busy machine.
        let begun = [(Signal::TERM, "TERM"), (Signal::INT, "INT")].map(|(signal, name)| {
            let talk = listening(&pen, &["--contain", level, "--grace", "4"]);
            talk.signal(signal);
            talk.hear(&format!("leader got {name}."), 1);
            // bash ignores INT in background children, and then their traps do not count.
            if signal == Signal::TERM {
                talk.hear("child got TERM.", 1);
            }
            talk
        });
        for talk in begun {
            let ended = talk.end().with_code(137);
            assert!(ended.err().contains("stopped; ended 2 processes (2 KILL)"), "{}", ended.err());
            assert!(ended.took >= Duration::from_secs(4), "{:?}", ended.took);
        }
    }
    pen.assert_nothing_left();
}

/// Its own name would tell nobody which of the many `sleep`s it is.
#[test]
fn strays_that_are_stopped_are_named_with_their_command_lines() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let script = "setsid sh -c 'echo ready; exec sleep 2061' & sleep 600";
        let talk = Talk::start(&mut pen.run(["--contain", level, "sh", "-c", script]));
        talk.hear("ready", 1);
        assert!(eventually(DEADLINE, || pen.is_running("sleep 2061")));
        talk.signal(Signal::TERM);
        let ended = talk.end().with_code(143);
        assert!(ended.err().contains("strays: sleep 2061 (pid "), "{level}: {}", ended.err());
    }
    pen.assert_nothing_left();
}

#[test]
fn second_term_or_interrupt_kills_at_once() {
    let pen = Pen::new();
    for level in levels(&pen) {
        for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT")] {
            let talk = listening(&pen, &["--contain", level, "--grace", "10m"]);
            talk.signal(signal);
            talk.hear(&format!("leader got {name}."), 1);
            talk.signal(signal);
            talk.end().with_code(137);
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn code_after_a_stop_is_the_commands() {
    let pen = Pen::new();
    for (script, signal, code) in [
        ("exec sleep 600", Signal::TERM, 143),
        ("exec sleep 600", Signal::INT, 130),
        ("trap 'exit 3' TERM", Signal::TERM, 3),
        ("trap 'exit 0' INT", Signal::INT, 0),
        ("exec sleep 600", Signal::USR1, 138),
        ("exec sleep 600", Signal::QUIT, 131),
    ] {
        let script = format!(
            "ulimit -c 0; echo ready; {script}; mkfifo gate$$; while :; do read -r -t 0.1 <> gate$$; done"
        );
        let talk = Talk::start(&mut pen.run(["bash", "-c", &script]));
        talk.hear("ready", 1);
        // Between the word and the trap or exec is a moment.
        let settled = || {
            let leader = left::descendants(talk.pid());
            leader.iter().any(|pid| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                name == "sleep\n" || pen.path(&format!("work/gate{pid}")).try_exists().unwrap()
            })
        };
        assert!(crate::support_e2::eventually(crate::support_e2::DEADLINE, settled));
        talk.signal(signal);
        talk.end().with_code(code);
    }
    pen.assert_nothing_left();
}

#[test]
fn signal_before_the_command_runs_ends_it_too() {
    let pen = Pen::new();
    for round in 0..60_u32 {
        let talk = Talk::start(&mut pen.run(["sleep", "600"]));
        crate::support_e2::pause(Duration::from_micros(u64::from(round * 50)));
        talk.signal(Signal::TERM);
        let ended = talk.end();
        // Until its handlers are set, penfold is an ordinary process and dies of the signal.
        let fine = ended.signal() == Some(15) || matches!(ended.code(), Some(143 | 137));
        assert!(fine, "{ended:?}");
    }
    pen.assert_nothing_left();
}

#[test]
fn signals_for_penfold_that_it_does_not_pass_on_do_it_no_harm() {
    let pen = Pen::new();
    let talk = listening(&pen, &["--grace", "0"]);
    for signal in [Signal::PIPE, Signal::CHILD, Signal::CONT, Signal::STOP, Signal::CONT] {
        talk.signal(signal);
    }
    talk.signal(Signal::USR1);
    talk.hear("leader got USR1.", 1);
    talk.signal(Signal::TERM);
    talk.end().with_code(137);
    pen.assert_nothing_left();
}

#[test]
fn time_limit_is_124_or_the_commands_code() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let ended = pen.end(["--contain", level, "--timeout", "0.3", "sleep", "600"]).with_code(124);
        assert!(
            ended.took >= Duration::from_millis(300) && ended.took < Duration::from_secs(5),
            "{:?}",
            ended.took
        );
        assert!(ended.err().contains("timed out after"), "{}", ended.err());
        let words = ["--contain", level, "--timeout", LIMIT, "--preserve-status"];
        let asleep = Talk::start(&mut pen.run(words.iter().chain(&["sleep", "600"])));
        pen.end(words.iter().chain(&[
            "bash",
            "-c",
            "trap 'exit 7' TERM; mkfifo g; while :; do read -r -t 0.1 <>g; done",
        ]))
        .with_code(7);
        asleep.end().with_code(143);
        std::fs::remove_file(pen.path("work/g")).unwrap();
        pen.end(["--contain", level, "--timeout", "0", "sh", "-c", "exit 5"]).with_code(5);
        pen.end(["--contain", level, "--timeout", "60", "sh", "-c", "exit 5"]).with_code(5);
    }
    pen.assert_nothing_left();
}

/// As on a host where nobody of ours had a processor for a while.
#[test]
fn exit_before_the_time_limit_counts_whenever_it_is_seen() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let script = "mkfifo g; echo up; read -r word < g; exit 7";
        let words = ["--contain", level, "--timeout", LIMIT, "--", "sh", "-c", script];
        let talk = Talk::start(&mut pen.run(words));
        talk.hear("up", 1);
        let front = front(talk.pid());
        let (ours, leader) = (left::ours(front), left::leader(front));
        let ours: Vec<Handle> = ours.into_iter().take(2).map(Handle::of).collect();
        assert_eq!(ours.len(), 2);
        for process in &ours {
            process.signal(Signal::STOP);
        }
        std::fs::write(pen.path("work/g"), "go\n").unwrap();
        assert!(eventually(DEADLINE, || proc::stat(leader).is_none_or(|stat| stat.is_dead())));
        pause(Duration::from_millis(3300));
        for process in ours.iter().rev() {
            process.signal(Signal::CONT);
        }
        let ended = talk.end();
        assert_eq!(ended.code(), Some(7), "{level}: {}", ended.err());
        std::fs::remove_file(pen.path("work/g")).unwrap();
    }
    pen.assert_nothing_left();
}

#[test]
fn polite_signal_is_the_one_asked_for() {
    let pen = Pen::new();
    for level in levels(&pen) {
        // All limits run at once.
        let begun = ["INT", "USR1", "SIGHUP", "RTMIN+3", "15"].map(|signal| {
            let trapped = if signal == "15" { "TERM" } else { signal };
            let gate = format!("gate-{level}-{trapped}");
            let script =
                format!("trap 'exit 9' {trapped}; mkfifo {gate}; while :; do read -r -t 0.1 <> {gate}; done");
            let words = ["--contain", level, "--timeout", LIMIT, "--preserve-status", "--signal", signal];
            Talk::start(&mut pen.run(words.iter().chain(&["bash", "-c", &script])))
        });
        for talk in begun {
            talk.end().with_code(9);
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn tree_that_ignores_the_polite_signal_is_killed_after_the_grace() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let script = "trap '' TERM INT HUP; (sleep 600; :) & setsid sleep 600 & sleep 600; :";
        // Both limits run at once.
        let begun = [("0.4", 400), ("0", 0)].map(|(grace, least)| {
            let words = ["--contain", level, "--timeout", LIMIT, "--grace", grace, "bash", "-c", script];
            (grace, least, Talk::start(&mut pen.run(words)))
        });
        for (grace, least, talk) in begun {
            let ended = talk.end().with_code(124);
            assert!(ended.took >= Duration::from_millis(3000 + least), "{level} {grace}: {:?}", ended.took);
            assert!(ended.took < Duration::from_secs(8), "{level} {grace}: {:?}", ended.took);
            assert!(ended.err().contains("KILL"), "{}", ended.err());
        }
    }
    pen.assert_nothing_left();
}
