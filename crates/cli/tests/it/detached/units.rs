//! `--unit`: scopes from a stand-in for systemd, and what comes of a manager that misbehaves.

use std::path::{Path, PathBuf};
use std::process::Command;

use penfold_cgroup::LeafPlace;
use rustix::process::Signal;

use crate::end::standing::Directory;
use crate::support::manager::{Answer, FakeManager, Manner};
use crate::support::{
    Finished, Process, Running, Sandbox, TestEnv, USER, Who, fresh_id, kill_at_once, wait_until,
};

/// An environment and a manager that makes scopes for its user.
fn scene(who: Who, manner: Manner) -> Option<(TestEnv, FakeManager)> {
    let env = if who == Who::Tester { TestEnv::new() } else { TestEnv::of(who)? };
    let user = if env.is_ordinary() { USER } else { 0 };
    let manager = FakeManager::start(&env, manner, user)?;
    Some((env, manager))
}

fn run(env: &TestEnv, manager: &FakeManager, words: &[&str]) -> Finished {
    Running::start(manager.for_command(&mut env.run_command(words))).finish()
}

/// Starts a detached sandbox with a member, in a scope.
fn detach(env: &TestEnv, manager: &FakeManager) -> Sandbox {
    let words =
        ["-d", "--unit", "user", "--grace", "20", "--", "sh", "-c", "setsid sleep 1071 & exec sleep 1072"];
    let finished = run(env, manager, &words).with_code(0);
    assert_eq!(finished.err(), "");
    let sandbox = Sandbox::printed(env, &finished.out());
    wait_until("the member runs", || env.is_running("sleep 1071") && env.is_running("sleep 1072"));
    sandbox
}

fn scope_of(sandbox: &Sandbox) -> PathBuf {
    let scope = PathBuf::from(sandbox.file("intent.json").unwrap()["scope"].as_str().unwrap());
    assert_eq!(scope.file_name().unwrap().to_str().unwrap(), format!("penfold-{}.scope", sandbox.id));
    scope
}

fn members(cgroup: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap();
    text.lines().map(|pid| pid.parse().unwrap()).collect()
}

/// spec: 16.1, 16.2
#[test]
fn supervisors_are_beside_the_leaf_and_the_scope_goes_with_the_sandbox() {
    for (who, ending) in [(Who::Tester, &["stop"][..]), (Who::Plain, &["kill"]), (Who::Tester, &["rm", "-f"])]
    {
        let Some((env, manager)) = scene(who, Manner::default()) else { return };
        let sandbox = detach(&env, &manager);
        let scope = scope_of(&sandbox);
        assert_eq!(manager.scopes(), std::slice::from_ref(&scope));
        let leaf = sandbox.leaf.clone().unwrap();
        assert_eq!(leaf, scope.join(format!("penfold-{}", sandbox.id)));
        let supervisors: Vec<i32> = sandbox.supervisors.iter().map(Process::pid).collect();
        let mut inside = members(&scope.join("supervisor"));
        inside.sort_unstable_by_key(|pid| supervisors.iter().position(|known| known == pid));
        assert_eq!(inside, supervisors, "launcher and D-Bus are elsewhere");
        assert_eq!(members(&leaf).len(), 2);
        assert!(members(&scope).is_empty(), "so controllers can be enabled below");
        let exec = env.call(["exec", &sandbox.id, "cat", "/proc/self/cgroup"]).with_code(0).out();
        assert!(exec.contains(&format!("penfold-{0}.scope/penfold-{0}/", sandbox.id)), "{exec}");
        env.call(ending.iter().copied().chain([sandbox.id.as_str()])).with_code(0);
        assert!(!scope.try_exists().unwrap(), "{ending:?} returns after the scope is gone");
        assert!(!env.is_running("sleep 1071") && !env.is_running("sleep 1072"));
    }
}

/// A service manager signals the processes of a scope one after another, and the command may come first.
/// spec: 16.2.1
#[test]
fn a_scope_that_is_stopped_is_stopped_also_if_the_command_is_signalled_first() {
    for script in ["exec sleep 1074", "trap 'exit 143' TERM; sleep 1074 & wait"] {
        let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
        let words = ["-d", "--unit", "user", "--", "sh", "-c", script];
        let sandbox = Sandbox::printed(&env, &run(&env, &manager, &words).with_code(0).out());
        wait_until("the command runs", || env.is_running("sleep 1074"));
        // Without the command nobody waits for the member, which keeps the supervisor at its end.
        let leader = sandbox.leader().unwrap();
        leader.signal(Signal::TERM);
        leader.await_end();
        for supervisor in &sandbox.supervisors {
            supervisor.signal(Signal::TERM);
        }
        sandbox.await_end();
        assert_eq!(sandbox.cause().as_deref(), Some("stop"), "{script}");
        let shown = env.call(["ps", "-a", "--format", "{{.Status}}"]).out();
        assert!(shown.starts_with("stopped (143)"), "{script}: {shown}");
        env.call(["rm", &sandbox.id]).with_code(0);
    }
}

