//! `run -d --ready`: the start returns once the command is ready, or ends the sandbox.

use std::fs;
use std::net::TcpListener;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::sandboxes::{await_running, end, none_lives, remove};
use crate::support::{Finished, Process, Running, Sandbox, TestEnv, has_program, penfold, wait_until};

/// Waits in a script for [`open`].
const GATE: &str = "echo lead >> $UP; until [ -e go ]; do sleep 0.05; done";
/// A server: port, and the status that it answers with before and after [`open`].
const SERVER: &str = "
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[3] if os.path.exists('go') else sys.argv[2]))
        self.send_header('location', 'http://127.0.0.1:1/')
        self.end_headers()
    def log_message(self, *words):
        print(self.path, flush=True)
class Server(http.server.HTTPServer):
    allow_reuse_address = True
Server(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

/// A start that waits: `run -d --ready PROBE` with these words.
#[track_caller]
fn begin(env: &TestEnv, probe: &str, words: &[&str]) -> Running {
    let _ = fs::remove_file(env.path("work/go"));
    let _ = fs::remove_file(env.path("work/up"));
    env.begin([&["run", "-d", "--ready", probe], words].concat())
}

/// Lets the command become ready.
fn open(env: &TestEnv) {
    fs::write(env.path("work/go"), "").unwrap();
}

/// The only sandbox that lives, as `ps --json` shows it.
#[track_caller]
fn only(env: &TestEnv) -> Value {
    let found = env.listed(&[]);
    let [one] = found.as_slice() else { panic!("{found:?}") };
    one.clone()
}

/// Checks that a start waits, and that its sandbox is shown as not ready.
#[track_caller]
fn check_waits(env: &TestEnv, start: &Running) -> Sandbox {
    // The command runs before its supervisor has noted it.
    wait_until("it is said to run", || only(env)["status"] == "running");
    let shown = only(env);
    assert_eq!((&shown["status"], &shown["ready"]), (&json!("running"), &json!(false)), "{shown}");
    let filter = format!("id={}", shown["id"].as_str().unwrap());
    let status = env.call(["ps", "--filter", &filter, "--format", "{{.State}}: {{.Status}}"]).out();
    assert_eq!(status, "running: running (not ready)\n");
    assert!(start.is_alive(), "it does not wait");
    assert_eq!(start.heard(), "");
    Sandbox::printed(env, &format!("{}\n", shown["id"].as_str().unwrap()))
}

/// Checks that a start has returned with its id, of a ready sandbox; then kills that.
#[track_caller]
fn check_ready(env: &TestEnv, start: Running, context: &str) {
    let done = start.finish().with_code(0);
    assert_eq!(done.err(), "", "{context}");
    let sandbox = Sandbox::printed(env, &done.out());
    let shown = only(env);
    assert_eq!((&shown["id"], &shown["ready"]), (&json!(sandbox.id), &json!(true)), "{context}");
    let filter = format!("id={}", sandbox.id);
    let status = env.call(["ps", "--filter", &filter, "--format", "{{.Status}}"]).out();
    assert_eq!(status, "running\n", "{context}");
    if let Some(port) = context.strip_prefix("port ") {
        let port: u64 = port.parse().unwrap();
        let shown = env.call(["ps", "--json", "--ports"]).with_code(0).json();
        assert_eq!(
            shown[0]["ports"],
            json!([{"address": "127.0.0.1", "port": port}]),
            "{:?}: {shown}",
            sandbox.members(env)
        );
        let table = env.call(["ps", "--ports"]).out();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].contains("PORTS") && lines[1].contains(&port.to_string()), "{table}");
    }
    let seen = sandbox.call(env, &["inspect", "ID"]).json();
    assert_eq!(seen.pointer("/0/ready").or(seen.get("ready")), Some(&json!(true)), "{context}: {seen}");
    let members = sandbox.members(env);
    assert!(!members.is_empty(), "{context}: no member lives");
    remove(env, &sandbox);
    sandbox.assert_gone(&members);
}

/// Checks for a start that was not ready: the code, its log, a sentence; nothing lives. Gives the id.
#[track_caller]
fn check_failed(env: &TestEnv, done: &Finished, part: &str) -> String {
    assert_eq!((done.code(), done.out().as_str()), (Some(125), ""), "{}", done.err());
    let said = done.err();
    let sentence: Vec<&str> = said.lines().filter(|line| line.starts_with("penfold: ")).collect();
    let [sentence] = sentence.as_slice() else { panic!("{said}") };
    assert!(sentence.contains(part), "no `{part}` in: {said}");
    assert!(
        said.lines().all(|line| ["penfold: ", "log: ", "hint: "].iter().any(|mark| line.starts_with(mark))),
        "{said}"
    );
    assert_eq!(env.listed_ids(&[]), Vec::<String>::new());
    sentence.split(' ').nth(2).unwrap_or_default().to_owned()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// spec: 25.1, 25.3, 24.5
#[test]
fn port_of_a_member_makes_a_sandbox_ready() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    for level in env.levels() {
        let port = free_port().to_string();
        // A grandchild in a session of its own.
        let script = format!("{GATE}; setsid python3 -c \"$1\" $0 200 200 & wait");
        let words = ["--contain", level.word(), "--", "sh", "-c", &script, &port, SERVER];
        let start = begin(&env, &format!("port:{port}"), &words);
        env.await_up(&["lead"]);
        check_waits(&env, &start);
        open(&env);
        check_ready(&env, start, &format!("port {port}"));
    }
    env.assert_nothing_left();
}

