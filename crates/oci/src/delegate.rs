//! The runtime that makes containers, and what its state tells.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_cgroup::mountinfo;
use penfold_process::{ProcessId, StartTime, pid_from_raw};
use rustix::fs::{Access, AtFlags, CWD};
use serde::Deserialize;

use crate::members::wait_for_descriptors;
use crate::note::ContainerNote;

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
pub(crate) struct DelegateReport {
    /// Directories of its cgroups, by controller, `name=…`, or nothing for cgroup v2.
    pub(crate) directories: BTreeMap<String, PathBuf>,
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
    cgroup_paths: BTreeMap<String, PathBuf>,
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
    pub(crate) fn default_root(&self, of: &DelegateEnvironment) -> PathBuf {
        let name = self.program.file_name().unwrap_or(OsStr::new("runc"));
        // crun always takes the directory of the user, runc as root only inside a user namespace: `shouldHonorXDGRuntimeDir`.
        let is_users =
            name == "crun" || !of.is_root || (of.is_nested && of.user.as_deref() != Some(OsStr::new("root")));
        let dir = of.runtime_dir.as_deref().filter(|dir| is_users && !dir.as_os_str().is_empty());
        dir.unwrap_or(Path::new("/run")).join(name)
    }
}

/// What decides where a delegate keeps its state without `--root`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DelegateEnvironment {
    /// `$XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// `$USER`.
    pub user: Option<OsString>,
    /// Whether this process is root.
    pub is_root: bool,
    /// Whether it is in a user namespace below the first one.
    pub is_nested: bool,
}

impl DelegateEnvironment {
    /// Those of this process, with the values of two variables.
    pub fn here(runtime_dir: Option<OsString>, user: Option<OsString>) -> DelegateEnvironment {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        DelegateEnvironment {
            runtime_dir: runtime_dir.map(PathBuf::from),
            user,
            is_root: rustix::process::geteuid().is_root(),
            is_nested: !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"]),
        }
    }
}

/// Tells whether the delegate knows the container.
pub(crate) fn delegate_knows(root: &Path, id: &str) -> bool {
    // A directory that cannot be seen may be there.
    let found = rustix::fs::statat(CWD, root.join(id), AtFlags::SYMLINK_NOFOLLOW);
    found.err() != Some(rustix::io::Errno::NOENT)
}

/// Has the delegate delete a container of which no process lives.
///
/// # Errors
/// When it cannot be started, does not answer in time, or fails while it knows the container.
pub(crate) fn delete_container(note: &ContainerNote, deadline: Instant) -> io::Result<()> {
    let mut command = Command::new(&note.delegate);
    command.arg("--root").arg(&note.engine_root).args(note.systemd.then_some("--systemd-cgroup"));
    command.args(["delete", "--force", &note.id]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            break;
        }
        wait_for_descriptors(&[], Duration::from_millis(2));
    }
    if delegate_knows(&note.engine_root, &note.id) {
        let sentence = format!("`{}` did not delete container `{}`", note.delegate.display(), note.id);
        return Err(io::Error::other(sentence));
    }
    Ok(())
}

/// Reads what the delegate wrote about a container; empty without its state.
pub(crate) fn read_delegate_report(root: &Path, id: &str) -> DelegateReport {
    let process = |pid, start| Some(ProcessId { pid: pid_from_raw(pid)?, start: StartTime(start) });
    let dir = root.join(id);
    let runc = std::fs::read(dir.join("state.json"))
        .ok()
        .and_then(|text| serde_json::from_slice::<RuncState>(&text).ok());
    if let Some(state) = runc {
        let init = process(state.init_process_pid, state.init_process_start);
        return DelegateReport { directories: state.cgroup_paths, path: None, init };
    }
    let crun = std::fs::read(dir.join("status"))
        .ok()
        .and_then(|text| serde_json::from_slice::<CrunStatus>(&text).ok());
    crun.map_or_else(DelegateReport::default, |status| DelegateReport {
        directories: BTreeMap::new(),
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
    let mounts = mountinfo::parse_mountinfo(&text).unwrap_or_default();
    mounts.iter().any(|mount| mount.fs_type == "cgroup2")
        && mounts.iter().all(|mount| mount.fs_type != "cgroup")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 30.2
    #[test]
    fn state_of_a_delegate_is_where_it_keeps_it() {
        let root = |program: &str, is_root, is_nested, user: &str| {
            let delegate = Delegate { program: program.into() };
            let user = Some(OsString::from(user));
            delegate.default_root(&DelegateEnvironment {
                runtime_dir: Some("/run/user/0".into()),
                user,
                is_root,
                is_nested,
            })
        };
        assert_eq!(root("/usr/sbin/runc", true, false, "root"), Path::new("/run/runc"));
        assert_eq!(root("/usr/sbin/runc", true, true, "root"), Path::new("/run/runc"));
        assert_eq!(root("/usr/sbin/runc", true, true, "alice"), Path::new("/run/user/0/runc"));
        assert_eq!(root("/usr/sbin/runc", false, false, "alice"), Path::new("/run/user/0/runc"));
        assert_eq!(root("/usr/bin/crun", true, false, "root"), Path::new("/run/user/0/crun"));
        let delegate = Delegate { program: "/usr/bin/crun".into() };
        assert_eq!(delegate.default_root(&DelegateEnvironment::default()), Path::new("/run/crun"));
    }
}