/// The signal that a client sends to the command only is no stop.
/// spec: 16.2.1
#[test]
fn a_command_in_a_scope_that_dies_of_a_signal_has_not_been_stopped() {
    let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
    for by_penfold in [true, false] {
        let words = ["-d", "--unit", "user", "--", "sleep", "1075"];
        let sandbox = Sandbox::printed(&env, &run(&env, &manager, &words).with_code(0).out());
        wait_until("the command runs", || env.is_running("sleep 1075"));
        if by_penfold {
            env.call(["kill", "-s", "TERM", &sandbox.id]).with_code(0);
        } else {
            sandbox.leader().unwrap().signal(Signal::TERM);
        }
        sandbox.await_end();
        assert_eq!(sandbox.cause().as_deref(), Some("signal"));
        env.call(["rm", &sandbox.id]).with_code(0);
    }
}

/// spec: 16.1, 16.2
#[test]
fn a_foreground_run_with_contain_cgroup_has_a_scope_too() {
    let Some((env, manager)) = scene(Who::Plain, Manner { scope: Answer::MakesAsOld, ..Manner::default() })
    else {
        return;
    };
    let words = [
        "--unit=user",
        "--contain=cgroup",
        "--",
        "sh",
        "-c",
        "setsid sleep 1073 & cat /proc/self/cgroup; exit 3",
    ];
    let done = run(&env, &manager, &words).with_code(3);
    assert!(done.out().contains(".scope/penfold-"), "{}", done.out());
    assert!(manager.requests() == 2 && manager.scopes().is_empty());
    env.assert_nothing_left();
}

/// spec: 16.2
#[test]
fn after_a_natural_end_and_after_the_loss_of_both_supervisors_no_scope_is_left() {
    let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
    let words = ["-d", "--unit", "user", "--", "true"];
    let sandbox = Sandbox::printed(&env, &run(&env, &manager, &words).with_code(0).out());
    sandbox.await_end();
    wait_until("the scope is gone", || manager.scopes().is_empty());
    for command in [&["run", "true"][..], &["gc", "-f", "--older-than", "0"]] {
        let sandbox = detach(&env, &manager);
        let scope = scope_of(&sandbox);
        kill_at_once(&sandbox.supervisors.iter().collect::<Vec<_>>());
        env.call(command).with_code(0);
        wait_until("the scope is gone", || !scope.try_exists().unwrap());
        assert!(!env.is_running("sleep 1071"));
    }
}

/// spec: 16.2
#[test]
fn a_scope_that_its_manager_does_not_remove_is_removed() {
    let Some((env, manager)) = scene(Who::Tester, Manner { removes: false, ..Manner::default() }) else {
        return;
    };
    let sandbox = detach(&env, &manager);
    let scope = scope_of(&sandbox);
    env.call(["stop", &sandbox.id]).with_code(0);
    assert!(!scope.try_exists().unwrap());
    run(&env, &manager, &["--unit=user", "--", "true"]).with_code(0);
    assert!(manager.scopes().is_empty());
}

/// spec: 16.2
#[test]
fn a_scope_with_a_stranger_in_it_is_named() {
    let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
    let sandbox = detach(&env, &manager);
    let scope = scope_of(&sandbox);
    let stranger = Running::start(env.command("sleep").arg("1074"));
    let guest = Directory::make(scope.join("guest")).unwrap();
    std::fs::write(guest.path().join("cgroup.procs"), stranger.pid().to_string()).unwrap();
    let stopped = env.call(["stop", &sandbox.id]).with_code(5);
    assert!(stopped.err().contains(&format!("scope {}", scope.display())), "{}", stopped.err());
    assert!(stranger.is_alive(), "no process but the sandbox's is touched");
    stranger.signal(Signal::KILL);
    stranger.finish();
    wait_until("the scope is gone", || !scope.try_exists().unwrap());
}

