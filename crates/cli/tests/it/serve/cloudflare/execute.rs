//! Commands in the session's shell, and without a session.

use serde_json::json;

use super::{Api, alive, pid_in};

const NONE: &str = "__DISABLE_SESSION__";

/// spec: 13.15
#[test]
fn output_and_code_are_exact() {
    let api = Api::start();
    let told = api.run("s", "printf 'a b'; printf err >&2; (exit 3)").ok();
    let fields = ["success", "exitCode", "stdout", "stderr", "command", "duration", "sessionId"];
    let facts = fields.map(|field| told[field].clone());
    let command = "printf 'a b'; printf err >&2; (exit 3)";
    assert_eq!(json!(facts), json!([false, 3, "a b", "err", command, 0, "s"]));
    assert_eq!(api.out("s", "printf '\\0x\\1'"), "\0x\u{1}");
    assert_eq!(api.out("s", "printf 'é€😀'"), "é€😀");
    assert_eq!(api.out("s", "printf '\\xff'"), "\u{fffd}");
    assert_eq!(api.out("s", "cat"), "");
    assert_eq!(api.out("s", "true"), "");
}

#[test]
fn a_command_has_a_directory_and_variables_of_its_own() {
    let api = Api::start();
    let once = json!({ "command": "echo $ONCE; pwd", "sessionId": "s", "env": { "ONCE": "it's", "NO": null }, "cwd": "/" });
    for _ in 0..20 {
        let before = api.out("s", "echo \"<$ONCE>\"; pwd");
        assert!(before.starts_with("<>\n"), "{before}");
        assert_eq!(api.post("/api/execute", &once).ok()["stdout"], "it's\n/\n");
        assert_eq!(api.out("s", "echo \"<$ONCE>\"; pwd"), before);
    }
    let missing = json!({ "command": "echo no", "sessionId": "s", "cwd": "/no/such" });
    let told = api.post("/api/execute", &missing).ok();
    assert_eq!((told["exitCode"].as_i64(), told["stdout"].as_str()), (Some(1), Some("")));
    assert!(told["stderr"].as_str().unwrap().starts_with("Failed to change directory to '/no/such'"));
    let bad = json!({ "command": "true", "sessionId": "s", "env": { "A-B": "" } });
    api.post("/api/execute", &bad).fails(500, "COMMAND_EXECUTION_ERROR");
    api.run("s", "a\0b").fails(500, "COMMAND_EXECUTION_ERROR");
}

#[test]
fn a_command_in_the_background_is_a_process() {
    let api = Api::start();
    let body = json!({ "command": "echo hello", "sessionId": "s", "background": true });
    let told = api.post("/api/execute", &body).ok();
    let id = told["processId"].as_str().unwrap();
    assert!(id.starts_with("proc_") && told["pid"].is_number());
    let last = api.follow(id).rest().pop().unwrap();
    assert_eq!(last["exitCode"], 0);
    assert_eq!(api.get(&format!("/api/process/{id}/logs")).ok()["stdout"], "hello\n");
}

#[test]
fn a_time_limit_ends_the_command_and_the_session_goes_on() {
    let api = Api::start();
    api.out("s", "cd /usr; export A=1; b() { echo fun; }");
    let file = api.path("pid");
    let command = format!("(setsid sh -c 'echo $$ > {file}; exec sleep 1000') & sleep 1001");
    let body = json!({ "command": command, "sessionId": "s", "timeoutMs": 1500 });
    std::thread::scope(|scope| {
        let running = scope.spawn(|| api.post("/api/execute", &body));
        let pid = pid_in(&file);
        assert!(alive(pid));
        let error = running.join().unwrap().fails(500, "COMMAND_EXECUTION_ERROR");
        let message =
            format!("Failed to execute command '{command}' in session 's': Command timeout after 1500ms");
        assert_eq!(error["message"], message);
        assert_eq!(error["context"]["command"], command);
        assert!(!alive(pid));
    });
    assert_eq!(api.out("s", "pwd; echo $A; b"), "/usr\n1\nfun\n");
    let busy = json!({ "command": "while :; do :; done", "sessionId": "s", "timeoutMs": 200 });
    api.post("/api/execute", &busy).fails(500, "COMMAND_EXECUTION_ERROR");
    assert_eq!(api.out("s", "pwd; echo $A; b"), "/usr\n1\nfun\n");
}

