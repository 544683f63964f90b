//! What a command can try against the supervisor of its own sandbox, and what other users see.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use crate::support::{
    ControlClient, Level, Running, Sandbox, TestEnv, USER, Who, is_root, jail::jailed, remove_dir, wait_until,
};

/// A script in which `$R` is the directory of its sandbox's record.
fn with_record(script: &str) -> String {
    format!("R=$ROOT/sandboxes/$PENFOLD_SANDBOX; {script}")
}

/// Removes a sandbox, and checks that nothing of it is left.
#[track_caller]
fn remove(env: &TestEnv, sandbox: &Sandbox) {
    sandbox.call(env, &["rm", "-f", "ID"]).with_code(0);
}

/// Says `"kill"` on a control socket, and prints the answer.
const CLIENT: &str = "import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
try:
    s.send(b'\"kill\"')
    print(s.recv(1000))
except OSError as e:
    print(e)
";

/// Takes the place of its supervisor: greets every client, and says that everything runs.
const IMPOSTOR: &str = "import os, socket, sys
path = sys.argv[1] + '/control.sock'
os.unlink(path)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(path)
s.listen(9)
open('lies', 'w')
kept = []
while True:
    client, _ = s.accept()
    try:
        client.send(b'{\"hello\":{\"protocol\":1,\"id\":\"' + os.environ['PENFOLD_SANDBOX'].encode() + b'\"}}')
        client.recv(9999)
        client.send(b'\"running\"')
        kept.append(client)
    except OSError:
        pass
";