/// spec: 25.3
#[test]
fn port_that_another_process_holds_does_not_count() {
    let env = TestEnv::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let probe = format!("port:{}", other.local_addr().unwrap().port());
    for level in env.levels() {
        let words = ["--ready-timeout", "600ms", "--rm", "--contain", level.word(), "--", "sleep", "1021"];
        let start = begin(&env, &probe, &words);
        let members = await_running(&env, &["sleep 1021"]);
        let done = start.finish();
        check_failed(
            &env,
            &done,
            &format!("was not ready within 600ms, and was ended: `{probe}`: no process"),
        );
        let holder = format!("is held by pid {} of user", std::process::id());
        assert!(done.err().contains(&holder), "{}", done.err());
        assert!(none_lives(&members), "{level:?}");
    }
    env.assert_nothing_left();
}

/// spec: 25.1, 25.4
#[test]
fn line_of_the_log_makes_a_sandbox_ready() {
    let env = TestEnv::new();
    for (stream, probe) in [(1, "log:^listening on [0-9]+$"), (2, "log:(?i)LISTENING")] {
        // Neither half of a line, nor the line of the other stream that completes it.
        let script = format!(
            "printf 'listening on 8' >&{stream}; echo 0 >&{}; {GATE}; echo 0 >&{stream}; sleep 1000",
            3 - stream
        );
        let start = begin(&env, probe, &["--", "sh", "-c", &script]);
        env.await_up(&["lead"]);
        check_waits(&env, &start);
        open(&env);
        check_ready(&env, start, probe);
    }
    // A terminal ends its lines with a carriage return.
    let start = begin(&env, "log:^up$", &["-t", "--", "sh", "-c", "echo up; sleep 1000"]);
    check_ready(&env, start, "terminal");
    env.assert_nothing_left();
}

/// spec: 25.1, 25.5
#[test]
fn good_answer_over_http_makes_a_sandbox_ready() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    for (before, after) in [("503", "204"), ("404", "302")] {
        let port = free_port().to_string();
        let probe = format!("http://localhost:{port}/health?a=b");
        let start = begin(&env, &probe, &["--", "python3", "-c", SERVER, &port, before, after]);
        let log = || env.call(["logs", only(&env)["id"].as_str().unwrap()]).out();
        wait_until("it was asked", || {
            !env.listed(&[]).is_empty() && log().contains("/health?a=b\n/health?a=b\n")
        });
        check_waits(&env, &start);
        open(&env);
        check_ready(&env, start, &probe);
    }
    let port = free_port().to_string();
    let words = ["--ready-timeout", "2s", "--rm", "--", "python3", "-c", SERVER, &port, "503", "503"];
    let done = begin(&env, &format!("http:http://127.0.0.1:{port}"), &words).finish();
    check_failed(&env, &done, "the answer was 503");
    env.assert_nothing_left();
}

/// spec: 25.1, 25.6
#[test]
fn command_that_succeeds_inside_makes_a_sandbox_ready() {
    let env = TestEnv::new();
    for level in env.levels() {
        let context = level.word();
        let _ = fs::remove_file(env.path("work/tries"));
        // Each try notes its begin, its sandbox and its end: none begins before the last one has ended.
        let probe = "cmd:echo begin $PENFOLD_SANDBOX >> tries; sleep 0.05; echo end >> tries; test -e go";
        let start = begin(&env, probe, &["--contain", level.word(), "--", "sleep", "1022"]);
        let tries = || fs::read_to_string(env.path("work/tries")).unwrap_or_default();
        wait_until("three tries", || tries().lines().filter(|line| *line == "end").count() >= 3);
        let sandbox = check_waits(&env, &start);
        open(&env);
        check_ready(&env, start, context);
        let begun = format!("begin {}", sandbox.id);
        for pair in tries().lines().collect::<Vec<_>>().chunks(2) {
            assert_eq!(pair, [begun.as_str(), "end"], "{context}: {}", tries());
        }
    }
    env.assert_nothing_left();
}

