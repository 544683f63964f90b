//! Finds processes that prevent the removal of a file or directory.

use std::path::Path;

use penfold_process::{Pid, ProcFs};

use crate::Member;

/// Returns the visible processes that have the path, or something below it, open or as their working directory.
pub fn path_holders(path: &Path) -> Vec<Member> {
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let mut pids = Vec::new();
    if proc.processes(&mut pids).is_err() {
        return Vec::new();
    }
    let own = rustix::process::getpid();
    pids.retain(|&pid| pid != own && holds(pid, path));
    let member = |pid| {
        let stat = proc.stat(pid).ok()??;
        Some(Member { id: stat.id(), name: stat.comm, command: proc.command_line(pid) })
    };
    pids.into_iter().filter_map(member).collect()
}

fn holds(pid: Pid, path: &Path) -> bool {
    let base = format!("/proc/{}", pid.as_raw_pid());
    let below = |link: &Path| std::fs::read_link(link).is_ok_and(|target| target.starts_with(path));
    let stands = ["cwd", "root"].into_iter().any(|link| below(&Path::new(&base).join(link)));
    stands
        || std::fs::read_dir(Path::new(&base).join("fd"))
            .is_ok_and(|entries| entries.filter_map(Result::ok).any(|entry| below(&entry.path())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 5.9
    #[test]
    fn who_stands_in_a_directory_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        std::fs::create_dir(&below).unwrap();
        let mut child = std::process::Command::new("sleep").arg("3499").current_dir(&below).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let found: Vec<i32> =
            path_holders(dir.path()).into_iter().map(|holder| holder.id.pid.as_raw_pid()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [pid]);
        assert!(path_holders(dir.path()).is_empty());
    }
}
