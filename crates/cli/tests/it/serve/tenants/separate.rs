//! Two tenants beside each other: names, keys, labels, events, limits, metrics, what is left.

use serde_json::{Value, json};

use super::{ALICE, ALICE_READS, BOB, OPS, all_lines, by, create, names, serve, write_tokens};
use crate::serve::Server;
use crate::serve::native::{Events, ask};
use crate::support::{TestEnv, wait_until};

/// spec: 15.17.2
#[test]
fn a_name_belongs_to_a_tenant() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let alices = create(&server, ALICE, "web");
    let bobs = create(&server, BOB, "web");
    let taken = by(&server, ALICE, "POST", "/v1/sandboxes", &json!({ "command": ["true"], "name": "web" }));
    assert_eq!((taken.status, taken.problem().as_str()), (409, "name_taken"));
    assert_eq!(taken.json()["holder"], alices.as_str());
    assert!(taken.json()["detail"].as_str().unwrap().contains("`web`"), "{taken:?}");
    for (token, id) in [(ALICE, &alices), (ALICE_READS, &alices), (BOB, &bobs)] {
        assert_eq!(names(&server, token, ""), ["web"]);
        assert_eq!(by(&server, token, "GET", "/v1/sandboxes/web", &Value::Null).with(200).json()["id"], **id);
    }
    assert_eq!(names(&server, OPS, ""), ["alice~web", "bob~web"]);
    assert_eq!(names(&server, OPS, "?label=penfold.tenant=bob"), ["bob~web"]);
    by(&server, OPS, "GET", "/v1/sandboxes/web", &Value::Null).with(404);
    // On the host, each is called as an admin calls it.
    let mut listed: Vec<String> =
        env.listed(&[]).iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
    listed.sort();
    assert_eq!(listed, ["alice~web", "bob~web"]);
    env.call(["stop", "web"]).with_code(3);
    env.call(["stop", "alice~web"]).with_code(0);
    assert_eq!((names(&server, ALICE, ""), names(&server, BOB, "")), (vec![], vec!["web".to_owned()]));
    // The name is free again, also after the record was forgotten.
    create(&server, ALICE, "web");
    by(&server, ALICE, "DELETE", "/v1/sandboxes/web", &Value::Null).with(200);
    assert!(!std::fs::exists(env.root().join("names/alice~web")).unwrap());
    by(&server, BOB, "DELETE", &format!("/v1/sandboxes/{bobs}"), &Value::Null).with(200);
    env.call(["gc", "-f", "--older-than", "0s"]).with_code(0);
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.17.2
#[test]
fn a_restart_and_a_replacement_keep_the_tenant_and_its_name() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let alices = create(&server, ALICE, "web");
    let bobs = create(&server, BOB, "web");
    env.call(["restart", "alice~web"]).with_code(0);
    let seen = by(&server, ALICE, "GET", "/v1/sandboxes/web", &Value::Null).with(200).json();
    assert_eq!((&seen["id"], &seen["status"]), (&json!(alices), &json!("running")));
    let words = ["run", "-d", "--replace", "--name", "web", "--label", "penfold.tenant=bob", "sleep", "600"];
    let replaced = env.call(words).with_code(0).out().trim().to_owned();
    assert_ne!(replaced, bobs);
    assert_eq!(by(&server, BOB, "GET", "/v1/sandboxes/web", &Value::Null).with(200).json()["id"], *replaced);
    for (token, id) in [(ALICE, &alices), (BOB, &replaced)] {
        by(&server, token, "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
    }
}

/// spec: 15.17
#[test]
fn a_tenant_cannot_be_chosen_by_a_label() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    for (key, value) in [("penfold.tenant", "alice"), ("penfold.token", "1")] {
        let body = json!({ "command": ["sleep", "600"], "labels": { key: value } });
        let refused = by(&server, BOB, "POST", "/v1/sandboxes", &body).with(422);
        assert_eq!(refused.problem(), "invalid_field");
    }
    assert_eq!(names(&server, OPS, "?all=true"), Vec::<String>::new());
}

/// spec: 15.17
#[test]
fn an_idempotency_key_belongs_to_a_tenant() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let body = json!({ "command": ["sleep", "600"] }).to_string();
    let make = |server: &Server, token: &str| {
        let headers = format!("x-penfold-token: {token}\r\nidempotency-key: k\r\n");
        let made = ask(server, "POST", "/v1/sandboxes", &headers, body.as_bytes());
        (made.status, made.json()["id"].as_str().unwrap().to_owned())
    };
    let first: Vec<_> = [ALICE, BOB, OPS].map(|token| make(&server, token)).into();
    assert!(first.iter().all(|(status, _)| *status == 201), "{first:?}");
    server.end();
    let server = serve(&env, &all_lines());
    for (token, (_, id)) in [ALICE, BOB, OPS].iter().zip(&first) {
        assert_eq!(make(&server, token), (200, id.clone()));
        by(&server, OPS, "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
    }
}

