//! The verbs as clients of a server: the same output and exit codes as on this host.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::native::post;
use super::{Server, TOKEN, token_file};
use crate::support::{Finished, Process, Running, Sandbox, TestEnv, penfold, wait_until};

/// A server on a Unix socket, and one on a port with a token; each with the flags that reach it.
pub fn servers(env: &TestEnv) -> [(Server, Vec<String>); 2] {
    let unix = Server::start(env, &["--api", "native"]);
    let tokens = token_file(env);
    let tcp = Server::start_tcp(env, &["--api", "native", "--token-file", &tokens]);
    let by_unix = vec!["--host".to_owned(), unix.host()];
    let by_tcp = vec!["--host".to_owned(), tcp.host(), "--token-file".to_owned(), tokens];
    [(unix, by_unix), (tcp, by_tcp)]
}

pub fn words(flags: &[String], words: &[&str]) -> Vec<String> {
    flags.iter().cloned().chain(words.iter().map(|&word| word.to_owned())).collect()
}

/// What was printed, without the numbers and ids that differ in each run.
fn plain(text: &str) -> String {
    let is_id = |word: &str| word.len() == 12 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let word = |word: &str| {
        let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        if is_id(bare) { word.replace(bare, "ID") } else { word.to_owned() }
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn assert_same(local: &Finished, remote: &Finished, what: &[&str]) {
    assert_eq!(remote.code(), local.code(), "{what:?}: {} {}", remote.out(), remote.err());
    assert_eq!(remote.signal(), local.signal(), "{what:?}");
    assert_eq!(remote.out(), local.out(), "{what:?}");
    assert_eq!(plain(&remote.err()), plain(&local.err()), "{what:?}");
}

#[test]
fn run_prints_and_exits_as_on_this_host() {
    let env = TestEnv::new();
    for (_server, flags) in &servers(&env) {
        for line in [
            &["run", "true"][..],
            &["run", "sh", "-c", "echo out; echo err >&2; exit 3"],
            &["run", "printf", "a\\377\\000b"],
            &["run", "sh", "-c", "kill -KILL $$"],
            &["run", "-e", "A=1 2", "sh", "-c", "echo $A"],
            &["run", "-w", "/", "pwd"],
            &["run", "/nowhere/program"],
            &["run", "no-such-program"],
            &["run", "/etc/passwd"],
            &["run", "--ttl", "1h", "true"],
            &["run", "-d", "--fail-on-leak", "true"],
        ] {
            assert_same(&env.call(line), &env.call(words(flags, line)), line);
        }
        for (line, code) in [
            (&["run", "--timeout", "100ms", "sleep", "100"][..], 124),
            (&["run", "--fail-on-leak", "sh", "-c", "setsid sleep 1000 & exit 0"], 123),
            (&["run", "--timeout", "100ms", "--preserve-status", "sleep", "100"], 143),
        ] {
            let finished = env.call(words(flags, line)).with_code(code);
            assert!(finished.err().starts_with("penfold: "), "{}", finished.err());
        }
    }
    // No record is left of a foreground command.
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
    env.assert_nothing_left();
}

/// spec: 8.9.1, 15.10
#[test]
fn what_a_server_can_do_is_done_there() {
    let env = TestEnv::new();
    let own = std::fs::read_link("/proc/self/ns/ipc").unwrap().display().to_string();
    for (_server, flags) in &servers(&env) {
        let line = ["run", "--ipc", "private", "readlink", "/proc/self/ns/ipc"];
        let there = env.call(words(flags, &line)).with_code(0).out();
        assert!(there.starts_with("ipc:") && there.trim() != own, "{there}");
    }
    env.assert_nothing_left();
}

/// spec: 15.10
#[test]
fn what_a_server_cannot_do_is_refused_by_name_and_starts_nothing() {
    let env = TestEnv::new();
    for (_server, flags) in &servers(&env) {
        for (given, name) in [
            (&["--unit", "none"][..], "--unit"),
            (&["--stop-on-interrupt"], "--stop-on-interrupt"),
            (&["--allow-outside"], "--allow-outside"),
            (&["-i"], "--interactive"),
            (&["--on-owner-exit", "kill"], "--on-owner-exit kill"),
            (&["-d", "--on-owner-exit", "stop"], "--on-owner-exit stop"),
            (&["-d", "--restart", "on-failure"], "--restart"),
            (&["-d", "--outside"], "--outside"),
            (&["-d", "--unit", "system"], "--unit"),
            (&["-d", "--allow-outside"], "--allow-outside"),
            (&["--report", "kept", "-u", "root"], "--user"),
        ] {
            let line = [&["run"], given, &["--", "touch", "started"]].concat();
            env.call(words(flags, &line))
                .refused(125, &format!("`{name}` works on this host only, not on a server"));
        }
    }
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
    for file in ["started", "kept"] {
        assert!(!env.path("work").join(file).try_exists().unwrap(), "{file}");
    }
}

#[test]
fn the_report_of_a_foreground_command_is_written() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let finished =
        env.call(["--host", &server.host(), "run", "--report", "-", "sh", "-c", "exit 4"]).with_code(4);
    assert_eq!(finished.json()["exit"], json!({ "code": 4 }));
}

/// The output of a command line, of `ps` without the sandboxes of other tests: one look sees an orphan that has ended before the next.
fn ours(env: &TestEnv, line: &[&str], out: &str) -> String {
    let is_ours = |row: &&str| {
        let id = row.split_whitespace().next().unwrap_or_default();
        line[0] != "ps" || env.path("root/sandboxes").join(id).try_exists().unwrap()
    };
    out.split_inclusive('\n').filter(is_ours).collect()
}

#[test]
fn sandboxes_are_listed_as_on_this_host() {
    let env = TestEnv::new();
    for (server, flags) in &servers(&env) {
        let call = |line: &[&str]| env.call(words(flags, line));
        let script =
            "echo one; echo two >&2; echo three; trap 'exit 7' TERM; while :; do sleep 1000 & wait; done";
        let printed = call(&["run", "-d", "--name", "web", "-l", "a=b", "sh", "-c", script]).with_code(0);
        let sandbox = Sandbox::printed(&env, &printed.out());
        let id = sandbox.id.as_str();
        wait_until("the log has all", || env.call(["logs", "web"]).out() == "one\nthree\n");
        for line in [
            &["ps", "-q"][..],
            &[
                "ps",
                "--format",
                "{{.ID}} {{.Name}} {{.State}} {{.Command}} {{.Leader}} {{.Cgroup}} {{.Level}}",
            ],
            &["ps", "--filter", "label=a=b", "-q"],
            &["ps", "--filter", "label=a=c", "-q"],
            &["inspect", "web", "--format", "{{.ID}}"],
            &["logs", "web"],
            &["logs", "-n", "1", id],
            &["logs", "--stderr", id],
            &["logs", "-t", id],
            &["logs", "--json", id],
            &["logs", "--since", "1h", id],
            &["rm", "web"],
            &["wait", "--timeout", "50ms", "web"],
            &["wait", "nobody"],
            &["stop", "nobody"],
            &["logs", "nobody"],
            &["exec", "nobody", "true"],
            &["stop", "--all"],
            &["stop"],
            &["kill", "--all", "web"],
            &["extend", "nobody", "1m"],
        ] {
            let (local, remote) = (env.call(line), call(line));
            assert_eq!(
                (remote.code(), ours(&env, line, &remote.out())),
                (local.code(), ours(&env, line, &local.out())),
                "{line:?}: {}",
                remote.err()
            );
            let first = |text: String| text.lines().next().unwrap_or_default().to_owned();
            assert_eq!(first(remote.err()), first(local.err()), "{line:?}");
        }
        let rows = |finished: Finished| {
            let mut rows = finished.json();
            let row = rows[0].as_object_mut().unwrap();
            for only_here in ["record", "owner", "files", "usage"] {
                row.remove(only_here);
            }
            rows
        };
        assert_eq!(rows(call(&["ps", "--json"])), rows(env.call(["ps", "--json"])));
        assert_eq!(rows(call(&["inspect", "web"])), rows(env.call(["inspect", "web"])));
        call(&["rm", "-f", "web"]).with_code(0);
        assert_eq!(server.get("/healthz", "").status, 200);
    }
}

#[test]
fn sandboxes_are_ended_as_on_this_host() {
    let env = TestEnv::new();
    for (_server, flags) in &servers(&env) {
        let call = |line: &[&str]| env.call(words(flags, line));
        let script = "trap 'exit 7' TERM; echo up; while :; do sleep 1000 & wait; done";
        let id = call(&["run", "-d", "--name", "web", "sh", "-c", script]).with_code(0).out();
        let id = id.trim_end();
        wait_until("the trap is set", || call(&["logs", "web"]).out() == "up\n");
        call(&["extend", "web", "1h"]).with_code(0);
        assert_eq!(call(&["stop", "web"]).with_code(0).out(), format!("{id}\n"));
        assert_same(&env.call(["wait", id]), &call(&["wait", id]), &["wait"]);
        assert_eq!(call(&["wait", id]).code(), Some(7));
        assert_eq!(call(&["wait", "--any", id]).out(), format!("{id} 7\n"));
        assert!(call(&["inspect", id]).json()[0]["files"]["report"]["exit"].is_object());
        assert_eq!(call(&["stop", id]).with_code(0).out(), format!("{id}\n"));
        assert_eq!(call(&["rm", "web"]).with_code(0).out(), format!("{id}\n"));
        call(&["rm", "web"]).refused(3, "no sandbox is called `web`");
        // Several at once, and `rm -f` of a living one.
        let all: Vec<String> = (0..3).map(|_| call(&["run", "-d", "sleep", "1000"]).out()).collect();
        assert_eq!(call(&["rm", "-f", all[0].trim()]).with_code(0).out(), all[0]);
        assert_eq!(call(&["kill", all[1].trim(), all[2].trim()]).with_code(0).out(), all[1..].concat());
        assert_eq!(call(&["wait", all[1].trim()]).with_code(137).out(), "137\n");
        call(&["rm", "--filter", "status=killed", "-f"]).with_code(0);
    }
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
}

/// spec: 5.13
#[test]
fn an_orphan_that_may_belong_to_another_state_root_ends_only_if_it_is_named() {
    if !crate::support::has_readable_ancestors() {
        return;
    }
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let call = |line: &[&str]| env.call(["--host", &server.host()].iter().chain(line));
    let orphan = crate::support::fresh_id();
    let running = Running::spawn(env.command("sleep").arg("1000").env("PENFOLD_SANDBOX", &orphan));
    let listed = || call(&["ps", "-q"]).with_code(0).out();
    wait_until("it is listed", || listed().contains(&orphan));
    let own = call(&["run", "-d", "sleep", "1000"]).with_code(0).out();
    for verb in ["stop", "kill"] {
        call(&[verb, "--all", "-f"]).with_code(0);
        call(&[verb, "--filter", "status=orphaned", "-f"]).with_code(0);
    }
    assert!(running.is_alive());
    assert!(listed().contains(&orphan));
    assert!(!listed().contains(&own));
    call(&["kill", &orphan]).with_code(0);
    running.process().await_end();
}

/// spec: 20.2
#[test]
fn a_stop_command_runs_in_the_sandbox_of_the_server() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let call = |line: &[&str]| env.call(["--host", &server.host()].iter().chain(line));
    let go = env.path("work/go").display().to_string();
    let script = format!("while ! [ -e {go} ]; do sleep 0.05; done; exit 7");
    let stop = format!("touch {go}");
    let flags = ["run", "-d", "--grace", "1h", "--stop-command", &stop, "sh", "-c", &script];
    let id = call(&flags).with_code(0).out();
    call(&["stop", id.trim_end()]).with_code(0);
    call(&["wait", id.trim_end()]).with_code(7);
}

