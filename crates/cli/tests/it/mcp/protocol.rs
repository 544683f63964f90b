//! Versions, wrong input, large output, concurrent and cancelled calls.

use serde_json::json;

use super::Client;
use crate::support::{TestEnv, wait_until};

/// spec: 22.1
#[test]
fn old_and_new_clients_find_all_tools() {
    for version in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        let env = TestEnv::new();
        let mut client = Client::silent(&env, &[]);
        let answer = client.initialize(version);
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        let listed = client.request("tools/list", &json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap();
        let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["run", "ps", "logs", "exec", "stop", "report", "ports"]);
        for tool in tools {
            assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
            assert!(tool["description"].as_str().unwrap().len() > 40, "{tool}");
        }
        assert!(client.listed().is_empty());
        let finished = client.close().with_code(0);
        assert_eq!(finished.err(), "");
        env.assert_nothing_left();
    }
}

/// spec: 22.5
#[test]
fn wrong_input_is_answered_and_ends_nothing() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    client.say_line("no json\n{\"jsonrpc\":\n\u{0}\u{1b}\n[]\n");
    client.say_line(&format!("{{\"jsonrpc\":\"2.0\",\"x\":\"{}\"}}\n", "y".repeat(1 << 20)));
    let unknown = client.request("tools/call", &json!({ "name": "rm", "arguments": {} }));
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
    assert!(unknown["error"]["message"].as_str().unwrap().contains("run, ps, logs"), "{unknown}");
    assert!(client.request("no/such/method", &json!({}))["error"].is_object());
    for (tool, arguments, part) in [
        ("run", json!({}), "give `command`"),
        ("run", json!({ "command": [] }), "the command is empty"),
        ("run", json!({ "command": "ls" }), "invalid type"),
        ("run", json!({ "command": ["ls"], "shell": "ls" }), "not both"),
        ("run", json!({ "command": ["ls"], "color": 1 }), "unknown field `color`"),
        ("run", json!({ "command": ["/nonexistent/program"] }), "/nonexistent/program"),
        ("run", json!({ "command": ["ls"], "cwd": "/nonexistent" }), "/nonexistent"),
        ("run", json!({ "command": ["ls"], "name": "a b" }), "a b"),
        ("run", json!({ "command": ["ls"], "env": { "PENFOLD_SANDBOX": "x" } }), "cannot be set"),
        ("run", json!({ "command": ["ls"], "ready_text": "" }), "`ready_text`"),
        ("run", json!({ "command": ["ls"], "ready_port": 1, "ready_timeout_s": -1 }), "`ready_timeout_s`"),
        ("logs", json!({}), "missing field `sandbox`"),
        ("logs", json!({ "sandbox": "web" }), "no sandbox is called `web`"),
        ("logs", json!({ "sandbox": "" }), "no sandbox"),
        ("stop", json!({ "sandbox": "../.." }), "no sandbox"),
        ("exec", json!({ "sandbox": "web", "command": ["ls"] }), "no sandbox"),
        ("report", json!({ "sandbox": "web" }), "no sandbox"),
        ("ports", json!({ "sandbox": "web" }), "no sandbox"),
    ] {
        client.refused(tool, &arguments, part);
    }
    client.close().with_code(0);
    env.assert_nothing_left();
}

/// spec: 22.5
#[test]
fn malformed_requests_get_an_error_with_their_id() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    for (request, part) in [
        (json!({ "jsonrpc": "2.0", "id": 7001 }), "no method"),
        (json!({ "jsonrpc": "2.0", "id": 7002, "params": {} }), "no method"),
        (json!({ "jsonrpc": "2.0", "id": 7003, "method": 3 }), "malformed"),
    ] {
        client.say(&request);
        let answer = client.answer(request["id"].as_u64().unwrap());
        assert_eq!(answer["error"]["code"], -32600, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(part), "{answer}");
    }
    client.say_line("no json\n");
    wait_until("an error", || client.heard().contains("-32700"));
    // No answer to an answer: two servers that were connected would go on for ever.
    client.say_line("{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32700,\"message\":\"x\"}}\n");
    assert!(client.request("ping", &json!({}))["result"].is_object());
    assert_eq!(client.heard().matches("-32700").count(), 1);
    client.close().with_code(0);
    env.assert_nothing_left();
}

