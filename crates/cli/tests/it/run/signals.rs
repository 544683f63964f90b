//! Signals to `penfold run`, time limits and the grace.

use std::os::unix::process::CommandExt as _;
use std::time::Duration;

use rustix::process::Signal;

use super::launcher::{DEAF, SERVE, at_once, await_ready, launcher, leader, own_processes, run_until_limit};
use crate::support::{Finished, Level, Process, Running, TestEnv, json, wait_until};

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

/// A leader and a child that clean up on TERM, each until its fifo `go-NAME` has a line.
const CLEAN_UP: &str = r#"
    clean_up() {
        trap "echo $1 asked; read -r _ < go-$1; echo $1 clean; exit 3" TERM
        echo $1 ready
        while :; do read -r -t 0.1 <> gate; done
    }
    mkfifo gate go-child go-leader 2>/dev/null
    clean_up child & clean_up leader
"#;

fn listening(env: &TestEnv, words: &[&str]) -> Running {
    let script = ["bash", "-c", LISTEN];
    let running = Running::start(&mut env.run_command(words.iter().chain(&script)));
    await_ready(&running, 2);
    running
}

/// spec: 8.3
#[test]
fn signals_are_forwarded_to_the_leader_only() {
    let env = TestEnv::new();
    for level in env.levels() {
        let running = listening(&env, &["--contain", level.word(), "--grace", "0"]);
        let sent = [
            (Signal::USR1, "USR1"),
            (Signal::USR2, "USR2"),
            (Signal::ALARM, "ALRM"),
            (Signal::WINCH, "WINCH"),
            (Signal::QUIT, "QUIT"),
            (Signal::URG, "URG"),
            (penfold_sys::signal::signal_of_number(34).unwrap(), "RTMIN"),
            (penfold_sys::signal::signal_of_number(40).unwrap(), "RTMIN+6"),
        ];
        for (signal, name) in sent {
            running.signal(signal);
            running.hear(&format!("leader got {name}.\n"), 1);
        }
        assert!(!running.heard().contains("child got"), "{level:?}: {}", running.heard());
        running.signal(Signal::TERM);
        running.finish().with_code(137);
    }
    env.assert_nothing_left();
}

/// spec: 8.3
#[test]
fn hangup_without_a_terminal_is_forwarded() {
    let env = TestEnv::new();
    // A session of its own has no terminal.
    let mut command = env.command("setsid");
    command.args(["-w", "bash", "-c", "exec $PF --grace 0 bash -c \"$LISTEN\""]).env("LISTEN", LISTEN);
    let running = Running::start(&mut command);
    await_ready(&running, 2);
    let launcher = launcher(running.pid());
    launcher.signal(Signal::HUP);
    running.hear("leader got HUP.\n", 1);
    launcher.signal(Signal::TERM);
    running.finish().with_code(137);
    env.assert_nothing_left();
}

/// spec: 1.2
#[test]
fn first_term_or_interrupt_stops_all_members_after_the_grace() {
    let env = TestEnv::new();
    for level in env.levels() {
        // Both members are asked, and neither is killed while it cleans up in the grace.
        let words = ["--contain", level.word(), "--grace", "10m", "bash", "-c", CLEAN_UP];
        let running = Running::start(&mut env.run_command(words));
        await_ready(&running, 2);
        running.signal(Signal::TERM);
        for name in ["child", "leader"] {
            running.hear(&format!("{name} asked"), 1);
        }
        for name in ["child", "leader"] {
            std::fs::write(env.path(&format!("work/go-{name}")), "go\n").unwrap();
            running.hear(&format!("{name} clean"), 1);
        }
        running.finish().with_code(3);
        // Members that ignore the signal are killed after the grace.
        let begun = [Signal::TERM, Signal::INT].map(|signal| {
            let words = ["--contain", level.word(), "--grace", "0.2", "bash", "-c", DEAF];
            let running = Running::start(&mut env.run_command(words));
            await_ready(&running, 1);
            running.signal(signal);
            running
        });
        for running in begun {
            let finished = running.finish().with_code(137);
            let said = finished.err();
            assert!(
                said.contains("stopped by SIG") && said.contains("; ended 3 processes (3 KILL)"),
                "{level:?}: {said}"
            );
        }
    }
    env.assert_nothing_left();
}

