//! A sandbox that loses both supervisors at once is recovered while a watcher or a server runs.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Server;
use crate::support::{Running, Sandbox, TREE, TestEnv, wait_until};

/// Starts `penfold watch`.
fn watcher(env: &TestEnv) -> Running {
    let watcher = env.begin(["watch"]);
    // It has blocked signals before it watches the directory.
    let fds = format!("/proc/{}/fd", watcher.pid());
    wait_until("it watches", || {
        let entries = std::fs::read_dir(&fds).into_iter().flatten().flatten();
        let mut links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.any(|link| link.as_os_str() == "anon_inode:inotify")
    });
    watcher
}

/// A sandbox with a tree of hostile processes.
#[track_caller]
fn tree(env: &TestEnv) -> Sandbox {
    let _ = std::fs::remove_file(env.path("work/up"));
    let sandbox = env.detach(["bash", "-c", TREE]);
    env.await_up(&["deaf", "lead"]);
    sandbox
}

/// Ends the watcher politely.
#[track_caller]
fn end(watcher: Running) -> String {
    watcher.signal(Signal::TERM);
    watcher.finish().with_code(0).err()
}

/// spec: 15.3
#[test]
fn a_sandbox_that_loses_both_supervisors_is_gone_without_another_command() {
    let env = TestEnv::new();
    let watcher = watcher(&env);
    for _ in 0..3 {
        let sandbox = tree(&env);
        let members = sandbox.members(&env);
        assert!(members.len() >= 4, "{members:?}");
        sandbox.kill_supervisors();
        wait_until("the sandbox has ended", || sandbox.has_ended());
        sandbox.assert_gone(&members);
        assert_eq!(sandbox.cause().as_deref(), Some("lost"));
    }
    watcher.hear_error("was recovered", 3);
    let said = end(watcher);
    assert_eq!(said.matches("was recovered").count(), 3, "{said}");
}

/// spec: 15.3
#[test]
fn what_was_lost_before_is_recovered_before_the_server_is_ready() {
    let env = TestEnv::new();
    let sandboxes = [tree(&env), tree(&env)];
    let members: Vec<_> = sandboxes.iter().flat_map(|sandbox| sandbox.members(&env)).collect();
    sandboxes.iter().for_each(Sandbox::kill_supervisors);
    let server = Server::start(&env, &[]);
    server.await_ready();
    for sandbox in &sandboxes {
        assert!(sandbox.has_ended());
        sandbox.assert_gone(&members);
    }
    let another = tree(&env);
    let members = another.members(&env);
    another.kill_supervisors();
    wait_until("the server has recovered it", || another.has_ended());
    another.assert_gone(&members);
    wait_until("it is counted", || server.get("/metrics", "").body.contains("sandboxes_recovered_total 3"));
    server.end();
}

/// spec: 15.3
#[test]
fn a_foreground_sandbox_that_loses_launcher_and_supervisor_is_recovered_too() {
    let env = TestEnv::new();
    let watcher = watcher(&env);
    let running = env.begin(["run", "bash", "-c", "setsid -f sleep 600; echo ready; sleep 600; :"]);
    running.hear("ready", 1);
    // Launcher and supervisor; the watcher has seen neither of them before they are killed.
    let own = crate::run::launcher::own_processes(running.pid());
    assert_eq!(own.len(), 2, "{own:?}");
    crate::support::kill_at_once(&own.iter().collect::<Vec<_>>());
    running.finish().with_code(137);
    wait_until("nothing is left", || env.left().is_empty() && !env.is_running("sleep 600"));
    end(watcher);
    env.assert_nothing_left();
}

/// spec: 15.3.1
#[test]
fn watchers_harm_nothing() {
    let env = TestEnv::new();
    let sandbox = tree(&env);
    let watchers = [watcher(&env), watcher(&env), watcher(&env)];
    watchers[0].process().stop();
    let members = sandbox.members(&env);
    // A stopped watcher keeps nobody from anything.
    let other = env.detach(["sleep", "600"]);
    other.call(&env, &["kill", "ID"]).with_code(0);
    other.call(&env, &["rm", "ID"]).with_code(0);
    sandbox.kill_supervisors();
    wait_until("the sandbox has ended", || sandbox.has_ended());
    sandbox.assert_gone(&members);
    watchers[0].signal(Signal::CONT);
    for watcher in watchers {
        end(watcher);
    }
}

/// spec: 15.3
#[test]
fn a_takeover_and_a_sandbox_that_should_go_on_are_left_alone() {
    let env = TestEnv::new();
    let watcher = watcher(&env);
    let kept = env.detach(["--on-supervisor-exit", "keep", "sleep", "600"]);
    let leader = kept.leader().unwrap();
    kept.kill_supervisors();
    // The standby ends this one; the watcher has nothing to do.
    let taken_over = tree(&env);
    let [_, inner] = taken_over.supervisors_now().try_into().unwrap();
    inner.signal(Signal::KILL);
    taken_over.await_end();
    let lost = tree(&env);
    lost.kill_supervisors();
    wait_until("the other sandbox has ended", || lost.has_ended());
    assert!(!leader.has_ended() && !kept.has_ended());
    let said = end(watcher);
    assert!(!said.contains(&kept.id) && !said.contains(&taken_over.id), "{said}");
    kept.call(&env, &["rm", "-f", "ID"]).with_code(0);
}

/// The process sleeps: it neither runs nor is woken.
///
/// spec: 15.3.1
#[test]
fn an_idle_watcher_does_not_wake_up() {
    let env = TestEnv::new();
    let watcher = watcher(&env);
    let sandbox = env.detach(["sleep", "600"]);
    let switches = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", watcher.pid())).unwrap();
        let lines = status.lines().filter(|line| line.contains("voluntary_ctxt_switches"));
        lines.map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let quiet = || {
        let (before, until) = (switches(), Instant::now() + Duration::from_millis(1500));
        wait_until("a while has passed", || Instant::now() > until);
        before == switches()
    };
    wait_until("the watcher sleeps", quiet);
    end(watcher);
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
}