/// spec: 22.5
#[test]
fn output_of_any_kind_is_bounded_and_readable() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let script = r#"printf '\033[31mred\033[0m \377\376 \000bell\007 "quoted" \\ \342\202\254\n'
        head -c 300000 /dev/zero | tr '\0' x; echo; seq 200000; exec sleep 1000"#;
    let ran =
        client.done("run", &json!({ "shell": script, "name": "big", "ready_text": "200000", "grace_s": 0 }));
    let first = ran["log"].as_str().unwrap();
    assert!(first.starts_with("red \u{fffd}\u{fffd} bell \"quoted\" \\ €\n"), "{}", &first[..60]);
    assert!(first.contains(" characters cut] ") && first.len() < 16 << 10);
    let (_, text, tail) = client.call("logs", &json!({ "sandbox": "big", "lines": 100_000 }));
    assert!(tail["cut_bytes"].as_u64().unwrap() > 100_000, "{}", tail["cut_bytes"]);
    assert!(text.len() < 40 << 10 && text.contains("bytes cut]") && text.ends_with("\n200000\n"));
    // From part to part, nothing is lost.
    let (mut offset, mut whole) = (ran["next_offset"].as_u64().unwrap(), String::new());
    loop {
        let part = client.done("logs", &json!({ "sandbox": "big", "offset": offset, "stream": "stdout" }));
        let log = part["log"].as_str().unwrap();
        assert!(log.len() <= 40 << 10);
        whole.push_str(log);
        offset = part["next_offset"].as_u64().unwrap();
        if part["more"] == false {
            break;
        }
    }
    let mut numbers = String::new();
    for number in 1..=200_000 {
        numbers.push_str(&number.to_string());
        numbers.push('\n');
    }
    assert!(whole.ends_with(&numbers));
    assert_eq!(client.done("logs", &json!({ "sandbox": "big", "offset": offset }))["log"], "");
    client.done("stop", &json!({ "sandbox": "big" }));
    client.close().with_code(0);
}

/// spec: 22.6
#[test]
fn a_wait_delays_no_other_call_and_ends_when_it_is_cancelled() {
    let env = TestEnv::new();
    let mut client = Client::start(&env, &[]);
    let script = "echo up; read -r _ < go; echo gone on; exec sleep 1000";
    rustix::fs::mkfifoat(rustix::fs::CWD, env.path("work/go"), 0o600.into()).unwrap();
    client.done("run", &json!({ "shell": script, "name": "web", "ready_text": "up", "grace_s": 0 }));
    let wait = json!({ "sandbox": "web", "until": "gone on", "timeout_s": 600 });
    let waits: Vec<u64> = (0..8).map(|_| client.ask_tool("logs", &wait)).collect();
    let never = client.ask_tool("logs", &json!({ "sandbox": "web", "until": "never", "timeout_s": 600 }));
    // A start that is cancelled leaves nothing.
    let late = json!({ "shell": "echo second; exec sleep 1001", "name": "late", "ready_text": "never",
        "ready_timeout_s": 600, "grace_s": 0 });
    let starting = client.ask_tool("run", &late);
    wait_until("the second one runs", || env.is_running("sleep 1001"));
    assert_eq!(client.listed().len(), 2);
    assert!(!waits.iter().any(|&wait| client.has_answered(wait)));
    for id in [never, starting] {
        client.say(
            &json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } }),
        );
    }
    wait_until("the second one has ended", || !env.is_running("sleep 1001"));
    std::fs::write(env.path("work/go"), "go\n").unwrap();
    for &wait in &waits {
        let (failed, _, data) = client.result(wait);
        assert!(
            !failed && data["found"] == true && data["log"].as_str().unwrap().ends_with("gone on\n"),
            "{data}"
        );
    }
    let late = json!({ "sandbox": "web", "until": "never", "timeout_s": 0.01 });
    client.refused("logs", &late, "`never` has not appeared in time");
    // A wait that goes on does not delay the end.
    client.ask_tool("logs", &json!({ "sandbox": "web", "until": "never", "timeout_s": 600 }));
    client.close().with_code(0);
    assert!(!env.is_running("sleep 1000"));
}