/// The name alone does not say which of many `sleep`s a stray is.
/// spec: 2.4
#[test]
fn strays_that_are_stopped_are_named_with_their_command_lines() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "setsid sleep 2061 & echo ready; exec sleep 600";
        let words = ["--contain", level.word(), "sh", "-c", script];
        let running = Running::start(&mut env.run_command(words));
        await_ready(&running, 1);
        wait_until("the stray runs", || env.is_running("sleep 2061"));
        running.signal(Signal::TERM);
        let finished = running.finish().with_code(143);
        assert!(finished.err().contains("strays: sleep 2061 (pid "), "{level:?}: {}", finished.err());
    }
    env.assert_nothing_left();
}

/// spec: 1.2
#[test]
fn second_term_or_interrupt_kills_at_once() {
    let env = TestEnv::new();
    for level in env.levels() {
        for signal in [Signal::TERM, Signal::INT] {
            let running = listening(&env, &["--contain", level.word(), "--grace", "10m"]);
            running.signal(signal);
            running.hear("leader got TERM.", 1);
            running.hear("child got TERM.", 1);
            running.signal(signal);
            let finished = running.finish().with_code(137);
            let said = finished.err();
            assert!(
                said.contains("stopped by SIG") && said.contains("; ended 2 processes (2 KILL)"),
                "{level:?}: {said}"
            );
        }
    }
    env.assert_nothing_left();
}

/// kill(1) and CI runners send it to penfold alone: background jobs of a shell ignore INT.
/// spec: 1.2
#[test]
fn interrupt_without_a_terminal_is_the_polite_signal_for_all_members() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (words, name) in
            [(&["--grace", "10m"][..], "TERM"), (&["--grace", "10m", "--signal", "USR1"], "USR1")]
        {
            let words = [&["--contain", level.word()][..], words].concat();
            let running = listening(&env, &words);
            running.signal(Signal::INT);
            running.hear(&format!("leader got {name}."), 1);
            running.hear(&format!("child got {name}."), 1);
            assert!(!running.heard().contains("got INT."), "{level:?}: {}", running.heard());
            running.signal(Signal::INT);
            running.finish().with_code(137);
        }
    }
    env.assert_nothing_left();
}

/// spec: 2.4
#[test]
fn summary_and_report_name_the_signals_that_were_sent() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (signal, number) in [("INT", 2), ("USR1", 10), ("KILL", 9), ("TERM", 15), ("RTMIN+1", 35)] {
            let words =
                ["--contain", level.word(), "--signal", signal, "--report", "report.json", "--grace", "10m"];
            let command = ["sh", "-c", "setsid -f sleep 600; echo ready; exec sleep 601"];
            let running = Running::start(&mut env.run_command(words.iter().chain(&command)));
            await_ready(&running, 1);
            wait_until("both run", || env.is_running("sleep 600") && env.is_running("sleep 601"));
            running.signal(Signal::TERM);
            let finished = running.finish().with_code(128 + number);
            let said = finished.err();
            assert!(said.contains(&format!("; ended 2 processes (2 {signal}) in ")), "{level:?}: {said}");
            let report = json(&env.path("work/report.json")).unwrap();
            let ended = report["ended"].as_array().unwrap();
            assert!(ended.iter().all(|ended| ended["signal"] == number), "{level:?} {signal}: {report}");
        }
        let words =
            ["--contain", level.word(), "--signal", "INT", "--report", "report.json", "--grace", "0.1"];
        let running = Running::start(&mut env.run_command(words.iter().chain(&["bash", "-c", DEAF])));
        await_ready(&running, 1);
        running.signal(Signal::TERM);
        assert!(running.finish().with_code(137).err().contains("ended 3 processes (3 KILL)"));
        let report = json(&env.path("work/report.json")).unwrap();
        assert!(report["ended"].as_array().unwrap().iter().all(|ended| ended["signal"] == 9), "{report}");
    }
    env.assert_nothing_left();
}

