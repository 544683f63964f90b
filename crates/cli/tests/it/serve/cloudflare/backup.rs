//! `/api/backup/*`: archives of directories of this host.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{Api, Told};
use crate::support::{has_program, is_root, wait_until};

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

/// Puts a program in place of tar, for the session `s`.
fn replace_tar(api: &Api, script: &str) {
    let dir = api.path("programs");
    fs::create_dir_all(&dir).unwrap();
    fs::write(format!("{dir}/tar"), format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(format!("{dir}/tar"), fs::Permissions::from_mode(0o755)).unwrap();
    api.out("s", &format!("PATH={dir}:$PATH"));
}

/// spec: 15.25
#[test]
fn a_backup_whose_session_is_deleted_says_so_and_leaves_nothing() {
    let api = start();
    let dir = api.path("dir");
    create(&api, &json!({})).ok();
    let before = tree(&dir);
    let ways: [(&str, &(dyn Fn() -> Told + Sync)); 2] =
        [("archive", &|| create(&api, &json!({}))), ("directory", &|| restore(&api, &dir))];
    for (way, ask) in ways {
        // It has written something.
        replace_tar(&api, "/bin/tar \"$@\"; exec sleep 4818");
        std::thread::scope(|scope| {
            let asking = scope.spawn(ask);
            wait_until("tar runs", || api.env.is_running("sleep 4818"));
            api.post("/api/session/delete", &json!({ "sessionId": "s" })).ok();
            asking.join().unwrap().fails(410, "SESSION_DESTROYED");
        });
        assert_eq!(tree(&api.path("made")), ["archive"], "{way}");
        assert_eq!(tree(&dir), before, "{way}");
    }
    let Api { env, server } = api;
    server.end();
    env.assert_nothing_left();
}

/// spec: 15.25
#[test]
fn two_restores_of_one_directory_do_not_meet() {
    let api = start();
    let dir = api.path("dir");
    create(&api, &json!({})).ok();
    let before = tree(&dir);
    replace_tar(
        &api,
        &format!("/bin/tar \"$@\"; [ -e {0} ] || {{ : > {0}; exec sleep 4819; }}", api.path("first")),
    );
    std::thread::scope(|scope| {
        let first = scope.spawn(|| restore(&api, &dir));
        wait_until("the first one unpacks", || api.env.is_running("sleep 4819"));
        let error = restore(&api, &dir).fails(500, "BACKUP_RESTORE_FAILED");
        assert!(error["message"].as_str().unwrap().contains("another restore works on"), "{error}");
        for sleep in api.env.running("sleep 4819") {
            sleep.signal(rustix::process::Signal::TERM);
        }
        first.join().unwrap().fails(500, "BACKUP_RESTORE_FAILED");
    });
    assert_eq!(tree(&dir), before);
    restore(&api, &dir).ok();
}

/// spec: 15.25
#[test]
fn what_cannot_be_replaced_stays_as_it_was() {
    let api = start();
    let (dir, archive) = (api.path("dir"), api.path("made/archive"));
    create(&api, &json!({})).ok();
    fs::write(format!("{dir}/later"), "later").unwrap();
    // Old content that cannot be moved, among others that can.
    if is_root() {
        fs::create_dir(format!("{dir}/mounted")).unwrap();
        let mounted = format!("{dir}/mounted");
        rustix::mount::mount("none", &mounted, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        let before = tree(&dir);
        restore(&api, &dir).fails(500, "BACKUP_RESTORE_FAILED");
        assert_eq!(tree(&dir), before);
        rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::empty()).unwrap();
    }
    let before = tree(&dir);
    let whole = fs::read(&archive).unwrap();
    for cut in [0, 512, 1024, whole.len() / 1024 * 512] {
        fs::write(&archive, &whole[..cut]).unwrap();
        restore(&api, &dir).fails(500, "BACKUP_RESTORE_FAILED");
        fs::write(&archive, vec![0; 20_480]).unwrap();
        restore(&api, &dir).fails(500, "BACKUP_RESTORE_FAILED");
    }
    assert_eq!(tree(&dir), before);
    // A directory that was made for an archive that is none goes again.
    fs::write(&archive, [b"\x1f\x8b\x08", &whole[..100]].concat()).unwrap();
    restore(&api, &api.path("fresh")).fails(500, "BACKUP_RESTORE_FAILED");
    assert!(!fs::exists(api.path("fresh")).unwrap());
    // An archive takes the place of a plain file only, and another file beside it stays.
    let (special, target) = (api.path("special"), api.path("target"));
    fs::write(&target, "mine").unwrap();
    symlink(&target, &special).unwrap();
    fs::write(format!("{special}.part"), "mine, too").unwrap();
    create(&api, &json!({ "archivePath": special })).fails(500, "BACKUP_CREATE_FAILED");
    assert_eq!(fs::read_to_string(&special).unwrap(), "mine");
    create(&api, &json!({ "archivePath": "/dev/null" })).fails(500, "BACKUP_CREATE_FAILED");
    let other = api.path("made/other");
    fs::write(&other, "old").unwrap();
    create(&api, &json!({ "archivePath": other })).ok();
    assert!(fs::metadata(&other).unwrap().len() > 1024);
    create(&api, &json!({ "dir": format!("{dir}/\u{fffd}fc") })).fails(400, "INVALID_BACKUP_CONFIG");
    assert_eq!(tree(&api.path("made")), ["archive", "other"]);
}
