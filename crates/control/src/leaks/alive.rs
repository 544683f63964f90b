//! The processes of this host, as a search for leaks sees them.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use penfold_process::{Completeness, Pid, ProcFs, ProcessId};
use penfold_state::spared;
use penfold_teardown::spare::binding;

use super::Member;
use crate::descent::{Descent, Guard};

/// The processes of this host.
#[derive(Debug)]
pub(super) struct Host {
    proc: ProcFs,
    descent: Descent,
    completeness: Completeness,
    marked: HashMap<Pid, Vec<String>>,
}

impl Host {
    /// Reads all processes. The notes below the state root name those that were spared.
    pub(super) fn look(state_root: &Path) -> io::Result<Host> {
        let (mut proc, mut descent) = (ProcFs::open()?, Descent::new()?);
        let spared = spared::marks(state_root);
        let mut found = Vec::new();
        let completeness = proc.scan(|stat| {
            if !stat.is_kernel_thread() {
                found.push(stat.id());
            }
        })?;
        let mut marked = HashMap::new();
        for id in found {
            let ids = descent.marks(id.pid);
            let ids = binding(&ids, id, &mut proc, &spared).to_vec();
            if !ids.is_empty() && id.pid != rustix::process::getpid() {
                marked.insert(id.pid, ids);
            }
        }
        Ok(Host { proc, descent, completeness, marked })
    }

    /// Tells whether all processes could be read.
    pub(super) fn complete(&self) -> bool {
        self.completeness.is_complete()
    }

    /// Returns the processes with a marker, and the sandboxes in it, outermost first.
    pub(super) fn marked(&self) -> HashMap<Pid, Vec<String>> {
        self.marked.clone()
    }

    /// Tells whether this process has a supervisor as a member of sandbox `id`.
    pub(super) fn guard(&mut self, pid: Pid, id: &str) -> Guard {
        self.descent.guard(pid, id)
    }

    /// Tells whether a process has its working directory in this directory or below. Unreadable processes belong to
    /// others.
    pub(super) fn stands_in(&mut self, directory: &Path) -> bool {
        let mut pids = Vec::new();
        if self.proc.processes(&mut pids).is_err() {
            return true;
        }
        pids.into_iter().any(|pid| {
            ["cwd", "root"].into_iter().any(|link| {
                std::fs::read_link(format!("/proc/{}/{link}", pid.as_raw_pid()))
                    .is_ok_and(|place| place.starts_with(directory))
            })
        })
    }

    /// Tells whether a process runs as this user; false for a process that cannot be read.
    pub(super) fn is_own(&mut self, pid: Pid) -> bool {
        let user = rustix::process::geteuid().as_raw();
        self.proc.status(pid).is_ok_and(|status| status.is_some_and(|status| status.uids[1] == user))
    }

    /// Returns the details of these processes, oldest first.
    pub(super) fn members(&mut self, pids: impl IntoIterator<Item = Pid>) -> Vec<Member> {
        let mut members: Vec<Member> = pids
            .into_iter()
            .filter_map(|pid| {
                let stat = self.proc.stat(pid).ok()??;
                let command = self.proc.command_line(pid);
                (!stat.is_dead()).then(|| Member { id: stat.id(), name: stat.comm, command })
            })
            .collect();
        members.sort_unstable_by_key(|member| member.id);
        members
    }
}

/// Returns the age of a process, in seconds.
pub(super) fn process_age(id: ProcessId) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::from_secs(now.tv_sec.unsigned_abs());
    now.saturating_sub(id.start.since_boot()).as_secs()
}
