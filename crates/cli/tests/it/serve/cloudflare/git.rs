//! `/api/git/checkout`, with repositories of this host.

use std::process::Command;

use serde_json::{Value, json};

use super::Api;
use crate::support::{has_program, wait_until};

/// A server, and the address of a repository with the branches `main` and `other`; nothing where there is no git.
fn start() -> Option<(Api, String)> {
    if !has_program(&["git", "--version"]) {
        return None;
    }
    let api = Api::start();
    let source = api.path("source");
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args([
            "-C",
            &source,
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "-c",
            "commit.gpgsign=false",
        ]);
        assert!(command.args(words).output().unwrap().status.success(), "{words:?}");
    };
    std::fs::create_dir(&source).unwrap();
    git(&["init", "-q", "-b", "main"]);
    std::fs::write(format!("{source}/file"), "one").unwrap();
    git(&["add", "file"]);
    git(&["commit", "-q", "-m", "one"]);
    git(&["checkout", "-q", "-b", "other"]);
    std::fs::write(format!("{source}/file"), "two").unwrap();
    git(&["commit", "-q", "-a", "-m", "two"]);
    git(&["checkout", "-q", "main"]);
    Some((api, format!("file://{source}")))
}

fn clone(api: &Api, body: Value) -> super::Told {
    let mut body = body;
    body.as_object_mut().unwrap().insert("sessionId".to_owned(), json!("s"));
    api.post("/api/git/checkout", &body)
}

/// spec: 15.19
#[test]
fn a_repository_is_cloned_into_its_directory() {
    let Some((api, url)) = start() else { return };
    let target = api.path("target");
    let done = clone(&api, json!({ "repoUrl": url, "targetDir": target })).ok();
    assert_eq!(
        (&done["success"], &done["repoUrl"], &done["branch"]),
        (&json!(true), &json!(url), &json!("main"))
    );
    assert_eq!(done["targetDir"], target);
    assert_eq!(std::fs::read_to_string(format!("{target}/file")).unwrap(), "one");
    // A branch, few commits, and a directory that begins in that of the shell.
    let work = api.path("sub");
    std::fs::create_dir(&work).unwrap();
    api.out("s", &format!("cd {work}"));
    let body = json!({ "repoUrl": url, "targetDir": "inner", "branch": "other", "depth": 1 });
    assert_eq!(clone(&api, body).ok()["branch"], "other");
    assert_eq!(std::fs::read_to_string(format!("{work}/inner/file")).unwrap(), "two");
    assert_eq!(api.out("s", &format!("git -C {work}/inner rev-list --count HEAD")), "1\n");
    // What the shell has exported counts.
    api.out(
        "s",
        &format!("export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=url.{url}.insteadOf GIT_CONFIG_VALUE_0=short:x"),
    );
    clone(&api, json!({ "repoUrl": "short:x", "targetDir": "again" })).ok();
    // But not what it calls git.
    api.out("s", "git() { echo fn; }; alias git=false");
    let body = json!({ "repoUrl": url, "targetDir": "real" });
    assert_eq!(clone(&api, body).ok()["branch"], "main");
    assert!(std::fs::exists(format!("{work}/real/file")).unwrap());
    // git is none of the client's processes.
    assert_eq!(api.get("/api/process/list").ok()["processes"], json!([]));
}

