//! Execs, sessions and files of sandboxes with a user or a jail of their own.

use serde_json::{Value, json};

use super::{Server, ask, create, delete, get, post, start};
use crate::detached::exec_jail::DESCRIPTION;
use crate::run::jail::environments;
use crate::run::jail_user::shell;
use crate::support::{Sandbox, has_program, is_root, wait_until};

/// What an exec has said, once it has ended.
#[track_caller]
fn exec(server: &Server, id: &str, script: &str) -> String {
    let path = format!("/v1/sandboxes/{id}/execs");
    let made = post(server, &path, &json!({ "command": ["sh", "-c", script] })).with(201).json();
    let path = format!("{path}/{}", made["number"]);
    wait_until("the exec has ended", || get(server, &path).json()["status"] == "ended");
    let logs = get(server, &format!("{path}/logs")).with(200).json();
    logs["frames"].as_array().unwrap().iter().map(|frame| frame["text"].as_str().unwrap()).collect()
}

/// Opens a session `main`; returns its path.
#[track_caller]
fn session(server: &Server, id: &str) -> String {
    post(server, &format!("/v1/sandboxes/{id}/sessions"), &json!({ "name": "main" })).with(201);
    format!("/v1/sandboxes/{id}/sessions/main")
}

#[track_caller]
fn run(server: &Server, path: &str, command: &str) -> String {
    let done = post(server, &format!("{path}/run"), &json!({ "command": command })).with(200).json();
    done["stdout"]["text"].as_str().unwrap_or_else(|| panic!("{done}")).to_owned()
}

/// spec: 19.6, 19.7
#[test]
fn execs_and_sessions_of_a_jail_are_in_the_jail() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    for env in environments() {
        let server = Server::start(&env, &["--api", "native"]);
        let script = format!("({DESCRIPTION}) > own; touch up; exec sleep 1000");
        let dir = env.path("work").display().to_string();
        let body =
            json!({ "command": ["sh", "-c", script], "profile": "jail", "dir": dir, "inherit_env": true });
        let made = create(&server, &body);
        let id = made["id"].as_str().unwrap();
        assert_eq!(made["profile"], "jail");
        assert_eq!(get(&server, &format!("/v1/sandboxes/{id}")).json()["profile"], "jail");
        let page = get(&server, "/v1/sandboxes").json();
        let listed = page["sandboxes"].as_array().unwrap().iter().find(|one| one["id"] == id).unwrap();
        assert_eq!(listed["profile"], "jail");
        wait_until("the command runs", || env.path("work/up").try_exists().unwrap());
        let own = std::fs::read_to_string(env.path("work/own")).unwrap();
        assert_eq!(exec(&server, id, DESCRIPTION), own);
        let path = session(&server, id);
        // The directory of the session is on the jail's own `/run`.
        let described = run(&server, &path, DESCRIPTION);
        assert_eq!(described.replace("penfold-sessions\n", ""), own);
        run(&server, &path, "cd /; A=1; (setsid sleep 2001 &) ; sleep 2002 &");
        wait_until("the daemons run", || env.is_running("sleep 2001") && env.is_running("sleep 2002"));
        assert_eq!(run(&server, &path, "pwd; echo $A"), "/\n1\n");
        let refused = post(&server, &format!("/v1/sandboxes/{id}/sessions"), &json!({ "name": "main" }));
        refused.with(409);
        delete(&server, &path).with(200);
        assert!(!env.is_running("sleep 2001") && !env.is_running("sleep 2002"));
        assert_eq!(exec(&server, id, "echo lives"), "lives\n");
        delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
        for file in ["up", "own"] {
            std::fs::remove_file(env.path("work").join(file)).unwrap();
        }
        server.running.signal(rustix::process::Signal::TERM);
        server.running.finish();
        env.assert_nothing_left();
    }
}