#[test]
fn replace_takes_the_name() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let call = |line: &[&str]| env.call(["--host", &server.host()].iter().chain(line));
    let first = call(&["run", "-d", "--name", "web", "sleep", "1000"]).with_code(0).out();
    assert_eq!(call(&["run", "-d", "--name", "web", "sleep", "1000"]).code(), Some(125));
    let second = call(&["run", "-d", "--name", "web", "--replace", "sleep", "1000"]).with_code(0).out();
    assert_ne!(first, second);
    assert_eq!(env.listed_ids(&["--host", &server.host()]), [second.trim()]);
    assert!(call(&["ps", "-q"]).out().contains(&second));
    call(&["kill", "web"]).with_code(0);
}

#[test]
fn exec_prints_and_exits_as_on_this_host() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "sleep", "1000"]);
    for (_server, flags) in &servers(&env) {
        for line in [
            &["exec", "web", "sh", "-c", "echo out; echo err >&2; exit 5"][..],
            &["exec", "web", "sh", "-c", "kill -TERM $$"],
            &["exec", "-e", "A=x", "-w", "/", "web", "sh", "-c", "echo $A; pwd"],
            &["exec", "-w", "..", "web", "pwd"],
            &["exec", "web", "no-such-program"],
            &["exec", "web", "cat"],
            &["exec", "-d", "web", "true"],
        ] {
            assert_same(&env.call(line), &env.call(words(flags, line)), line);
        }
        // The server does not say why.
        env.call(words(flags, &["exec", "web", "/etc/passwd"])).refused(126, "it is not executable");
        env.call(words(flags, &["exec", "--timeout", "100ms", "web", "sleep", "9"])).with_code(124);
        let input = [b"\0\xff".repeat(5000), b"end\n".to_vec()].concat();
        std::fs::write(env.path("work/input"), &input).unwrap();
        let mut command = env.penfold(words(flags, &["exec", "-i", "web", "cat"]));
        command.stdin(std::fs::File::open(env.path("work/input")).unwrap());
        assert_eq!(Running::start(&mut command).finish().with_code(0).out, input);
        assert_eq!(
            env.call(words(flags, &["exec", "-t", "web", "echo", "shown"])).with_code(0).out(),
            "shown\r\n"
        );
    }
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
}

