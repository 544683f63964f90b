//! What a server started ends with the server, however it ends; what others started does not.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::Client;
use crate::support::{Process, Sandbox, TREE, TestEnv, wait_until};

/// Starts a hostile tree; returns its sandbox and its members, which live.
#[track_caller]
fn tree(env: &TestEnv, client: &mut Client, grace: f64) -> (Sandbox, Vec<Process>) {
    let ran = client.done("run", &json!({ "shell": TREE, "name": "tree", "grace_s": grace }));
    env.await_up(&["deaf", "lead"]);
    let sandbox = Sandbox::printed(env, &format!("{}\n", ran["id"].as_str().unwrap()));
    wait_until("all sleep", || env.running("sleep 1000").len() == 3);
    let members = sandbox.members(env);
    assert!(members.len() >= 5 && sandbox.supervisors.len() == 2, "{}", members.len());
    (sandbox, members)
}

/// spec: 22.2
#[test]
fn end_of_standard_input_ends_everything_before_the_server_exits() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let (sandbox, members) = tree(&env, &mut client, 0.3);
    let finished = client.close().with_code(0);
    assert_eq!(finished.err(), "");
    sandbox.assert_gone(&members);
    assert_eq!(sandbox.cause().as_deref(), Some("stop"));
}

/// Closes standard input while an answer is under way that is longer than what this standard output holds.
#[track_caller]
fn close_unread(unread: &impl AsFd, output: Stdio) {
    let env = TestEnv::new();
    let mut client = Client::unread(&env, output);
    client.greet("2025-11-25");
    client.say_initialized();
    let script = "seq 200000; setsid sleep 1003 & exec sleep 1003";
    client.ask_tool("run", &json!({ "shell": script, "name": "big", "grace_s": 0 }));
    wait_until("both sleep", || env.running("sleep 1003").len() == 2);
    for _ in 0..4 {
        client.ask_tool("logs", &json!({ "sandbox": "big", "lines": 100_000 }));
    }
    let mut before = 0;
    wait_until("the server waits for a reader", || {
        let held = rustix::io::ioctl_fionread(unread).unwrap();
        std::mem::replace(&mut before, held) == held && held > 60_000
    });
    assert_eq!(client.close().with_code(0).err(), "");
    assert!(!env.is_running("sleep 1003"));
}

/// spec: 22.2
#[test]
fn end_of_standard_input_counts_although_nobody_reads_the_pipe() {
    let (unread, pipe) = std::io::pipe().unwrap();
    close_unread(&unread, pipe.into());
}

/// As Node makes it.
///
/// spec: 22.2
#[test]
fn end_of_standard_input_counts_although_nobody_reads_the_socket() {
    let (unread, socket) = UnixStream::pair().unwrap();
    close_unread(&unread, OwnedFd::from(socket).into());
}

/// spec: 22.2
#[test]
fn killed_server_leaves_nothing() {
    for signal in [Signal::KILL, Signal::TERM, Signal::HUP] {
        let env = TestEnv::new();
        let mut client = Client::start(&env, &[]);
        let (sandbox, members) = tree(&env, &mut client, 0.3);
        let exec =
            client.ask_tool("exec", &json!({ "sandbox": "tree", "shell": "setsid sleep 1002 & sleep 1002" }));
        wait_until("the exec runs", || env.running("sleep 1002").len() == 2);
        assert!(!client.has_answered(exec));
        client.process().signal(signal);
        client.process().await_end();
        let report = sandbox.await_end();
        assert_eq!((&report["cause"], &report["verified"]), (&json!("owner"), &json!(true)), "{signal:?}");
        sandbox.assert_gone(&members);
        assert!(!env.is_running("sleep 1002"));
    }
}

/// A server that is killed while it starts a sandbox: the supervisor would watch another parent.
/// spec: 22.2
#[test]
fn sandbox_whose_owner_has_died_is_not_started() {
    let env = TestEnv::new();
    let words = ["run", "-d", "--on-owner-exit", "stop", "--owner", "1", "sleep", "1000"];
    env.call(words).refused(125, "its owner, process 1, is gone");
    assert!(!env.is_running("sleep 1000"));
    let run = "$PF -d --on-owner-exit kill --owner $$ sleep 1000; echo code $?; read -r _ < go";
    rustix::fs::mkfifoat(rustix::fs::CWD, env.path("work/go"), 0o600.into()).unwrap();
    let owner = env.shell(run);
    owner.hear("code 0", 1);
    assert!(env.is_running("sleep 1000"));
    owner.signal(Signal::KILL);
    wait_until("it has ended with its owner", || !env.is_running("sleep 1000"));
}

/// spec: 22.3
#[test]
fn stop_answers_after_a_hostile_tree_is_gone() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let (sandbox, members) = tree(&env, &mut client, 30.0);
    let stopped = client.done("stop", &json!({ "sandbox": "tree", "grace_s": 0.2 }));
    sandbox.assert_gone(&members);
    assert_eq!((&stopped["gone"], &stopped["was_gone"]), (&json!(true), &json!(false)));
    assert_eq!(stopped["report"]["cause"], "stop");
    let report = client.done("report", &json!({ "sandbox": "tree" }));
    assert_eq!((&report["report"]["verified"], &report["report"]["id"]), (&json!(true), &json!(sandbox.id)));
    assert_eq!(client.done("stop", &json!({ "sandbox": "tree" }))["was_gone"], true);
    // By force, without the grace.
    let (sandbox, members) = tree(&env, &mut client, 3600.0);
    assert_eq!(
        client.done("stop", &json!({ "sandbox": sandbox.id, "force": true }))["report"]["cause"],
        "kill"
    );
    sandbox.assert_gone(&members);
    assert_eq!(client.listed(), Vec::<Value>::new());
    client.close().with_code(0);
}

