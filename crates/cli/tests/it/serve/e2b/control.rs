//! The control plane.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Api, running};
use crate::support::{Sandbox, wait_until};

/// spec: 36.1
#[test]
fn a_sandbox_is_created_found_and_ended() {
    let api = Api::start();
    let guest =
        api.create(&json!({ "metadata": { "job": "a b" }, "envVars": { "FOO": "bar" }, "timeout": 60 }));
    assert!(guest.token.is_some());
    let found = api.ask("GET", &format!("/sandboxes/{}", guest.id), &Value::Null).json();
    assert_eq!(
        (&found["state"], &found["metadata"]),
        (&json!("running"), &json!({ "job": "a b" })),
        "{found}"
    );
    assert_eq!(found["envdAccessToken"].as_str(), guest.token.as_deref());
    assert!(found["endAt"].as_str() > found["startedAt"].as_str(), "{found}");
    // It is a sandbox as any other.
    let [listed] = &api.env.listed(&[])[..] else { panic!("not one sandbox") };
    assert_eq!(listed["labels"]["job"], "a b", "{listed}");
    assert_eq!(api.out(&guest, "sleep 1009 & echo $FOO; whoami; pwd"), "bar\nuser\n/home/user\n");
    wait_until("it lives", || running("sleep 1009") == 1);
    api.delete(&guest);
    assert_eq!(running("sleep 1009"), 0);
    assert!(api.env.listed(&["-a"]).is_empty());
    let again = api.ask("DELETE", &format!("/sandboxes/{}", guest.id), &Value::Null);
    assert_eq!((again.status, &again.json()["code"]), (404, &json!(404)));
    api.server.end();
    api.env.assert_nothing_left();
}

/// spec: 36.1
#[test]
fn lists_are_filtered_ordered_and_paged() {
    let api = Api::start();
    let all: Vec<_> = (0..3)
        .map(|number| api.create(&json!({ "metadata": { "number": number.to_string(), "all": "x&y" } })))
        .collect();
    let ids = |path: &str| {
        let told = api.ask("GET", path, &Value::Null);
        let ids: Vec<String> = told
            .json()
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["sandboxID"].as_str().unwrap().to_owned())
            .collect();
        let next = told.head.lines().find_map(|line| line.strip_prefix("x-next-token: ")).map(str::to_owned);
        (ids, next)
    };
    let newest_first: Vec<String> = all.iter().rev().map(|guest| guest.id.clone()).collect();
    assert_eq!(ids("/v2/sandboxes?metadata=all%3Dx%2526y"), (newest_first.clone(), None));
    assert_eq!(ids("/v2/sandboxes?metadata=number%3D1%26all%3Dx%2526y").0, [all[1].id.clone()]);
    // The SDKs encode each value once more.
    assert_eq!(ids("/v2/sandboxes?metadata=all%3Dx%252526y").0.len(), 3);
    assert!(ids("/v2/sandboxes?metadata=number%3D7").0.is_empty());
    let (first, next) = ids("/v2/sandboxes?limit=2");
    assert_eq!(first, newest_first[..2]);
    let (second, none) = ids(&format!("/v2/sandboxes?limit=2&nextToken={}", next.unwrap()));
    assert_eq!((second, none), (newest_first[2..].to_vec(), None));
    assert_eq!(ids("/v2/sandboxes?order=asc&limit=1").0, [all[0].id.clone()]);
    // Others of the host are none of this API.
    api.env.detach(["sleep", "1000"]);
    assert_eq!(ids("/sandboxes").0.len(), 3);
    for bad in ["state=x", "limit=0", "nextToken=x"] {
        assert_eq!(api.ask("GET", &format!("/v2/sandboxes?{bad}"), &Value::Null).status, 400, "{bad}");
    }
}

/// spec: 36.2
#[test]
fn a_sandbox_ends_at_its_time_limit() {
    let api = Api::start();
    let guest = api.create(&json!({ "timeout": 3600 }));
    let mut command = api.start_command(&guest, "setsid sleep 1010 & echo up; sleep 1010");
    command.await_output("up");
    wait_until("both live", || running("sleep 1010") == 2);
    let timeout = |seconds: u64| {
        api.ask("POST", &format!("/sandboxes/{}/timeout", guest.id), &json!({ "timeout": seconds })).status
    };
    assert_eq!(timeout(7200), 204);
    assert_eq!(timeout(0), 204);
    wait_until("all is gone", || running("sleep 1010") == 0 && api.env.listed(&["-a"]).is_empty());
    // The stream breaks off, so that the client looks.
    assert_eq!(command.rest().2, None);
    assert_eq!(timeout(10), 404);
}

