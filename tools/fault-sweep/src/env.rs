//! The cgroup and directory of a case. Both are removed with the case, including their contents.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use penfold_testkit::mounts;
use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;

/// The prefix of the cgroups and directories.
const PREFIX: &str = "testkit-fault-";

/// The environment of one case.
#[derive(Debug)]
pub(crate) struct TestEnv {
    pub(crate) cgroup: PathBuf,
    pub(crate) directory: PathBuf,
}

impl TestEnv {
    /// Creates the cgroup and the directory.
    pub(crate) fn new(number: usize) -> io::Result<TestEnv> {
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        let parent =
            mounts::own_cgroup().ok_or_else(|| io::Error::other("no cgroup2 file system is mounted"))?;
        let env = TestEnv { cgroup: parent.join(&name), directory: std::env::temp_dir().join(&name) };
        fs::create_dir(&env.cgroup)?;
        fs::create_dir_all(env.directory.join("tmp"))?;
        Ok(env)
    }
}

/// Removes the cgroups and directories of killed sweeps; their processes end by themselves.
pub(crate) fn remove_abandoned() {
    let Some(parent) = mounts::own_cgroup() else { return };
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let maker = rest.split_once('-').and_then(|(pid, _)| pid.parse().ok());
        if maker.is_some_and(|pid| proc::stat(pid).is_none()) {
            drop(TestEnv { cgroup: entry.path(), directory: std::env::temp_dir().join(&name) });
        }
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            drop(fs::write(self.cgroup.join("cgroup.kill"), "1"));
            // For kernels without `cgroup.kill`, and for processes whose main thread has ended.
            for pid in pids(&self.cgroup) {
                let Some(stat) = proc::stat(pid) else { continue };
                if let Ok(Some(handle)) = Handle::open(stat.id) {
                    drop(handle.signal(Signal::KILL));
                }
            }
            for inner in cgroups(&self.cgroup).iter().rev() {
                drop(fs::remove_dir(inner));
            }
            if fs::remove_dir(&self.cgroup).is_ok() || Instant::now() >= deadline {
                break;
            }
            sleep(Duration::from_millis(2));
        }
        drop(fs::remove_dir_all(&self.directory));
    }
}

/// Returns the cgroups below this one, parents first.
pub(crate) fn cgroups(cgroup: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![cgroup.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.push(entry.path());
                open.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

/// Returns the living processes in this cgroup and below.
pub(crate) fn pids(cgroup: &Path) -> Vec<i32> {
    let mut all = cgroups(cgroup);
    all.push(cgroup.to_path_buf());
    let mut pids: Vec<i32> = all
        .iter()
        .filter_map(|cgroup| fs::read_to_string(cgroup.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>())
        .collect();
    // A process that moves is seen twice.
    pids.sort_unstable();
    pids.dedup();
    pids.retain(|&pid| proc::stat(pid).is_some_and(|stat| !stat.is_dead()));
    pids
}
