//! `penfold logs`: what a detached sandbox has written, exact, in parts, followed.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;

use serde_json::Value;

use super::output::is_waiting;
use crate::support::{Running, Sandbox, TestEnv, wait_until};

/// Starts a script in a detached sandbox.
fn start(env: &TestEnv, script: &str) -> Sandbox {
    env.detach(["--", "sh", "-c", script])
}

/// Runs a script in a detached sandbox to its end.
fn ended(env: &TestEnv, script: &str) -> Sandbox {
    let sandbox = start(env, script);
    sandbox.await_end();
    sandbox
}

/// Makes the fifo `gate` in the working directory, and opens it for writing: readers wait until this end is closed.
pub fn gate(env: &TestEnv) -> File {
    let path = env.path("work/gate");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    File::options().read(true).write(true).open(path).unwrap()
}

/// spec: 9.1
#[test]
fn bytes_of_both_streams_are_exact_and_apart() {
    let env = TestEnv::new();
    let sandbox = ended(&env, "head -c 300000 /dev/urandom | tee copy; echo error >&2; printf end");
    let logs = sandbox.call(&env, &["logs", "ID"]);
    let mut expected = std::fs::read(env.path("work/copy")).unwrap();
    expected.extend_from_slice(b"end");
    assert!(logs.out == expected && expected.len() == 300_003);
    assert_eq!(logs.err(), "error\n");
    let logs = sandbox.call(&env, &["logs", "--stderr", "ID"]);
    assert_eq!((logs.out(), logs.err()), ("error\n".to_owned(), String::new()));
}

/// spec: 9.1
#[test]
fn parts_and_forms_can_be_asked_for() {
    let env = TestEnv::new();
    let sandbox = ended(&env, "seq 1 100");
    let logs = |words: &[&str]| sandbox.call(&env, &[&["logs"], words, &["ID"]].concat()).out();
    assert_eq!(env.call(["logs", "-n", "2", &sandbox.id[..8]]).out(), "99\n100\n");
    assert_eq!(logs(&["--since", "2100-01-01T00:00:00Z"]), "");
    assert_eq!(logs(&["--since", "1h"]), logs(&[]));
    let timed = logs(&["-t", "-n", "1"]);
    let (time, line) = timed.split_once(' ').unwrap();
    assert!(line == "100\n" && time.len() == 30 && time.ends_with('Z'));
    assert_eq!(logs(&["--since", time, "-t"]).lines().last(), Some(timed.trim_end()));
    let objects = logs(&["--json"]);
    let objects: Vec<Value> = objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((objects.len(), &objects[99]["text"]), (100, &serde_json::json!("100\n")));
    assert_eq!((&objects[0]["stream"], &objects[0]["schema"]), (&"stdout".into(), &1.into()));
}

/// spec: 9.4
#[test]
fn followers_get_lines_as_they_come_and_end_with_the_sandbox() {
    let env = TestEnv::new();
    let mut gate = gate(&env);
    let sandbox = start(
        &env,
        "echo first; while read -r word; do echo \"$word\"; [ $word = last ] && exit; done <gate",
    );
    let follower = env.begin(["logs", "-f", &sandbox.id]);
    follower.hear("first\n", 1);
    for word in ["second\n", "third\n", "last\n"] {
        // The script is still running: the follower prints each line before the end.
        gate.write_all(word.as_bytes()).unwrap();
        follower.hear(word, 1);
    }
    assert_eq!(follower.finish().with_code(0).out(), "first\nsecond\nthird\nlast\n");
}

/// spec: 9.4
#[test]
fn a_follower_ends_quietly_when_nobody_reads_it() {
    let env = TestEnv::new();
    let mut gate = gate(&env);
    let sandbox = start(&env, "echo first; read -r _ <gate");
    let mut command = env.penfold(["logs", "-f", &sandbox.id]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut reader = child.stdout.take().unwrap();
    let follower = Running::of(child);
    let mut line = [0; 6];
    reader.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"first\n");
    drop(reader);
    assert_eq!(follower.finish().with_code(0).err(), "");
    gate.write_all(b"go\n").unwrap();
    env.call(["logs", "-f", &sandbox.id]).with_code(0);
}

