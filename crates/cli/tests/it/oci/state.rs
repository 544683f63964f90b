//! The state root below `penfold oci`: full, read-only, damaged, or held by a process that is stopped.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use rustix::fs::FlockOperation;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use rustix::process::Signal;

use super::bundle::{Engine, TREE, cgroups};
use super::{POINTS, id};
use crate::support::{Process, Running, TestEnv, has_debug_assertions, skip, wait_until};

/// A small file system on the state root until this is dropped.
struct Disk(PathBuf);

impl Disk {
    fn mount(env: &TestEnv) -> Option<Disk> {
        let mounted = mount("none", env.root(), "tmpfs", MountFlags::empty(), c"size=64k,nr_inodes=64");
        if mounted.is_err() {
            skip("no tmpfs can be mounted here");
        }
        mounted.ok().map(|()| Disk(env.root()))
    }

    fn fill(&self) {
        let mut filler = std::fs::File::create(self.0.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        let files = (0..64).map(|number| std::fs::write(self.0.join(format!("filler-{number}")), ""));
        assert!(files.filter(Result::is_err).count() > 0, "no file can be made");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A bundle whose cgroups `delete` would note, as those of engines are: the engine names the cgroup.
fn bundle(engine: &Engine<'_>, id: &str) -> PathBuf {
    let path = format!("/{id}");
    engine.bundle(TREE, false, |config| config["linux"]["cgroupsPath"] = path.into())
}

/// spec: 30.11
#[test]
fn end_of_a_container_needs_no_space() {
    for is_full in [true, false] {
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, "runc") else { return };
        let Some(disk) = Disk::mount(&env) else { return };
        let id = id(&env);
        let members = [engine.run(&id, &bundle(&engine, &id)), engine.stray()];
        if is_full {
            disk.fill();
        } else {
            mount_remount(&disk.0, MountFlags::RDONLY, "").unwrap();
        }
        assert!(members.iter().all(|member| !member.has_ended()), "alive");
        let done = engine.call(&["delete", "--force", &id]).with_code(0);
        assert!(members.iter().all(Process::has_ended));
        assert_eq!(cgroups(&id), Vec::<PathBuf>::new());
        engine.call(&["state", &id]).with_code(1);
        let said = "cannot write the note of container";
        assert!(done.err().contains(said), "{}", done.err());
        let log = std::fs::read_to_string(engine.log()).unwrap();
        assert!(log.lines().any(|line| line.contains(said) && line.contains("\"warning\"")), "{log}");
        // A full disk lets a file go, one that cannot be written does not.
        assert_eq!(engine.notes(), usize::from(!is_full));
        if !is_full {
            assert!(done.err().contains("its note cannot be removed"), "{}", done.err());
            engine.call(&["delete", "--force", &id]).with_code(0);
            mount_remount(&disk.0, MountFlags::empty(), "").unwrap();
            engine.call(&["delete", "--force", &id]).with_code(0);
            assert_eq!(engine.notes(), 0);
        }
        drop(disk);
        env.assert_nothing_left();
    }
}

/// spec: 30.11
#[test]
fn create_that_cannot_note_the_container_leaves_no_file() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let Some(disk) = Disk::mount(&env) else { return };
    let id = id(&env);
    let bundle = bundle(&engine, &id);
    std::fs::create_dir(env.root().join("oci")).unwrap();
    let mut filler = std::fs::File::create(disk.0.join("filler")).unwrap();
    while filler.write_all(&[1; 4096]).is_ok() {}
    for _ in 0..2 {
        let mut create = engine.command(&["create", "--bundle"]);
        let done = Running::start(create.arg(&bundle).arg(&id)).finish();
        done.refused(1, "cannot write the note of container");
        assert_eq!(engine.notes(), 0);
    }
    engine.call(&["state", &id]).with_code(1);
}

/// spec: 30.11
#[test]
fn damaged_note_blocks_no_end() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let members = [engine.run(&id, &bundle(&engine, &id)), engine.stray()];
    let note = std::fs::read_dir(env.root().join("oci")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&note, "").unwrap();
    assert!(members.iter().all(|member| !member.has_ended()), "alive");
    let done = engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(done.err().contains("cannot read the note of container"), "{}", done.err());
    assert!(members.iter().all(Process::has_ended));
    assert_eq!((cgroups(&id), engine.notes()), (Vec::<PathBuf>::new(), 0));
    env.assert_nothing_left();
}

/// spec: 30.12
#[test]
fn no_lock_keeps_a_container_from_its_start_or_its_end() {
    let env = TestEnv::new();
    let Some(engine) = Engine::new(&env, "runc") else { return };
    let id = id(&env);
    let dir = env.root().join("oci");
    std::fs::create_dir_all(&dir).unwrap();
    let held = std::fs::File::open(&dir).unwrap();
    rustix::fs::flock(held.as_fd(), FlockOperation::LockExclusive).unwrap();
    let init = engine.run(&id, &bundle(&engine, &id));
    assert!(!init.has_ended());
    engine.call(&["delete", "--force", &id]).with_code(0);
    assert!(init.has_ended());
    assert_eq!(engine.notes(), 0);
    env.assert_nothing_left();
}

/// spec: 30.12
#[test]
fn penfold_that_is_stopped_holds_up_no_other() {
    if !has_debug_assertions() {
        return skip("the binary does not stop there");
    }
    for point in POINTS {
        let env = TestEnv::new();
        let Some(engine) = Engine::new(&env, "runc") else { return };
        let (id, other) = (id(&env), id(&env) + "other");
        let own = bundle(&engine, &id);
        let words: &[&str] = match point {
            "oci-create" | "oci-noted" => &["create"],
            "oci-kill" | "oci-killed" => &["kill"],
            _ => &["delete", "--force"],
        };
        let mut command = engine.command(words);
        if words[0] == "create" {
            command.arg("--bundle").arg(&own).arg(&id);
        } else {
            let init = engine.run(&id, &own);
            assert!(!init.has_ended(), "alive");
            command.arg(&id);
            if words[0] == "kill" {
                command.arg("KILL");
            }
        }
        let stopped = Running::spawn(command.env("PENFOLD_STOP_AT", point));
        wait_until("it is stopped", || stopped.process().state() == Some('T'));
        // Another container, and the same one by the next call of the engine.
        let init = engine.run(&other, &bundle(&engine, &other));
        assert!(!init.has_ended(), "{point}");
        for id in [&other, &id] {
            engine.call(&["delete", "--force", id]).with_code(0);
            assert_eq!(cgroups(id), Vec::<PathBuf>::new(), "{point}");
        }
        assert!(init.has_ended() && engine.notes() == 0, "{point}");
        stopped.process().signal(Signal::KILL);
        drop(stopped);
        env.assert_nothing_left();
    }
}