/// spec: 14.1
#[test]
fn record_is_for_its_owner_alone() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sleep", "4401"]);
    let own = rustix::process::geteuid().as_raw();
    for path in [
        env.path("root/sandboxes"),
        env.path("root/names"),
        sandbox.record.clone(),
        sandbox.record.join("log"),
    ] {
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.permissions().mode() & 0o077), (own, 0), "{}", path.display());
    }
    for name in ["intent.json", "state.json"] {
        let meta = fs::symlink_metadata(sandbox.record.join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{name}");
    }
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 14.1
#[test]
fn ids_are_names_before_they_are_paths() {
    let env = TestEnv::new();
    fs::create_dir_all(env.path("root/sandboxes")).unwrap();
    fs::write(env.path("root/intent.json"), "{}").unwrap();
    for id in ["..", ".", "../../work", "/", "", "a/b", "web\n", "*", "%s"] {
        let lines = [
            (&["rm", "-f", id][..], 3),
            (&["kill", id], 3),
            (&["exec", id, "touch", "ran"], 125),
            (&["attach", id], 125),
        ];
        for (words, code) in lines {
            let ended = env.call(words);
            assert_eq!(ended.code(), Some(code), "{words:?}: {}", ended.err());
        }
    }
    assert!(env.path("root/intent.json").try_exists().unwrap() && env.path("work").try_exists().unwrap());
}

/// spec: 14.1
#[test]
fn linked_or_foreign_records_are_not_followed() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4402"]);
    let linked = env.path("root/sandboxes/0123456789ab");
    std::os::unix::fs::symlink(&sandbox.record, &linked).unwrap();
    let foreign = env.path("root/sandboxes/ba9876543210");
    fs::create_dir(&foreign).unwrap();
    fs::copy(sandbox.record.join("intent.json"), foreign.join("intent.json")).unwrap();
    std::os::unix::fs::chown(&foreign, Some(USER), Some(USER)).unwrap();
    for id in ["0123456789ab", "ba9876543210"] {
        let ended = env.call(["exec", id, "touch", "ran"]);
        assert!(matches!(ended.code(), Some(3 | 7 | 125)), "{id}: {:?} {}", ended.code(), ended.err());
        env.call(["rm", "-f", id]);
    }
    assert!(env.is_running("sleep 4402") && sandbox.record.join("intent.json").try_exists().unwrap());
    assert!(!env.path("work/ran").try_exists().unwrap());
    let _ = fs::remove_file(linked);
    remove_dir(&foreign);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 14.1
#[test]
fn linked_files_of_a_record_are_not_read() {
    let env = TestEnv::new();
    // What the link points at would be believed in the place of the file.
    let link = |path: &std::path::Path, text: String| {
        let real = env.path("work").join(path.file_name().unwrap());
        fs::write(&real, text).unwrap();
        let _ = fs::remove_file(path);
        std::os::unix::fs::symlink(&real, path).unwrap();
    };
    let sandbox = env.detach(["--", "sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 7"]);
    let state = sandbox.record.join("state.json");
    let said = fs::read_to_string(&state).unwrap();
    assert!(said.contains("\"running\""), "{said}");
    link(&state, said.replace("\"running\"", "\"stopping\""));
    let seen = sandbox.call(&env, &["inspect", "ID"]).with_code(0).out();
    let seen: serde_json::Value = serde_json::from_str(&seen).unwrap();
    assert_eq!(seen[0]["status"], "running", "{seen}");
    assert!(seen[0]["damage"].to_string().contains("symbolic link"), "{seen}");
    fs::write(env.path("work/go"), "").unwrap();
    sandbox.await_end();
    let forged = "{\"schema\":1,\"exit\":{\"code\":0},\"cause\":\"exit\",\"at_ms\":1}";
    link(&sandbox.record.join("exit.json"), forged.to_owned());
    sandbox.call(&env, &["wait", "ID"]).with_code(7);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 14.1
#[test]
fn ordinary_user_neither_sees_nor_ends_a_sandbox_of_root() {
    // `gc` without an id looks at the whole host.
    jailed(|| {
        let (env, user) = (TestEnv::new(), TestEnv::of(Who::Plain).unwrap());
        let sandbox = env.detach(["--name", "web", "--", "sleep", "4403"]);
        let member = env.running("sleep 4403").pop().unwrap();
        let root = env.root().display().to_string();
        let verbs = [
            &["kill", "web"][..],
            &["stop", "web"],
            &["rm", "-f", "web"],
            &["exec", "web", "true"],
            &["gc", "-f"],
            &["status", "web"],
            &["inspect", "web"],
            &["logs", "web"],
            &["tree", "web"],
            &["extend", "web", "1m"],
        ];
        let by_id = verbs.map(|words| {
            words.iter().map(|&word| if word == "web" { &sandbox.id } else { word }).collect::<Vec<_>>()
        });
        for words in verbs.iter().map(|words| words.to_vec()).chain(by_id) {
            let ended = user.call([&words[..1], &["--root", &root], &words[1..]].concat());
            match words[0] {
                "gc" => {}
                "exec" => assert_eq!(ended.code(), Some(125), "{words:?}: {}", ended.err()),
                _ => assert_eq!(ended.code(), Some(7), "{words:?}: {}", ended.err()),
            }
            assert!(!member.has_ended(), "{words:?}");
        }
        let seen = user.call(["ps", "--root", &root, "-a", "-q"]).out();
        assert!(!seen.contains(&sandbox.id), "{seen}");
        // With open directories, the user can connect; the supervisor hangs up.
        for path in [&env.path("root/sandboxes"), &sandbox.record] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        let socket = sandbox.record.join("control.sock");
        fs::set_permissions(&socket, Permissions::from_mode(0o777)).unwrap();
        let mut client = user.command("setpriv");
        client.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "python3", "-c", CLIENT]);
        let heard = Running::start(client.env("PATH", "/usr/bin:/bin").arg(socket)).finish();
        let said = heard.out();
        assert!(!said.contains("hello"), "{said} {}", heard.err());
        assert!(said.contains("b''") || said.contains("Errno"), "{said} {}", heard.err());
        // The supervisor answers one request after the other: the `kill` would have been read by now.
        assert!(ControlClient::connect(&sandbox.record).is_some());
        assert!(!member.has_ended());
        remove(&env, &sandbox);
        env.assert_nothing_left();
    });
}

