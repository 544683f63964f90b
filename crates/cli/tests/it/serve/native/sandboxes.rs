//! Create, list, get.

use serde_json::{Value, json};

use super::{ask, claimed, create, delete, get, post, script, start};
use crate::serve::Server;
use crate::support::{Sandbox, TestEnv, wait_until};

fn ids(page: &Value) -> Vec<String> {
    page["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_created_sandbox_runs_as_it_was_asked_for() {
    let (env, server) = start();
    let work = env.path("work").to_str().unwrap().to_owned();
    let made = create(
        &server,
        &json!({
            "command": ["sh", "-c", "pwd; echo \"$A $SECRET\"; exec sleep 600"], "name": "web",
            "labels": { "job": "17" }, "env": { "A": "x y", "PATH": "/usr/bin:/bin" }, "dir": work,
            "lease_ms": 3_600_000, "grace_ms": 500, "signal": "INT",
        }),
    );
    assert_eq!(
        (&made["name"], &made["status"], &made["living"]),
        (&json!("web"), &json!("running"), &json!(true))
    );
    assert_eq!((&made["labels"]["job"], &made["workspace"]), (&json!("17"), &json!(work)));
    assert!(made["expires_at_ms"].is_u64());
    let sandbox = Sandbox::printed(&env, &format!("{}\n", made["id"].as_str().unwrap()));
    assert!(sandbox.leader().is_some());
    let logs = || sandbox.call(&env, &["logs", "ID"]).out();
    wait_until("the command has written", || logs().lines().count() == 2);
    assert_eq!(logs(), format!("{work}\nx y \n"));
    let same = get(&server, "/v1/sandboxes/web").with(200).json();
    assert_eq!(same["id"], made["id"]);
    delete(&server, "/v1/sandboxes/web").with(200);
    assert!(sandbox.leader().is_none() && sandbox.members(&env).is_empty());
}

/// spec: 8.15
#[test]
fn no_configuration_changes_a_created_sandbox() {
    let env = TestEnv::new();
    let home = env.path("work/home");
    std::fs::create_dir_all(home.join(".config/penfold")).unwrap();
    let log = env.path("work/events.log");
    let text = format!("log = \"{}\"\n[run]\nlabels = {{ team = \"build\" }}\n", log.display());
    std::fs::write(home.join(".config/penfold/config.toml"), text).unwrap();
    let server = Server::start_with(&env, "api.sock", &["--api", "native"], |command| {
        command.env("HOME", &home);
    });
    let made = create(&server, &json!({ "command": ["sleep", "600"], "name": "web" }));
    assert_eq!((&made["status"], &made["labels"]), (&json!("running"), &json!({})));
    delete(&server, "/v1/sandboxes/web").with(200);
    assert!(!log.try_exists().unwrap());
}

#[test]
fn a_command_that_cannot_run_is_a_problem_of_its_own_kind() {
    let (env, server) = start();
    let directory = env.path("work").to_str().unwrap().to_owned();
    for (body, kind) in [
        (json!({ "command": ["no-such-program-at-all"] }), "command_not_found"),
        (json!({ "command": [directory] }), "command_not_executable"),
        (json!({ "command": ["true"], "dir": "/no/such/directory" }), "not_started"),
    ] {
        let reply = post(&server, "/v1/sandboxes", &body).with(422);
        assert_eq!(reply.problem(), kind);
    }
    let first = create(&server, &json!({ "command": ["sleep", "600"], "name": "web" }));
    let reply = post(&server, "/v1/sandboxes", &json!({ "command": ["true"], "name": "web" })).with(409);
    assert_eq!((reply.problem().as_str(), &reply.json()["holder"]), ("name_taken", &first["id"]));
    assert_eq!(get(&server, "/v1/sandboxes/nobody").with(404).problem(), "not_found");
}

/// spec: 15.1
#[test]
fn a_repeated_create_gets_the_same_sandbox_also_from_the_next_server() {
    let (env, server) = start();
    let body = json!({ "command": ["sleep", "600"] }).to_string();
    let again = |server: &super::Server, key: &str, body: &str| {
        ask(server, "POST", "/v1/sandboxes", &format!("idempotency-key: {key}\r\n"), body.as_bytes())
    };
    let first = again(&server, "one", &body).with(201).json();
    let id = first["id"].clone();
    assert_eq!(again(&server, "one", &body).with(200).json()["id"], id);
    assert_ne!(again(&server, "two", &body).with(201).json()["id"], id);
    let other = json!({ "command": ["sleep", "601"] }).to_string();
    assert_eq!(again(&server, "one", &other).with(422).problem(), "key_reused");
    for bad in ["a b", "one\r\nidempotency-key: two"] {
        assert_eq!(again(&server, bad, &body).with(400).problem(), "bad_request");
    }
    server.running.signal(rustix::process::Signal::KILL);
    server.running.finish().with_code(137);
    let server = super::Server::start(&env, &["--api", "native"]);
    assert_eq!(again(&server, "one", &body).with(200).json()["id"], id);
    // Many at once: one sandbox.
    let made: Vec<Value> = std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..8).map(|_| scope.spawn(|| again(&server, "many", &body).json()["id"].clone())).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(made.iter().all(|one| one == &made[0]), "{made:?}");
}