#[test]
fn the_session_has_a_time_limit_for_commands_without_one() {
    let api = Api::start();
    api.post("/api/session/create", &json!({ "id": "s", "commandTimeoutMs": 200 })).ok();
    api.run("s", "sleep 1000").fails(500, "COMMAND_EXECUTION_ERROR");
    let own = json!({ "command": "sleep 0.5; echo done", "sessionId": "s", "timeoutMs": 20_000 });
    assert_eq!(api.post("/api/execute", &own).ok()["stdout"], "done\n");
}

#[test]
fn a_large_output_is_whole_and_beyond_the_limit_it_is_truncated() {
    let api = Api::with(&["--output-limit", "4M"]);
    let told = api
        .run("s", "head -c 2000000 /dev/zero | tr '\\0' x; head -c 1000000 /dev/zero | tr '\\0' y >&2")
        .ok();
    assert!(told["stdout"].as_str().unwrap() == "x".repeat(2_000_000));
    assert!(told["stderr"].as_str().unwrap() == "y".repeat(1_000_000));
    assert_eq!(told.get("truncated"), None);
    for session in ["s", NONE] {
        let told = api.run(session, "head -c 50000000 /dev/zero | tr '\\0' x; echo end").ok();
        let kept = told["stdout"].as_str().unwrap();
        assert!(kept.ends_with("x\nend\n") || kept.ends_with("xend\n"));
        assert_eq!((told["truncated"].as_bool(), told["exitCode"].as_i64()), (Some(true), Some(0)));
        let lost = usize::try_from(told["truncatedBytes"].as_u64().unwrap()).unwrap();
        assert!(lost > 40_000_000 && kept.len() < 8 << 20, "{lost} {}", kept.len());
    }
}

#[test]
fn without_a_session_each_command_has_its_own_shell() {
    let api = Api::start();
    let told = api.run(NONE, "cd /; X=1; echo out; echo err >&2; exit 5").ok();
    assert_eq!(
        (told["exitCode"].as_i64(), told["stdout"].as_str(), told["stderr"].as_str()),
        (Some(5), Some("out\n"), Some("err\n"))
    );
    assert_eq!(api.out(NONE, "echo \"<$X>\""), "<>\n");
    let settings =
        json!({ "command": "echo $A; pwd", "sessionId": NONE, "env": { "A": "1" }, "cwd": "/usr" });
    assert_eq!(api.post("/api/execute", &settings).ok()["stdout"], "1\n/usr\n");
    let missing = json!({ "command": "true", "sessionId": NONE, "cwd": "/no/such" });
    assert_eq!(api.post("/api/execute", &missing).ok()["exitCode"], 1);
    assert_eq!(api.get("/api/session/list").ok()["data"], json!([]));
    assert_eq!(api.get("/api/process/list").ok()["processes"], json!([]));
}

#[test]
fn without_a_session_a_time_limit_is_named_in_a_line_of_its_own() {
    let api = Api::start();
    for (said, before) in [("printf partial >&2;", "partial\n"), ("echo whole >&2;", "whole\n"), ("", "")] {
        let body = json!({ "command": format!("{said} sleep 600"), "sessionId": NONE, "timeoutMs": 300 });
        let told = api.post("/api/execute", &body).ok();
        let stderr = format!("{before}Command timed out after 300ms\n");
        assert_eq!((&told["exitCode"], &told["stderr"]), (&json!(124), &json!(stderr)));
    }
    let error = api.run("s", "exit 42").fails(410, "SESSION_TERMINATED");
    assert!(error["message"].as_str().unwrap().contains("exit code: 42"), "{error}");
}

#[test]
fn without_a_session_a_time_limit_gives_124_and_leaves_nothing() {
    let api = Api::start();
    let file = api.path("pid");
    let command =
        format!("setsid sh -c 'trap \"\" TERM; echo $$ > {file}; while :; do sleep 1; done' & wait");
    let body = json!({ "command": command, "sessionId": NONE, "timeoutMs": 1000 });
    std::thread::scope(|scope| {
        let running = scope.spawn(|| api.post("/api/execute", &body));
        let pid = pid_in(&file);
        assert!(alive(pid));
        assert_eq!(running.join().unwrap().ok()["exitCode"], 124);
        assert!(!alive(pid));
    });
}
