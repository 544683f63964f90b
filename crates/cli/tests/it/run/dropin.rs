//! `penfold run` in place of the command itself: streams, exit codes, descriptors, arguments.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use penfold_testkit::proc;
use rustix::process::Signal;

use super::launcher::{SERVE, await_ready};
use crate::support::{Level, Process, Running, TestEnv, Who, has_program, is_root, json, skip};

/// spec: 8.2
#[test]
fn exit_codes_are_the_commands() {
    let env = TestEnv::new();
    for code in (0..=255).step_by(5).chain([1, 119, 123, 124, 126, 127]) {
        let finished = env.run(["sh", "-c", &format!("exit {code}")]).with_code(code);
        assert_eq!((finished.out(), finished.err()), (String::new(), String::new()));
    }
    env.assert_nothing_left();
}

/// spec: 8.2
#[test]
fn signals_that_end_the_command_are_128_and_more() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (signal, code) in
            [("TERM", 143), ("SEGV", 139), ("KILL", 137), ("HUP", 129), ("PIPE", 141), ("RTMIN+1", 163)]
        {
            let script = format!("ulimit -c 0; kill -{signal} $$; sleep 60");
            env.run(["--contain", level.word(), "bash", "-c", &script]).with_code(code);
        }
    }
    env.assert_nothing_left();
}

/// Shells, make and systemd treat a death by a signal otherwise than an exit with 128+N.
/// spec: 8.6
#[test]
fn penfold_dies_of_the_signal_that_ended_the_command() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (name, signal) in [("TERM", 15), ("INT", 2), ("KILL", 9), ("SEGV", 11), ("RTMIN+1", 35)] {
            // The stray has left the session before the command ends.
            let stray = "setsid -f sh -c 'echo up; exec sleep 600 >/dev/null' | read -r";
            let script = format!("{stray}; kill -{name} $$; sleep 60");
            // The core of penfold would be written here: it may not dump one, whatever the limit.
            let mut command = env.run_command(["--contain", level.word(), "--report", "report.json"]);
            command.args(["bash", "-c", &format!("ulimit -c 0; {script}")]);
            let finished = Running::start(&mut command).finish();
            assert_eq!(
                finished.signal(),
                Some(signal),
                "{level:?}: {:?} {}",
                finished.status,
                finished.err()
            );
            assert!(!finished.status.core_dumped(), "{level:?}");
            assert!(finished.err().contains(&format!("ended by signal {signal}; ended 1 process")));
            let report = json(&env.path("work/report.json")).unwrap();
            assert_eq!(report["exit"]["signal"], signal, "{report}");
        }
        // What penfold has chosen is a code.
        let limited = ["--contain", level.word(), "--timeout", "0.1", "sleep", "600"];
        assert_eq!(env.run(limited).status.code(), Some(124), "{level:?}");
        let preserved = ["--preserve-status"].iter().chain(&limited);
        // KILL where the limit passed before the command ran.
        assert!(matches!(env.run(preserved).status.code(), Some(143 | 137)), "{level:?}");
    }
    env.assert_nothing_left();
}

/// spec: 8.6
#[test]
fn penfold_dies_of_a_signal_that_its_caller_ignored_or_blocked() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let script = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nos.execvp(sys.argv[1], sys.argv[1:])";
    let run = env.run_command(Vec::<&str>::new());
    let mut command = env.command("python3");
    command.args(["-c", script]).arg(run.get_program()).args(run.get_args());
    let leader = "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n\
        signal.pthread_sigmask(signal.SIG_UNBLOCK, range(1, 32))\nos.kill(os.getpid(), signal.SIGINT)";
    command.args(["python3", "-c", leader]);
    let finished = Running::start(&mut command).finish();
    assert_eq!(finished.signal(), Some(2), "{:?} {}", finished.status, finished.err());
    env.assert_nothing_left();
}

/// spec: 8.1
#[test]
fn streams_pass_through_unbuffered() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "while read -r line; do echo \"<$line>\"; done; echo end >&2; exit 3";
        let mut command = env.run_command(["--contain", level.word(), "sh", "-c", script]);
        let mut running = Running::start(command.stdin(Stdio::piped()));
        for number in 1..=5 {
            running.say(&format!("{number}\n"));
            running.hear(&format!("<{number}>\n"), 1);
        }
        let finished = running.finish().with_code(3);
        assert_eq!(finished.err(), "end\n");
    }
    env.assert_nothing_left();
}