/// spec: 25.6, 25.8
#[test]
fn command_that_hangs_ends_with_the_time() {
    let env = TestEnv::new();
    let words = ["--ready-timeout", "1s", "--rm", "--", "sleep", "1023"];
    let start = begin(&env, "cmd:setsid sleep 1024 & echo out; exec sleep 1025", &words);
    let members = await_running(&env, &["sleep 1023", "sleep 1024", "sleep 1025"]);
    check_failed(&env, &start.finish(), "was not ready within 1s");
    assert!(none_lives(&members));
    let done =
        begin(&env, "cmd:exit 7", &["--ready-timeout", "500ms", "--rm", "--", "sleep", "1023"]).finish();
    check_failed(&env, &done, "the command ended with 7");
    env.assert_nothing_left();
}

/// spec: 25.1, 25.7
#[test]
fn line_feed_on_the_descriptor_makes_a_sandbox_ready() {
    let env = TestEnv::new();
    for level in env.levels() {
        for number in [3, 9] {
            // A line feed after the client is gone must not end the command.
            let script = format!(
                "printf x >&{number}; ls /proc/self/fd > fds; {GATE}; echo >&{number}
                until [ -e more ]; do sleep 0.05; done; echo late >&{number}; echo late >> $UP; exec sleep 1026"
            );
            let _ = fs::remove_file(env.path("work/more"));
            let start = begin(
                &env,
                &format!("fd:{number}"),
                &["--contain", level.word(), "--", "bash", "-c", &script],
            );
            env.await_up(&["lead"]);
            let fds = fs::read_to_string(env.path("work/fds")).unwrap();
            // One more is the directory that `ls` reads.
            let fds: Vec<&str> = fds.lines().filter(|fd| *fd != number.to_string()).collect();
            assert_eq!(fds.len(), 4, "{level:?}: {fds:?}");
            let sandbox = check_waits(&env, &start);
            open(&env);
            wait_until("it has returned", || !start.is_alive());
            fs::write(env.path("work/more"), "").unwrap();
            env.await_up(&["late"]);
            await_running(&env, &["sleep 1026"]);
            assert!(sandbox.leader().is_some(), "{level:?}");
            check_ready(&env, start, level.word());
        }
    }
    env.assert_nothing_left();
}

/// spec: 25.7, 12.1
#[test]
fn descriptor_of_any_number_neither_hides_a_failed_start_nor_stays_open() {
    let env = TestEnv::new();
    for level in env.levels() {
        for number in 3..32 {
            let probe = format!("fd:{number}");
            let word = level.word();
            let words = ["run", "-d", "--ready", &probe, "--contain", word, "--", "no-such-program"];
            env.call(words).refused(127, "no-such-program");
        }
        let words = ["--rm", "--contain", level.word(), "--", "sh", "-c", "exec 5>&-; exec sleep 1027"];
        let done = begin(&env, "fd:5", &words).finish();
        check_failed(&env, &done, "can never be ready, and was ended: `fd:5`: it closed descriptor 5");
    }
    env.assert_nothing_left();
}

/// spec: 25.8
#[test]
fn late_sandbox_is_ended_and_the_end_of_its_log_is_shown() {
    let env = TestEnv::new();
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11; do echo line $i; done; printf 'a\\033[2J\\001b' >&2; \
        setsid sleep 1028 & exec sleep 1029";
    for level in env.levels() {
        let words = ["--ready-timeout", "1s", "--contain", level.word(), "--", "sh", "-c", script];
        let start = begin(&env, "log:never", &words);
        let members = await_running(&env, &["sleep 1028", "sleep 1029"]);
        let done = start.finish();
        let id = check_failed(&env, &done, "`log:never`: no line of its log matches");
        assert!(none_lives(&members), "{level:?}");
        let said = done.err();
        let shown: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("log: ")).collect();
        assert_eq!(shown.len(), 10, "{said}");
        assert_eq!((shown[0], shown[9]), ("line 3", "a\u{fffd}b"), "{said}");
        assert!(said.contains(&format!("hint: `penfold logs {id}`")), "{said}");
        let record = Sandbox::printed(&env, &format!("{id}\n"));
        assert_eq!(end(&env, &record), ("killed".into(), "kill".into(), json!({"signal": 9})));
        assert!(env.call(["logs", &id]).out().contains("line 1\n"));
        remove(&env, &record);
    }
    env.assert_nothing_left();
}