#[test]
fn code_after_a_stop_is_the_commands() {
    let env = TestEnv::new();
    for (trap, signal, code) in [
        ("trap 'exit 3' TERM", Signal::TERM, 3),
        ("trap 'exit 0' TERM", Signal::INT, 0),
        ("", Signal::TERM, 143),
        ("", Signal::INT, 143),
        ("", Signal::USR1, 138),
        ("", Signal::QUIT, 131),
    ] {
        let script = format!("ulimit -c 0; {trap}\n{SERVE}");
        let sleep = "ulimit -c 0; exec sleep 600";
        let script = if trap.is_empty() { sleep } else { &script };
        let running = Running::start(&mut env.run_command(["bash", "-c", script]));
        if trap.is_empty() {
            wait_until("the command runs", || env.is_running("sleep 600"));
        } else {
            await_ready(&running, 1);
        }
        running.signal(signal);
        running.finish().with_code(code);
    }
    env.assert_nothing_left();
}

/// spec: 1.2
#[test]
fn signal_before_the_command_runs_ends_it_too() {
    let env = TestEnv::new();
    for level in env.levels() {
        for round in 0..60 {
            let running = Running::start(&mut env.run_command(["--contain", level.word(), "sleep", "600"]));
            // Each signal comes at another moment of the start, which takes longest with a pid namespace.
            let moment = Duration::from_micros(round * 70);
            penfold_testkit::until(moment, || false);
            running.signal(Signal::TERM);
            let finished = running.finish();
            // Until its handlers are set, penfold is an ordinary process and dies of the signal.
            let fine = finished.signal() == Some(15) || matches!(finished.code(), Some(143 | 137));
            assert!(fine, "{level:?} {moment:?}: {finished:?}");
        }
    }
    env.assert_nothing_left();
}

#[test]
fn signals_that_penfold_does_not_forward_do_no_harm() {
    let env = TestEnv::new();
    let running = listening(&env, &["--grace", "0"]);
    for signal in [Signal::PIPE, Signal::CHILD, Signal::CONT, Signal::STOP, Signal::CONT] {
        running.signal(signal);
    }
    running.signal(Signal::USR1);
    running.hear("leader got USR1.", 1);
    running.signal(Signal::TERM);
    running.finish().with_code(137);
    env.assert_nothing_left();
}

/// spec: 1.3
#[test]
fn time_limit_is_124_or_the_commands_code() {
    let env = TestEnv::new();
    at_once(&env.levels(), |level| {
        let contain = ["--contain", level.word()];
        let sleep = ["sh", "-c", "echo ready; exec sleep 600"];
        let trap = format!("trap 'exit 7' TERM; {SERVE}");
        let run = |limit: &str, flags: &[&str], command: &[&str]| {
            env.run(contain.iter().chain(&["--timeout", limit]).chain(flags).chain(command))
        };
        let finished = run_until_limit(|limit| run(limit, &[], &sleep)).with_code(124);
        assert!(finished.err().contains("timed out after"), "{}", finished.err());
        let preserve = ["--preserve-status"];
        run_until_limit(|limit| run(limit, &preserve, &sleep)).with_code(143);
        run_until_limit(|limit| run(limit, &preserve, &["bash", "-c", &trap])).with_code(7);
        run("0", &[], &["sh", "-c", "exit 5"]).with_code(5);
        run("60", &[], &["sh", "-c", "exit 5"]).with_code(5);
    });
    env.assert_nothing_left();
}

