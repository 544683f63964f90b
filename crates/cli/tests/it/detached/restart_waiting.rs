//! Between two lives of a sandbox: what clients see, and what they can do.

use std::fs;

use rustix::process::Signal;
use serde_json::json;

use super::restart::{await_life, await_no_process, events, inspect, lives, records, report, start_failing};
use super::sandboxes::{await_running, remove};
use crate::support::{Process, Running, Sandbox, TestEnv, wait_until};

/// Waits until a sandbox waits for its next start, for seconds; gives the process that waits.
#[track_caller]
fn await_waiting(env: &TestEnv, ms: u32) -> Vec<Process> {
    let mut waiting = Vec::new();
    wait_until("the sandbox waits", || {
        waiting = env.processes();
        waiting.retain(|one| {
            one.command_line().contains(" next-life ")
                && one.command_line().contains(&format!("--wait={ms}ms"))
        });
        !waiting.is_empty()
    });
    waiting
}

/// Waits until a sandbox waits for 1.6 s, and ends it.
#[track_caller]
fn end_waiting(verb: &[&str]) {
    let env = TestEnv::new();
    let first = start_failing(&env, &["--restart", "on-failure"], 99);
    let waiting = await_waiting(&env, 1600);
    let before = lives(&env).len();
    let listed = env.listed(&[]);
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["status"], &listed[0]["restarts"]), (&json!("waiting"), &json!(before - 1)));
    env.call([verb, &[&first.id]].concat()).with_code(0);
    assert!(waiting.iter().all(Process::has_ended));
    await_no_process(&env);
    assert_eq!(lives(&env).len(), before);
    if verb[0] == "rm" {
        assert!(records(&env).is_empty());
    } else {
        // No life without a command has an end of its own.
        let seen = inspect(&env, "web");
        assert_eq!((&seen["status"], &seen["exit"]), (&json!("exited"), &json!({"code": 3})));
        assert_eq!((&seen["restarts"], &seen["next_start_at_ms"]), (&json!(before - 1), &json!(null)));
        assert_eq!(events(&env, "no-restart").len(), 1);
        remove(&env, &first);
    }
    env.assert_nothing_left();
}

/// spec: 27.5
#[test]
fn stop_ends_a_sandbox_that_waits_for_good() {
    end_waiting(&["stop"]);
}

/// spec: 27.5
#[test]
fn kill_ends_a_sandbox_that_waits_for_good() {
    end_waiting(&["kill"]);
}

/// spec: 27.5
#[test]
fn rm_ends_a_sandbox_that_waits_for_good() {
    end_waiting(&["rm", "-f"]);
}

/// spec: 27.8
#[test]
fn what_needs_a_command_is_refused_while_a_sandbox_waits() {
    let env = &TestEnv::new();
    let first = start_failing(env, &["--restart", "on-failure"], 99);
    let waiting = await_waiting(env, 1600);
    let before = lives(env).len();
    let cases: [(&[&str], i32); 5] = [
        (&["kill", "-s", "HUP", "web"], 1),
        (&["exec", "web", "true"], 125),
        (&["attach", "web"], 125),
        (&["extend", "web", "1m"], 1),
        (&["pause", "web"], 1),
    ];
    for (words, code) in cases {
        let said = env.call(words).with_code(code);
        assert!(said.err().contains("waiting"), "{words:?}: {}", said.err());
    }
    let status = env.call(["status", "web"]).with_code(0).out();
    assert!(status.contains("waiting (exit 3, next start in "), "{status}");
    assert!(!status.contains("\nprocesses\n"), "{status}");
    env.call(["tree", "web"]).with_code(0);
    for signal in [Signal::HUP, Signal::TERM, Signal::USR1] {
        for process in &waiting {
            process.signal(signal);
        }
    }
    let reports = env.call(["report", "--json", "web"]).with_code(0).json();
    assert_eq!(reports[0]["exit"], json!({"code": 3}), "{reports}");
    assert!(inspect(env, "web")["next_start_at_ms"].as_u64().is_some());
    assert!(env.call(["rm", "web"]).with_code(2).err().contains("waiting"));
    assert!(waiting.iter().all(|one| !one.has_ended()) && lives(env).len() == before);
    // A restart on request does not wait, and begins a new row.
    env.call(["restart", &first.id]).with_code(0);
    assert!(waiting.iter().all(Process::has_ended));
    wait_until("the next life runs", || lives(env).len() > before);
    env.call(["rm", "-f", "web"]).with_code(0);
    await_no_process(env);
    env.assert_nothing_left();
}

