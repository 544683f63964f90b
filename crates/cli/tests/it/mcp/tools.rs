//! What `run`, `ports` and `exec` do for a dev server.

use rustix::process::Signal;
use serde_json::json;

use super::Client;
use crate::support::{Sandbox, TestEnv, has_program, wait_until};

/// Listens on a free port, and prints it after that.
const SERVER: &str = "import socket, sys, time
listener = socket.create_server(('127.0.0.1', 0))
print('listening on', listener.getsockname()[1], flush=True)
time.sleep(1000)";

/// spec: 22.1
#[test]
fn server_is_ready_once_it_listens() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let command = json!(["python3", "-c", SERVER]);
    let arguments = json!({ "command": command, "name": "web", "ready_port": 0, "env": { "GREETING": "hi" }, "grace_s": 0.2 });
    let ran = client.done("run", &arguments);
    assert_eq!(
        (&ran["ready"], &ran["status"], &ran["name"]),
        (&json!(true), &json!("running"), &json!("web"))
    );
    let port = ran["ports"][0]["port"].as_u64().unwrap();
    let until = client.done("logs", &json!({ "sandbox": "web", "until": format!("listening on {port}") }));
    // The line may be unfinished: Python writes it in parts.
    assert_eq!(until["log"].as_str().unwrap().trim_end(), format!("listening on {port}"));
    let ports = client.done("ports", &json!({ "sandbox": "web" }));
    assert_eq!(
        (&ports["ports"][0]["port"], &ports["ports"][0]["address"]),
        (&json!(port), &json!("127.0.0.1"))
    );
    assert!(ports["ports"][0]["command"].as_str().unwrap().contains(" -c "), "{ports}");
    let taken = client.refused("run", &arguments, "is taken by sandbox");
    assert!(taken["error"].as_str().unwrap().contains("`stop` that sandbox first"), "{taken}");
    // Another sandbox does not listen on that port, whoever else does.
    let other =
        json!({ "command": ["sleep", "1000"], "ready_port": port, "ready_timeout_s": 0.2, "grace_s": 0 });
    let (failed, text, late) = client.call("run", &other);
    assert!(!failed && late["ready"] == false && text.contains("is not ready after 0.2 s"), "{text}");
    // The time of `run` without a condition.
    let plain = client.done("run", &json!({ "command": ["sleep", "1000"], "grace_s": 0 }));
    assert_eq!((&plain["ready"], &plain["status"]), (&json!(null), &json!("running")));
    client.done("stop", &json!({ "sandbox": "web" }));
    std::net::TcpListener::bind(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
    client.close().with_code(0);
    assert!(!env.is_running("sleep 1000"));
}

/// spec: 22.1
#[test]
fn server_that_ends_before_it_is_ready_leaves_nothing() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let script = "setsid sleep 1000 & echo starting; echo no such module >&2; exit 7";
    for condition in [json!({ "ready_port": 0 }), json!({ "ready_text": "ready" }), json!({})] {
        let mut arguments = json!({ "shell": script, "grace_s": 0 });
        arguments.as_object_mut().unwrap().extend(condition.as_object().unwrap().clone());
        let failed = client.refused("run", &arguments, "the command exited with 7");
        assert!(!env.is_running("sleep 1000"));
        assert_eq!((&failed["exit"]["code"], &failed["gone"]), (&json!(7), &json!(true)), "{failed}");
        let log = failed["log"].as_str().unwrap();
        assert!(log.contains("starting\n") && log.contains("no such module\n"), "{log}");
        assert_eq!(client.done("report", &json!({ "sandbox": failed["id"] }))["report"]["exit"]["code"], 7);
    }
    let short = client.done("run", &json!({ "shell": "echo done" }));
    assert_eq!((&short["exit"]["code"], &short["log"]), (&json!(0), &json!("done\n")));
    client.close().with_code(0);
}

