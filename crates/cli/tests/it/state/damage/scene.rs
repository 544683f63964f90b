//! A sandbox with daemons in it, and strangers around it.

use std::ffi::CString;
use std::fs;
use std::path::PathBuf;

use penfold_testkit::{Bystander, DelegatedCgroup};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::support::{Impostor, Level, Process, Sandbox, TestEnv, entries, wait_until};

const DAEMONS: [&str; 4] = ["sleep 1031", "sleep 1032", "sleep 1033", "sleep 1034"];
const TREE: &str = "setsid sleep 1032 & (setsid sleep 1033 &); sleep 1034 & exec sleep 1031";
/// What `ps` says of a sandbox that is not over.
const LIVING: [&str; 6] = ["created", "running", "paused", "stopping", "unkillable", "orphaned"];

pub struct Scene {
    /// Goes first: a directory that is a mount point cannot be removed.
    _small: Option<SmallDisk>,
    pub env: TestEnv,
    pub sandbox: Sandbox,
    daemons: Vec<Process>,
    _bystander: Bystander,
    pub stranger: Process,
    /// A stranger's cgroup, with the stranger in it.
    pub strange: DelegatedCgroup,
    /// A stranger's directory, with a file in it.
    pub victim: PathBuf,
    pub impostors: Vec<Impostor>,
}

impl Scene {
    /// A sandbox called `web`, once its daemons run.
    #[track_caller]
    pub fn new(level: Level) -> Scene {
        Scene::with(level, TestEnv::new(), None)
    }

    /// Its state is on a file system that has room for little more.
    #[track_caller]
    pub fn on_a_small_disk() -> Scene {
        let env = TestEnv::new();
        let small = SmallDisk::mount(&env, 64, 16);
        Scene::with(Level::Cgroup, env, Some(small))
    }

    #[track_caller]
    fn with(level: Level, env: TestEnv, small: Option<SmallDisk>) -> Scene {
        let bystander = Bystander::spawn().unwrap();
        let stranger = Process::find(bystander.pid().try_into().unwrap()).unwrap();
        let strange = DelegatedCgroup::new(0).unwrap();
        fs::write(strange.path().join("cgroup.procs"), stranger.pid().to_string()).unwrap();
        let victim = env.path("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), "{}").unwrap();
        let words = ["--contain", level.word(), "--name", "web", "--log-size", "64K", "--", "sh", "-c", TREE];
        let sandbox = env.detach(words);
        let mut daemons = Vec::new();
        wait_until("the daemons run", || {
            daemons = env.processes();
            daemons.retain(|process| DAEMONS.contains(&process.command_line().trim_end()));
            daemons.len() == DAEMONS.len()
        });
        let impostors = Vec::new();
        Scene {
            _small: small,
            env,
            sandbox,
            daemons,
            _bystander: bystander,
            stranger,
            strange,
            victim,
            impostors,
        }
    }

    /// Takes the last of the room on a small disk.
    pub fn fill(&self) {
        fill(&self.env);
    }

    #[track_caller]
    pub fn assert_daemons_run(&self) {
        let ended: Vec<_> = self.daemons.iter().filter(|daemon| daemon.has_ended()).collect();
        assert!(ended.is_empty(), "not running: {ended:?}");
    }

    /// Moves the members next to where they were, and removes the leaf.
    #[track_caller]
    pub fn empty_leaf(&self) {
        let leaf = self.sandbox.leaf.as_ref().expect("a leaf");
        if !leaf.try_exists().unwrap() {
            return;
        }
        let outside = leaf.parent().unwrap().join("cgroup.procs");
        wait_until("the leaf is empty", || {
            let members = fs::read_to_string(leaf.join("cgroup.procs")).unwrap_or_default();
            members.lines().for_each(|pid| drop(fs::write(&outside, pid)));
            fs::remove_dir(leaf).is_ok()
        });
    }

    /// Panics if `ps` does not list the sandbox, says that it is over, or does not name what is damaged.
    #[track_caller]
    pub fn assert_not_said_to_be_over(&self, is_damage_seen: bool) {
        let listed = self.env.call(["ps", "--json"]);
        let all = listed.json();
        let one = all.as_array().unwrap().iter().find(|one| one["id"] == self.sandbox.id.as_str());
        let one = one.unwrap_or_else(|| panic!("`ps` does not list it: {} {}", listed.out(), listed.err()));
        assert!(LIVING.contains(&one["status"].as_str().unwrap()), "{one}");
        let names = |list: &str| one[list].as_array().is_some_and(|list| !list.is_empty());
        assert!(!is_damage_seen || names("damage") || names("evidence"), "`ps` names no damage: {one}");
    }

    /// Ends the sandbox by a command; all of it must be gone then. `ID`, `PREFIX` and `NAME` stand for the sandbox.
    #[track_caller]
    pub fn end(&self, words: &[&str]) {
        let id = self.sandbox.id.as_str();
        let meant = |&word: &&'_ str| match word {
            "ID" => id.to_owned(),
            "PREFIX" => id[..11].to_owned(),
            "NAME" => "web".to_owned(),
            other => other.to_owned(),
        };
        self.env.call(words.iter().map(meant)).with_code(0);
        for daemon in &self.daemons {
            assert!(daemon.has_ended(), "said to be gone and running: `{}`", daemon.command_line());
        }
        if let Some(leaf) = &self.sandbox.leaf {
            assert!(!leaf.try_exists().unwrap(), "said to be gone and there: {}", leaf.display());
        }
    }

    /// Panics unless nothing of the sandbox is left once it is removed, and strangers are as they were.
    #[track_caller]
    pub fn assert_over(mut self) -> TestEnv {
        self.impostors.clear();
        self.sandbox.supervisors.iter().for_each(Process::await_end);
        assert!(!self.stranger.has_ended(), "a stranger was hit");
        assert_eq!(fs::read_to_string(self.victim.join("file")).unwrap(), "{}", "a stranger's file was hit");
        wait_until("`ps` does not say that it lives", || {
            self.sandbox.status(&self.env).is_none_or(|status| !LIVING.contains(&status.as_str()))
        });
        // A damaged sandbox may be unknown by now.
        let removed = self.sandbox.call(&self.env, &["rm", "-f", "ID"]);
        assert!(matches!(removed.code(), Some(0 | 3)), "not removed: {}", removed.err());
        assert_eq!(entries(&self.env.path("root/sandboxes")), Vec::<PathBuf>::new());
        self.env
    }
}

/// A file system in place of the state root, with room for so many files and so many pages.
/// Takes the last of the room in a state root on a small disk.
pub fn fill(env: &TestEnv) {
    let is_full = |number: u32| {
        let file = env.root().join(format!("full-{number}"));
        fs::write(&file, [0_u8; 4096]).is_err() && fs::write(&file, "").is_err()
    };
    assert!((0..2000).any(is_full));
}

/// A state root with little room.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    pub fn mount(env: &TestEnv, files: u32, pages: u32) -> SmallDisk {
        let options = CString::new(format!("size={}k,nr_inodes={files}", pages * 4)).unwrap();
        mount("none", env.root(), "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
        SmallDisk(env.root())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}