/// spec: 27.7
#[test]
fn the_death_of_the_process_that_waits_leaves_the_end_of_the_last_life() {
    let env = TestEnv::new();
    let first = start_failing(&env, &["--restart", "on-failure"], 99);
    let waiting = await_waiting(&env, 800);
    let wait = env.begin(["wait", &first.id]);
    let before = lives(&env).len();
    for process in &waiting {
        process.signal(Signal::KILL);
    }
    assert_eq!(wait.finish().code(), Some(3));
    let seen = inspect(&env, &first.id);
    assert_eq!((&seen["status"], &seen["exit"]), (&json!("exited"), &json!({"code": 3})));
    assert_eq!((lives(&env).len(), &report(&env, "web", before)["exit"]), (before, &json!({"code": 3})));
    remove(&env, &first);
    env.assert_nothing_left();
}

/// spec: 27.6
#[test]
fn a_client_that_waits_gets_the_code_of_the_last_life() {
    let env = TestEnv::new();
    let script = "echo >>lives; [ $(wc -l <lives) -lt 3 ] && exit 7; exec sleep 1160";
    let first = env.detach(["--name", "web", "--restart", "on-failure", "--", "sh", "-c", script]);
    let waits = [env.begin(["wait", &first.id]), env.begin(["wait", "web"])];
    await_running(&env, &["sleep 1160"]);
    assert_eq!(inspect(&env, "web")["restarts"], 2);
    env.call(["stop", &first.id]).with_code(0);
    for wait in waits {
        assert_eq!(wait.finish().code(), Some(143));
    }
    remove(&env, &first);
    env.assert_nothing_left();
}

/// spec: 27.6
#[test]
fn a_restart_on_request_ends_a_wait_and_the_log_goes_on() {
    let env = TestEnv::new();
    let script = "echo >>lives; printf 'life '; wc -l <lives; printf open; exec sleep 1161";
    let first = env.detach(["--name", "web", "--", "sh", "-c", script]);
    await_running(&env, &["sleep 1161"]);
    let wait = env.begin(["wait", &first.id]);
    let follow = env.begin(["logs", "-f", "web"]);
    wait_until("both have begun", || env.running("sleep 1161").len() == 1 && wait.is_alive());
    env.call(["restart", "web"]).with_code(0);
    assert_eq!(wait.finish().code(), Some(143));
    wait_until("the next life writes", || env.call(["logs", "web"]).out().ends_with("life 2\nopen"));
    env.call(["kill", "web"]).with_code(0);
    let followed = follow.finish().with_code(0);
    assert_eq!(followed.out(), "life 1\nopenlife 2\nopen");
    assert_eq!(followed.err(), "\n--- life 2 begins; life 1 ended by signal 15 ---\n");
    remove(&env, &first);
    env.assert_nothing_left();
}

/// spec: 27.6
#[test]
fn the_log_of_a_crash_loop_has_all_lives_with_lines_between_them() {
    let env = TestEnv::new();
    let words = ["-d", "--name", "web", "--restart", "on-failure:2", "--", "sh", "-c", "echo here; exit 4"];
    let out = Running::start(&mut env.run_command(words)).finish().with_code(0).out();
    let first = Sandbox::printed(&env, &out);
    let follow = env.begin(["logs", "-f", &first.id]).finish().with_code(0);
    assert_eq!(follow.out(), "here\nhere\nhere\n");
    let line = |life: u32| format!("--- life {life} begins; life {} ended with code 4 ---\n", life - 1);
    assert_eq!(follow.err(), line(2) + &line(3));
    assert_eq!(env.call(["wait", "web"]).code(), Some(4));
    remove(&env, &first);
    env.assert_nothing_left();
}