#[test]
fn megabytes_pass_through_whole() {
    let env = TestEnv::new();
    let script = "head -c 20000000 /dev/zero | $PF sh -c 'cat | cat' | $PF wc -c; exit ${PIPESTATUS[1]}";
    assert_eq!(env.script(script).with_code(0).out().trim(), "20000000");
    env.assert_nothing_left();
}

#[test]
fn reader_that_goes_away_ends_the_command_by_sigpipe() {
    let env = TestEnv::new();
    let finished = env.script("$PF yes | head -1; echo ${PIPESTATUS[@]}").with_code(0);
    assert_eq!((finished.out(), finished.err()), ("y\n141 0\n".to_owned(), String::new()));
    env.assert_nothing_left();
}

/// spec: 1.1
#[test]
fn left_behind_holder_of_the_output_does_not_hang_the_reader() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "setsid -f sleep 600; (sleep 600 &); sleep 600 & echo done; exit 3";
        // `run` reads both outputs to EOF: no process holds them any more.
        let finished = env.run(["--contain", level.word(), "bash", "-c", script]).with_code(3);
        assert_eq!(finished.out(), "done\n");
        assert!(
            finished.err().contains("strays: ") && finished.err().contains("verified gone"),
            "{}",
            finished.err()
        );
    }
    env.assert_nothing_left();
}

/// spec: 1.1
#[test]
fn three_strays_are_named_and_the_code_is_kept() {
    let env = TestEnv::new();
    let script = "setsid sleep 1000 & (sleep 1000 &) ; sleep 1000 & exit 3";
    let finished = env.run(["bash", "-c", script]).with_code(3);
    assert!(finished.err().contains("ended 3 processes"), "{}", finished.err());
    assert_eq!(finished.err().matches("(pid ").count(), 3, "{}", finished.err());
    env.assert_nothing_left();
}

/// The members of a pid namespace are reaped inside of it, so they are counted before their end.
/// spec: 1.1, 2.4
#[test]
fn strays_of_a_pid_namespace_are_all_counted_in_the_leaf_and_outside() {
    let Some(env) = TestEnv::of(Who::Root).filter(|env| env.levels().contains(&Level::Pidns)) else {
        return skip("only root has a pid namespace and a cgroup here");
    };
    let Some(cgroup) = env.cgroup() else { return skip("no cgroup2 to write to") };
    let outside = format!("echo 0 > {}/cgroup.procs", cgroup.display());
    for (join, inside) in [("true", "without"), (outside.as_str(), "with")] {
        // A parent in the leaf, whose child may leave it, and four others.
        let child = format!("{join} && echo up > fifo && exec sleep 1000");
        std::fs::write(env.path("work/child.sh"), child).unwrap();
        let leader = "mkfifo fifo; for i in 1 2 3 4; do sleep 1000 & done; sh -c 'sh child.sh & wait' & \
             read -r up < fifo; rm fifo; exit 3";
        let done = env.run(["--contain", "pidns", "sh", "-c", leader]).with_code(3);
        let said = done.err();
        assert!(said.contains("ended 6 processes (6 KILL)"), "{inside} a member outside: {said}");
        assert!(said.contains("sleep 1000 (pid "), "{said}");
    }
    env.assert_nothing_left();
}

#[test]
fn silence_when_there_is_nothing_to_say() {
    let env = TestEnv::new();
    let finished = env.run(["sh", "-c", "true; sh -c true"]).with_code(0);
    assert_eq!((finished.out(), finished.err()), (String::new(), String::new()));
    let finished = env.script("PF=${PF% run}; $PF -q run sh -c 'sleep 600 & exit 4'").with_code(4);
    assert_eq!((finished.out(), finished.err()), (String::new(), String::new()));
}