/// spec: 15.19
#[test]
fn a_clone_that_fails_says_why_and_nothing_of_a_request_is_executed() {
    let Some((api, url)) = start() else { return };
    let (target, made) = (api.path("target"), api.path("made"));
    std::fs::create_dir(&target).unwrap();
    std::fs::write(format!("{target}/file"), "mine").unwrap();
    let error =
        clone(&api, json!({ "repoUrl": url, "targetDir": target })).fails(500, "GIT_OPERATION_FAILED");
    assert!(error["message"].as_str().unwrap().contains("already exists"), "{error}");
    assert_eq!(error["context"]["exitCode"], 128);
    let empty = api.path("empty");
    for hostile in [
        format!("--upload-pack=touch {made}"),
        format!("file:///$(touch {made})"),
        format!("x; touch {made}"),
        format!("ext::touch {made}"),
        format!("-c core.sshCommand='touch {made}'"),
    ] {
        let told = clone(&api, json!({ "repoUrl": hostile, "targetDir": empty }));
        assert_eq!(told.status, 500, "{hostile}: {:?}", told.json());
        let branch = json!({ "repoUrl": url, "targetDir": empty, "branch": hostile });
        assert_eq!(clone(&api, branch).status, 500, "{hostile}");
        assert!(!std::fs::exists(&made).unwrap(), "{hostile}");
    }
    // As an option, it would name the program that sends the repository.
    let option = json!({ "repoUrl": format!("--upload-pack=touch {made};"), "targetDir": url });
    assert_eq!(clone(&api, option).status, 500);
    assert!(!std::fs::exists(&made).unwrap(), "an address is no option");
    let secret = json!({ "repoUrl": "http://me:secret@127.0.0.1:1/x.git", "targetDir": empty });
    let error = clone(&api, secret).fails(500, "GIT_OPERATION_FAILED");
    assert!(!error.to_string().contains("secret"), "{error}");
    // Nor is it in an event, or anywhere else in the state root.
    let with_password = format!("file://u:geheim@{}", url.trim_start_matches("file://"));
    clone(&api, json!({ "repoUrl": with_password, "targetDir": api.path("with-password") }));
    let events = std::fs::read_to_string(api.env.root().join("events.jsonl")).unwrap();
    assert!(events.contains("clone") && !events.contains("geheim") && !events.contains("secret"), "{events}");
    api.out("s", "PATH=/nonexistent");
    let without =
        clone(&api, json!({ "repoUrl": url, "targetDir": empty })).fails(500, "GIT_OPERATION_FAILED");
    assert!(without["message"].as_str().unwrap().contains("not found"), "{without}");
    for (body, code) in [
        (json!({ "repoUrl": "fd::7" }), "INVALID_GIT_URL"),
        (json!({ "repoUrl": " " }), "INVALID_GIT_URL"),
        (json!({ "repoUrl": "x".repeat(2049) }), "INVALID_GIT_URL"),
        (json!({ "repoUrl": url, "timeoutMs": 0 }), "VALIDATION_FAILED"),
        (json!({ "repoUrl": url, "depth": 0 }), "VALIDATION_FAILED"),
        (json!({ "repoUrl": url, "targetDir": "a\0b" }), "VALIDATION_FAILED"),
        (json!({}), "VALIDATION_FAILED"),
    ] {
        clone(&api, body).fails(400, code);
    }
    // Upstream's tests look for these words.
    let limit = clone(&api, json!({ "repoUrl": url, "timeoutMs": 0 })).fails(400, "VALIDATION_FAILED");
    assert!(limit["message"].as_str().unwrap().starts_with("Invalid clone timeout '0'"), "{limit}");
}

/// spec: 15.19
#[test]
fn the_time_limit_of_a_clone_ends_all_that_it_has_started() {
    let Some((api, _)) = start() else { return };
    // An address by which git starts a command, if the user permits that.
    api.out("s", "export GIT_ALLOW_PROTOCOL=ext");
    let begun = api.path("begun");
    let script = api.path("hang");
    std::fs::write(&script, format!("setsid sleep 605 & echo $! > {begun}; exec sleep 606")).unwrap();
    let body =
        json!({ "repoUrl": format!("ext::sh {script}"), "targetDir": api.path("target"), "timeoutMs": 1500 });
    let error = clone(&api, body).fails(502, "GIT_NETWORK_ERROR");
    assert!(error["message"].as_str().unwrap().contains("timed out after 1.5 seconds"), "{error}");
    let pid = std::fs::read_to_string(&begun).unwrap();
    assert!(!std::fs::exists(format!("/proc/{}", pid.trim())).unwrap(), "the daemon is gone");
    assert!(!api.env.is_running("sleep 606"));
    assert_eq!(api.out("s", "echo usable"), "usable\n");
}

/// spec: 15.19
#[test]
fn a_clone_whose_session_is_deleted_says_so() {
    let Some((api, _)) = start() else { return };
    api.out("s", "export GIT_ALLOW_PROTOCOL=ext");
    let script = api.path("hang");
    std::fs::write(&script, "exec sleep 607").unwrap();
    let body = json!({ "repoUrl": format!("ext::sh {script}"), "targetDir": api.path("target") });
    std::thread::scope(|scope| {
        let cloning = scope.spawn(|| clone(&api, body));
        wait_until("git runs", || api.env.is_running("sleep 607"));
        api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
        cloning.join().unwrap().fails(410, "SESSION_DESTROYED");
    });
    assert!(!api.env.is_running("sleep 607"));
}