/// spec: 16.3
#[test]
fn a_manager_that_refuses_fails_lies_or_hangs_is_an_error_and_leaves_nothing() {
    for (scope, reason) in [
        (Answer::Refuses, "Interactive authentication required"),
        (Answer::Fails, "ended as `failed`"),
        (Answer::Lies, "it reports success, but the process is in"),
        (Answer::Hangs, "no answer within"),
    ] {
        let Some((env, manager)) = scene(Who::Tester, Manner { scope, ..Manner::default() }) else { return };
        for words in [&["-d", "--name=web"][..], &["--name=web"]] {
            let words = [words, &["--unit=user", "--", "touch", "ran"]].concat();
            let done = run(&env, &manager, &words).with_code(125);
            assert!(done.err().contains(reason), "{scope:?}: {}", done.err());
            assert!(!env.path("work/ran").try_exists().unwrap());
            assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
        }
        run(&env, &manager, &["-d", "--rm", "--unit=none", "--name=web", "--", "true"]).with_code(0);
        assert!(manager.scopes().is_empty());
    }
}

/// spec: 16.3
#[test]
fn without_a_bus_the_request_is_an_error() {
    let env = TestEnv::new();
    let mut command = env.run_command(["-d", "--unit", "user", "--", "true"]);
    command.env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={}", env.path("nothing").display()));
    let done = Running::start(&mut command).finish().with_code(125);
    assert!(
        done.err().contains("no scope from the user's manager: cannot connect to the bus"),
        "{}",
        done.err()
    );
    env.assert_nothing_left();
}

/// spec: 16.4
#[test]
fn the_ordinary_foreground_run_asks_no_manager() {
    let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
    run(&env, &manager, &["--", "true"]).with_code(0);
    run(&env, &manager, &["--unit=none", "--contain=cgroup", "--", "true"]).with_code(0);
    assert_eq!(manager.requests(), 0);
    let mut command = env.run_command(["--", "true"]);
    Running::start(manager.for_command(&mut command).env("PENFOLD_UNIT", "user")).finish().with_code(0);
    assert_eq!(manager.requests(), 1, "by the variable");
    let mut command = env.run_command(["--", "true"]);
    let done = Running::start(command.env("PENFOLD_UNIT", "maybe")).finish().with_code(125);
    assert!(done.err().contains("`maybe` of PENFOLD_UNIT"), "{}", done.err());
}

/// spec: 16.4
#[test]
fn a_nested_sandbox_stays_in_its_enclosing_sandbox() {
    let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
    let script = "$PF --unit=user -- true; echo $?; PENFOLD_UNIT=user $PF -- true; echo $?";
    let done = run(&env, &manager, &["--", "sh", "-c", script]).with_code(0);
    assert_eq!(done.out(), "125\n0\n");
    assert!(done.err().contains("which would not hold it"), "{}", done.err());
    assert_eq!(manager.requests(), 0);
}

/// A unit's cgroup, in which a command is started as if systemd had done so.
struct UnitCgroup(Vec<Directory>);

impl UnitCgroup {
    fn new(parts: &[&str]) -> Option<UnitCgroup> {
        let mut path = LeafPlace::find_here().ok()?.path().join(format!("host-{}", fresh_id()));
        let mut directories = vec![Directory::make(path.clone()).unwrap()];
        for part in parts {
            path.push(part);
            directories.insert(0, Directory::make(path.clone()).unwrap());
        }
        Some(UnitCgroup(directories))
    }

    /// Runs `penfold run -d` there.
    fn detach(&self, env: &TestEnv, manager: &FakeManager, words: &[&str]) -> Finished {
        let run = env.run_command(["-d"]);
        let script = r#"echo 0 > "$0/cgroup.procs" && exec unshare --mount \
            sh -c 'mount -t tmpfs none /run && mkdir -p /run/systemd/system && exec "$@"' sh "$@""#;
        let mut command: Command = env.command("sh");
        command
            .args(["-c", script])
            .arg(self.0[0].path())
            .arg(run.get_program())
            .args(run.get_args())
            .args(words);
        Running::start(manager.for_command(&mut command)).finish()
    }
}

