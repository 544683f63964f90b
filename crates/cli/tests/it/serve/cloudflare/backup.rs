//! `/api/backup/*`: archives of directories of this host.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Api, Told};
use crate::support::{has_program, wait_until};

fn create(api: &Api, more: &Value) -> Told {
    let mut body =
        json!({ "dir": api.path("dir"), "archivePath": api.path("made/archive"), "sessionId": "s" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post("/api/backup/create", &body)
}

fn restore(api: &Api, dir: &str) -> Told {
    let body = json!({ "dir": dir, "archivePath": api.path("made/archive"), "sessionId": "s" });
    api.post("/api/backup/restore", &body)
}

/// A server, and a directory with files of several kinds.
fn start() -> Api {
    let api = Api::start();
    let dir = api.path("dir");
    fs::create_dir_all(format!("{dir}/in/node_modules")).unwrap();
    fs::write(format!("{dir}/in/node_modules/x"), "x").unwrap();
    fs::write(format!("{dir}/in/run"), "one").unwrap();
    fs::set_permissions(format!("{dir}/in/run"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("in/run", format!("{dir}/link")).unwrap();
    fs::write(format!("{dir}/.hidden"), "h").unwrap();
    api
}

/// All paths below a directory, sorted.
fn tree(dir: &str) -> Vec<String> {
    let (mut found, mut left) = (Vec::new(), vec![Path::new(dir).to_owned()]);
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).unwrap().map(Result::unwrap) {
            found.push(entry.path().strip_prefix(dir).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                left.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// spec: 15.25
#[test]
fn a_directory_is_archived_and_restored() {
    let api = start();
    let dir = api.path("dir");
    let made = create(&api, &json!({ "excludes": ["**/node_modules/**"] })).ok();
    assert_eq!(made["archivePath"], api.path("made/archive"));
    assert_eq!(made["sizeBytes"], fs::metadata(api.path("made/archive")).unwrap().len());
    // The shell is in the directory, and stays there.
    api.out("s", &format!("cd {dir}"));
    fs::write(format!("{dir}/in/run"), "two").unwrap();
    fs::write(format!("{dir}/later"), "").unwrap();
    assert_eq!(restore(&api, &dir).ok()["dir"], dir);
    assert_eq!(tree(&dir), [".hidden", "in", "in/run", "link"]);
    assert_eq!(api.out("s", "cat link"), "one");
    assert_eq!(fs::metadata(format!("{dir}/in/run")).unwrap().permissions().mode() & 0o777, 0o751);
    assert_eq!(fs::read_link(format!("{dir}/link")).unwrap(), Path::new("in/run"));
    // A directory that is not there is made.
    let other = api.path("new/other");
    restore(&api, &other).ok();
    assert_eq!(tree(&other), tree(&dir));
    for format in ["gzip", "zstd", "lz4"] {
        // A client asks for what the host has.
        if Command::new(format).arg("--version").output().is_ok() {
            create(&api, &json!({ "compression": { "format": format, "threads": 2 } })).ok();
            restore(&api, &other).ok();
            assert_eq!(tree(&other), tree(&dir), "{format}");
        }
    }
    assert_eq!(tree(&api.path("made")), ["archive"]);
    // tar is none of the client's processes.
    assert_eq!(api.get("/api/process/list").ok()["processes"], json!([]));
}

/// spec: 15.25
#[test]
fn what_git_ignores_is_left_out_if_that_is_asked_for() {
    if !has_program(&["git", "--version"]) {
        return;
    }
    let api = start();
    let dir = api.path("dir");
    fs::write(format!("{dir}/.gitignore"), "node_modules/\n*.log\n!keep.log\n").unwrap();
    for name in ["a.log", "keep.log", "in/b.log", "in/[b].log"] {
        fs::write(format!("{dir}/{name}"), "").unwrap();
    }
    api.out("s", &format!("git -C {dir} init -q"));
    create(&api, &json!({ "gitignore": true, "excludes": [".git"] })).ok();
    restore(&api, &dir).ok();
    assert_eq!(tree(&dir), [".gitignore", ".hidden", "in", "in/run", "keep.log", "link"]);
}

/// spec: 15.25
#[test]
fn a_backup_that_fails_changes_nothing_and_nothing_of_a_request_is_executed() {
    let api = start();
    let (dir, made) = (api.path("dir"), api.path("executed"));
    let before = tree(&dir);
    let error = create(&api, &json!({ "dir": api.path("none") })).fails(500, "BACKUP_CREATE_FAILED");
    assert!(error["message"].as_str().unwrap().contains("none"), "{error}");
    assert_eq!(tree(&api.path("made")), Vec::<String>::new());
    restore(&api, &dir).fails(500, "BACKUP_RESTORE_FAILED");
    fs::write(api.path("made/archive"), "no archive").unwrap();
    restore(&api, &dir).fails(500, "BACKUP_RESTORE_FAILED");
    assert_eq!(tree(&dir), before);
    for wrong in [
        json!({ "dir": "relative" }),
        json!({ "dir": "" }),
        json!({ "dir": "/a/../b" }),
        json!({ "archivePath": "archive" }),
        json!({ "dir": "/a\u{0}b" }),
    ] {
        create(&api, &wrong).fails(400, "INVALID_BACKUP_CONFIG");
    }
    restore(&api, &api.path("made")).fails(400, "INVALID_BACKUP_CONFIG");
    let hostile = [
        format!("--checkpoint-action=exec=touch {made}"),
        format!("$(touch {made})"),
        format!("'; touch {made}; '"),
        "--to-stdout".to_owned(),
    ];
    create(&api, &json!({ "excludes": hostile })).ok();
    let named = format!("{}/$(touch {})", api.path("dir"), "executed");
    fs::create_dir(&named).unwrap();
    create(&api, &json!({ "dir": named })).ok();
    restore(&api, &named).ok();
    assert!(!fs::exists(&made).unwrap());
    let parts = json!({ "archivePath": api.path("made/archive"), "parts": [] });
    api.post("/api/backup/upload-parts", &parts).fails(501, "BACKUP_CREATE_FAILED");
}

/// spec: 15.25
#[test]
fn a_backup_whose_session_is_deleted_says_so() {
    let api = start();
    api.out("s", &format!("mkdir {0}; mkfifo {0}/archive.part", api.path("made")));
    std::thread::scope(|scope| {
        // tar waits for a reader of the FIFO.
        let archiving = scope.spawn(|| create(&api, &json!({})));
        let tar = format!("tar --create --file {0}/archive.part -C {1} .", api.path("made"), api.path("dir"));
        wait_until("tar runs", || api.env.is_running(&tar));
        api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
        archiving.join().unwrap().fails(410, "SESSION_DESTROYED");
    });
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}