/// spec: 1.1.1
#[test]
fn the_init_of_a_pid_namespace_that_ends_by_itself_is_no_leak() {
    let env = TestEnv::new();
    if !is_root() {
        return skip("only root makes a pid namespace without others");
    }
    // The first child of the inner shell is pid 1 of a new pid namespace, and lives on after the shell's exit.
    let leader = "mkfifo fifo; exec unshare -p sh -c 'sh init.sh & read -r up < fifo; exit 0'";
    let busy = "echo up > fifo; i=0; while [ $i -lt 25000 ]; do i=$((i+1)); done";
    for level in ["cgroup", "subreaper"] {
        for (init, code) in [(busy, 0), ("echo up > fifo; exec sleep 1000", 123)] {
            std::fs::write(env.path("work/init.sh"), init).unwrap();
            let flags = ["--contain", level, "--fail-on-leak", "--report", "r"];
            let done = env.run(flags.into_iter().chain(["sh", "-c", leader])).with_code(code);
            std::fs::remove_file(env.path("work/fifo")).unwrap();
            assert_eq!(done.err().contains("strays: sleep 1000"), code == 123, "{level}: {}", done.err());
            let report = json(&env.path("work/r")).unwrap();
            assert_eq!(report["ended"].as_array().unwrap().len(), usize::from(code == 123), "{report}");
        }
    }
    env.assert_nothing_left();
}