/// spec: 9.3
#[test]
fn who_follows_and_does_not_read_holds_nobody_up() {
    let env = TestEnv::new();
    let mut gate = gate(&env);
    let sandbox = start(&env, "read -r _ <gate; head -c 20M /dev/zero; echo; echo done >&2");
    let mut command = env.penfold(["logs", "-f", &sandbox.id]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut unread = child.stdout.take().unwrap();
    let stalled = Running::of(child);
    gate.write_all(b"go\n").unwrap();
    // The stalled follower is blocked by a full pipe meanwhile.
    let other = env.call(["logs", "-f", "--stderr", &sandbox.id]);
    assert_eq!(other.out(), "done\n");
    assert!(stalled.is_alive());
    let mut late = Vec::new();
    unread.read_to_end(&mut late).unwrap();
    assert_eq!(late.len(), (20 << 20) + 1);
    stalled.finish().with_code(0);
}

/// spec: 9.4
#[test]
fn the_log_of_one_that_is_just_being_started_is_waited_for() {
    let env = TestEnv::new();
    let gate = gate(&env);
    let sandbox = start(&env, "echo hello; read x <gate");
    let follower = env.begin(["logs", "-f", &sandbox.id]);
    follower.hear("hello\n", 1);
    // The supervisor makes the log after the intent, and writes its state last.
    let move_file = |from: &str, to: &str| {
        std::fs::rename(sandbox.record.join(from), sandbox.record.join(to)).unwrap();
    };
    move_file("log", "log.later");
    let refused = sandbox.call(&env, &["logs", "ID"]).with_code(1);
    assert!(refused.err().contains("the log is lost"), "with a state: {}", refused.err());
    move_file("state.json", "state.later");
    let early = env.begin(["logs", &sandbox.id]);
    wait_until("`logs` waits", || is_waiting(&early) || !early.is_alive());
    move_file("log.later", "log");
    assert_eq!(early.finish().with_code(0).out(), "hello\n");
    move_file("state.later", "state.json");
    drop(gate);
    follower.finish().with_code(0);
}

#[test]
fn what_is_wrong_is_said_with_its_code() {
    let env = TestEnv::new();
    for (words, code) in [
        (&["logs", "nosuch"][..], 3),
        (&["logs", ""], 3),
        (&["logs"], 2),
        (&["logs", "--since", "soon", "x"], 2),
        (&["logs", "-n", "-1", "x"], 2),
    ] {
        let finished = env.call(words);
        assert_eq!((finished.code(), finished.out.len()), (Some(code), 0), "{words:?}");
        assert!(finished.err().starts_with("penfold: "), "{words:?}");
    }
}

/// The command goes on writing while the supervisor writes the log.
/// spec: 9.3
#[test]
fn command_that_writes_much_gets_a_wider_pipe() {
    let env = TestEnv::new();
    let script = "import fcntl, os\n\
        size = lambda: fcntl.fcntl(1, fcntl.F_GETPIPE_SZ)\n\
        narrow, left = size(), 1 << 30\n\
        while left and size() == narrow: left -= os.write(1, bytes(min(left, 1 << 16)))\n\
        print(size() > narrow, file=open('wide', 'w'))\n";
    std::fs::write(env.path("work/script"), script).unwrap();
    ended(&env, "PATH=/usr/bin:$PATH; exec python3 script");
    assert_eq!(std::fs::read_to_string(env.path("work/wide")).unwrap(), "True\n");
}

/// spec: 9.6
#[test]
fn several_logs_are_merged_by_time_with_the_name_before_each_line() {
    let env = TestEnv::new();
    let gates: Vec<std::path::PathBuf> = (0..3).map(|number| env.path(&format!("work/{number}"))).collect();
    let wait = |gate: &std::path::Path| format!("until [ -e {} ]; do sleep 0.05; done", gate.display());
    // Each line waits for the one before it.
    let first = format!("echo one; {}; echo three; {}; printf 'no end'", wait(&gates[0]), wait(&gates[1]));
    let second = format!("{}; echo two >&2", wait(&gates[2]));
    let [a, b] = [("web", &first), ("a-worker", &second)]
        .map(|(name, script)| env.detach(["--name", name, "--", "sh", "-c", script]));
    wait_until("one", || a.call(&env, &["logs", "ID"]).out() == "one\n");
    let follower = env.begin(["logs", "-f", "web", "a-worker"]);
    follower.hear("web      | one", 1);
    std::fs::write(&gates[2], "").unwrap();
    follower.hear_error("a-worker | two", 1);
    std::fs::write(&gates[0], "").unwrap();
    follower.hear("web      | three", 1);
    std::fs::write(&gates[1], "").unwrap();
    let done = follower.finish().with_code(0);
    assert_eq!(done.out(), "web      | one\nweb      | three\nweb      | no end\n");
    assert_eq!(done.err(), "a-worker | two\n");
    a.await_end();
    b.await_end();
    let objects = env.call(["logs", "--json", "a-worker", &a.id, "web"]).with_code(0).out();
    let objects: Vec<Value> = objects.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let shown: Vec<(&str, &str)> = objects
        .iter()
        .map(|object| (object["name"].as_str().unwrap(), object["text"].as_str().unwrap()))
        .collect();
    let expected = [("web", "one\n"), ("a-worker", "two\n"), ("web", "three\n"), ("web", "no end")];
    assert_eq!(shown, expected);
    assert_eq!(objects[0]["sandbox"].as_str(), Some(a.id.as_str()));
    let tail = env.call(["logs", "--tail", "1", "--color", "always", "web", "a-worker"]).with_code(0);
    assert_eq!(tail.out(), "\u{1b}[36mweb      |\u{1b}[0m no end\n");
    env.call(["logs", "web", "nobody"]).with_code(3);
}

/// spec: 9.6
#[test]
fn output_after_a_time_can_be_left_out() {
    let env = TestEnv::new();
    let sandbox = ended(&env, "seq 1 5");
    let logs = |words: &[&str]| sandbox.call(&env, &[&["logs"], words, &["ID"]].concat());
    assert_eq!(logs(&["--until", "1h"]).out(), "");
    assert_eq!(logs(&["--until", "2100-01-01T00:00:00Z"]).out(), "1\n2\n3\n4\n5\n");
    logs(&["-f", "--until", "1h"]).refused(2, "--until");
    assert_eq!(logs(&["--tail", "2"]).out(), "4\n5\n");
}
