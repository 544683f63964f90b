//! A mount that something holds is not gone.

use std::time::Duration;

use penfold_resource::{ResourceError, ResourcePresence};

use crate::support::{Holder, Sandbox, as_root, has, has_mount, holders, run};

const SHORT: Duration = Duration::from_millis(100);

fn held(request: &str, script: &str) {
    let mut sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path("lower")).unwrap();
    sandbox.planned = sandbox.try_plan(request).unwrap();
    sandbox.create();
    let target = sandbox.path("t");
    let mount = sandbox.planned.len() - 1;
    let holder = Holder::shell(&script.replace("DIR", sandbox.dir.path().to_str().unwrap()));
    for _ in 0..2 {
        let error = sandbox.release_one(mount, SHORT).unwrap_err();
        holder.is_named_in(holders(&error));
    }
    let presence = sandbox.planned[mount].probe(&sandbox.owner).unwrap();
    assert!(matches!(presence, ResourcePresence::Ours { .. }), "{presence:?}");
    drop(holder);
    sandbox.release_all();
    assert!(!has_mount(&target));
}

#[test]
fn a_working_directory_in_a_tmpfs() {
    as_root(|| held(r#"{"mounts":[{"type":"tmpfs","target":"DIR/t"}]}"#, "cd DIR/t"));
}

#[test]
fn an_open_file_in_an_overlay() {
    as_root(|| {
        let request = r#"{"mounts":[{"type":"overlay","lower":["DIR/lower"],"target":"DIR/t"}]}"#;
        held(request, "exec 7>DIR/t/file");
    });
}

#[test]
fn an_open_file_in_a_bind() {
    as_root(|| {
        let request = r#"{"mounts":[{"type":"bind","source":"DIR/lower","target":"DIR/t"}]}"#;
        held(request, "exec 7>DIR/t/file");
    });
}

#[test]
fn a_copy_in_another_mount_namespace() {
    as_root(|| {
        if !has("unshare") {
            return;
        }
        // In use there, it stays.
        let script =
            "exec unshare -m --propagation private bash -c 'exec 7>DIR/t/file; echo ready; read line'";
        held(r#"{"mounts":[{"type":"tmpfs","target":"DIR/t"}]}"#, script);
    });
}

#[test]
fn mounts_of_the_command_on_top_go_first() {
    as_root(|| {
        if !has("mount") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"mounts":[{"type":"tmpfs","target":"DIR/t"}]}"#);
        sandbox.create();
        let target = sandbox.path("t");
        let inner = target.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        for point in [&inner, &target] {
            run(&["mount", "-t", "tmpfs", "other", point.to_str().unwrap()]);
        }
        assert!(has_mount(&inner));
        sandbox.release_all();
        assert!(!has_mount(&target) && !has_mount(&inner));
    });
}

#[test]
fn a_foreign_mount_stays() {
    as_root(|| {
        if !has("mount") {
            return;
        }
        let sandbox = Sandbox::plan(r#"{"mounts":[{"type":"tmpfs","target":"DIR/t"}]}"#);
        let target = sandbox.path("t");
        std::fs::create_dir(&target).unwrap();
        run(&["mount", "-t", "tmpfs", "other", target.to_str().unwrap()]);
        let mount = sandbox.planned.len() - 1;
        let checked = sandbox.planned[mount].check();
        let released = sandbox.release_one(mount, SHORT);
        let stayed = has_mount(&target);
        run(&["umount", target.to_str().unwrap()]);
        assert!(matches!(checked, Err(ResourceError::Taken { .. })), "{checked:?}");
        assert!(matches!(released, Err(ResourceError::Foreign { .. })), "{released:?}");
        assert!(stayed);
    });
}
