//! Directories with hostile content.

use std::os::unix::fs::symlink;
use std::time::Duration;

use penfold_resource::ResourceError;

use crate::support::{Holder, Sandbox, as_root, attempt, has, has_mount, holders, run};

const SHORT: Duration = Duration::from_millis(100);

fn made() -> Sandbox {
    let sandbox = Sandbox::plan(r#"{"workspace":{"path":"DIR/w"}}"#);
    sandbox.create();
    sandbox
}

#[test]
fn odd_names_links_fifos_and_many_files_go() {
    let sandbox = made();
    let w = sandbox.path("w");
    let precious = sandbox.path("precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "x").unwrap();
    for name in ["-rf", "new\nline", " ", "\u{1b}[31m", "*"] {
        std::fs::write(w.join(name), "x").unwrap();
    }
    symlink(&precious, w.join("link")).unwrap();
    symlink("..", w.join("up")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        w.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    for number in 0..5000 {
        std::fs::write(w.join(format!("many-{number}")), "").unwrap();
    }
    std::fs::create_dir(w.join("closed")).unwrap();
    std::fs::write(w.join("closed/file"), "").unwrap();
    std::fs::set_permissions(w.join("closed"), std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    sandbox.release_all();
    assert_eq!(std::fs::read(precious.join("file")).unwrap(), b"x");
}

#[test]
fn immutable_and_append_only_entries_go() {
    as_root(|| {
        if !has("chattr") {
            return;
        }
        let sandbox = made();
        let w = sandbox.path("w");
        std::fs::create_dir_all(w.join("a/b")).unwrap();
        for (file, flag) in [("file", "+i"), ("a/grows", "+a"), ("a/b/file", "+i")] {
            std::fs::write(w.join(file), "x").unwrap();
            if !attempt(&["chattr", flag, w.join(file).to_str().unwrap()]).1 {
                return penfold_testkit::skip("the file system has no immutable files");
            }
        }
        for (dir, flag) in [("a/b", "+i"), ("a", "+a"), ("", "+i")] {
            run(&["chattr", flag, w.join(dir).to_str().unwrap()]);
        }
        std::fs::remove_file(w.join("file")).unwrap_err();
        // The file interface of the server uses this, and must not do more than rm(1).
        let dir = std::fs::File::open(&w).unwrap();
        penfold_resource::clear::clear_directory(std::os::fd::AsFd::as_fd(&dir), &[]).unwrap_err();
        assert!(w.join("file").try_exists().unwrap());
        sandbox.release_all();
    });
}

#[test]
fn a_mount_below_is_detached_and_its_files_stay() {
    as_root(|| {
        if !has("mount") {
            return;
        }
        let sandbox = made();
        let precious = sandbox.path("precious");
        std::fs::create_dir(&precious).unwrap();
        std::fs::write(precious.join("file"), "x").unwrap();
        let point = sandbox.path("w/m");
        std::fs::create_dir(&point).unwrap();
        run(&["mount", "--bind", precious.to_str().unwrap(), point.to_str().unwrap()]);
        assert!(has_mount(&point));
        sandbox.release_all();
        assert_eq!(std::fs::read(precious.join("file")).unwrap(), b"x");
    });
}

#[test]
fn a_directory_that_is_written_to_names_the_writer_or_goes() {
    if !has("python3") {
        return;
    }
    let sandbox = made();
    let w = sandbox.path("w");
    let holder = Holder::shell(&format!(
        "exec python3 -c 'import os,select
os.chdir(\"{}\")
open(\"first\",\"w\")
print(\"ready\",flush=True)
n=0
while not select.select([0],[],[],0)[0]:
    n+=1
    try: os.close(os.open(str(n),os.O_CREAT|os.O_WRONLY))
    except FileNotFoundError: pass'",
        w.display()
    ));
    assert!(w.join("first").try_exists().unwrap());
    match sandbox.release_one(0, SHORT) {
        Err(error) => holder.is_named_in(holders(&error)),
        Ok(()) => assert!(!w.try_exists().unwrap()),
    }
    drop(holder);
    sandbox.release_all();
}

#[test]
fn a_link_in_place_of_the_directory_is_not_followed() {
    let sandbox = made();
    let (w, moved, precious) = (sandbox.path("w"), sandbox.path("moved"), sandbox.path("precious"));
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "x").unwrap();
    std::fs::rename(&w, &moved).unwrap();
    symlink(&precious, &w).unwrap();
    let error = sandbox.release_one(0, SHORT).unwrap_err();
    assert!(matches!(error, ResourceError::Foreign { .. }), "{error:?}");
    assert_eq!(std::fs::read(precious.join("file")).unwrap(), b"x");
}

#[test]
fn another_directory_of_the_same_name_stays() {
    let sandbox = Sandbox::plan(r#"{"workspace":{"path":"DIR/w"}}"#);
    std::fs::create_dir(sandbox.path("w")).unwrap();
    std::fs::write(sandbox.path("w/file"), "x").unwrap();
    assert!(matches!(sandbox.planned[0].check(), Err(ResourceError::Taken { .. })));
    sandbox.planned[0].create(&sandbox.owner).unwrap_err();
    let error = sandbox.release_one(0, SHORT).unwrap_err();
    assert!(matches!(error, ResourceError::Foreign { .. }), "{error:?}");
    assert_eq!(std::fs::read(sandbox.path("w/file")).unwrap(), b"x");
    assert_eq!(std::fs::read_dir(sandbox.dir.path()).unwrap().count(), 1);
}

#[test]
fn a_removal_does_not_enter_a_mount() {
    as_root(|| {
        if !has("mount") {
            return;
        }
        let sandbox = Sandbox::new();
        for name in ["w", "w/m", "precious"] {
            std::fs::create_dir(sandbox.path(name)).unwrap();
        }
        std::fs::write(sandbox.path("precious/file"), "x").unwrap();
        let (precious, point) = (sandbox.path("precious"), sandbox.path("w/m"));
        run(&["mount", "--bind", precious.to_str().unwrap(), point.to_str().unwrap()]);
        let dir = std::fs::File::open(sandbox.path("w")).unwrap();
        let failure =
            penfold_resource::clear::clear_directory(std::os::fd::AsFd::as_fd(&dir), &[]).unwrap_err();
        run(&["umount", point.to_str().unwrap()]);
        assert_eq!(failure.path, std::path::Path::new("m"));
        assert_eq!(std::fs::read(precious.join("file")).unwrap(), b"x");
    });
}