/// spec: 14.2
#[test]
fn command_gets_no_descriptor_of_ours() {
    let env = TestEnv::new();
    // A glob opens the directory as one more.
    let list = "for fd in /proc/self/fd/*; do echo fd:${fd##*/}:$(readlink $fd); done; echo end";
    for level in env.levels() {
        for terminal in [&[][..], &["-t"]] {
            let shown = format!("{list}; sleep 4404");
            let words = [&["--contain", level.word()], terminal, &["--", "bash", "-c", &shown]].concat();
            let sandbox = env.detach(words);
            wait_until("all is logged", || sandbox.call(&env, &["logs", "ID"]).out().contains("end"));
            let mut seen = vec![("run -d", sandbox.call(&env, &["logs", "ID"]).out())];
            let put = |flags: &[&str]| {
                let words = [&["exec"], flags, &["ID", "bash", "-c", list]].concat();
                sandbox.call(&env, &words).out()
            };
            seen.extend([("exec", put(&[])), ("exec -t", put(&["-t"])), ("exec -i", put(&["-i"]))]);
            for (what, text) in seen {
                let count = text.matches("fd:").count();
                let ours = ["socket", "anon_inode", "penfold", "sandboxes", "cgroup"]
                    .iter()
                    .any(|word| text.contains(word));
                assert!((3..=4).contains(&count) && !ours, "{level:?} {terminal:?} {what}: {text}");
            }
            remove(&env, &sandbox);
        }
    }
    env.assert_nothing_left();
}

