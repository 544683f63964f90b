//! What the reference does wrong, and does not happen here.

use serde_json::json;

use super::{Api, alive, output, pid_in};

/// A tree is killed; none of the pids in these files survives.
#[track_caller]
fn kill_leaves_nothing(command: &str, files: &[&str]) {
    let api = Api::start();
    let command = command.replace("DIR", api.path("").trim_end_matches('/'));
    let leader = api.process("s", "p", &command);
    let pids: Vec<i32> = files.iter().map(|file| pid_in(&api.path(file))).chain([leader]).collect();
    assert!(pids.iter().all(|&pid| alive(pid)), "{pids:?}");
    api.delete("/api/process/p").ok();
    assert_eq!(pids.iter().filter(|&&pid| alive(pid)).collect::<Vec<_>>(), Vec::<&i32>::new());
    assert_eq!(api.status("p").0, "killed");
}

/// spec: 13.10
#[test]
fn a_kill_does_not_miss_setsid() {
    kill_leaves_nothing("setsid sh -c 'echo $$ > DIR/a; sleep 1000' & sleep 1001; true", &["a"]);
}

/// spec: 13.10
#[test]
fn a_kill_does_not_miss_a_double_fork() {
    kill_leaves_nothing("(setsid sh -c '(sleep 1000 & echo $! > DIR/a) & exit' &); sleep 1001; true", &["a"]);
}

/// spec: 13.10
#[test]
fn a_kill_does_not_miss_what_a_term_handler_forks() {
    let api = Api::start();
    let (up, late) = (api.path("up"), api.path("late"));
    let handler =
        format!("setsid sh -c \"trap '' TERM; echo \\$\\$ > {late}; sleep 1000\" & sleep 0.3; exit 0");
    let script = api.path("script");
    std::fs::write(
        &script,
        format!("h() {{ {handler}; }}\ntrap h TERM\necho $$ > {up}\nwhile :; do sleep 0.05; done\n"),
    )
    .unwrap();
    let leader = api.process("s", "p", &format!("bash {script}; true"));
    let pids = [leader, pid_in(&up)];
    assert!(pids.into_iter().all(alive));
    api.delete("/api/process/p").ok();
    assert!(!pids.into_iter().any(alive));
    if let Ok(text) = std::fs::read_to_string(&late) {
        assert!(!alive(text.trim().parse().unwrap()));
    }
}

/// spec: 13.10
#[test]
fn a_kill_does_not_miss_a_rolling_chain() {
    let api = Api::start();
    let script = api.path("roll");
    std::fs::write(&script, format!("echo $$ > {}\nsleep 0.01\nsetsid bash {script} &\n", api.path("now")))
        .unwrap();
    api.process("s", "p", &format!("setsid bash {script} & sleep 1000; true"));
    pid_in(&api.path("now"));
    api.delete("/api/process/p").ok();
    assert!(!api.env.is_running(&script));
    assert_eq!(api.status("p").0, "killed");
}

#[test]
fn exit_in_a_background_command_ends_with_its_code() {
    let api = Api::start();
    api.process("s", "p", "echo a; exit 9; echo b");
    let events = api.follow("p").rest();
    assert_eq!(output(&events, "stdout"), "a\n");
    assert_eq!(events.last().unwrap()["exitCode"], 9);
}

/// spec: 15.8
#[test]
fn a_second_process_of_an_id_does_not_replace_the_first() {
    let api = Api::start();
    let pid = api.process("s", "p", "sleep 1000");
    let again = json!({ "command": "sleep 1000", "sessionId": "other", "processId": "p" });
    assert_eq!(
        api.post("/api/process/start", &again).fails(409, "PROCESS_ERROR")["context"]["processId"],
        "p"
    );
    assert!(alive(pid));
    assert_eq!(api.get("/api/process/p").ok()["process"]["pid"], pid);
    let body = json!({ "command": "true", "processId": "q" });
    let same: Vec<u16> = std::thread::scope(|scope| {
        let start = || api.post("/api/process/start", &body).status;
        let threads: Vec<_> = (0..20).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(same.iter().filter(|&&status| status == 200).count(), 1, "{same:?}");
}

#[test]
fn a_process_that_dies_with_its_shell_has_a_code() {
    let api = Api::start();
    api.process("s", "p", "sleep 1000");
    let mut stream = api.follow("p");
    stream.next();
    // The shell ends; the process beside it does not.
    api.run("s", "exit 3").fails(410, "SESSION_TERMINATED");
    assert_eq!(api.status("p").0, "running");
    api.delete("/api/process/p").ok();
    assert_eq!(stream.rest().pop().unwrap()["exitCode"], 143);
}

/// spec: 13.15
#[test]
fn a_command_with_a_heredoc_or_open_quotes_does_not_block_the_session() {
    let api = Api::start();
    assert_eq!(api.out("s", "cat <<X\none\nX"), "one\n");
    for command in [
        "echo 'open",
        "echo \"open",
        "if true; then",
        "cat <<X\nopen",
        "}",
        ")",
        "exec >/dev/null 2>&1 <&-",
        "read x",
        "set -n",
    ] {
        let body = json!({ "command": command, "sessionId": "s", "timeoutMs": 10_000 });
        let told = api.post("/api/execute", &body);
        assert!(matches!(told.status, 200 | 410), "{command}: {:?}", told.json());
        assert_eq!(api.out("s", "echo usable"), "usable\n", "{command}");
    }
}
