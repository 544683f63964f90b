//! The server is killed in the middle of a request, its disk is full, its descriptors are used up.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::cloudflare::{Api, alive, output, pid_in};
use super::native;
use super::{Answer, Place, Server};
use crate::support::{Process, TestEnv, is_root, skip, wait_until};

/// Waits for this time.
fn pause(time: Duration) {
    let end = Instant::now() + time;
    wait_until("a while has passed", || Instant::now() >= end);
}

/// A client of a server that is killed gets half an answer at most.
#[track_caller]
fn assert_cut_off(stream: &mut dyn std::io::Read) {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    assert!(!bytes.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&bytes));
}

/// spec: 15.1
#[test]
fn a_command_in_flight_runs_on_when_the_server_is_killed() {
    let mut api = Api::start();
    api.out("s", "cd /usr; A=1");
    let (up, go, done) = (api.path("up"), api.path("go"), api.path("done"));
    let command = format!("echo $$ > {up}; until [ -e {go} ]; do sleep 0.05; done; A=2; echo 7 > {done}");
    let body = json!({ "command": command, "sessionId": "s" }).to_string();
    for path in ["/api/execute", "/api/execute/stream"] {
        for file in [&up, &go, &done] {
            let _ = std::fs::remove_file(file);
        }
        let mut answer = api.send("POST", path, "", &body);
        let shell = pid_in(&up);
        api.replace_server();
        assert_cut_off(&mut answer);
        assert!(alive(shell) && !std::fs::exists(&done).unwrap());
        assert_eq!(api.get("/api/session/list").ok()["data"], json!(["s"]));
        std::fs::write(&go, "").unwrap();
        assert_eq!(pid_in(&done), 7);
        wait_until("it has ended", || path == "/api/execute" || !alive(shell));
        // The command of a stream is a process beside the shell.
        assert_eq!(api.out("s", "pwd; echo $A"), "/usr\n2\n");
    }
}

/// spec: 15.1
#[test]
fn a_stream_of_a_killed_server_is_cut_off_and_the_next_one_has_every_byte() {
    let mut api = Api::start();
    let text = "for i in $(seq 1 600); do echo line $i; [ $((i % 100)) = 0 ] && sleep 0.1; done; exit 3";
    api.process("s", "p", text);
    let whole: String = (1..=600).flat_map(|number| ["line ".to_owned(), format!("{number}\n")]).collect();
    for _ in 0..3 {
        let mut stream = api.follow("p");
        stream.await_output("line ");
        api.replace_server();
        let rest = stream.rest();
        let over = rest.iter().any(|event| event["type"] == "exit");
        assert!(!over || rest.last().unwrap()["exitCode"] == 3, "{rest:?}");
    }
    let events = api.follow("p").rest();
    assert!(output(&events, "stdout") == whole);
    assert_eq!(events.last().unwrap()["exitCode"], 3);
    assert_eq!(api.get("/api/process/p/logs").ok()["stdout"], whole);
}

/// Each session is listed and usable, or there is nothing of it.
/// spec: 15.1.1
#[test]
fn a_creation_in_flight_leaves_a_whole_session_or_nothing_unlisted() {
    let mut api = Api::start();
    let mut listed = 0;
    for round in 0..12_u64 {
        let id = format!("s{round}");
        let mut answer = api.send("POST", "/api/session/create", "", &json!({ "id": id }).to_string());
        pause(Duration::from_millis(round * 3));
        api.replace_server();
        let _ = answer.read_to_end(&mut Vec::new());
        api.server.await_ready();
        let made = api.get("/api/session/list").ok()["data"].as_array().unwrap().contains(&json!(id));
        listed += u32::from(made);
        let again = api.post("/api/session/create", &json!({ "id": id }));
        // A creation may have been complete just after the list.
        assert!(again.status == 409 || again.status == 200 && !made, "{made}: {:?}", again.json());
        assert_eq!(api.out(&id, "echo usable"), "usable\n");
        api.post("/api/session/delete", &json!({ "sessionId": id })).ok();
        let left = || api.env.processes().iter().map(Process::command_line).collect::<Vec<_>>();
        wait_until("nothing is left", || api.env.left().is_empty() && left().len() == 1);
    }
    assert!(listed < 12, "no creation was interrupted");
}