/// spec: 14.2
#[test]
fn command_gets_the_marker_and_no_other_variable_of_ours() {
    let env = TestEnv::new();
    let mut run = env.run_command(["-d", "--", "sleep", "4405"]);
    run.env("PENFOLD_TOKEN", "secret").env("PENFOLD_ROOT_TOKEN", "secret");
    let sandbox = Sandbox::printed(&env, &Running::start(&mut run).finish().with_code(0).out());
    let mut exec = env.penfold(["exec", &sandbox.id, "env"]);
    let seen = Running::start(exec.env("PENFOLD_TOKEN", "other")).finish().with_code(0).out();
    let ours: Vec<&str> = seen.lines().filter(|line| line.starts_with("PENFOLD_")).collect();
    let known = |line: &&str| ["PENFOLD_SANDBOX=", "PENFOLD_TEST_"].iter().any(|name| line.starts_with(name));
    assert!(ours.iter().all(known), "{ours:?}");
    // A variable that `-e` names is passed on.
    let mut named = env.run_command(["-e", "PENFOLD_TOKEN", "--", "sh", "-c", "echo $PENFOLD_TOKEN"]);
    assert_eq!(Running::start(named.env("PENFOLD_TOKEN", "secret")).finish().out(), "secret\n");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 14.3
#[test]
fn forged_exit_code_is_replaced_and_the_report_says_so() {
    let env = TestEnv::new();
    let forge = "echo '{\"schema\":1,\"exit\":{\"code\":0},\"cause\":\"exit\",\"at_ms\":1}' > $R/exit.json; echo '{}' > $R/report.json; ";
    for level in env.levels() {
        let command = with_record(&format!("{forge} exit 7"));
        let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", &command]);
        sandbox.call(&env, &["wait", "ID"]).with_code(7);
        let report = sandbox.await_end();
        assert_eq!(report["exit"]["code"], 7, "{level:?}: {report}");
        assert!(report["missing"].to_string().contains("exit.json"), "{level:?}: {report}");
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 14.3
#[test]
fn command_that_kills_its_supervisor_invents_no_code() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().filter(|&level| level != Level::Pidns) {
        let forge =
            "echo '{\"schema\":1,\"exit\":{\"code\":0},\"cause\":\"exit\",\"at_ms\":1}' > $R/exit.json";
        let go = "until [ -e go ]; do sleep 0.05; done";
        let command =
            with_record(&format!("setsid sleep 4406 & {forge}; {go}; kill -KILL $PPID; sleep 4407"));
        let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", &command]);
        // Not before its caller knows of it.
        fs::write(env.path("work/go"), "").unwrap();
        let report = sandbox.await_end();
        assert_ne!(report["exit"]["code"], 0, "{level:?}: {report}");
        assert_eq!(report["cause"], "supervisor", "{level:?}: {report}");
        assert_ne!(sandbox.call(&env, &["wait", "ID"]).code(), Some(0), "{level:?}");
        assert!(!env.is_running("sleep 4406") && !env.is_running("sleep 4407"), "{level:?}");
        fs::remove_file(env.path("work/go")).unwrap();
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// What a command tries, as a script.
const ATTEMPTS: [&str; 8] = [
    "rm -rf $R",
    "rm -f $R/control.sock $R/state.json",
    "for f in $R/*.json; do echo garbage > $f; done",
    r#"echo '{"schema":1,"word":"exited","supervisors":[{"pid":1,"start":1}],"level":"cgroup","started_at_ms":1}' > $R/state.json"#,
    "mv $R $R.away",
    "exec 9<$R; flock -s -n 9; true",
    "kill -STOP $PPID",
    "for g in /sys/fs/cgroup /sys/fs/cgroup/unified; do echo $$ > $g/cgroup.procs; done 2>/dev/null",
];

/// Runs this at every level, all at a time: penfold waits for up to a second each time.
fn at_every_level(test: fn(&TestEnv, Level)) {
    let levels = TestEnv::new().levels().into_iter();
    // They end together: the end of one kills what has no environment, as a process of another that calls execve(2).
    let envs: Vec<(TestEnv, Level)> = levels.map(|level| (TestEnv::new(), level)).collect();
    std::thread::scope(|scope| {
        for (env, level) in &envs {
            scope.spawn(|| test(env, *level));
        }
    });
}

fn every_attempt(env: &TestEnv, level: Level) {
    for attempt in ATTEMPTS {
        let command = with_record(&format!("setsid sleep 4408 & {attempt}; echo up >> $UP; exec sleep 4409"));
        let words = ["--contain", level.word(), "--name", "web", "--", "bash", "-c", &command];
        let sandbox = env.detach(words);
        env.await_up(&["up"]);
        wait_until(&format!("both run after `{attempt}`"), || {
            env.is_running("sleep 4408") && env.is_running("sleep 4409")
        });
        let ended = sandbox.call(env, &["kill", "ID"]);
        assert_eq!(ended.code(), Some(0), "`{attempt}`: {}", ended.err());
        assert!(!env.is_running("sleep 4408") && !env.is_running("sleep 4409"), "`{attempt}`");
        sandbox.call(env, &["rm", "-f", "ID"]);
        remove_dir(format!("{}.away", sandbox.record.display()));
        remove_dir(&sandbox.record);
        fs::remove_file(env.path("work/up")).unwrap();
    }
    env.assert_nothing_left();
}

/// spec: 14.3
#[test]
fn whatever_a_command_does_to_our_files_its_tree_still_ends() {
    at_every_level(every_attempt);
}

/// The command listens in the place of its supervisor.
fn impostor(env: &TestEnv, level: Level) {
    fs::write(env.path("work/impostor.py"), IMPOSTOR).unwrap();
    let command = with_record("PATH=/usr/bin:$PATH; exec python3 impostor.py $R");
    let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", &command]);
    wait_until("the impostor listens", || env.path("work/lies").try_exists().unwrap());
    let impostor = sandbox.leader().unwrap();
    let ended = sandbox.call(env, &["exec", "ID", "true"]);
    assert!(ended.err().contains("not to be trusted"), "{}", ended.err());
    ended.refused(125, "not to be trusted");
    assert!(!impostor.has_ended());
    sandbox.call(env, &["kill", "ID"]).with_code(0);
    assert!(impostor.has_ended());
    remove(env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 14.3
#[test]
fn who_answers_in_the_supervisor_s_place_is_not_talked_to() {
    at_every_level(impostor);
}