/// spec: 15.17
#[test]
fn a_tenant_is_told_of_its_own_events_only() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let header = |token: &str| format!("x-penfold-token: {token}\r\n");
    let mut alices = Events::open(&server, "/v1/events", &header(ALICE));
    let mut all = Events::open(&server, "/v1/events", &header(OPS));
    // So many labels that an event has no room for all: the tenant is kept.
    let many: serde_json::Map<String, Value> =
        (0..20).map(|number| (format!("a{number}"), json!("x".repeat(250)))).collect();
    let body = json!({ "command": ["true"], "labels": many });
    let bobs = by(&server, BOB, "POST", "/v1/sandboxes", &body).with(201).json()["id"].clone();
    let own = by(&server, ALICE, "POST", "/v1/sandboxes", &body).with(201).json()["id"].clone();
    let mut seen = Vec::new();
    while !seen.iter().any(|event: &Value| event["id"] == own && event["kind"] == "exit") {
        seen.push(alices.next().expect("the end comes").data);
    }
    assert!(seen.iter().all(|event| event["id"] == own), "{seen:?}");
    assert_eq!(seen[0]["labels"]["penfold.tenant"], "alice");
    let mut ids = Vec::new();
    while !(ids.contains(&bobs) && ids.contains(&own)) {
        ids.push(all.next().expect("an admin is told of all").data["id"].clone());
    }
    let past = by(&server, ALICE, "GET", "/v1/events?from=start&follow=false", &Value::Null).with(200);
    let past = String::from_utf8_lossy(&past.body).into_owned();
    assert!(past.contains(own.as_str().unwrap()) && !past.contains(bobs.as_str().unwrap()), "{past}");
}

/// spec: 15.17.3
#[test]
fn a_line_can_have_its_own_limit() {
    let env = TestEnv::new();
    let lines = format!("alice {ALICE} max-sandboxes=1\nbob {BOB}\n");
    let tokens = write_tokens(&env, &lines);
    let server = Server::start(&env, &["--token-file", &tokens, "--max-sandboxes", "2"]);
    let body = json!({ "command": ["sleep", "600"] });
    let make = |token: &str| by(&server, token, "POST", "/v1/sandboxes", &body).status;
    assert_eq!([make(ALICE), make(ALICE)], [201, 429]);
    assert_eq!([make(BOB), make(BOB), make(BOB)], [201, 201, 429]);
    assert_eq!([make(""), make("")], [201, 201], "a caller on the Unix socket has no limit");
    env.call(["kill", "--all", "-f"]).with_code(0);
    assert_eq!(make(ALICE), 201);
    env.call(["kill", "--all", "-f"]).with_code(0);
}