/// spec: 15.1.1
#[test]
fn a_kill_in_flight_is_completed_without_the_server() {
    let mut api = Api::with(&["--api", "native,cloudflare"]);
    let deaf = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    let id = native::script(&api.server, "exec sleep 600");
    let execs = format!("/v1/sandboxes/{id}/execs");
    let body = json!({ "command": ["sh", "-c", deaf], "grace_ms": 1500 });
    let made = native::post(&api.server, &execs, &body).with(201).json();
    let exec = format!("{execs}/{}", made["number"]);
    wait_until("the trap is set", || {
        native::get(&api.server, &format!("{exec}/logs?format=raw")).body == b"up\n"
    });
    let leader = i32::try_from(native::get(&api.server, &exec).json()["pid"].as_i64().unwrap()).unwrap();
    let mut stop = api.server.connect();
    native::send(&mut *stop, "POST", &format!("{exec}/stop"), "", b"");
    let pid = api.process("s", "p", deaf);
    api.follow("p").await_output("up");
    let mut kill = api.send("DELETE", "/api/process/p", "", "");
    pause(Duration::from_millis(300));
    assert!(alive(leader) && alive(pid), "the kill was over before the server");
    api.server.running.signal(Signal::KILL);
    api.server.running.process().await_end();
    let fresh = Server::start(&api.env, &["--api", "native,cloudflare"]);
    std::mem::replace(&mut api.server, fresh).running.finish().with_code(137);
    assert_cut_off(&mut *stop);
    assert_cut_off(&mut kill);
    let status = api.status("p").0;
    assert!(if alive(pid) { status == "running" } else { status == "killed" }, "{status}");
    let ended = native::get(&api.server, &format!("{exec}/wait")).with(200).json();
    assert_eq!((&ended["ended"], &ended["cause"]), (&json!(true), &json!("stop")), "{ended}");
    assert!(!alive(leader));
    // Either this one ends it, or it has ended.
    let told = api.delete("/api/process/p");
    assert!(matches!(told.status, 200 | 404), "{:?}", told.json());
    assert!(!alive(pid));
    assert_eq!(api.status("p"), ("killed".to_owned(), Some(137)));
}

