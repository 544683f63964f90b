//! A bundle whose root has the programs of the host, and an OCI runtime of its own state directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Finished, Process, Running, TestEnv, has_program, is_root, penfold, wait_until};

/// Containers of one engine.
pub struct Engine<'a> {
    env: &'a TestEnv,
    /// `--root` of the delegate.
    pub root: PathBuf,
}

/// What the first process of the container runs: a stray in a session of its own, then itself.
pub const TREE: &str = "setsid sleep 1001 & exec sleep 1002";

impl<'a> Engine<'a> {
    /// An engine for containers with runc. `None`, and the reason said, where that cannot be.
    pub fn new(env: &'a TestEnv, name: &str) -> Option<Engine<'a>> {
        let works = is_root() && has_program(&["runc", "--version"]);
        works.then(|| Engine { env, root: env.path(&format!("work/{name}")) })
    }

    /// Writes a bundle; `change` may change its `config.json`.
    pub fn bundle(&self, script: &str, private_pids: bool, change: impl FnOnce(&mut Value)) -> PathBuf {
        let bundle = self.env.path("work/bundle");
        let mut mounts = vec![json!({ "destination": "/proc", "type": "proc", "source": "proc" })];
        for dir in ["usr", "bin", "sbin", "lib", "lib64"] {
            std::fs::create_dir_all(bundle.join("rootfs").join(dir)).unwrap();
            if Path::new("/").join(dir).is_dir() {
                let (to, options) = (format!("/{dir}"), ["rbind", "ro"]);
                mounts.push(json!({ "destination": to, "type": "bind", "source": to, "options": options }));
            }
        }
        let kinds = ["pid", "mount", "ipc", "uts", "network"];
        let kinds = kinds.iter().filter(|kind| private_pids || **kind != "pid");
        let namespaces: Vec<Value> = kinds.map(|kind| json!({ "type": kind })).collect();
        let mark = format!("{}={}", crate::support::MARK, self.env.dir().display());
        let mut config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": 0, "gid": 0 }, "cwd": "/", "args": ["sh", "-c", script],
                "env": ["PATH=/usr/bin:/bin", mark],
            },
            "root": { "path": "rootfs" },
            "mounts": mounts,
            "linux": { "namespaces": namespaces, "resources": {} },
        });
        change(&mut config);
        std::fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        bundle
    }

    /// `penfold oci` of this engine with these words.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = self.env.command(penfold());
        command.arg("oci").arg("--root").arg(&self.root).arg("--log").arg(self.log());
        command.args(["--log-format", "json"]).args(words);
        command.env("PENFOLD_ROOT", self.env.root());
        command
    }

    pub fn call(&self, words: &[&str]) -> Finished {
        Running::start(&mut self.command(words)).finish()
    }

    /// The file of `--log`.
    pub fn log(&self) -> PathBuf {
        self.env.path("work/log.json")
    }

    /// Starts a container, and returns its first process.
    pub fn run(&self, id: &str, bundle: &Path) -> Process {
        let pid_file = self.env.path("work/pid");
        let mut command = self.command(&["run", "--detach", "--pid-file"]);
        command.arg(&pid_file).arg("--bundle").arg(bundle).arg(id);
        // The container keeps the streams.
        let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(status.success(), "{}", std::fs::read_to_string(self.log()).unwrap_or_default());
        let pid = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        Process::find(pid).unwrap()
    }

    /// Starts a container whose first process has left a stray and ended; returns the stray.
    pub fn run_with_stray(&self, id: &str, bundle: &Path) -> Process {
        let init = self.run(id, bundle);
        let stray = self.stray();
        init.signal(rustix::process::Signal::KILL);
        init.await_end();
        assert!(!stray.has_ended(), "the stray lives");
        stray
    }

    pub fn stray(&self) -> Process {
        wait_until("the stray runs", || self.env.is_running("sleep 1001"));
        self.env.running("sleep 1001").remove(0)
    }

    /// The notes of the state root.
    pub fn notes(&self) -> usize {
        std::fs::read_dir(self.env.root().join("oci")).map_or(0, Iterator::count)
    }
}

/// The cgroups of a container with this id, in every hierarchy.
pub fn cgroups(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(dir) = waiting.pop() {
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        waiting.extend(
            entries
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path()),
        );
        if dir.file_name().is_some_and(|name| name == id) {
            found.push(dir);
        }
    }
    found
}