/// spec: 36.2
#[test]
fn a_time_limit_gives_no_time_to_commands() {
    let Api { env, server } = Api::start();
    server.end();
    let dir = env.path("work/templates");
    std::fs::create_dir(&dir).unwrap();
    let deaf = "command = [\"sh\", \"-c\", \"trap '' TERM; while :; do sleep 0.1; done\"]\n";
    std::fs::write(dir.join("deaf.toml"), deaf).unwrap();
    let server = super::serve(&env, &["--templates", dir.to_str().unwrap()]);
    let api = Api { env, server };
    let guest = api.create(&json!({ "templateID": "deaf", "timeout": 0 }));
    assert_eq!(api.out(&guest, "echo up"), "up\n");
    let begun = Instant::now();
    wait_until("all is gone", || api.env.listed(&["-a"]).is_empty());
    // The usual grace is 10 seconds.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

/// spec: 36.2
#[test]
fn connect_lengthens_a_time_limit_and_never_shortens_it() {
    let api = Api::start();
    let guest = api.create(&json!({ "timeout": 600 }));
    let end = || api.ask("GET", &format!("/sandboxes/{}", guest.id), &Value::Null).json()["endAt"].clone();
    let before = end();
    for version in ["", "/v2"] {
        let connect =
            |body: &Value| api.ask("POST", &format!("{version}/sandboxes/{}/connect", guest.id), body);
        let told = connect(&json!({ "timeout": 10 }));
        assert_eq!((told.status, told.json()["envdAccessToken"].as_str()), (200, guest.token.as_deref()));
        assert_eq!(end(), before);
    }
    assert_eq!(
        api.ask("POST", &format!("/sandboxes/{}/refreshes", guest.id), &json!({ "duration": 3600 })).status,
        204
    );
    assert!(end().as_str() > before.as_str());
    // Old SDKs say to which sandbox they connect in a header, too.
    let named = super::Told::read(&mut api.send(
        "POST",
        &format!("/sandboxes/{}/connect", guest.id),
        &guest.headers(),
        b"{}",
    ));
    assert_eq!(named.status, 200);
    let unknown = api.ask("POST", "/sandboxes/000000000000/connect", &json!({ "timeout": 10 }));
    assert_eq!(unknown.status, 404);
}

/// spec: 36.3
#[test]
fn a_paused_sandbox_keeps_its_memory_and_has_no_time_limit() {
    let api = Api::start();
    let guest = api.create(&json!({ "timeout": 300 }));
    if api.env.listed(&[])[0]["leaf"].is_null() {
        return crate::support::skip("no cgroup2 to write to");
    }
    let mut command = api.start_command(&guest, "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done");
    command.await_output("2");
    let act =
        |act: &str, body: &Value| api.ask("POST", &format!("/sandboxes/{}/{act}", guest.id), body).status;
    assert_eq!(act("pause", &json!({ "memory": false })), 501);
    assert_eq!(act("pause", &json!({})), 204);
    assert_eq!(act("pause", &Value::Null), 409);
    let found = || api.ask("GET", &format!("/sandboxes/{}", guest.id), &Value::Null).json();
    assert_eq!(found()["state"], "paused");
    assert!(api.env.listed(&[])[0]["expires_at_ms"].is_null());
    // To clients of the data plane, it is not there.
    let health = || api.send("GET", "/health", &guest.headers(), b"");
    assert_eq!(super::read_head(&mut health()).0, 502);
    assert_eq!(act("timeout", &json!({ "timeout": 5 })), 404);
    assert_eq!(act("connect", &json!({ "timeout": 60 })), 201);
    assert_eq!((super::read_head(&mut health()).0, found()["state"].clone()), (204, json!("running")));
    assert!(!api.env.listed(&[])[0]["expires_at_ms"].is_null());
    assert_eq!(act("resume", &json!({})), 409);
    // The command goes on where it was.
    command.await_output("9");
    assert_eq!(act("pause", &json!({})), 204);
    api.delete(&guest);
    assert!(api.env.listed(&["-a"]).is_empty());
}

/// spec: 36.3
#[test]
fn a_sandbox_pauses_at_its_time_limit_if_asked_to() {
    let api = Api::start();
    let guest = api.create(&json!({ "autoPause": true, "timeout": 3600 }));
    if api.env.listed(&[])[0]["leaf"].is_null() {
        return crate::support::skip("no cgroup2 to write to");
    }
    let waking =
        api.create(&json!({ "autoPause": true, "autoResume": { "enabled": true }, "timeout": 3600 }));
    let state = |id: &str| api.ask("GET", &format!("/sandboxes/{id}"), &Value::Null).json()["state"].clone();
    for id in [&guest.id, &waking.id] {
        assert_eq!(
            api.ask("POST", &format!("/sandboxes/{id}/timeout"), &json!({ "timeout": 0 })).status,
            204
        );
        wait_until("it is paused", || state(id) == "paused");
    }
    assert_eq!(api.call(&guest, "/process.Process/List", &json!({})).0, 502);
    assert_eq!(state(&guest.id), "paused");
    assert_eq!(api.out(&waking, "echo awake"), "awake\n");
    assert_eq!(state(&waking.id), "running");
    let cold = api.ask(
        "POST",
        "/v2/sandboxes",
        &json!({ "templateID": "base", "autoPause": true, "autoPauseMemory": false }),
    );
    assert_eq!(cold.status, 501);
}

/// spec: 36.4
#[test]
fn what_is_not_there_is_refused_with_a_sentence() {
    let api = Api::start();
    let create = |fields: Value| {
        let mut body = json!({ "templateID": "base" });
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let told = api.ask("POST", "/v2/sandboxes", &body);
        assert!(told.json()["message"].as_str().is_some_and(|message| message.len() > 15), "{body}");
        told.status
    };
    assert_eq!(create(json!({ "volumeMounts": [{ "name": "v", "path": "/v" }] })), 501);
    assert_eq!(create(json!({ "network": { "denyOut": ["0.0.0.0/0"] } })), 501);
    assert_eq!(create(json!({ "iam": { "tokens": { "a": {} } } })), 501);
    assert_eq!(create(json!({ "templateID": "none" })), 404);
    assert_eq!(create(json!({ "metadata": { "e2b.template": "x" } })), 400);
    assert_eq!(create(json!({ "metadata": { "a b": "x" } })), 400);
    assert_eq!(create(json!({ "metadata": { "a": "x\n" } })), 400);
    assert_eq!(create(json!({ "envVars": { "A=B": "x" } })), 400);
    assert_eq!(create(json!({ "envVars": { "PENFOLD_X": "x" } })), 400);
    assert_eq!(create(json!({ "timeout": -1 })), 400);
    let missing = api.ask("POST", "/v2/sandboxes", &json!({ "templateID": "none" })).json();
    assert!(
        missing["message"].as_str().unwrap().contains("the templates of this server are: base"),
        "{missing}"
    );
    let guest = api.create(&json!({}));
    for path in ["/templates", "/v3/templates", "/volumes", "/secrets", "/snapshots", "/teams/x/metrics"] {
        assert_eq!(api.ask("GET", path, &Value::Null).status, 501, "{path}");
    }
    assert_eq!(api.ask("GET", "/templates/aliases/base", &Value::Null).json()["templateID"], "base");
    assert_eq!(api.ask("GET", "/templates/aliases/none", &Value::Null).status, 404);
    assert_eq!(api.ask("POST", "/sandboxes/000000000000/fork", &json!({})).status, 404);
    for act in ["fork", "snapshots"] {
        assert_eq!(
            api.ask("POST", &format!("/sandboxes/{}/{act}", guest.id), &json!({})).status,
            501,
            "{act}"
        );
    }
    assert_eq!(api.ask("GET", "/sandboxes/x/y/z", &Value::Null).status, 404);
}

/// spec: 36.4
#[test]
fn templates_are_files() {
    let api = Api::start();
    let dir = api.env.path("work/templates");
    std::fs::create_dir(&dir).unwrap();
    let serve = |api: &Api| {
        api.env.call(["serve", "--api", "e2b", "--templates", dir.to_str().unwrap(), "--listen", "unix:x"])
    };
    std::fs::write(dir.join("named.toml"), "name = \"x\"\ncommand = [\"true\"]").unwrap();
    assert!(serve(&api).with_code(2).err().contains("leave `name` out"));
    std::fs::write(dir.join("named.toml"), "profile = \"vmm\"").unwrap();
    assert!(serve(&api).with_code(2).err().contains("a template is a jail"));
    std::fs::remove_file(dir.join("named.toml")).unwrap();
    assert!(serve(&api).with_code(2).err().contains("there is no file NAME.toml"));
    let text = "command = [\"sleep\", \"1011\"]\n[env]\nFROM = \"template\"\n[jail]\nuser = \"agent\"\n";
    std::fs::write(dir.join("small.toml"), text).unwrap();
    // A root directory that a jail with a user cannot have.
    let root = api.env.path("work/root");
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("etc"), "").unwrap();
    std::fs::write(dir.join("ends.toml"), format!("[jail]\nrootfs = '{}'\n", root.display())).unwrap();
    let Api { env, server } = api;
    server.end();
    let server = super::serve(&env, &["--templates", dir.to_str().unwrap()]);
    let api = Api { env, server };
    let guest = api.create(&json!({ "templateID": "small" }));
    wait_until("its command runs", || running("sleep 1011") == 1);
    assert_eq!(api.out(&guest, "echo $FROM; whoami; cd; pwd"), "template\nagent\n/home/agent\n");
    let found = api.ask("GET", &format!("/sandboxes/{}", guest.id), &Value::Null).json();
    assert_eq!((&found["templateID"], &found["alias"]), (&json!("small"), &json!("small")));
    let base = api.create(&json!({}));
    let told = api.ask("POST", "/v2/sandboxes", &json!({ "templateID": "ends" }));
    let message = told.json()["message"].to_string();
    assert!(told.status == 500 && message.contains("did not begin to run"), "{} {message}", told.status);
    for guest in [guest, base] {
        api.delete(&guest);
    }
    assert!(api.env.listed(&["-a"]).is_empty(), "a sandbox that never ran is left");
    let unknown = api.ask("POST", "/v2/sandboxes", &json!({ "templateID": "x" })).json();
    assert!(unknown["message"].as_str().unwrap().ends_with("base, ends, small"), "{unknown}");
}

