//! The runtime that makes containers, and what its state tells.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use penfold_cgroup::mountinfo;
use penfold_process::{ProcessId, StartTime, pid_from_raw};
use rustix::fs::{Access, AtFlags, CWD};
use serde::Deserialize;

/// Where runtimes are installed. Engines start them with a `PATH` of few directories.
const DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// No runtime was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot find the OCI runtime `{}`", .0.display())]
pub struct NoDelegate(PathBuf);

/// The runtime in front of which penfold stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegate {
    program: PathBuf,
}

/// What the delegate wrote about a container.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Directories of its cgroups.
    pub(crate) directories: Vec<PathBuf>,
    /// The path of its cgroup in each hierarchy.
    pub(crate) path: Option<PathBuf>,
    /// Its first process.
    pub(crate) init: Option<ProcessId>,
}

/// `state.json` of runc.
#[derive(Deserialize)]
struct RuncState {
    init_process_pid: i32,
    init_process_start: u64,
    #[serde(default)]
    cgroup_paths: std::collections::BTreeMap<String, PathBuf>,
}

/// `status` of crun.
#[derive(Deserialize)]
struct CrunStatus {
    pid: i32,
    #[serde(rename = "process-start-time", default)]
    start: u64,
    #[serde(rename = "cgroup-path", default)]
    path: PathBuf,
}

impl Delegate {
    /// Finds the delegate: the program that was asked for, else crun on hosts with cgroup v2 alone, else runc.
    ///
    /// # Errors
    /// When the program is in no directory of `path`, nor where runtimes are installed.
    pub fn find(wanted: Option<OsString>, path: Option<&OsStr>) -> Result<Delegate, NoDelegate> {
        let wanted = wanted.filter(|wanted| !wanted.is_empty()).map(PathBuf::from);
        let usual = if wanted.is_none() && has_only_v2() { &["crun", "runc"][..] } else { &["runc"] };
        let names = wanted.map_or_else(|| usual.iter().map(PathBuf::from).collect(), |wanted| vec![wanted]);
        let found = names.iter().find_map(|name| in_directories(name, path));
        found
            .map(|program| Delegate { program })
            .ok_or_else(|| NoDelegate(names.into_iter().next_back().unwrap_or_default()))
    }

    /// Returns the path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The directory in which the delegate keeps its state without `--root`.
    pub(crate) fn default_root(&self, runtime_dir: Option<&Path>) -> PathBuf {
        let name = self.program.file_name().unwrap_or(OsStr::new("runc"));
        let dir = runtime_dir.filter(|_| !rustix::process::geteuid().is_root()).unwrap_or(Path::new("/run"));
        dir.join(name)
    }
}

/// Tells whether the delegate knows the container.
pub(crate) fn knows(root: &Path, id: &str) -> bool {
    // A directory that cannot be seen may be there.
    let found = rustix::fs::statat(CWD, root.join(id), AtFlags::SYMLINK_NOFOLLOW);
    found.err() != Some(rustix::io::Errno::NOENT)
}

/// Reads what the delegate wrote about a container; empty without its state.
pub(crate) fn told(root: &Path, id: &str) -> Told {
    let process = |pid, start| Some(ProcessId { pid: pid_from_raw(pid)?, start: StartTime(start) });
    let dir = root.join(id);
    let runc = std::fs::read(dir.join("state.json"))
        .ok()
        .and_then(|text| serde_json::from_slice::<RuncState>(&text).ok());
    if let Some(state) = runc {
        let init = process(state.init_process_pid, state.init_process_start);
        return Told { directories: state.cgroup_paths.into_values().collect(), path: None, init };
    }
    let crun = std::fs::read(dir.join("status"))
        .ok()
        .and_then(|text| serde_json::from_slice::<CrunStatus>(&text).ok());
    crun.map_or_else(Told::default, |status| Told {
        directories: Vec::new(),
        path: Some(status.path).filter(|path| !path.as_os_str().is_empty()),
        init: process(status.pid, status.start),
    })
}

fn in_directories(name: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.is_file() && rustix::fs::accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    };
    if name.components().count() > 1 {
        return Some(name.to_owned()).filter(is_program);
    }
    let given = path.into_iter().flat_map(std::env::split_paths).filter(|dir| dir.is_absolute());
    given.chain(DIRECTORIES.map(PathBuf::from)).map(|dir| dir.join(name)).find(is_program)
}

/// Tells whether this host has the hierarchy of cgroup v2 and no other.
fn has_only_v2() -> bool {
    let text = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mountinfo::parse(&text).unwrap_or_default();
    mounts.iter().any(|mount| mount.fs_type == "cgroup2")
        && mounts.iter().all(|mount| mount.fs_type != "cgroup")
}
