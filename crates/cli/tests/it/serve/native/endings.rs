//! Stop, kill, delete, wait, extend, report.

use serde_json::json;

use super::{Server, ask, create, get, post, script, start};
use crate::end::standing::{await_state_d, await_verified, frozen, write_to};
use crate::support::{Process, Sandbox, TREE, TestEnv, skip, wait_until};

/// A sandbox of a hostile tree that stands, with its members.
fn tree(env: &TestEnv, server: &Server) -> (String, Vec<Process>) {
    let up = env.path("work/up");
    let _ = std::fs::remove_file(&up);
    let body = json!({ "command": ["sh", "-c", TREE], "env": { "UP": up.to_str().unwrap() }, "grace_ms": 300,
        "inherit_env": true });
    let id = create(server, &body)["id"].as_str().unwrap().to_owned();
    wait_until("the tree stands", || {
        std::fs::read_to_string(&up).is_ok_and(|text| text.lines().count() == 2)
    });
    let members = Sandbox::printed(env, &format!("{id}\n")).members(env);
    assert!(members.len() >= 4, "{members:?}");
    (id, members)
}

/// spec: 15.14
#[test]
fn stop_kill_and_delete_answer_after_the_whole_tree_is_gone() {
    let (env, server) = start();
    for (method, path, cause) in
        [("POST", "/stop", "stop"), ("POST", "/kill", "kill"), ("DELETE", "", "kill")]
    {
        let (id, members) = tree(&env, &server);
        let ended = ask(&server, method, &format!("/v1/sandboxes/{id}{path}"), "", b"").with(200).json();
        assert!(members.iter().all(Process::has_ended), "{method} {path}");
        assert_eq!(
            (&ended["result"], &ended["report"]["verified"]),
            (&json!("gone"), &json!(true)),
            "{ended}"
        );
        assert_eq!((&ended["report"]["cause"], &ended["report"]["survivors"]), (&json!(cause), &json!([])));
        assert!(ended["report"]["ended"].as_array().unwrap().len() >= members.len());
        let report = get(&server, &format!("/v1/sandboxes/{id}/report"));
        assert_eq!(report.status, if path.is_empty() { 404 } else { 200 });
        let again = ask(&server, method, &format!("/v1/sandboxes/{id}{path}"), "", b"").with(200).json();
        assert_eq!(
            (&again["result"], &again["report"]),
            (&json!("already_gone"), &ended["report"]),
            "{path}"
        );
    }
    for path in ["/stop", "/kill"] {
        assert_eq!(
            ask(&server, "POST", &format!("/v1/sandboxes/no-name{path}"), "", b"").with(404).problem(),
            "not_found"
        );
    }
}

/// spec: 15.14
#[test]
fn a_delete_after_the_end_of_a_foreground_sandbox_has_the_report_of_the_history() {
    let (env, server) = start();
    env.run(["sh", "-c", "exit 7"]).with_code(7);
    let kept = env.call(["report", "--last", "--json"]).with_code(0).json();
    let path = format!("/v1/sandboxes/{}", kept[0]["id"].as_str().unwrap());
    let ended = ask(&server, "DELETE", &path, "", b"").with(200).json();
    assert_eq!(ended["result"], "already_gone");
    for field in ["id", "exit", "steps", "verified"] {
        assert_eq!(ended["report"][field], kept[0][field], "{field}");
    }
}

/// spec: 27.6, 27.8
#[test]
fn a_sandbox_that_is_restarted_on_the_host_has_one_id_here() {
    let (env, server) = start();
    let script = "echo >>lives; [ $(wc -l <lives) -lt 4 ] && exit 6; exec sleep 1162";
    let sandbox = env.detach(["--name", "web", "--restart", "on-failure", "--", "sh", "-c", script]);
    let path = format!("/v1/sandboxes/{}", sandbox.id);
    wait_until("it waits for its next start", || {
        let seen = get(&server, &path).with(200).json();
        seen["status"] == "waiting" && seen["living"] == true && seen["next_start_at_ms"].is_u64()
    });
    wait_until("the last life runs", || env.is_running("sleep 1162"));
    let seen = get(&server, "/v1/sandboxes/web").with(200).json();
    assert_eq!((&seen["id"], &seen["restarts"]), (&json!(sandbox.id), &json!(3)));
    for life in 1..4 {
        let report = get(&server, &format!("{path}/report?life={life}")).with(200).json();
        assert_eq!((&report["exit"], &report["id"]), (&json!({ "code": 6 }), &json!(sandbox.id)));
    }
    assert_eq!(get(&server, &format!("{path}/report?life=4")).with(409).problem(), "not_ended");
    assert_eq!(get(&server, &format!("{path}/report?life=0")).with(422).problem(), "invalid_field");
    assert_eq!(get(&server, &format!("{path}/wait?timeout_ms=1")).with(200).json()["ended"], false);
    let ended = post(&server, &format!("{path}/stop"), &json!({})).with(200).json();
    assert_eq!((&ended["report"]["life"], &ended["report"]["cause"]), (&json!(4), &json!("stop")));
    assert!(!env.is_running("sleep 1162"));
    ask(&server, "DELETE", &path, "", b"").with(200);
}

