//! A directory for what one test writes.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::reap_on_drop::report;
use crate::{mounts, proc};

/// The variable with the directory below which homes are made; `penfold guard` sets it.
pub const HOME_BASE: &str = "PENFOLD_TEST_HOME_BASE";

/// A directory for the state root of sandboxes, for settings and for temporary files of one test.
///
/// It is made below `PENFOLD_TEST_HOME_BASE` if that is set, as by `penfold guard`, and else below the temporary directory. So
/// `penfold reap --home "$PENFOLD_TEST_HOME_BASE"` ends whatever killed tests have left.
///
/// Dropping it removes the directory. If sandboxes live there, it keeps the directory and panics with their names: a removed
/// record would make them hard to find. During a panic it writes the same to standard error instead.
///
/// ```no_run
/// use std::process::Command;
///
/// let home = penfold_testkit::TestHome::new()?;
/// let mut penfold = Command::new("penfold");
/// home.configure(&mut penfold).arg("--root").arg(home.state_root()).args(["run", "-d", "sleep", "60"]);
/// assert!(penfold.status()?.success());
/// // A test that ends here panics, and names the sandbox.
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TestHome {
    path: PathBuf,
}

/// A sandbox that lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSandbox {
    /// The short id.
    pub id: String,
    /// The name, if it has one.
    pub name: Option<String>,
    /// The command, with spaces between its words; empty if the record is damaged.
    pub command: String,
    /// The state root.
    pub root: PathBuf,
}

impl std::fmt::Display for LiveSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LiveSandbox { id, name, command, root } = self;
        write!(f, "{id} ({}) `{command}` below {}", name.as_deref().unwrap_or("-"), root.display())
    }
}

impl TestHome {
    /// Makes a directory below `PENFOLD_TEST_HOME_BASE` or the temporary directory.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn new() -> io::Result<TestHome> {
        // A library otherwise reads no variables, but this one is how a runner tells its tests.
        let base = std::env::var_os(HOME_BASE).filter(|base| !base.is_empty());
        TestHome::below(&base.map_or_else(std::env::temp_dir, PathBuf::from))
    }

    /// Makes a directory below this one, which is made if it is missing.
    ///
    /// # Errors
    /// Those of mkdir(2).
    pub fn below(base: &Path) -> io::Result<TestHome> {
        let mut private = fs::DirBuilder::new();
        private.mode(0o700);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(base)?;
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        let path = fs::canonicalize(base)?.join(format!("home-{}", uuid.trim()));
        private.create(&path)?;
        let home = TestHome { path };
        for part in [home.temporary(), home.config(), home.runtime()] {
            private.create(part)?;
        }
        Ok(home)
    }

    /// Returns the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state root for `penfold --root`. penfold makes it.
    pub fn state_root(&self) -> PathBuf {
        self.path.join("state")
    }

    /// Returns the directory for temporary files.
    pub fn temporary(&self) -> PathBuf {
        self.path.join("tmp")
    }

    /// Returns the directory for settings.
    pub fn config(&self) -> PathBuf {
        self.path.join("config")
    }

    fn runtime(&self) -> PathBuf {
        self.path.join("run")
    }

    /// Sets `TMPDIR`, `XDG_CONFIG_HOME`, `XDG_RUNTIME_DIR` and `PENFOLD_TEST_HOME_BASE` for a command, so that what it and its
    /// children write is below this directory. `HOME` stays.
    pub fn configure<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("TMPDIR", self.temporary())
            .env("XDG_CONFIG_HOME", self.config())
            .env("XDG_RUNTIME_DIR", self.runtime())
            .env(HOME_BASE, &self.path)
    }

    /// Returns the living sandboxes with a record below the directory.
    ///
    /// A sandbox lives while a process holds the lock of its record, while its cgroup has a process, or while a process
    /// carries its marker.
    pub fn sandboxes(&self) -> Vec<LiveSandbox> {
        let mut records = Vec::new();
        find_records(&self.path, 0, &mut records);
        if records.is_empty() {
            return Vec::new();
        }
        let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
        let cgroups = mounts::cgroups();
        records.retain(|record| {
            let id = id_of(record);
            is_locked(record, &locks)
                || cgroups.iter().any(|path| path.ends_with(format!("penfold-{id}")) && is_populated(path))
                || proc::all().iter().any(|stat| !stat.is_dead() && is_marked(stat.id.pid, &id))
        });
        records.iter().map(|record| describe(record)).collect()
    }

    fn remove(&self) -> Result<(), String> {
        let living: Vec<String> = self.sandboxes().iter().map(ToString::to_string).collect();
        let path = self.path.display();
        if !living.is_empty() {
            return Err(format!(
                "sandboxes live below the home of a test, `{path}`:\n  {}",
                living.join("\n  ")
            ));
        }
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove the home of a test, `{path}`: {error}"))
            }
            _ => Ok(()),
        }
    }
}

impl Drop for TestHome {
    fn drop(&mut self) {
        match self.remove() {
            Ok(()) => {}
            Err(text) if std::thread::panicking() => report(&text),
            Err(text) => panic!("{text}"),
        }
    }
}

/// Finds the directories `sandboxes/<id>`, and follows no links.
fn find_records(directory: &Path, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        if directory.file_name().is_some_and(|name| name == "sandboxes") && is_id(&id_of(&path)) {
            found.push(path);
        } else if depth < 32 {
            find_records(&path, depth + 1, found);
        }
    }
}

fn id_of(record: &Path) -> String {
    record.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_id(name: &str) -> bool {
    name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}

/// Tells whether a process holds a flock(2) on the record: `/proc/locks` names the device and the inode.
fn is_locked(record: &Path, locks: &str) -> bool {
    let Ok(meta) = fs::metadata(record) else { return false };
    let device = meta.dev();
    let place = format!("{:02x}:{:02x}:{}", rustix::fs::major(device), rustix::fs::minor(device), meta.ino());
    locks.lines().any(|line| line.split_ascii_whitespace().any(|word| word == place))
}

fn is_populated(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.events")).is_ok_and(|text| text.contains("populated 1"))
}

fn is_marked(pid: i32, id: &str) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment
        .split(|&byte| byte == 0)
        .filter_map(|entry| entry.strip_prefix(b"PENFOLD_SANDBOX="))
        .any(|ids| ids.split(|&byte| byte == b':').any(|one| one == id.as_bytes()))
}

/// The part of a record that names its sandbox.
#[derive(Deserialize)]
struct Intent {
    name: Option<String>,
    #[serde(default)]
    command: Vec<String>,
}

fn describe(record: &Path) -> LiveSandbox {
    let text = fs::read(record.join("intent.json")).unwrap_or_default();
    let intent: Option<Intent> = serde_json::from_slice(&text).ok();
    let (name, command) = intent.map(|intent| (intent.name, intent.command)).unwrap_or_default();
    LiveSandbox {
        id: id_of(record),
        name,
        command: command.join(" "),
        root: record.ancestors().nth(2).unwrap_or(record).to_path_buf(),
    }
}