#[test]
fn an_interrupt_stops_the_command_and_a_second_one_kills() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    // A shell may have started the tests with SIGINT ignored, and an ignored signal stays ignored.
    let begin = |line: &[&str]| {
        let mut command = env.command("env");
        command.arg("--default-signal=INT").arg(penfold()).arg("--root").arg(env.root());
        Running::start(command.args(["--host", &server.host()]).args(line))
    };
    let running = begin(&["run", "sh", "-c", "setsid sleep 1000 & echo up; exec sleep 1000"]);
    running.hear("up", 1);
    // If this client were killed, the sandbox would end with its lease.
    let [id] = env.listed_ids(&[]).try_into().unwrap();
    let expires = env.call(["ps", "--filter", &format!("id={id}"), "--format", "{{.ExpiresAt}}"]).out();
    assert_eq!(expires.len(), "2026-11-21T10:35:00Z\n".len(), "{expires}");
    running.signal(Signal::INT);
    let finished = running.finish();
    assert_eq!(finished.signal(), Some(Signal::INT.as_raw()), "{:?}: {}", finished.code(), finished.err());
    let deaf = "trap '' INT TERM; echo up; while :; do sleep 0.1; done";
    let running = begin(&["run", "sh", "-c", deaf]);
    running.hear("up", 1);
    running.signal(Signal::TERM);
    wait_until("the sandbox is stopping", || {
        let listed = env.listed(&[]);
        listed.len() == 1 && listed[0]["status"] == "stopping"
    });
    running.signal(Signal::TERM);
    assert_eq!(running.finish().signal(), Some(Signal::KILL.as_raw()));
    let sandbox = env.detach(["sleep", "1000"]);
    let running = begin(&["exec", &sandbox.id, "sh", "-c", "echo up; exec sleep 1000"]);
    running.hear("up", 1);
    running.signal(Signal::INT);
    running.finish().with_code(130);
    assert!(sandbox.leader().is_some());
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
    drop(server);
    env.assert_nothing_left();
}

