//! The processes of this host: those with a marker, and what a person reads about one.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use penfold_process::{Completeness, Pid, ProcFs, ProcessId};
use penfold_state::spared;
use penfold_teardown::SparedMark;
use penfold_teardown::spare::binding_ids;

use penfold_control::descent::{Descent, SupervisionState};
use penfold_control::on_all_processors;
use serde::Serialize;

/// A process that a search has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The identity.
    #[serde(flatten)]
    pub id: ProcessId,
    /// The name of the main thread.
    pub name: String,
    /// The command line, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// The sandboxes in the marker of each process that carries one, outermost first.
pub(crate) type Marked = HashMap<Pid, Vec<String>>;

/// The processes of this host.
#[derive(Debug)]
pub(crate) struct HostProcesses {
    proc: ProcFs,
    descent: Descent,
    completeness: Completeness,
    marked: Marked,
}

impl HostProcesses {
    /// Reads all processes. The notes below the state root name those that were spared.
    pub(crate) fn look(state_root: &Path) -> io::Result<HostProcesses> {
        let mut proc = ProcFs::open()?;
        let spared = spared::spared_marks(state_root);
        let mut pids = Vec::new();
        proc.processes(&mut pids)?;
        let mut completeness = Completeness::of_list(&pids);
        let mut marked = Marked::new();
        for part in on_all_processors(&pids, |some| find_marked(some, &spared)) {
            let (part_completeness, found) = part?;
            completeness = completeness.and(part_completeness);
            marked.extend(found);
        }
        let descent = Descent::new()?;
        Ok(HostProcesses { proc, descent, completeness, marked })
    }

    /// Tells whether all processes could be read.
    pub(crate) fn complete(&self) -> bool {
        self.completeness.is_complete()
    }

    /// Returns the processes with a marker, and the sandboxes in it, outermost first.
    pub(crate) fn marked(&self) -> Marked {
        self.marked.clone()
    }

    /// Tells whether this process has a supervisor as a member of sandbox `id`.
    pub(crate) fn guard(&mut self, pid: Pid, id: &str) -> SupervisionState {
        self.descent.guard(pid, id)
    }

    /// Tells whether a process has its working directory in this directory or below. Unreadable processes belong to
    /// others.
    pub(crate) fn stands_in(&mut self, directory: &Path) -> bool {
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
    pub(crate) fn is_own(&mut self, pid: Pid) -> bool {
        let user = rustix::process::geteuid().as_raw();
        self.proc.status(pid).is_ok_and(|status| status.is_some_and(|status| status.uids[1] == user))
    }

    /// Returns the details of these processes, oldest first.
    pub(crate) fn members(&mut self, pids: impl IntoIterator<Item = Pid>) -> Vec<Member> {
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

/// Returns those of these processes that carry a marker, with the sandboxes in it, outermost first.
fn find_marked(pids: &[Pid], spared: &[SparedMark]) -> io::Result<(Completeness, Marked)> {
    let (mut proc, mut descent) = (ProcFs::open()?, Descent::new()?);
    let own = rustix::process::getpid();
    let mut seen = Vec::new();
    let completeness = proc.scan_listed(pids, |stat| {
        if !stat.is_kernel_thread() && stat.pid != own {
            seen.push(stat.id());
        }
    });
    let marks = |id: ProcessId| {
        let ids = descent.marks(id.pid);
        let ids = binding_ids(&ids, id, &mut proc, spared).to_vec();
        (!ids.is_empty()).then_some((id.pid, ids))
    };
    Ok((completeness, seen.into_iter().filter_map(marks).collect()))
}

/// Returns the age of a process, in seconds.
pub(crate) fn process_age(id: ProcessId) -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::from_secs(now.tv_sec.unsigned_abs());
    now.saturating_sub(id.start.since_boot()).as_secs()
}