/// spec: 15.17.3
#[test]
fn a_limit_holds_also_for_requests_that_come_at_once() {
    let env = TestEnv::new();
    let server = serve(&env, &format!("alice {ALICE} max-sandboxes=3\nbob {BOB}\n"));
    let body = json!({ "command": ["sleep", "600"] });
    let codes: Vec<u16> = std::thread::scope(|scope| {
        let make = || by(&server, ALICE, "POST", "/v1/sandboxes", &body).status;
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(make)).collect();
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let that_got = |code: u16| codes.iter().filter(|one| **one == code).count();
    assert_eq!((that_got(201), that_got(429)), (3, 13), "{codes:?}");
    env.call(["kill", "--all", "-f"]).with_code(0);
    assert_eq!(by(&server, ALICE, "POST", "/v1/sandboxes", &body).status, 201);
    env.call(["kill", "--all", "-f"]).with_code(0);
}

/// spec: 15.17.2
#[test]
fn an_admin_calls_its_own_sandboxes_by_both_names_and_those_of_others_by_the_long_one() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let own = create(&server, OPS, "web");
    let alices = create(&server, ALICE, "web");
    let local = env.call(["run", "-d", "--name", "web", "sleep", "600"]).with_code(0).out().trim().to_owned();
    let id = |token: &str, word: &str| {
        by(&server, token, "GET", &format!("/v1/sandboxes/{word}"), &Value::Null).with(200).json()["id"]
            .clone()
    };
    assert_eq!([id(OPS, "web"), id(OPS, "ops~web"), id(OPS, "alice~web")], [own.as_str(), &own, &alices]);
    assert_eq!([id("", "web"), id("", "ops~web"), id("", "alice~web")], [local.as_str(), &own, &alices]);
    let listed = |token: &str, word: &str| {
        let path = format!("/v1/sandboxes?name={word}");
        let page = by(&server, token, "GET", &path, &Value::Null).with(200).json();
        page["sandboxes"].as_array().unwrap().iter().map(|one| one["id"].clone()).collect::<Vec<_>>()
    };
    for word in ["ops~web", "alice~web"] {
        assert_eq!(listed(OPS, word), [id(OPS, word)]);
        assert_eq!(listed("", word), [id("", word)]);
    }
    assert_eq!(listed(ALICE, "web"), [json!(alices)]);
    assert_eq!(listed(ALICE, "alice~web"), Vec::<Value>::new());
    let told_of = |token: &str, word: &str| {
        let path = format!("/v1/events?from=start&follow=false&sandbox={word}&kind=start");
        let told = by(&server, token, "GET", &path, &Value::Null).with(200);
        let text = String::from_utf8(told.body).unwrap();
        [&own, &alices, &local].map(|id| text.contains(id.as_str()))
    };
    assert_eq!(told_of(OPS, "alice~web"), [false, true, false]);
    assert_eq!(told_of(ALICE, "web"), [false, true, false]);
    assert_eq!(told_of("", "web"), [false, false, true]);
    let events = |word: &str| {
        let filter = format!("name={word}");
        env.call(["events", "--no-follow", "-f", &filter]).with_code(0).out()
    };
    let said = events("alice~web");
    assert!(said.contains(&alices) && said.contains("(alice~web)") && !said.contains(&own), "{said}");
    assert!(events("web").contains(&local) && !events("web").contains(&own));
    for token in [ALICE, OPS] {
        by(&server, token, "POST", "/v1/sandboxes/web/kill", &Value::Null).with(200);
    }
    let collect = |word: &str| {
        let body = json!({ "older_than_ms": 0, "sandboxes": [word] });
        let told = by(&server, OPS, "POST", "/v1/gc", &body).with(200).json();
        let leaks = told["leaks"].as_array().unwrap().iter();
        leaks.map(|leak| (leak["id"].clone(), leak["name"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(collect("alice~web"), [(json!(alices), json!("alice~web"))]);
    assert_eq!(collect("web"), [(json!(own), json!("web"))]);
    env.call(["kill", "--all", "-f"]).with_code(0);
}

/// spec: 15.14
#[test]
fn the_report_of_a_removed_sandbox_is_for_all_who_reached_it() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    for (first, second) in [(OPS, ALICE), (ALICE, OPS), (ALICE, ""), ("", ALICE)] {
        let path = format!("/v1/sandboxes/{}", create(&server, ALICE, "web"));
        by(&server, first, "DELETE", &path, &Value::Null).with(200);
        let again = by(&server, second, "DELETE", &path, &Value::Null).with(200).json();
        assert_eq!((&again["result"], again["report"].is_object()), (&json!("already_gone"), true));
        by(&server, BOB, "DELETE", &path, &Value::Null).with(404);
    }
}

/// spec: 15.17
#[test]
fn the_claim_of_a_process_id_whose_sandbox_is_gone_can_be_removed_by_its_tenant() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let body = json!({ "command": "sleep 600", "sessionId": "s", "processId": "p" });
    by(&server, ALICE, "POST", "/api/process/start", &body).with(200);
    let listed = by(&server, ALICE, "GET", "/v1/sandboxes", &Value::Null).with(200).json();
    let id = listed["sandboxes"][0]["id"].as_str().unwrap().to_owned();
    by(&server, ALICE, "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
    let claims = || {
        let names = std::fs::read_dir(env.root().join("names")).unwrap();
        names.filter(|name| name.as_ref().unwrap().file_name().to_str().unwrap().contains("cfp-")).count()
    };
    assert_eq!(claims(), 1);
    let all = json!({ "older_than_ms": 0 });
    // A younger one may be about to be held.
    let look = json!({ "older_than_ms": 0, "dry_run": true });
    let listed = || by(&server, "", "POST", "/v1/gc", &look).with(200).json()["leaks"].clone();
    wait_until("it is old enough for a leak", || listed() != json!([]));
    assert_eq!(by(&server, BOB, "POST", "/v1/gc", &all).with(200).json()["leaks"], json!([]));
    assert_eq!(claims(), 1);
    let told = by(&server, ALICE, "POST", "/v1/gc", &all).with(200).json();
    assert_eq!(claims(), 0, "{told}");
}

/// spec: 15.17
#[test]
fn metrics_are_those_of_the_tenant_or_of_all() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let id = create(&server, ALICE, "web");
    let text = |token: &str| {
        let told = by(&server, token, "GET", "/metrics", &Value::Null).with(200);
        String::from_utf8(told.body).unwrap()
    };
    let started = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("penfold_sandboxes_started_total "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let (alices, bobs, all) = (text(ALICE), text(BOB), text(OPS));
    assert_eq!([started(&alices), started(&bobs), started(&all)], [1, 0, 1]);
    assert!(!bobs.contains("method=\"POST\"") && all.contains("method=\"POST\""), "{bobs}");
    // The counters of the state root are those of all.
    assert!(!alices.contains("penfold_teardown") && text("").contains("penfold_teardown"), "{}", text(""));
    by(&server, ALICE, "DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null).with(200);
}

/// spec: 15.17
#[test]
fn garbage_is_collected_of_the_own_sandboxes_only() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let made: Vec<String> = [ALICE, BOB].map(|token| create(&server, token, "web")).into();
    for id in &made {
        by(&server, OPS, "POST", &format!("/v1/sandboxes/{id}/kill"), &Value::Null).with(200);
    }
    let all = json!({ "older_than_ms": 0 });
    let named = json!({ "older_than_ms": 0, "sandboxes": [made[0], "alice~web"] });
    let leaks = by(&server, BOB, "POST", "/v1/gc", &named).with(200).json();
    assert_eq!(leaks["leaks"], json!([]));
    let leaks = by(&server, BOB, "POST", "/v1/gc", &all).with(200).json();
    let ids: Vec<&Value> = leaks["leaks"].as_array().unwrap().iter().map(|leak| &leak["id"]).collect();
    assert!(!ids.is_empty() && ids.iter().all(|id| **id == made[1]), "{leaks}");
    by(&server, ALICE, "GET", &format!("/v1/sandboxes/{}/report", made[0]), &Value::Null).with(200);
    by(&server, BOB, "GET", &format!("/v1/sandboxes/{}/report", made[1]), &Value::Null).with(404);
    let named = json!({ "older_than_ms": 0, "sandboxes": ["web"] });
    let leaks = by(&server, ALICE, "POST", "/v1/gc", &named).with(200).json();
    assert_eq!((&leaks["leaks"][0]["id"], &leaks["leaks"][0]["name"]), (&json!(made[0]), &json!("web")));
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.17
#[test]
fn the_report_of_a_removed_sandbox_is_for_its_tenant() {
    let env = TestEnv::new();
    let server = serve(&env, &all_lines());
    let path = format!("/v1/sandboxes/{}", create(&server, ALICE, "web"));
    by(&server, ALICE, "DELETE", &path, &Value::Null).with(200);
    let again = by(&server, ALICE, "DELETE", &path, &Value::Null).with(200).json();
    assert_eq!((&again["result"], again["report"].is_object()), (&json!("already_gone"), true));
    let told = by(&server, BOB, "DELETE", &path, &Value::Null).with(404);
    assert_eq!(told.problem(), "not_found");
}

/// spec: 15.17
#[test]
fn a_client_has_the_token_of_the_first_line_and_reaches_what_it_is_good_for() {
    let env = TestEnv::new();
    let server = Server::start_tcp(&env, &["--token-file", &write_tokens(&env, &all_lines())]);
    let bobs = create(&server, BOB, "web");
    let file = |name: &str, line: String| {
        let path = env.path("work").join(name);
        std::fs::write(&path, format!("# mine\n{line}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (alice, reads) = (
        file("a", format!("alice {ALICE} max-sandboxes=9")),
        file("r", format!("alice {ALICE_READS} read-only")),
    );
    let host = server.host();
    let call = |file: &str, words: &[&str]| {
        let flags = ["--host", host.as_str(), "--token-file", file];
        env.call(flags.iter().chain(words))
    };
    let id =
        call(&alice, &["run", "-d", "--name", "web", "sleep", "600"]).with_code(0).out().trim().to_owned();
    assert_eq!(call(&alice, &["ps", "-q"]).with_code(0).out().trim(), id);
    assert_eq!(call(&reads, &["ps", "-q"]).with_code(0).out().trim(), id);
    assert!(call(&alice, &["inspect", &bobs]).with_code(3).err().contains("no sandbox"));
    call(&alice, &["kill", &bobs]).refused(3, "no sandbox");
    call(&reads, &["kill", "web"]).refused(7, "read-only");
    call(&alice, &["kill", "web"]).with_code(0);
    call(&alice, &["kill", "--all", "-f"]).with_code(0);
    wait_until("alice has none", || names(&server, ALICE, "").is_empty());
    assert_eq!(names(&server, BOB, ""), ["web"], "`--all` means the tenant's");
    by(&server, BOB, "DELETE", &format!("/v1/sandboxes/{bobs}"), &Value::Null).with(200);
}