#[test]
fn an_end_that_is_not_waited_for_names_its_report() {
    let (env, server) = start();
    let (id, members) = tree(&env, &server);
    let reply = ask(&server, "POST", &format!("/v1/sandboxes/{id}/kill?wait=0"), "", b"").with(202);
    let url = reply.json()["report_url"].as_str().unwrap().to_owned();
    assert!(reply.head.contains(&format!("location: {url}")));
    wait_until("the report is there", || get(&server, &url).status == 200);
    assert!(members.iter().all(Process::has_ended));
    assert_eq!(get(&server, &url).json()["verified"], true);
    let reply = ask(&server, "POST", &format!("/v1/sandboxes/{id}/kill?wait=2"), "", b"").with(422);
    assert_eq!(reply.problem(), "invalid_field");
}

#[test]
fn a_stop_has_a_signal_and_a_grace() {
    let (_env, server) = start();
    let id = script(&server, "trap 'exit 7' USR1; trap '' TERM; echo up; while :; do sleep 0.1; done");
    wait_until("the traps are set", || {
        !get(&server, &format!("/v1/sandboxes/{id}/logs")).json()["frames"].as_array().unwrap().is_empty()
    });
    let body = json!({ "signal": "SIGUSR1", "grace_ms": 20_000 });
    let ended = post(&server, &format!("/v1/sandboxes/{id}/stop"), &body).with(200).json();
    assert_eq!(
        (&ended["report"]["exit"], &ended["report"]["cause"]),
        (&json!({ "code": 7 }), &json!("stop"))
    );
    for body in
        [json!({ "signal": "NOPE" }), json!({ "signal": 15 }), json!({ "grace_ms": -1 }), json!({ "x": 1 })]
    {
        let reply = post(&server, &format!("/v1/sandboxes/{id}/stop"), &body).with(422);
        assert_eq!(reply.problem(), "invalid_field");
    }
}

#[test]
fn a_wait_returns_the_exit_or_that_there_is_none() {
    let (_env, server) = start();
    let id = script(&server, "read line < /proc/self/fd/0; sleep 600");
    let path = format!("/v1/sandboxes/{id}/wait");
    let waited = get(&server, &format!("{path}?timeout_ms=50")).with(200).json();
    assert_eq!((&waited["ended"], &waited["exit"]), (&json!(false), &json!(null)));
    assert_eq!(get(&server, &format!("/v1/sandboxes/{id}/report")).with(409).problem(), "not_ended");
    let waited = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| get(&server, &path).with(200).json());
        // The record stays, so that the answer is the same if the end comes first.
        post(&server, &format!("/v1/sandboxes/{id}/kill"), &json!({})).with(200);
        waiting.join().unwrap()
    });
    assert_eq!((&waited["ended"], &waited["cause"]), (&json!(true), &json!("kill")));
    let id = script(&server, "exit 3");
    let waited = get(&server, &format!("/v1/sandboxes/{id}/wait")).with(200).json();
    assert_eq!((&waited["exit"], &waited["cause"]), (&json!({ "code": 3 }), &json!("exit")));
    assert_eq!(get(&server, &format!("{path}?timeout_ms=60001")).with(422).problem(), "invalid_field");
}

/// spec: 12.13
#[test]
fn a_sandbox_can_be_paused_and_goes_on() {
    let (_env, server) = start();
    let id = script(&server, "sleep 600");
    let ask_for = |act: &str| post(&server, &format!("/v1/sandboxes/{id}/{act}"), &json!({}));
    let paused = ask_for("pause");
    if paused.status == 409 {
        assert_eq!(paused.problem(), "refused");
        return skip("no cgroup can be made here");
    }
    assert_eq!(paused.with(200).json()["status"], "paused");
    for _ in 0..2 {
        assert_eq!(ask_for("unpause").with(200).json()["status"], "running");
    }
    ask_for("pause").with(200);
    let stopped =
        post(&server, &format!("/v1/sandboxes/{id}/stop"), &json!({ "grace_ms": 100 })).with(200).json();
    assert_eq!(stopped["result"], "gone", "{stopped}");
    assert_eq!(ask_for("pause").with(409).problem(), "has_ended");
    post(&server, "/v1/sandboxes/nobody/pause", &json!({})).with(404);
}