/// spec: 22.1
#[test]
fn exec_ends_with_its_whole_tree() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    client.done("run", &json!({ "shell": "echo up; exec sleep 1000", "name": "web", "ready_text": "up", "env": { "COLOUR": "blue" } }));
    let mut exec = |arguments: serde_json::Value| {
        let mut all = json!({ "sandbox": "web" });
        all.as_object_mut().unwrap().extend(arguments.as_object().unwrap().clone());
        client.call("exec", &all)
    };
    let script = "echo $COLOUR $SIZE; pwd; echo bad >&2; setsid sleep 1001 & sleep 1001 & exit 4";
    let (failed, text, data) = exec(json!({ "shell": script, "env": { "SIZE": "7" }, "cwd": "/" }));
    assert!(!env.is_running("sleep 1001"));
    assert!(!failed, "{text}");
    assert_eq!(
        (&data["stdout"], &data["stderr"], &data["exit"]["code"]),
        (&json!("blue 7\n/\n"), &json!("bad\n"), &json!(4))
    );
    assert_eq!((&data["left_and_ended"], &data["gone"]), (&json!(2), &json!(true)), "{data}");
    let (failed, text, data) =
        exec(json!({ "shell": "echo begun; setsid sleep 1001 & sleep 1001", "timeout_s": 0.3 }));
    assert!(!env.is_running("sleep 1001"));
    assert!(
        failed && text.starts_with("the command was ended after 0.3 s") && data["timed_out"] == true,
        "{text}"
    );
    assert_eq!(data["stdout"], "begun\n");
    assert!(text.contains("; it was running: sleep 1001 (pid "), "{text}");
    assert_eq!(data["running"].as_array().map(Vec::len), Some(2), "{data}");
    let (_, _, data) = exec(json!({ "shell": "seq 300000; seq 300000 >&2" }));
    for stream in ["stdout", "stderr"] {
        let text = data[stream].as_str().unwrap();
        assert!(text.starts_with("1\n2\n") && text.ends_with("\n300000\n") && text.len() < 20 << 10);
        assert!(
            text.contains(" bytes cut]") && data[format!("{stream}_cut_bytes")].as_u64().unwrap() > 1_000_000
        );
    }
    for (arguments, part) in [
        (json!({ "command": ["/nonexistent"] }), "there is no such program"),
        (json!({ "command": ["true"], "cwd": "/nonexistent" }), "the directory `cwd` cannot be used"),
        (json!({ "command": ["true"], "timeout_s": 1e9 }), "`timeout_s`"),
    ] {
        let (failed, text, _) = exec(arguments);
        assert!(failed && text.contains(part), "{text}");
    }
    client.done("stop", &json!({ "sandbox": "web" }));
    client.refused("exec", &json!({ "sandbox": "web", "command": ["true"] }), "");
    wait_until("all is gone", || !env.is_running("sleep 1000"));
    client.close().with_code(0);
}

/// spec: 22.1
#[test]
fn exec_whose_supervisor_is_killed_does_not_call_the_sandbox_ended() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let web = client.done("run", &json!({ "shell": "echo up; exec sleep 1000", "ready_text": "up" }));
    let sandbox = Sandbox::printed(&env, &format!("{}\n", web["id"].as_str().unwrap()));
    let exec = client.ask_tool("exec", &json!({ "sandbox": sandbox.id, "shell": "exec sleep 1001" }));
    wait_until("the command runs", || env.is_running("sleep 1001"));
    wait_until("the exec is listed", || !sandbox.exec_supervisors().is_empty());
    for supervisor in sandbox.exec_supervisors() {
        supervisor.signal(Signal::KILL);
    }
    let (failed, text, _) = client.result(exec);
    assert!(failed && text.contains("how the command ended is not known"), "{text}");
    wait_until("the command is gone", || !env.is_running("sleep 1001"));
    assert!(env.is_running("sleep 1000"));
    client.close().with_code(0);
}

/// spec: 13.8.1
#[test]
fn exec_in_a_sandbox_without_supervisors_does_not_call_it_ended() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let web = client.done("run", &json!({ "shell": "echo up; exec sleep 1002", "ready_text": "up" }));
    let sandbox = Sandbox::printed(&env, &format!("{}\n", web["id"].as_str().unwrap()));
    sandbox.kill_supervisors();
    assert!(env.is_running("sleep 1002"));
    let exec = client.ask_tool("exec", &json!({ "sandbox": sandbox.id, "command": ["true"] }));
    let (failed, text, _) = client.result(exec);
    assert!(failed && !text.contains("has ended") && text.contains("no process listens"), "{text}");
    client.done("stop", &json!({ "sandbox": sandbox.id }));
    assert!(!env.is_running("sleep 1002"));
    client.close().with_code(0);
}