/// spec: 27.8
#[test]
fn a_watch_recovers_a_further_life_that_lost_its_supervisors() {
    let env = TestEnv::new();
    let first = start_failing(&env, &["--restart", "on-failure"], 2);
    let watch = Running::start(&mut env.penfold(["watch"]));
    let second = await_life(&env, 2);
    let members = await_running(&env, &["sleep 1142"]);
    assert_eq!(first.id, second.id);
    second.kill_supervisors();
    wait_until("the watch has ended what was left", || members.iter().all(Process::has_ended));
    wait_until("its report is there", || second.has_ended());
    assert_eq!(report(&env, "web", 2)["cause"], "lost");
    // What supervisors that were killed have left is not in the way of the next life.
    assert!(second.record.join("control.sock").try_exists().unwrap());
    assert_eq!(env.call(["restart", "web"]).with_code(0).out(), format!("{}\n", second.id));
    await_life(&env, 3);
    env.call(["exec", "web", "true"]).with_code(0);
    assert_eq!(report(&env, "web", 1)["exit"], json!({"code": 3}));
    watch.signal(Signal::TERM);
    watch.finish();
    remove(&env, &second);
    env.assert_nothing_left();
}

/// spec: 27.9
#[test]
fn a_record_of_a_life_with_its_own_id_is_read_and_restarted() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sh", "-c", "echo old; exit 5"]);
    sandbox.await_end();
    // As an older penfold has written the fourth life.
    let mut intent = sandbox.file("intent.json").unwrap();
    intent["detached"]["life"] = json!({"restart_of": "0123456789ab", "restarts": 3, "failures": 0});
    fs::write(sandbox.record.join("intent.json"), intent.to_string()).unwrap();
    let seen = inspect(&env, "web");
    assert_eq!((&seen["restart_of"], &seen["restarts"]), (&json!("0123456789ab"), &json!(3)));
    assert_eq!(report(&env, "web", 4)["exit"], json!({"code": 5}));
    assert_eq!(env.call(["restart", "web"]).with_code(0).out(), format!("{}\n", sandbox.id));
    wait_until("the fifth life has ended", || {
        let seen = inspect(&env, &sandbox.id);
        seen["restarts"] == 4 && seen["status"] == "exited"
    });
    assert_eq!(inspect(&env, "web")["restart_of"], json!(null));
    for life in [4, 5] {
        assert_eq!(
            (&report(&env, "web", life)["life"], &report(&env, "web", life)["exit"]),
            (&json!(life), &json!({"code": 5}))
        );
    }
    assert_eq!(env.call(["logs", "web"]).out(), "old\nold\n");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 27.4, 27.6
#[test]
fn each_life_has_to_become_ready_by_itself() {
    let env = TestEnv::new();
    let script = "echo >>lives
        case $(wc -l <lives) in
        1) echo up; until [ -e go ]; do sleep 0.05; done; exit 1;;
        2) exit 1;;
        *) echo up; exec sleep 1163;;
        esac";
    let flags = ["--name", "web", "--restart", "on-failure", "--ready", "log:^(up|.*begins.*)$"];
    let sandbox = env.detach([&flags[..], &["--", "sh", "-c", script]].concat());
    assert_eq!(inspect(&env, "web")["ready"], true);
    fs::write(env.path("work/go"), "").unwrap();
    // A life that fails before it is ready takes no later one with it.
    wait_until("the third life is ready", || {
        let seen = inspect(&env, &sandbox.id);
        seen["restarts"] == 2 && seen["ready"] == true && env.is_running("sleep 1163")
    });
    let kept = |life: u32| sandbox.record.join(format!("lives/{life}/ready.json")).try_exists().unwrap();
    assert!(kept(1) && !kept(2));
    env.call(["stop", "-t", "0", "web"]).with_code(0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}