/// spec: 16.4, 16.5
#[test]
fn auto_takes_a_scope_in_a_login_session_and_warns_where_logout_ends_it() {
    let session = ["user.slice", "session-7.scope"];
    for (lingers, warning) in [(true, ""), (false, "logout ends it")] {
        let manner = Manner { lingers, ..Manner::default() };
        let Some((env, manager)) = scene(Who::Tester, manner) else { return };
        let Some(unit) = UnitCgroup::new(&session) else { return };
        let started = unit.detach(&env, &manager, &["--", "sleep", "1075"]).with_code(0);
        // Root's scope is the system's, which no logout ends.
        assert_eq!((manager.requests(), started.err().as_str()), (1, ""), "{warning}");
        let sandbox = Sandbox::printed(&env, &started.out());
        env.call(["kill", &sandbox.id]).with_code(0);
        assert!(manager.scopes().is_empty());
        let user = run(&env, &manager, &["-d", "--unit=user", "--", "sleep", "1075"]).with_code(0);
        assert!(user.err().contains(warning) && user.err().lines().count() <= 1, "{}", user.err());
        env.call(["kill", Sandbox::printed(&env, &user.out()).id.as_str()]).with_code(0);
    }
}

/// spec: 16.3, 16.5
#[test]
fn auto_goes_on_without_a_scope_and_says_so_in_a_line() {
    let Some((env, manager)) = scene(Who::Tester, Manner { scope: Answer::Refuses, ..Manner::default() })
    else {
        return;
    };
    let Some(unit) = UnitCgroup::new(&["user.slice", "session-7.scope"]) else { return };
    let started = unit.detach(&env, &manager, &["--", "sleep", "1076"]).with_code(0);
    let sandbox = Sandbox::printed(&env, &started.out());
    assert!(started.err().contains("Interactive authentication required"), "{}", started.err());
    assert_eq!(started.err().lines().count(), 1, "{}", started.err());
    env.call(["kill", &sandbox.id]).with_code(0);
    let quiet = unit.detach(&env, &manager, &["-q", "--rm", "--", "true"]).with_code(0);
    assert_eq!(quiet.err(), "");
}

/// spec: 16.5
#[test]
fn auto_leaves_services_that_outlive_the_sandbox_and_warns_of_their_end() {
    for (service, requests, warning) in [
        (("oneshot", false, "control-group"), 1, ""),
        (("oneshot", false, "process"), 0, ""),
        (("oneshot", true, "control-group"), 0, "the end of job.service ends it"),
        (("simple", false, "mixed"), 0, "the end of job.service ends it"),
    ] {
        let Some((env, manager)) = scene(Who::Tester, Manner { service, ..Manner::default() }) else {
            return;
        };
        let Some(unit) = UnitCgroup::new(&["system.slice", "job.service"]) else { return };
        let started = unit.detach(&env, &manager, &["--", "sleep", "1077"]).with_code(0);
        assert_eq!(manager.requests(), requests, "{service:?}");
        assert!(started.err().contains(warning), "{service:?}: {}", started.err());
        assert_eq!(started.err().lines().count(), usize::from(!warning.is_empty()), "{}", started.err());
        env.call(["kill", Sandbox::printed(&env, &started.out()).id.as_str()]).with_code(0);
    }
}

/// spec: 16.6
#[test]
fn the_end_of_the_scope_by_its_manager_is_recorded_truthfully() {
    let Some((env, manager)) = scene(Who::Tester, Manner::default()) else { return };
    // A leader that dies of the signal before its supervisor has got one was killed by it.
    for (signal, truths) in [(Signal::TERM, &["stopped", "killed"][..]), (Signal::KILL, &["lost"])] {
        let sandbox = detach(&env, &manager);
        let scope = scope_of(&sandbox);
        // As systemd does: each process of the scope gets the signal, the sandbox's members too.
        let pids =
            [scope.join("supervisor"), sandbox.leaf.clone().unwrap()].map(|cgroup| members(&cgroup)).concat();
        let processes: Vec<Process> = pids.into_iter().filter_map(Process::find).collect();
        assert_eq!(processes.len(), 4);
        if signal == Signal::KILL {
            kill_at_once(&processes.iter().collect::<Vec<_>>());
        } else {
            for process in &processes {
                process.signal(signal);
            }
        }
        for process in &processes {
            process.await_end();
        }
        wait_until("the scope is gone", || !scope.try_exists().unwrap());
        // This starts the recovery of a lost sandbox and does not wait for it.
        env.run(["--", "true"]).with_code(0);
        wait_until(&format!("the status is one of {truths:?}"), || {
            truths.contains(&sandbox.status(&env).unwrap().as_str())
        });
        let exit = sandbox.file("exit.json").unwrap_or_default();
        let expected =
            if signal == Signal::TERM { serde_json::json!({"signal": 15}) } else { serde_json::Value::Null };
        assert_eq!(exit["exit"], expected, "{exit}");
    }
}