/// A file system that is unmounted when this is dropped.
pub struct SmallDisk(pub PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A server whose state root is a small file system.
struct FullDisk {
    /// Dropped before the environment, which removes the directory.
    mounted: SmallDisk,
    api: Api,
}

impl FullDisk {
    /// Returns `None` if no file system can be mounted.
    fn start() -> Option<FullDisk> {
        if !is_root() {
            return None;
        }
        let env = TestEnv::new();
        if mount("none", env.root(), "tmpfs", MountFlags::empty(), c"size=1m,nr_inodes=400").is_err() {
            skip("no tmpfs can be mounted here");
            return None;
        }
        let mounted = SmallDisk(env.root());
        let server = Server::start(&env, &["--api", "native,cloudflare"]);
        Some(FullDisk { mounted, api: Api { env, server } })
    }

    fn filler(&self) -> PathBuf {
        self.api.env.path("root/filler")
    }

    fn fill(&self) {
        let mut file = File::create(self.filler()).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    /// Ends the server, which must not have panicked.
    fn end(self) {
        let FullDisk { mounted, api: Api { env, server } } = self;
        let said = server.end();
        assert!(!said.contains("panicked"), "{said}");
        drop(mounted);
        drop(env);
    }
}

#[test]
fn a_full_state_root_is_a_clear_error_and_loses_nothing() {
    let Some(disk) = FullDisk::start() else { return };
    let api = &disk.api;
    api.out("s", "cd /usr; A=1");
    let pid = api.process("s", "p", "sleep 1000");
    let id = native::script(&api.server, "exec sleep 600");
    let sessions = format!("/v1/sandboxes/{id}/sessions");
    native::post(&api.server, &sessions, &json!({ "name": "main" })).with(201);
    disk.fill();
    // No 429: another try does not help.
    api.post("/api/session/create", &json!({ "id": "t" })).fails(500, "NO_SPACE");
    for session in ["s", "__DISABLE_SESSION__"] {
        let body = json!({ "command": "true", "sessionId": session });
        api.post("/api/process/start", &body).fails(500, "NO_SPACE");
        api.post("/api/execute/stream", &body).fails(500, "NO_SPACE");
    }
    api.run("__DISABLE_SESSION__", "true").fails(500, "NO_SPACE");
    for (path, body) in [
        ("/v1/sandboxes".to_owned(), json!({ "command": ["true"] })),
        (format!("/v1/sandboxes/{id}/execs"), json!({ "command": ["true"] })),
        (sessions.clone(), json!({ "name": "other" })),
        (format!("{sessions}/main/run"), json!({ "command": "x".repeat(100_000) })),
    ] {
        assert_eq!(native::post(&api.server, &path, &body).with(507).problem(), "no_space", "{path}");
    }
    // A command may run or be refused; it does not hang.
    let told = api.run("s", "echo a");
    assert!(told.status == 200 || told.status >= 400, "{:?}", told.json());
    assert_eq!(api.status("p").0, "running");
    assert!(alive(pid));
    disk.make_room();
    assert_eq!(api.get("/api/session/list").ok()["data"], json!(["s"]));
    assert_eq!(api.out("s", "pwd; echo $A"), "/usr\n1\n");
    native::delete(&api.server, &format!("/v1/sandboxes/{id}")).with(200);
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    disk.end();
}

/// An end needs no room: the supervisor keeps it until there is room for its record.
/// spec: 13.13
#[test]
fn a_kill_on_a_full_state_root_ends_everything_and_says_how_it_ended() {
    let Some(disk) = FullDisk::start() else { return };
    let api = &disk.api;
    let pid = api.process("s", "p", "sleep 1000");
    let tree = "trap 'exit 7' TERM; sleep 1000 & setsid sleep 1000 & echo up; while :; do wait; done";
    let root = api.process("s", "tree", tree);
    let mut stream = api.follow("tree");
    stream.await_output("up");
    for number in 0..5 {
        api.process("s", &format!("more{number}"), "sleep 1000");
    }
    let id = native::script(&api.server, "exec sleep 600");
    let execs = format!("/v1/sandboxes/{id}/execs");
    let command = json!({ "command": ["sleep", "1000"] });
    let number = native::post(&api.server, &execs, &command).with(201).json()["number"].clone();
    disk.fill();
    assert!(alive(pid) && alive(root));
    let began = Instant::now();
    api.delete("/api/process/p").ok();
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(!alive(pid));
    assert_eq!(api.status("p"), ("killed".to_owned(), Some(143)));
    api.delete("/api/process/p").fails(404, "COMMAND_NOT_FOUND");
    api.delete("/api/process/tree").ok();
    assert!(!alive(root));
    let end = stream.rest().pop().unwrap();
    assert_eq!((&end["type"], &end["exitCode"]), (&json!("exit"), &json!(7)));
    assert_eq!(api.delete("/api/process/kill-all").ok()["cleanedCount"], 5);
    let exec = format!("{execs}/{number}");
    let killed = native::post(&api.server, &format!("{exec}/kill"), &json!({})).with(200).json();
    assert_eq!((&killed["result"], &killed["exit"]), (&json!("gone"), &json!({ "signal": 9 })), "{killed}");
    assert_eq!(killed["report"]["verified"], true, "{killed}");
    let ended = native::get(&api.server, &exec).with(200).json();
    assert!(ended["ended_at_ms"].as_u64().is_some_and(|ms| ms > 0), "{ended}");
    let list = api.get("/api/process/list").ok();
    let list = list["processes"].as_array().unwrap();
    assert!(list.len() == 7 && list.iter().all(|process| process["status"] == "killed"), "{list:?}");
    disk.make_room();
    let record = api.env.root().join(format!("sandboxes/{id}/execs/{number}/report.json"));
    wait_until("the end is recorded", || record.try_exists().unwrap());
    assert_eq!(native::get(&api.server, &exec).with(200).json(), ended);
    assert_eq!((api.status("p").1, api.status("tree").1), (Some(143), Some(7)));
    native::delete(&api.server, &format!("/v1/sandboxes/{id}")).with(200);
    api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
    disk.end();
}

/// Readers that take nothing hold all streams that the server can have, and no more.
/// spec: 15.15, 15.16
#[test]
fn followers_that_read_nothing_leave_descriptors_for_everybody_else() {
    let env = TestEnv::new();
    let path = env.path("work/api.sock");
    let mut command = env.command("sh");
    command.args(["-c", "ulimit -n 256; exec \"$@\"", "sh"]).arg(crate::support::penfold());
    command.arg("--root").arg(env.root()).args(["serve", "--api", "native", "--listen"]);
    command.arg(format!("unix:{}", path.display()));
    let server = Server { running: crate::support::Running::start(&mut command), place: Place::Unix(path) };
    wait_until("the server listens", || server.try_connect().is_ok());
    let ids: Vec<String> = (0..12).map(|_| native::script(&server, "echo here; exec sleep 1000")).collect();
    let follow = |id: &str| {
        let mut stream = server.connect();
        let request = format!("GET /v1/sandboxes/{id}/logs?follow=true HTTP/1.1\r\nhost: a\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        match &begin[9..] {
            b"200" => Some(stream),
            b"429" => None,
            other => panic!("{}", String::from_utf8_lossy(other)),
        }
    };
    let held: Vec<_> = ids.iter().filter_map(|id| follow(id)).collect();
    assert!(!held.is_empty() && held.len() < ids.len(), "{} held", held.len());
    // Whoever follows what is followed takes a connection only.
    let joined: Vec<_> = (0..40).filter_map(|_| follow(&ids[0])).collect();
    assert_eq!(joined.len(), 40);
    let log = format!("/v1/sandboxes/{}/logs", ids[0]);
    let range = native::get(&server, &log).with(200).json();
    assert_eq!(range["frames"][0]["text"], "here\n");
    for id in &ids {
        native::delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
    }
}

/// spec: 15.15
#[test]
fn many_requests_with_few_descriptors_get_no_wrong_answer() {
    let env = TestEnv::new();
    let path = env.path("work/api.sock");
    let mut command = env.command("sh");
    command.args(["-c", "ulimit -n 128; exec \"$@\"", "sh"]).arg(crate::support::penfold());
    command.arg("--root").arg(env.root()).args(["serve", "--api", "native", "--listen"]);
    command.arg(format!("unix:{}", path.display()));
    let server = Server { running: crate::support::Running::start(&mut command), place: Place::Unix(path) };
    wait_until("the server listens", || server.try_connect().is_ok());
    let id = native::script(&server, "echo here; exec sleep 1000");
    let begun = std::sync::Barrier::new(28);
    let asked = |number: usize| {
        begun.wait();
        let mut told = Vec::new();
        for round in 0..6 {
            let answer = match (number + round) % 3 {
                0 => native::get(&server, &format!("/v1/sandboxes/{id}")),
                1 => native::get(&server, &format!("/v1/sandboxes/{id}/logs")),
                _ => native::post(
                    &server,
                    &format!("/v1/sandboxes/{id}/execs?wait=1"),
                    &json!({ "command": ["true"] }),
                ),
            };
            told.push((answer.status, String::from_utf8_lossy(&answer.body).into_owned()));
        }
        told
    };
    let told: Vec<(u16, String)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..28).map(|number| scope.spawn(move || asked(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let wrong: Vec<_> = told.iter().filter(|(status, _)| ![200, 201, 429].contains(status)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(told.iter().filter(|(status, _)| *status != 429).count() > 80, "{told:?}");
    native::delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}

/// spec: 15.15
#[test]
fn many_commands_with_few_descriptors_get_no_wrong_answer() {
    let env = TestEnv::new();
    let path = env.path("work/api.sock");
    let mut command = env.command("sh");
    command.args(["-c", "ulimit -n 128; exec \"$@\"", "sh"]).arg(crate::support::penfold());
    command.arg("--root").arg(env.root()).args(["serve", "--api", "cloudflare", "--listen"]);
    command.arg(format!("unix:{}", path.display()));
    let server = Server { running: crate::support::Running::start(&mut command), place: Place::Unix(path) };
    wait_until("the server listens", || server.try_connect().is_ok());
    let api = Api { env, server };
    for session in 0..4 {
        api.out(&format!("s{session}"), "A=1");
    }
    let begun = std::sync::Barrier::new(28);
    let asked = |number: usize| {
        begun.wait();
        (0..5).map(|_| api.run(&format!("s{}", number % 4), "echo $A")).collect::<Vec<_>>()
    };
    let told: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..28).map(|number| scope.spawn(move || asked(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let wrong: Vec<_> = told.iter().filter(|told| ![200, 429].contains(&told.status)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(told.iter().any(|told| told.status == 200));
    for session in 0..4 {
        let name = format!("s{session}");
        wait_until("there is room again", || api.run(&name, "echo $A").status == 200);
        assert_eq!(api.out(&name, "echo $A"), "1\n");
        api.post("/api/session/delete", &json!({ "sessionId": name })).ok();
    }
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.15
#[test]
fn a_server_that_could_have_too_few_descriptors_does_not_start() {
    let env = TestEnv::new();
    let mut command = env.command("sh");
    command.args(["-c", "ulimit -n 47; exec \"$@\"", "sh"]).arg(crate::support::penfold());
    command.arg("--root").arg(env.root()).args(["serve", "--listen", "unix:serve.sock"]);
    let done = crate::support::Running::start(&mut command).finish();
    done.refused(1, "cannot serve with 47 open files: at least 48 are needed");
    env.assert_nothing_left();
}

#[test]
fn a_server_without_descriptors_refuses_clearly_and_recovers() {
    let env = TestEnv::new();
    let path = env.path("work/api.sock");
    let mut command = env.command("sh");
    command.args(["-c", "ulimit -n 48; exec \"$@\"", "sh"]).arg(crate::support::penfold());
    command.arg("--root").arg(env.root()).args(["serve", "--api", "native,cloudflare", "--listen"]);
    command.arg(format!("unix:{}", path.display()));
    let running = crate::support::Running::start(&mut command);
    let server = Server { running, place: Place::Unix(path) };
    wait_until("the server listens", || server.try_connect().is_ok());
    let api = Api { env, server };
    api.out("s", "A=1");
    for count in [15, 18, 20, 21, 22, 23, 60] {
        // An idle connection takes a descriptor as soon as it is accepted.
        let held: Vec<_> = (0..count).filter_map(|_| api.server.try_connect().ok()).collect();
        let asked: Vec<(&str, Value)> = vec![
            ("/api/execute", json!({ "command": "echo a", "sessionId": "s" })),
            ("/api/session/create", json!({ "id": "t" })),
            ("/v1/sandboxes", json!({ "command": ["true"] })),
        ];
        for (path, body) in asked {
            let mut stream = api.server.connect();
            let body = body.to_string();
            let request = format!(
                "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(request.as_bytes());
            let mut bytes = Vec::new();
            let _ = stream.read_to_end(&mut bytes);
            let answer = Answer::parse(&String::from_utf8_lossy(&bytes));
            assert!(
                matches!(answer.status, 200 | 201 | 409 | 429) || answer.status >= 500,
                "{count} {path}: {answer:?}"
            );
            assert!(!answer.body.is_empty(), "{count} {path}");
        }
        drop(held);
        wait_until("there is room again", || api.run("s", "echo $A").status == 200);
        assert_eq!(api.out("s", "echo $A"), "1\n");
    }
    let said = api.server.end();
    assert!(!said.contains("panicked"), "{said}");
}