/// spec: 25.8
#[test]
fn end_of_the_command_ends_the_wait() {
    let env = TestEnv::new();
    for probe in ["port:1", "log:ready", "http://127.0.0.1:1", "cmd:false", "fd:3"] {
        let words = ["--rm", "--ready-timeout", "1h", "--", "sh", "-c", "echo broken; exit 3"];
        let done = begin(&env, probe, &words).finish();
        check_failed(&env, &done, "ended before it was ready");
    }
    let done = begin(&env, "log:ready", &["--", "sh", "-c", "echo broken; exit 3"]).finish();
    let id = check_failed(&env, &done, "ended before it was ready: its command ended with 3");
    assert!(done.err().contains("log: broken\n"), "{}", done.err());
    remove(&env, &Sandbox::printed(&env, &format!("{id}\n")));
    // Another command stops it.
    let start = begin(&env, "log:ready", &["--ready-timeout", "1h", "--name", "web", "--", "sleep", "1030"]);
    let members = await_running(&env, &["sleep 1030"]);
    env.call(["stop", "web"]).with_code(0);
    let id = check_failed(&env, &start.finish(), "ended before it was ready: the cause is `stop`");
    assert!(none_lives(&members));
    remove(&env, &Sandbox::printed(&env, &format!("{id}\n")));
    env.assert_nothing_left();
}

/// spec: 25.8
#[test]
fn death_of_supervisors_ends_the_wait() {
    let env = TestEnv::new();
    for level in env.levels() {
        let words = ["--ready-timeout", "1h", "--contain", level.word(), "--", "sleep", "1031"];
        let start = begin(&env, "port:1", &words);
        let members = await_running(&env, &["sleep 1031"]);
        let sandbox = check_waits(&env, &start);
        sandbox.kill_supervisors();
        check_failed(&env, &start.finish(), "ended before it was ready");
        assert!(none_lives(&members), "{level:?}");
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 25.9
#[test]
fn signal_to_the_client_ends_the_sandbox() {
    let env = TestEnv::new();
    for (signal, name) in [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::HUP, "HUP")] {
        for probe in ["cmd:sleep 1033", "log:never", "fd:3"] {
            let words =
                ["--ready-timeout", "1h", "--rm", "--", "sh", "-c", "trap '' TERM INT; sleep 1032; :"];
            let start = begin(&env, probe, &words);
            let members = await_running(&env, &["sleep 1032"]);
            check_waits(&env, &start);
            start.signal(signal);
            check_failed(
                &env,
                &start.finish(),
                &format!("was ended before it was ready: penfold got {name}"),
            );
            assert!(none_lives(&members), "{name} {probe}");
        }
    }
    env.assert_nothing_left();
}

/// spec: 25.9
#[test]
fn sandbox_goes_on_when_its_client_is_killed() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = format!("{GATE}; echo >&3; echo ready; echo ready >> $UP; sleep 1034; :");
        let words = ["--contain", level.word(), "--", "sh", "-c", &script];
        let start = begin(&env, "fd:3", &words);
        env.await_up(&["lead"]);
        let sandbox = check_waits(&env, &start);
        start.signal(Signal::KILL);
        start.process().await_end();
        open(&env);
        env.await_up(&["ready"]);
        let members: Vec<Process> = await_running(&env, &["sleep 1034"]);
        let shown = only(&env);
        assert_eq!((&shown["status"], &shown["ready"]), (&json!("running"), &json!(false)), "{level:?}");
        remove(&env, &sandbox);
        sandbox.assert_gone(&members);
    }
    env.assert_nothing_left();
}

/// spec: 25.2
#[test]
fn wrong_probes_and_places_start_nothing() {
    let env = TestEnv::new();
    let refused = |words: &[&str], part: &str| {
        env.call([&["run"], words, &["--", "touch", "ran"]].concat()).refused(125, part);
    };
    refused(&["--ready", "port:80"], "`--ready` works for detached sandboxes only");
    refused(&["-d", "--ready", "port"], "`port` is not a probe");
    refused(&["-d", "--ready", "log:("], "found open group without closing ')'");
    refused(&["-d", "--ready", "fd:2"], "`2` is not a descriptor");
    refused(&["-d", "--ready-timeout", "3s"], "--ready");
    let words = ["--host", "unix:/nowhere", "run", "-d", "--ready", "port:80", "--", "touch", "ran"];
    Running::start(env.command(penfold()).args(words)).finish().refused(125, "works on this host only");
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 25.2, 8.9
#[test]
fn file_gives_the_probe_and_its_time() {
    let env = TestEnv::new();
    fs::write(
        env.path("work/box.toml"),
        "command = ['sleep', '1035']\nready = 'log:never'\nready_timeout_ms = 300\nremove_at_end = true\n",
    )
    .unwrap();
    let done = env.call(["run", "-d", "--spec", "box.toml"]);
    check_failed(&env, &done, "was not ready within 300ms");
    env.call(["run", "--spec", "box.toml"]).refused(125, "works for detached sandboxes only");
    let words = ["run", "-d", "--spec", "box.toml", "--ready", "cmd:true", "--ready-timeout", "30s"];
    let start = env.begin(words);
    check_ready(&env, start, "flags take precedence");
    env.assert_nothing_left();
}