#[test]
fn the_command_is_stopped_when_nobody_reads_its_output() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let script = format!("$PENFOLD --root $ROOT --host {} run yes | head -n 1; echo end", server.host());
    assert_eq!(env.script(&script).out(), "y\nend\n");
    wait_until("the sandbox has ended", || env.listed(&[]).is_empty());
}

/// spec: 15.1, 15.5
#[test]
fn a_followed_log_goes_on_after_restarts_without_a_byte_lost_or_twice() {
    let env = TestEnv::new();
    let mut server = Server::start(&env, &[]);
    let script =
        "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo line $i; sleep 0.01; done; printf 'no end'; exit 6";
    let sandbox = env.detach(["sh", "-c", script]);
    let host = server.host();
    let expected: String = (1..=300).map(|i| format!("line {i}\n")).chain(["no end".to_owned()]).collect();
    let followers = [(); 2].map(|()| env.begin(["--host", &host, "logs", "-f", &sandbox.id]));
    let waiting = env.begin(["--host", &host, "wait", &sandbox.id]);
    let front = env.begin(["--host", &host, "run", "sh", "-c", script]);
    for (line, signal) in
        [("line 20\n", Signal::KILL), ("line 90\n", Signal::TERM), ("line 160\n", Signal::KILL)]
    {
        followers.iter().chain([&front]).for_each(|running| running.hear(line, 1));
        server.running.signal(signal);
        // At the end of its drain a server says so in each stream, and exits with 0.
        server.running.finish().with_code(if signal == Signal::KILL { 137 } else { 0 });
        server = Server::start(&env, &[]);
    }
    for running in followers {
        assert_eq!(running.finish().with_code(0).out(), expected);
    }
    assert_eq!(waiting.finish().with_code(6).out(), "6\n");
    assert_eq!(front.finish().with_code(6).out(), expected);
    server.end();
}