/// spec: 8.2
#[test]
fn leaks_are_123_only_where_the_command_succeeded() {
    let env = TestEnv::new();
    env.run(["--fail-on-leak", "sh", "-c", "sleep 600 & exit 0"]).with_code(123);
    env.run(["--fail-on-leak", "sh", "-c", "sleep 600 & exit 5"]).with_code(5);
    env.run(["--fail-on-leak", "true"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 8.1
#[test]
fn descriptors_are_inherited() {
    let env = TestEnv::new();
    let script =
        "echo four > four; $PF sh -c 'cat <&4; echo three >&3; echo nine >&9; : >&5' 3>three 4<four 9>nine";
    let finished = env.script(&format!("{script}; cat three nine"));
    assert_eq!(finished.out(), "four\nthree\nnine\n");
    assert!(finished.err().contains('5'), "descriptor 5 was never there: {}", finished.err());
    env.assert_nothing_left();
}

/// spec: 8.1
#[test]
fn no_descriptor_of_ours_reaches_the_command() {
    let env = TestEnv::new();
    for level in env.levels() {
        let names = "exec ls -l /proc/self/fd";
        let with = env.run(["--contain", level.word(), "sh", "-c", names]).with_code(0).out();
        let without = env.script(names).with_code(0).out();
        let count = |text: &str| text.lines().filter(|line| line.contains(" -> ")).count();
        assert_eq!(count(&with), count(&without), "{with}\n{without}");
    }
}

/// spec: 8.1
#[test]
fn jobserver_of_make_is_passed_on() {
    if !has_program(&["make", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let inner =
        "all: a b c\na b c:\n\t@echo $@ >> started; while [ $$(wc -l < started) -lt 3 ]; do :; done\n";
    std::fs::write(env.path("work/inner.mk"), inner).unwrap();
    std::fs::write(env.path("work/outer.mk"), "all:\n\t+$(PF) $(MAKE) -f inner.mk\n").unwrap();
    // The three wait for each other: without the jobserver only one would run at a time.
    let finished = Running::start(env.command("make").args(["-j4", "-f", "outer.mk"])).finish().with_code(0);
    assert!(!finished.err().contains("jobserver"), "{}", finished.err());
    env.assert_nothing_left();
}

/// spec: 8.1
#[test]
fn closed_standard_streams_do_no_harm_and_stay_closed() {
    let env = TestEnv::new();
    for (number, closed) in [(0, "<&-"), (1, ">&-"), (2, "2>&-")] {
        env.script(&format!("$PF sh -c '[ ! -e /proc/$$/fd/{number} ]' {closed}")).with_code(0);
    }
    for (closed, code) in [("<&-", 3), (">&-", 3), ("2>&-", 3), ("<&- >&- 2>&-", 3)] {
        env.script(&format!("$PF sh -c 'sleep 600 & exit 3' {closed}")).with_code(code);
    }
    env.script("$PF no-such-command 2>&-").with_code(127);
    env.script("$PF --report report sh -c 'exit 3' <&- >&- 2>&- ; code=$?; grep -q '\"verified\": true' report || exit 1; exit $code")
        .with_code(3);
    env.assert_nothing_left();
}

/// spec: 6.1
#[test]
fn xargs_and_background_jobs_run_side_by_side() {
    let env = TestEnv::new();
    let finished = env.script("seq 20 | xargs -P 5 -n 1 $PF echo | sort -n | tr '\\n' ' '").with_code(0);
    assert_eq!(finished.out().trim(), (1..=20).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
    let script = "for i in 1 2 3 4; do $PF sh -c \"exit $i\" & pids=\"$pids $!\"; done; for p in $pids; do wait $p; echo $?; done";
    assert_eq!(env.script(script).with_code(0).out(), "1\n2\n3\n4\n");
    env.assert_nothing_left();
}

/// spec: 8.1
#[test]
fn words_and_variables_that_are_not_utf8_pass_through() {
    let env = TestEnv::new();
    let odd = OsStr::from_bytes(b"\xff\xfe \n'");
    let mut command = env.run_command(["sh", "-c", "printf '%s|%s' \"$1\" \"$ODD\"", "sh"]);
    let finished = Running::start(command.arg(odd).env("ODD", odd)).finish().with_code(0);
    assert_eq!(finished.out, b"\xff\xfe \n'|\xff\xfe \n'");
    let mut command = env.run_command([
        OsStr::new("-e"),
        OsStr::from_bytes(b"OWN=\xfd"),
        OsStr::new("printenv"),
        OsStr::new("OWN"),
    ]);
    assert_eq!(Running::start(&mut command).finish().with_code(0).out, b"\xfd\n");
}

#[test]
fn thousands_of_words_pass_through() {
    let env = TestEnv::new();
    let words = ["sh", "-c", "echo $#", "sh"]
        .map(str::to_owned)
        .into_iter()
        .chain((0..30_000).map(|n| n.to_string()));
    assert_eq!(env.run(words).with_code(0).out(), "30000\n");
    let large = "x".repeat(120_000);
    let finished = env.run(["-e", &format!("LARGE={large}"), "sh", "-c", "echo ${#LARGE}"]).with_code(0);
    assert_eq!(finished.out(), "120000\n");
}

#[test]
fn variables_are_set_the_last_one_winning() {
    let env = TestEnv::new();
    let show = "echo \"$A,$B,${C-unset},${D-unset}\"";
    let words = ["-e", "A=1", "-e", "A=2", "-e", "B", "-e", "C=", "-e", "D", "sh", "-c", show];
    let finished =
        Running::start(env.run_command(words).env("B", "caller's").env_remove("D")).finish().with_code(0);
    assert_eq!(finished.out(), "2,caller's,,unset\n");
}

#[test]
fn options_end_at_the_command() {
    let env = TestEnv::new();
    assert!(env.run(["true", "--help"]).with_code(0).err().is_empty());
    assert_eq!(env.run(["echo", "--timeout", "1", "--", "-e"]).with_code(0).out(), "--timeout 1 -- -e\n");
}

/// spec: 3.2
#[test]
fn children_that_penfold_had_before_it_was_penfold_stay_alive() {
    let env = TestEnv::new();
    // exec keeps the children of the shell: they are no members, and penfold must not end them.
    let script =
        "sleep 601 & echo $! > before; exec $PF bash -c 'setsid -f sleep 600; (sleep 600 &); exit 3'";
    let outer =
        "bash -c \"$SCRIPT\"; code=$?; kill -0 $(cat before) && kill $(cat before) || code=99; exit $code";
    let running = Running::start(env.command("bash").args(["-c", outer]).env("SCRIPT", script));
    let finished = running.finish().with_code(3);
    assert!(finished.err().contains("ended 2 processes"), "{}", finished.err());
    env.assert_nothing_left();
}

#[test]
fn child_that_penfold_had_before_does_not_end_the_run_by_its_own_end() {
    let env = TestEnv::new();
    for level in env.levels() {
        let contain = format!("exec $PF --contain {}", level.word());
        let script = format!(
            "mkfifo end; (exit 9) & (read -r _ < end; exit 9) & echo $! > before; {contain} bash -c \"$SERVE\""
        );
        let serve = format!("trap 'exit 3' USR1; {SERVE}");
        let running = Running::start(env.command("bash").args(["-c", &script]).env("SERVE", serve));
        await_ready(&running, 1);
        let pid = std::fs::read_to_string(env.path("work/before")).unwrap().trim().parse().unwrap();
        let before = Process::find(pid).unwrap();
        assert_eq!(proc::stat(pid).unwrap().parent, running.pid());
        std::fs::write(env.path("work/end"), "").unwrap();
        before.await_end();
        // penfold has taken the SIGCHLD of its child by the time that it forwards this signal.
        running.signal(Signal::USR1);
        assert_eq!(running.finish().with_code(3).err(), "");
        std::fs::remove_file(env.path("work/end")).unwrap();
    }
    env.assert_nothing_left();
}