/// spec: 22.2
#[test]
fn kept_sandbox_lives_on() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &["--keep"]);
    let (sandbox, members) = tree(&env, &mut client, 0.2);
    client.close().with_code(0);
    assert!(members.iter().all(|member| !member.has_ended()));
    let mut next = Client::start(&env, &[]);
    next.refused("stop", &json!({ "sandbox": "tree" }), "was not started by this server");
    next.close().with_code(0);
    sandbox.call(&env, &["stop", "ID"]).with_code(0);
    sandbox.assert_gone(&members);
}

/// spec: 22.4
#[test]
fn sandboxes_of_others_are_seen_and_left_alone() {
    let env = TestEnv::new();
    let other =
        env.detach(["--name", "other", "--grace", "0", "--", "sh", "-c", "echo hello; exec sleep 1000"]);
    let mut client = Client::start(&env, &[]);
    let seen = client.listed();
    assert_eq!((&seen[0]["id"], &seen[0]["started_here"]), (&json!(other.id), &json!(false)));
    let log = client.done("logs", &json!({ "sandbox": "other", "until": "hello" }));
    assert_eq!(log["log"], "hello\n");
    client.done("ports", &json!({ "sandbox": "other" }));
    client.refused("report", &json!({ "sandbox": "other" }), "the report comes at its end");
    for (tool, arguments) in [
        ("stop", json!({ "sandbox": "other" })),
        ("stop", json!({ "sandbox": other.id, "force": true })),
        ("exec", json!({ "sandbox": "other", "command": ["true"] })),
    ] {
        client.refused(tool, &arguments, "`penfold mcp --all`");
    }
    client.close().with_code(0);
    assert!(env.is_running("sleep 1000"));
    let mut client = Client::start(&env, &["--all"]);
    assert_eq!(client.done("exec", &json!({ "sandbox": "other", "shell": "exit 3" }))["exit"]["code"], 3);
    client.done("stop", &json!({ "sandbox": "other" }));
    assert!(!env.is_running("sleep 1000"));
    client.close().with_code(0);
}

/// spec: 22.4
#[test]
fn read_only_server_offers_and_changes_nothing() {
    let env = TestEnv::new();
    let other =
        env.detach(["--name", "other", "--grace", "0", "--", "sh", "-c", "echo hello; exec sleep 1000"]);
    let mut client = Client::start(&env, &["--read-only"]);
    let answer = client.request("tools/list", &json!({}));
    let tools = answer["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ps", "logs", "report", "ports"]);
    assert!(tools.iter().all(|tool| tool["annotations"]["readOnlyHint"] == true));
    for (tool, arguments) in [
        ("run", json!({ "command": ["sleep", "1001"] })),
        ("stop", json!({ "sandbox": "other" })),
        ("exec", json!({ "sandbox": "other", "command": ["sleep", "1001"] })),
    ] {
        client.refused(tool, &arguments, "this server is read-only");
    }
    assert!(!env.is_running("sleep 1001") && env.is_running("sleep 1000"));
    assert_eq!(client.done("logs", &json!({ "sandbox": "other", "until": "hello" }))["found"], true);
    client.close().with_code(0);
    env.call(["mcp", "--read-only", "--all"]).refused(2, "--all");
    other.call(&env, &["stop", "ID"]).with_code(0);
}

/// spec: 27.6, 27.8
#[test]
fn sandbox_that_is_restarted_is_one_sandbox() {
    let env = TestEnv::new();
    let script = "echo >>lives; echo life $(wc -l <lives) of the command; exit 6";
    let other = env.detach(["--name", "other", "--restart", "on-failure", "--", "sh", "-c", script]);
    let mut client = Client::start(&env, &["--all"]);
    let log = client.done("logs", &json!({ "sandbox": other.id, "until": "life 4 of the command" }));
    assert_eq!(log["found"], true, "{log}");
    wait_until("it waits", || client.listed()[0]["status"] == "waiting");
    assert_eq!((client.listed().len(), &client.listed()[0]["id"]), (1, &json!(other.id)));
    client.refused("exec", &json!({ "sandbox": "other", "command": ["true"] }), "waiting for its next start");
    let report = client.done("report", &json!({ "sandbox": other.id }));
    assert_eq!((&report["report"]["life"], &report["report"]["exit"]["code"]), (&json!(4), &json!(6)));
    let stopped = client.done("stop", &json!({ "sandbox": other.id }));
    assert_eq!((&stopped["gone"], &stopped["was_gone"]), (&json!(true), &json!(false)));
    wait_until("nothing of it runs", || {
        !env.processes().iter().any(|one| one.command_line().contains(&other.id))
    });
    client.close().with_code(0);
}