#[test]
fn a_list_has_filters_and_pages() {
    let (_env, server) = start();
    let made: Vec<String> = (0..5)
        .map(|number| {
            let body = json!({ "command": ["sleep", "600"], "name": format!("n{number}"),
                "labels": { "even": (number % 2 == 0).to_string() } });
            create(&server, &body)["id"].as_str().unwrap().to_owned()
        })
        .collect();
    let ended = script(&server, "exit 3");
    wait_until("the command has exited", || {
        get(&server, &format!("/v1/sandboxes/{ended}")).json()["status"] == "exited"
    });
    let list = |query: &str| get(&server, &format!("/v1/sandboxes?{query}")).with(200).json();
    let mut paged = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = list(&format!("limit=2{cursor}"));
        paged.extend(claimed(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(paged, made);
    assert_eq!(ids(&list("label=even=true")).len(), 3);
    assert_eq!(ids(&list("label=even")).len(), 5);
    assert_eq!(ids(&list("label=even=true,odd")).len(), 0);
    assert_eq!(ids(&list("name=n3")), [made[3].clone()]);
    assert_eq!(ids(&list("status=exited")), *std::slice::from_ref(&ended));
    assert_eq!(claimed(&list("all=true")).len(), 6);
    for query in ["limit=0", "limit=1001", "limit=x", "status=nope", "cursor=x", "cursor=1-zz", "unknown=1"] {
        let reply = get(&server, &format!("/v1/sandboxes?{query}"));
        assert!((400..500).contains(&reply.status), "{query}: {reply:?}");
        reply.problem();
    }
}

/// spec: 17.1, 17.4, 17.5
#[test]
fn a_limit_that_cannot_hold_is_refused_by_its_field() {
    let (_env, server) = start();
    for (field, value) in [
        ("memory_bytes", json!(0)),
        ("memory_bytes", json!(1 << 19)),
        ("memory_bytes", json!(-1)),
        ("pids", json!(0)),
        ("pids", json!(1.5)),
        ("cpus", json!(0)),
        ("cpus", json!(-0.5)),
        ("cpus", json!("1")),
    ] {
        let body = json!({ "command": ["true"], field: value });
        let reply = post(&server, "/v1/sandboxes", &body).with(422);
        assert_eq!(reply.problem(), "invalid_field", "{body}");
    }
    let body = json!({ "command": ["true"], "contain": "subreaper", "cpus": 1.5 });
    assert_eq!(post(&server, "/v1/sandboxes", &body).with(422).problem(), "invalid_field");
    assert_eq!(claimed(&get(&server, "/v1/sandboxes?all=true").with(200).json()), Vec::<String>::new());
    let id = script(&server, "sleep 600");
    assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).with(200).json()["limits"], json!({}));
    delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
}