/// spec: 19.10
#[test]
fn the_user_of_a_jail_is_that_of_execs_sessions_and_files() {
    if !has_program(&["bash", "-c", "true"]) {
        return;
    }
    for env in environments() {
        let server = Server::start(&env, &["--api", "native"]);
        for (inherit_env, own) in [(false, json!({})), (true, json!({ "HOME": "/tmp", "SHELL": "/x" }))] {
            let body = json!({
                "command": ["sleep", "1000"], "profile": "jail", "jail": { "user": "ann" }, "inherit_env": inherit_env, "env": own,
            });
            let made = create(&server, &body);
            let id = made["id"].as_str().unwrap();
            let who = "whoami; id -u; pwd; echo $HOME $USER $LOGNAME $SHELL $TMPDIR; ls -A";
            let login = if inherit_env {
                "/tmp ann ann /x /tmp".to_owned()
            } else {
                format!("/home/ann ann ann {} /tmp", shell())
            };
            let expected = format!("ann\n1000\n/home/ann\n{login}\n");
            assert_eq!(exec(&server, id, who), expected);
            let path = session(&server, id);
            assert_eq!(run(&server, &path, who), expected);
            run(&server, &path, "cd ~; umask 077; echo text > own");
            let file = |name: &str| format!("/v1/sandboxes/{id}/files?path={name}");
            if !inherit_env {
                assert_eq!(get(&server, &file("own")).with(200).body, b"text\n");
            }
            assert_eq!(ask(&server, "PUT", &file("put"), "", b"more").status, 200);
            assert_eq!(exec(&server, id, "stat -c %U put; cat put"), "ann\nmore");
            delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
        }
        for wrong in
            [json!({ "jail": { "user": "root" } }), json!({ "jail": { "user": "ann" }, "dir": "/tmp" })]
        {
            let mut body = json!({ "command": ["sleep", "1000"], "profile": "jail" });
            body.as_object_mut().unwrap().extend(wrong.as_object().unwrap().clone());
            let refused = post(&server, "/v1/sandboxes", &body);
            assert!((400..500).contains(&refused.status), "{}", refused.status);
        }
        server.running.signal(rustix::process::Signal::TERM);
        server.running.finish();
        env.assert_nothing_left();
    }
}

/// No field of an exec leads beside the jail.
///
/// spec: 19.8
#[test]
fn no_request_leads_beside_the_jail() {
    for env in environments() {
        let server = Server::start(&env, &["--api", "native"]);
        let body = json!({ "command": ["sleep", "1000"], "profile": "jail", "inherit_env": true });
        let id = create(&server, &body)["id"].as_str().unwrap().to_owned();
        let path = format!("/v1/sandboxes/{id}/execs");
        for field in ["beside", "own_user", "user"] {
            let body = json!({ "command": ["touch", "ran"], field: true });
            assert!(post(&server, &path, &body).status >= 400, "{field}");
        }
        let host = server.host();
        env.call(["--host", &host, "exec", "--beside", &id, "touch", "ran"]).refused(125, "--beside");
        assert!(!env.path("work/ran").try_exists().unwrap());
        delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
        env.call(["rm", "-f", "--all"]);
    }
}

/// spec: 19.9
#[test]
fn files_of_a_jail_are_those_that_its_user_may_read() {
    if !is_root() {
        return;
    }
    for env in environments().into_iter().filter(|env| !env.is_ordinary()) {
        let server = Server::start(&env, &["--api", "native"]);
        let dir = env.path("work");
        std::fs::write(dir.join("secret"), "x").unwrap();
        std::os::unix::fs::chown(dir.join("secret"), Some(12345), Some(12345)).unwrap();
        std::fs::set_permissions(dir.join("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        let body = |profile: Value| json!({ "command": ["sleep", "1000"], "profile": profile, "dir": dir, "inherit_env": true });
        for (profile, status) in [(json!("jail"), 403), (Value::Null, 200)] {
            let id = create(&server, &body(profile))["id"].as_str().unwrap().to_owned();
            let path = format!("/v1/sandboxes/{id}/files?path=");
            assert_eq!(get(&server, &format!("{path}secret")).status, status);
            assert_eq!(ask(&server, "PUT", &format!("{path}own"), "", b"text").status, 200);
            assert_eq!(get(&server, &format!("{path}own")).with(200).body, b"text");
            assert_eq!(ask(&server, "DELETE", &format!("{path}own"), "", b"").status, 204);
            delete(&server, &format!("/v1/sandboxes/{id}")).with(200);
        }
    }
}

/// spec: 5.20
#[test]
fn execs_and_sessions_have_the_user_of_their_sandbox() {
    if !is_root() || !has_program(&["bash", "-c", "true"]) {
        return;
    }
    let (env, server) = start();
    let sandbox: Sandbox = env.detach(["-u", "nobody", "--scratch", "--", "sleep", "1000"]);
    let who = "id -u; id -G; echo $USER; pwd | grep -o '/user$'; grep CapPrm /proc/self/status; touch $TMPDIR/file && echo made";
    let expected = "65534\n65534\nnobody\n/user\nCapPrm:\t0000000000000000\nmade\n";
    assert_eq!(exec(&server, &sandbox.id, who), expected);
    let path = session(&server, &sandbox.id);
    assert_eq!(run(&server, &path, who), expected);
    run(&server, &path, "cd /; A=1; (setsid sleep 2001 &)");
    wait_until("the daemon runs", || env.is_running("sleep 2001"));
    assert_eq!(run(&server, &path, "pwd; echo $A"), "/\n1\n");
    delete(&server, &path).with(200);
    assert!(!env.is_running("sleep 2001"));
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
}