/// spec: 15.1
#[test]
fn a_server_that_does_not_come_back_is_told() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let sandbox = env.detach(["sh", "-c", "echo up; sleep 1000"]);
    let host = server.host();
    let follower = env.begin(["--host", &host, "logs", "-f", &sandbox.id]);
    let front = env.begin(["--host", &host, "run", "--name", "front", "sh", "-c", "echo up; sleep 1000"]);
    follower.hear("up", 1);
    front.hear("up", 1);
    server.running.signal(Signal::KILL);
    server.running.finish().with_code(137);
    for finished in [follower.finish().with_code(1), front.finish().with_code(120)] {
        assert_eq!(finished.out(), "up\n");
        let said = finished.err();
        assert!(said.starts_with("penfold: cannot connect to the server at `unix:/"), "{said}");
    }
    // The command goes on: a server owns nothing.
    assert_eq!(env.listed(&[]).len(), 2);
    env.call(["kill", "--all", "-f"]).with_code(0);
}

#[test]
fn nobody_listening_and_a_wrong_token_are_one_sentence() {
    let env = TestEnv::new();
    let nobody = format!("unix:{}", env.path("work/nobody.sock").display());
    for (verb, code) in
        [(&["ps"][..], 1), (&["stop", "x"], 1), (&["run", "true"], 125), (&["wait", "x"], 125)]
    {
        env.call(["--host", &nobody].iter().chain(verb))
            .refused(code, "cannot connect to the server at `unix:");
    }
    env.call(["--host", "http://127.0.0.1:1", "ps"]).refused(1, "Connection refused");
    let [_, (_server, flags)] = servers(&env);
    let wrong = env.path("work/wrong");
    std::fs::write(&wrong, "0000000000000000\n").unwrap();
    let by = |line: &[&str]| {
        let mut flags = flags.clone();
        wrong.to_str().unwrap().clone_into(&mut flags[3]);
        env.call(words(&flags, line))
    };
    by(&["ps"]).refused(7, "a valid token is needed");
    by(&["kill", "x"]).refused(7, "a valid token is needed");
    by(&["run", "true"]).refused(125, "a valid token is needed");
    env.call(words(&flags[..2], &["ps"])).refused(7, "a valid token is needed");
    std::fs::write(&wrong, "# nothing\n").unwrap();
    by(&["ps"]).refused(2, "it is empty");
    env.call(["--host", "https://a:1", "ps"]).refused(2, "is neither a host nor a server");
    assert_eq!(TOKEN.len(), 20);
}