/// spec: 36.1
#[test]
fn a_repeated_create_with_its_key_gets_the_same_sandbox() {
    let api = Api::start();
    let create = |key: &str, body: &Value| {
        let headers = format!("content-type: application/json\r\nidempotency-key: {key}\r\n");
        let told =
            super::Told::read(&mut api.send("POST", "/v2/sandboxes", &headers, body.to_string().as_bytes()));
        (told.status, told.json()["sandboxID"].clone())
    };
    let body = json!({ "templateID": "base" });
    let first = create("k", &body);
    assert_eq!(first.0, 201);
    assert_eq!(create("k", &body), first);
    assert_ne!(create("other", &body).1, first.1);
    assert_eq!(create("k", &json!({ "templateID": "base", "timeout": 7 })).0, 409);
}

/// spec: 36.1
#[test]
fn usage_and_log_of_a_sandbox_are_told() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let read = || api.ask("GET", &format!("/sandboxes/{}/metrics", guest.id), &Value::Null).json();
    wait_until("it uses memory", || read()[0]["memUsed"].as_u64() > Some(0));
    let usage = read();
    assert!(usage[0]["memUsed"].as_u64() > Some(0) && usage[0]["cpuCount"].as_u64() > Some(0), "{usage}");
    let all = api.ask("GET", &format!("/sandboxes/metrics?sandbox_ids={}", guest.id), &Value::Null).json();
    assert!(all["sandboxes"][&guest.id]["memTotal"].as_u64() > Some(0), "{all}");
    for path in ["/sandboxes", "/v2/sandboxes"] {
        let logs = api.ask("GET", &format!("{path}/{}/logs", guest.id), &Value::Null);
        assert!(logs.status == 200 && logs.json()["logs"].is_array(), "{path}");
    }
}

