//! `exec` in a jail with a user of its own: the same user, home and rights as the command.

use std::fs;

use penfold_control::execs::{self, ExecStart};
use rustix::process::Signal;

use super::recorded::{as_user, view};
use crate::run::jail::environments;
use crate::run::jail_user::{OF_ANN, everyone, of_ann, said_by_ann, shell};
use crate::support::{Level, Sandbox, TestEnv, has_terminals, wait_until};

/// Starts a jail whose command goes on.
fn jail_of_ann(env: &TestEnv, flags: &[&str]) -> Sandbox {
    env.detach(of_ann(flags, &["sleep", "1000"]))
}

#[track_caller]
fn assert_is_ann(env: &TestEnv, sandbox: &Sandbox, flags: &[&str]) {
    let done = sandbox.call(env, &[&["exec"], flags, &["ID", "sh", "-c", OF_ANN]].concat());
    assert_eq!(done.out().replace('\r', ""), said_by_ann(shell()), "{:?} {flags:?}: {}", env.who, done.err());
}

#[track_caller]
fn remove(env: &TestEnv, sandbox: &Sandbox) {
    sandbox.call(env, &["kill", "ID"]).with_code(0);
    assert_eq!(crate::support::entries(&env.path("tmp")).len(), 0, "a home is left");
    sandbox.call(env, &["rm", "ID"]).with_code(0);
}

/// spec: 19.10
#[test]
fn each_exec_is_the_user_and_shares_its_home() {
    for env in everyone() {
        for level in env.levels() {
            let sandbox = jail_of_ann(&env, &["--contain", level.word()]);
            let terminal = has_terminals().then_some(&["-t"][..]);
            for flags in [&[][..], &["-i"]].into_iter().chain(terminal) {
                assert_is_ann(&env, &sandbox, flags);
            }
            let exec = |words: &[&str]| sandbox.call(&env, &[&["exec"], words].concat()).with_code(0).out();
            exec(&["ID", "sh", "-c", "mkdir sub; echo text > sub/file"]);
            let said = exec(&["-w", "sub", "ID", "sh", "-c", "pwd; stat -c %U file; cat ~/sub/file"]);
            assert_eq!(said, "/home/ann/sub\nann\ntext\n", "{:?} {level:?}", env.who);
            let said = exec(&["-e", "HOME=/tmp", "ID", "sh", "-c", "echo $HOME; pwd"]);
            assert_eq!(said, "/tmp\n/home/ann\n", "{:?} {level:?}", env.who);
            remove(&env, &sandbox);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.10, 19.6
#[test]
fn the_tree_of_an_exec_ends_with_its_command() {
    for env in everyone() {
        for level in env.levels() {
            let sandbox = jail_of_ann(&env, &["--contain", level.word()]);
            let lives = || env.is_running("sleep 2001") && env.is_running("sleep 2002");
            let left = || env.is_running("sleep 2001") || env.is_running("sleep 2002");
            let script = "setsid sleep 2001 & (setsid sleep 2002 &); read line; exit 7";
            let mut running = crate::support::Running::spawn(
                env.penfold(["exec", "-i", &sandbox.id, "sh", "-c", script])
                    .stdin(std::process::Stdio::piped())
                    .stdout(std::process::Stdio::piped())
                    .stderr(std::process::Stdio::piped()),
            );
            wait_until("the daemons run", lives);
            running.say("go\n");
            running.finish().with_code(7);
            assert!(!left(), "{:?} {level:?}", env.who);
            remove(&env, &sandbox);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn execs_of_a_standby_are_the_user() {
    for env in everyone() {
        for level in env.levels().into_iter().filter(|level| *level != Level::Pidns) {
            let flags = ["--on-supervisor-exit", "keep", "--contain", level.word()];
            let sandbox = jail_of_ann(&env, &flags);
            assert_is_ann(&env, &sandbox, &[]);
            let [standby, supervisor] = &sandbox.supervisors[..] else { panic!("supervisors") };
            supervisor.signal(Signal::KILL);
            wait_until("the standby has taken over", || {
                sandbox.supervisors_now().last().is_some_and(|process| process.id() == standby.id())
            });
            assert_is_ann(&env, &sandbox, &[]);
            remove(&env, &sandbox);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn probes_and_stop_commands_are_the_user() {
    for env in environments() {
        let stop = "[ $(whoami) = ann ] && [ $HOME = /home/ann ] && pwd > stopped && touch go";
        let script = "until [ -e go ]; do sleep 0.05; done; cat stopped; exit 7";
        let flags = ["--ready", "cmd:[ $(whoami) = ann ] && [ $(pwd) = /home/ann ]", "--stop-command", stop];
        let sandbox = env.detach(of_ann(&[&flags[..], &["--grace", "20s"]].concat(), &["sh", "-c", script]));
        sandbox.call(&env, &["stop", "ID"]).with_code(0);
        assert_eq!(sandbox.call(&env, &["logs", "ID"]).out(), "/home/ann\n");
        assert_eq!(sandbox.file("exit.json").unwrap()["exit"]["code"], 7);
        env.call(["rm", &sandbox.id]).with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn an_exec_enters_a_network_namespace_that_penfold_made() {
    for env in environments() {
        if env.is_ordinary() || !crate::resources::can_make() {
            continue;
        }
        for level in env.levels() {
            let sandbox = jail_of_ann(&env, &["--contain", level.word(), "--network", "new", "--tap"]);
            assert_is_ann(&env, &sandbox, &[]);
            let own = sandbox.call(&env, &["exec", "ID", "readlink", "/proc/self/ns/net"]).with_code(0).out();
            let leader = sandbox.leader().unwrap().pid();
            let of_command = fs::read_link(format!("/proc/{leader}/ns/net")).unwrap();
            assert_eq!(own.trim_end(), of_command.to_str().unwrap(), "{level:?}");
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
            sandbox.call(&env, &["rm", "ID"]).with_code(0);
        }
        env.assert_nothing_left();
    }
}

/// spec: 13.9.2
#[test]
fn a_recorded_exec_has_its_pid_in_the_jail() {
    for env in everyone() {
        for level in env.levels() {
            let case = format!("{:?} {level:?}", env.who);
            let script = "echo $$ > pid; mv pid done; exec sleep 4107";
            for flags in [&["--profile", "jail"][..], &["--profile", "jail", "--jail-user", "ann"], &[]] {
                let words = [flags, &["--contain", level.word(), "--", "sleep", "4001"]].concat();
                let sandbox = env.detach(words);
                let start = ExecStart::new(["sh", "-c", script]);
                let number = as_user(&env, &sandbox, |files| execs::start_exec(files, start)).unwrap().number;
                let seen = view(&env, &sandbox, number);
                let exec = |words: &[&str]| sandbox.call(&env, &[&["exec", "ID"], words].concat());
                wait_until("it has told its pid", || exec(&["test", "-e", "done"]).code() == Some(0));
                let told: i32 = exec(&["cat", "done"]).with_code(0).out().trim().parse().unwrap();
                exec(&["rm", "done"]).with_code(0);
                assert!(seen.leader_pid.is_some(), "{case}");
                assert_eq!(seen.leader_inside, (!flags.is_empty()).then_some(told), "{case} {flags:?}");
                let file = sandbox.file(&format!("execs/{number}/exec.json")).unwrap();
                assert_eq!(file.get("leader_inside").is_some(), !flags.is_empty(), "{case}");
                sandbox.call(&env, &["kill", "ID"]).with_code(0);
                sandbox.call(&env, &["rm", "ID"]).with_code(0);
            }
        }
        env.assert_nothing_left();
    }
}