#[test]
fn verbs_of_this_host_are_refused() {
    let env = TestEnv::new();
    let host = format!("unix:{}", env.path("work/nobody.sock").display());
    for (line, code) in [
        (&["doctor"][..], 2),
        (&["gc"], 2),
        (&["reap", "--pid", "1"], 2),
        (&["tree"], 2),
        (&["serve"], 2),
        (&["watch"], 2),
    ] {
        env.call(["--host", &host].iter().chain(line)).refused(code, "works on this host only");
    }
}

#[test]
fn variables_name_the_server_and_a_server_does_not_call_itself() {
    let env = TestEnv::new();
    let path = env.path("work/api.sock");
    let host = format!("unix:{}", path.display());
    let mut command = env.penfold(["serve", "--listen", &host]);
    let running = Running::start(command.env("PENFOLD_HOST", &host));
    wait_until("the server listens", || std::os::unix::net::UnixStream::connect(&path).is_ok());
    let server = Server { running, place: super::Place::Unix(path) };
    let body = json!({ "command": ["sleep", "1000"], "inherit_env": true });
    let id = post(&server, "/v1/sandboxes", &body).with(201).json()["id"].as_str().unwrap().to_owned();
    let call = |line: &[&str]| {
        let mut command = env.penfold(line);
        Running::start(command.env("PENFOLD_HOST", &host)).finish()
    };
    assert!(call(&["ps", "-q"]).with_code(0).out().contains(&id));
    let mut listed = call(&["ps", "--json"]).json().as_array().cloned().unwrap();
    listed.retain(|one| one["claimed"] == true);
    // Only the server has no record to show.
    assert_eq!(
        listed.iter().map(|one| (&one["id"], &one["record"])).collect::<Vec<_>>(),
        [(&json!(id), &Value::Null)]
    );
    call(&["version"]).with_code(0);
    call(&["tree"]).refused(2, "works on this host only");
    call(&["rm", "-f", &id]).with_code(0);
    let mut wrong = env.penfold(["ps"]);
    Running::start(wrong.env("PENFOLD_HOST", "nowhere")).finish().refused(2, "`PENFOLD_HOST` is wrong");
}

/// spec: 15.11
#[test]
fn a_socket_of_any_length_is_reached() {
    let env = TestEnv::new();
    let mut directory = env.path("work");
    for _ in 0..4 {
        directory.push("d".repeat(60));
    }
    std::fs::create_dir_all(&directory).unwrap();
    let host = format!("unix:{}/api.sock", directory.display());
    let server = env.begin(["serve", "--listen", &host]);
    server.hear_error("listening", 1);
    let id = env.call(["--host", &host, "run", "-d", "sleep", "4783"]).with_code(0).out();
    let pid = env.call(["--host", &host, "inspect", id.trim()]).json()[0]["leader"]["pid"].as_i64().unwrap();
    let leader = Process::find(pid.try_into().unwrap()).expect("it lives");
    env.call(["--host", &host, "kill", id.trim()]).with_code(0);
    assert!(leader.has_ended());
    env.call(["--host", &host, "run", "sh", "-c", "exit 3"]).with_code(3);
    env.call(["--host", &host, "rm", id.trim()]).with_code(0);
    server.signal(Signal::TERM);
    server.finish().with_code(0);
    env.assert_nothing_left();
}