/// As on a host where penfold was not scheduled for a while.
/// spec: 1.3
#[test]
fn exit_before_the_time_limit_counts_whenever_it_is_seen() {
    let env = TestEnv::new();
    at_once(&env.levels(), |level| {
        let finished = run_until_limit(|limit| exit_before(&env, level, limit));
        assert_eq!(finished.code(), Some(7), "{level:?}: {}", finished.err());
    });
    env.assert_nothing_left();
}

/// Stops penfold, lets the leader exit with 7, lets the time limit pass, and continues penfold.
fn exit_before(env: &TestEnv, level: Level, limit: &str) -> Finished {
    let gate = format!("exit-{}", level.word());
    let script = format!("mkfifo {gate} 2>/dev/null; echo up; read -r _ < {gate}; echo ready; exit 7");
    let words = ["--contain", level.word(), "--timeout", limit, "--", "sh", "-c", &script];
    let running = Running::start(&mut env.run_command(words));
    running.hear("up", 1);
    let mut own = own_processes(running.pid());
    // The init of a pid namespace reaps the leader: it goes on.
    own.truncate(2);
    let Some(leader) = leader(running.pid()) else { return running.finish() };
    own.iter().for_each(Process::stop);
    // Opening a fifo for both reading and writing does not block, even if the leader has ended.
    let gate = env.path("work").join(gate);
    let mut open = std::fs::File::options().read(true).write(true).open(gate).unwrap();
    std::io::Write::write_all(&mut open, b"go\n").unwrap();
    leader.await_end();
    // A second sandbox is the clock: its limit is the same and began later.
    env.run(["--timeout", limit, "sleep", "600"]).with_code(124);
    for process in own.iter().rev() {
        process.signal(Signal::CONT);
    }
    running.finish()
}

/// spec: 1.2
#[test]
fn polite_signal_is_the_one_asked_for() {
    let env = TestEnv::new();
    for level in env.levels() {
        at_once(&["INT", "USR1", "SIGHUP", "RTMIN+3", "15"], |signal| {
            let trapped = if signal == "15" { "TERM" } else { signal };
            let script = format!("trap 'exit 9' {trapped}; {SERVE}");
            let words = ["--contain", level.word(), "--preserve-status", "--signal", signal, "--timeout"];
            let command = ["bash", "-c", &script];
            run_until_limit(|limit| env.run(words.iter().chain(&[limit]).chain(&command))).with_code(9);
        });
    }
    env.assert_nothing_left();
}

/// spec: 1.2
#[test]
fn tree_that_ignores_the_polite_signal_is_killed_after_the_grace() {
    let env = TestEnv::new();
    at_once(&env.levels(), |level| {
        for grace in ["0.2", "0"] {
            let words = ["--contain", level.word(), "--grace", grace, "bash", "-c", DEAF];
            let finished = run_until_limit(|limit| env.run(["--timeout", limit].iter().chain(&words)));
            let finished = finished.with_code(124);
            assert!(finished.err().contains("(3 KILL)"), "{level:?} {grace}: {}", finished.err());
        }
    });
    env.assert_nothing_left();
}

/// The launcher is the last to act on a SIGTERM that its command has got, too.
/// spec: 1.2.2
#[test]
fn signal_to_the_process_group_is_a_stop_also_if_the_command_acts_first() {
    let env = TestEnv::new();
    for level in env.levels() {
        let words = ["--contain", level.word(), "--report", "r.json", "sleep", "4443"];
        let running = Running::start(env.run_command(words).process_group(0));
        wait_until("the command runs", || env.is_running("sleep 4443"));
        let command = env.running("sleep 4443").pop().unwrap();
        let launcher = running.process();
        launcher.stop();
        env.script(&format!("kill -TERM -{}", launcher.pid())).with_code(0);
        command.await_end();
        launcher.signal(Signal::CONT);
        assert_eq!(running.finish().signal(), Some(15), "{level:?}");
        let report = json(&env.path("work/r.json")).unwrap();
        assert_eq!(report["cause"], "stop", "{level:?} {report}");
    }
    env.assert_nothing_left();
}
