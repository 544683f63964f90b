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
    assert!(!fs::exists(api.path("made")).unwrap());
    fs::create_dir(api.path("made")).unwrap();
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
    replace(api, "tar", script);
}

/// Puts a program in place of another one, for the session `s`.
fn replace(api: &Api, program: &str, script: &str) {
    let dir = api.path("programs");
    fs::create_dir_all(&dir).unwrap();
    let path = format!("{dir}/{program}");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    api.out("s", &format!("PATH={dir}:$PATH"));
}

/// Checks that a restore fails with these words, and changes nothing.
#[track_caller]
fn refuses(api: &Api, dir: &str, part: &str) {
    let before = tree(dir);
    let error = restore(api, dir).fails(500, "BACKUP_RESTORE_FAILED");
    assert!(error["message"].as_str().unwrap().contains(part), "{error}");
    assert_eq!(tree(dir), before, "{error}");
    assert_eq!(error["context"]["left"], Value::Null, "{error}");
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
fn restores_do_not_meet_in_one_directory_nor_in_one_below_another() {
    let api = start();
    let (dir, below, beside) = (api.path("dir"), api.path("dir/in/node_modules"), api.path("beside"));
    create(&api, &json!({})).ok();
    let all = tree(&dir);
    fs::create_dir(&beside).unwrap();
    let meetings = [
        (&dir, &dir, false),
        (&dir, &below, false),
        (&below, &dir, false),
        (&dir, &dir, true),
        (&below, &dir, true),
    ];
    for (first, second, is_locked) in meetings {
        let before = tree(&dir);
        // Something else has the lock all the time.
        let other = fs::File::open(&dir).unwrap();
        if is_locked {
            rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
        }
        let once = api.path("first");
        replace_tar(&api, &format!("/bin/tar \"$@\"; [ -e {once} ] || {{ : > {once}; exec sleep 4819; }}"));
        std::thread::scope(|scope| {
            let unpacking = scope.spawn(|| restore(&api, first));
            wait_until("the first one unpacks", || api.env.is_running("sleep 4819"));
            let creating = scope.spawn(|| create(&api, &json!({ "dir": first })));
            let error = restore(&api, second).fails(500, "BACKUP_RESTORE_FAILED");
            assert!(error["message"].as_str().unwrap().contains("restore works on"), "{error}");
            creating.join().unwrap().fails(500, "BACKUP_CREATE_FAILED");
            // One beside it is not in the way.
            restore(&api, &beside).ok();
            for sleep in api.env.running("sleep 4819") {
                sleep.signal(rustix::process::Signal::TERM);
            }
            unpacking.join().unwrap().fails(500, "BACKUP_RESTORE_FAILED");
        });
        assert_eq!(tree(&dir), before, "{first} {second}");
        fs::remove_file(once).unwrap();
    }
    replace_tar(&api, "exec /bin/tar \"$@\"");
    fs::write(format!("{dir}/later"), "").unwrap();
    // A program that looks whether a directory is in use locks it for a moment.
    let look = fs::File::open(&dir).unwrap();
    rustix::fs::flock(&look, rustix::fs::FlockOperation::LockShared).unwrap();
    std::thread::scope(|scope| {
        let restoring = scope.spawn(|| restore(&api, &dir));
        wait_until("the restore waits for the lock", || !api.env.find("flock --timeout").is_empty());
        drop(look);
        restoring.join().unwrap().ok();
    });
    assert_eq!(tree(&dir), all);
}

/// spec: 15.25
#[test]
fn an_archive_that_was_cut_is_refused_wherever_that_is() {
    let api = start();
    let (dir, source, archive) = (api.path("dir"), api.path("source"), api.path("made/archive"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir_all(api.path("made")).unwrap();
    fs::write(format!("{source}/0"), vec![0; 10_240]).unwrap();
    fs::write(format!("{source}/1"), "lost").unwrap();
    let run = |command: &str| api.out("s", &format!("cd {source}; {command}"));
    run(&format!("tar --create --file {archive} 0 1"));
    let whole = fs::read(&archive).unwrap();
    restore(&api, &api.path("copy")).ok();
    assert_eq!(tree(&api.path("copy")), ["0", "1"]);
    for pack in ["cat", "gzip", "zstd", "lz4", "bzip2", "xz"] {
        if Command::new(pack).arg("--version").output().is_err() {
            continue;
        }
        // Behind the zeros of the first file, and in the middle of the second one.
        for cut in [512 + 10_240, 512 + 10_240 + 512, 2 * 512 + 10_240 + 100] {
            fs::write(&archive, &whole[..cut]).unwrap();
            run(&format!("{pack} < {archive} > {archive}.packed; mv {archive}.packed {archive}"));
            refuses(&api, &dir, "");
        }
        fs::write(&archive, &whole).unwrap();
        run(&format!("{pack} < {archive} > {archive}.packed; mv {archive}.packed {archive}"));
        restore(&api, &api.path("copy")).ok();
        let zeros = fs::read(&archive).unwrap();
        fs::write(&archive, &zeros[..zeros.len() / 2]).unwrap();
        if pack != "cat" {
            refuses(&api, &dir, "");
        }
    }
    for empty in [vec![], vec![0; 20_480]] {
        fs::write(&archive, &empty).unwrap();
        refuses(&api, &dir, if empty.is_empty() { "" } else { "is empty, or was cut" });
    }
}

/// spec: 15.25
#[test]
fn what_lies_deeper_and_cannot_be_replaced_is_found_before() {
    let api = start();
    let dir = api.path("dir");
    create(&api, &json!({})).ok();
    fs::create_dir(format!("{dir}/in/deep")).unwrap();
    fs::write(format!("{dir}/in/deep/file"), "").unwrap();
    if is_root() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
        let mounted = format!("{dir}/in/deep");
        mount("none", &mounted, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(format!("{mounted}/there"), "").unwrap();
        refuses(&api, &dir, "in/deep is a mount point");
        unmount(&mounted, UnmountFlags::empty()).unwrap();
        // The same file system.
        mount_bind(api.path("made"), &mounted).unwrap();
        refuses(&api, &dir, "in/deep is a mount point");
        unmount(&mounted, UnmountFlags::empty()).unwrap();
        for (flag, path) in [("i", "in/deep/file"), ("a", "in/deep"), ("a", "."), ("i", "link/../run")] {
            let path = format!("{dir}/{path}");
            let chattr = |sign| Command::new("chattr").args([format!("{sign}{flag}"), path.clone()]).output();
            if !chattr("+").is_ok_and(|done| done.status.success()) {
                // The file system of the test has no such flags.
                continue;
            }
            refuses(&api, &dir, "is immutable or append-only");
            chattr("-").unwrap();
        }
    }
    // A move that fails half way is taken back: of the old content, and of the new.
    for (fails_at, program) in [(1, "aside"), (2, "into place")] {
        let count = api.path("count");
        fs::write(&count, "").unwrap();
        replace(
            &api,
            "mv",
            &format!(
                "echo >> {count}; [ $(wc -l < {count}) = {fails_at} ] || exec /bin/mv \"$@\"; /bin/mv \"$1\" \"$2\" \"$3\" \"$4\" \"$5\"; exit 1"
            ),
        );
        refuses(&api, &dir, "");
        assert!(fs::read(&count).unwrap().len() > fails_at, "{program}");
    }
}

/// spec: 15.25
#[test]
fn a_restore_follows_a_link_and_keeps_attributes() {
    let api = start();
    let (dir, link) = (api.path("dir"), api.path("link-to-dir"));
    let attribute = "user.kept";
    let flags = rustix::fs::XattrFlags::empty();
    let has_attributes = rustix::fs::setxattr(format!("{dir}/in/run"), attribute, b"yes", flags).is_ok();
    // The archive of before is in the directory, and not in the new archive.
    for _ in 0..2 {
        create(&api, &json!({ "archivePath": format!("{dir}/own.tar") })).ok();
    }
    fs::rename(format!("{dir}/own.tar"), {
        fs::create_dir_all(api.path("made")).unwrap();
        api.path("made/archive")
    })
    .unwrap();
    let before = tree(&dir);
    fs::write(format!("{dir}/later"), "").unwrap();
    symlink(&dir, &link).unwrap();
    restore(&api, &link).ok();
    assert_eq!(tree(&dir), before);
    if has_attributes {
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(format!("{dir}/in/run"), attribute, &mut value).unwrap();
        assert_eq!(&value[..length], b"yes");
    }
    // A create that fails makes no directories.
    let missing = json!({ "dir": api.path("missing"), "archivePath": api.path("p/q/archive") });
    create(&api, &missing).fails(500, "BACKUP_CREATE_FAILED");
    assert!(!fs::exists(api.path("p")).unwrap());
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
    let whole = fs::read(&archive).unwrap();
    for cut in [512, 1024, whole.len() / 1024 * 512] {
        fs::write(&archive, &whole[..cut]).unwrap();
        refuses(&api, &dir, "");
    }
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