#[test]
fn a_lease_can_be_extended_while_the_sandbox_lives() {
    let (_env, server) = start();
    let id = script(&server, "sleep 600");
    let path = format!("/v1/sandboxes/{id}/extend");
    let extended = post(&server, &path, &json!({ "lease_ms": 60_000 })).with(200).json();
    assert!(extended["expires_at_ms"].is_u64());
    let extended = post(&server, &path, &json!({ "lease_ms": 0 })).with(200).json();
    assert!(extended["expires_at_ms"].is_null());
    post(&server, &path, &json!({ "lease_ms": 1 })).with(200);
    let waited = get(&server, &format!("/v1/sandboxes/{id}/wait")).with(200).json();
    assert_eq!(waited["cause"], "ttl");
    assert_eq!(post(&server, &path, &json!({ "lease_ms": 1 })).with(409).problem(), "has_ended");
}

/// spec: 13.8.1
#[test]
fn a_lease_without_a_supervisor_or_a_record_is_refused_and_the_sandbox_is_not_called_ended() {
    let (env, server) = start();
    let id = script(&server, "exec sleep 4411");
    let sandbox = Sandbox::printed(&env, &format!("{id}\n"));
    wait_until("the command runs", || env.is_running("sleep 4411"));
    let path = format!("/v1/sandboxes/{id}/extend");
    let check = |sentence: &str| {
        let refused = post(&server, &path, &json!({ "lease_ms": 60_000 })).with(409);
        assert_eq!(refused.problem(), "refused", "{}", refused.json());
        assert!(refused.json()["detail"].as_str().unwrap().contains(sentence), "{}", refused.json());
        let refused = env.call(["extend", &id, "1m"]).with_code(1).err();
        assert!(refused.contains(sentence), "{refused}");
        assert!(env.is_running("sleep 4411"), "{sentence}");
    };
    let has_leaf = env.call(["inspect", &id]).json()[0]["leaf"].is_string();
    if has_leaf {
        let aside = env.path("aside");
        std::fs::rename(&sandbox.record, &aside).unwrap();
        check("its record is lost");
        std::fs::rename(&aside, &sandbox.record).unwrap();
    }
    // The server ends a sandbox that has lost its supervisors, as soon as it can lock the record. A reader that already waits for
    // the lock gets it first.
    let record = std::fs::File::open(&sandbox.record).unwrap();
    let reader = std::thread::spawn(move || record.lock_shared().map(|()| record).unwrap());
    sandbox.kill_supervisors();
    let record = reader.join().unwrap();
    // With a pid namespace as the only containment, the members die with the supervisor.
    if env.is_running("sleep 4411") {
        check("it has lost its supervisors");
    }
    drop(record);
    env.call(["kill", &id]).with_code(0);
    assert!(!env.is_running("sleep 4411"));
}

#[test]
fn an_end_that_cannot_be_verified_names_what_is_left() {
    let Some(frozen) = frozen() else { return };
    let (env, server) = start();
    let text = format!("{}; sleep 600", write_to(&frozen));
    let body = json!({ "command": ["sh", "-c", text], "patience_ms": 300 });
    let id = create(&server, &body)["id"].as_str().unwrap().to_owned();
    let sandbox = Sandbox::printed(&env, &format!("{id}\n"));
    let leader = sandbox.leader().unwrap();
    await_state_d(&leader);
    for (method, path) in [("POST", "/stop"), ("POST", "/kill"), ("DELETE", "")] {
        let headers = if method == "DELETE" { "" } else { "content-type: application/json\r\n" };
        let body: &[u8] = if path == "/stop" { b"{\"grace_ms\":1}" } else { b"" };
        let reply = ask(&server, method, &format!("/v1/sandboxes/{id}{path}"), headers, body).with(500);
        assert_eq!(reply.problem(), "unverified");
        let left = reply.json()["remaining"][0].clone();
        assert_eq!((&left["pid"], &left["state"]), (&json!(leader.pid()), &json!("D")), "{left}");
        assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).json()["status"], "unkillable");
    }
    drop(frozen);
    await_verified(&sandbox);
    let ended = ask(&server, "POST", &format!("/v1/sandboxes/{id}/kill"), "", b"").with(200).json();
    assert_eq!((&ended["result"], &ended["report"]["verified"]), (&json!("already_gone"), &json!(true)));
}