/// A stream of a command breaks off before the end of its sandbox is known, and its client asks at once whether the sandbox runs.
///
/// spec: 36.6
#[test]
fn a_sandbox_without_its_first_process_does_not_run() {
    let api = Api::start();
    let guest = api.create(&json!({}));
    let health = || super::read_head(&mut api.send("GET", "/health", &guest.headers(), b"")).0;
    assert_eq!(health(), 204);
    let sandbox = Sandbox::printed(&api.env, &format!("{}\n", guest.id));
    sandbox.stop_supervisors();
    sandbox.leader().unwrap().signal(Signal::KILL);
    wait_until("it does not run", || health() == 502);
    sandbox.continue_supervisors();
    wait_until("its end is known", || api.env.listed(&["-a"]).is_empty());
}

/// spec: 36.1
#[test]
fn all_apis_are_served_beside_each_other() {
    let env = crate::support::TestEnv::new();
    let server = crate::serve::Server::start(&env, &["--api", "native,cloudflare,e2b"]);
    let api = Api { env, server };
    let guest = api.create(&json!({}));
    assert_eq!(api.out(&guest, "echo up"), "up\n");
    let status = |path: &str| api.ask("GET", path, &Value::Null).status;
    assert_eq!((status("/v1/sandboxes"), status("/api/ping"), status("/v2/sandboxes")), (200, 200, 200));
    assert_eq!(
        (status("/healthz"), status("/sandboxes/x/y/z"), status("/v2/sandboxes/x/y")),
        (200, 404, 404)
    );
    assert_eq!(api.ask("PUT", "/v2/sandboxes", &json!({})).status, 405);
    api.delete(&guest);
}
