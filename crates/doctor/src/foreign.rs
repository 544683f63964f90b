//! Strays of other tools: processes that somebody started, lost and left on this host. penfold shows them and never
//! touches them.
//!
//! The kernel has no notion of "left behind". A process is shown for one of two reasons, and a person decides:
//! - The process lost its parent, has a session of its own and no terminal, and is no service.
//! - Its environment names a session whose owner is dead.
//!
//! Virtual machines are shown whether somebody left them behind or not: see [`Vm`].

mod host_view;
mod marks;
mod vms;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use penfold_process::{Listeners, Pid, ProcFs, Stat};
use penfold_teardown::MARKER;
use serde::Serialize;

use crate::Member;
use crate::host_processes::process_age;
use host_view::{HostView, has_no_terminal, read_environment};
use penfold_control::descent::{ProcessSandbox, find_owner};

pub use marks::{Mark, OwnerState};
pub use penfold_process::Port;
pub use vms::{Held, Vm, VmDirectory, VmState};

/// The first process of a tree that somebody left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stray {
    /// The process.
    #[serde(flatten)]
    pub member: Member,
    /// The user id.
    pub user: u32,
    /// The age in seconds.
    pub age_s: u64,
    /// The working directory, if readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub directory: Option<PathBuf>,
    /// The session.
    pub session: i32,
    /// The parent, which adopted the process.
    pub parent: i32,
    /// The number of processes in the tree, including this one.
    pub processes: usize,
    /// The ports on which the tree listens.
    pub ports: Vec<Port>,
    /// The marks of sessions in the environment.
    pub marks: Vec<Mark>,
    /// The reasons for taking the process for a stray, a few words each.
    pub evidence: Vec<String>,
}

/// The result of a search for strays.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Strays {
    /// The strays, the oldest first.
    pub strays: Vec<Stray>,
    /// The virtual machines that penfold did not start, the oldest first.
    pub vms: Vec<Vm>,
    /// Whether all processes could be read.
    pub complete: bool,
}

/// Searches for strays and virtual machines of this user; of all users for root. No directory that is, or has in it, one of
/// `protected` is ever taken for that of a virtual machine.
///
/// # Errors
/// When /proc cannot be read at all.
pub fn find_foreign_trees(protected: &[PathBuf]) -> io::Result<Strays> {
    let mut proc = ProcFs::open()?;
    let looking = HostView::read(&mut proc)?;
    let vms = vms::find_vms(&looking, &mut proc, protected);
    let mut found: HashMap<Pid, Stray> = HashMap::new();
    let mut candidates: Vec<&Stat> = looking.all.values().collect();
    candidates.sort_unstable_by_key(|stat| stat.id());
    let spared = looking.ancestors(rustix::process::getpid());
    for stat in candidates {
        let below = looking.ancestors(stat.pid);
        // Parents come first: processes below a stray are part of its tree.
        if spared.contains(&stat.pid) || below.iter().any(|pid| found.contains_key(pid)) {
            continue;
        }
        if let Some(stray) = judge(&looking, &mut proc, stat) {
            found.insert(stat.pid, stray);
        }
    }
    let mut strays: Vec<Stray> = found.into_values().collect();
    strays.sort_unstable_by_key(|stray| stray.member.id);
    let mut listeners = Listeners::default();
    for stray in &mut strays {
        let tree = looking.tree(stray.member.id.pid);
        stray.processes = tree.len();
        stray.ports = listeners.of(&tree);
    }
    Ok(Strays { strays, vms, complete: looking.complete })
}

fn judge(view: &HostView, proc: &mut ProcFs, stat: &Stat) -> Option<Stray> {
    let parent = stat.parent.and_then(|parent| view.all.get(&parent))?;
    let orphan = view.is_orphan(stat, parent);
    let apart = stat.session != parent.session;
    let environment = (orphan || apart).then(|| read_environment(stat.pid)).flatten()?;
    let user = std::fs::metadata(path(stat.pid, "")).ok()?.uid();
    let own = rustix::process::geteuid();
    if !(own.is_root() || own.as_raw() == user) || marks::variable_value(&environment, MARKER).is_some() {
        return None;
    }
    let marks = marks::marks_of_process(&environment, stat, &view.all);
    let abandoned = marks.iter().any(|mark| mark.owner == OwnerState::Dead);
    let left = orphan && apart && has_no_terminal(stat) && !view.is_service(proc, stat);
    if !left && !abandoned || find_owner(stat.pid).ok()? != ProcessSandbox::Nobody {
        return None;
    }
    let mut evidence = Vec::new();
    if orphan {
        let number = parent.pid.as_raw_pid();
        evidence.push(format!("its parent is gone, it was given to {} ({number})", parent.comm));
    }
    if left {
        evidence.push("a session of its own, no terminal, no service".to_owned());
    }
    evidence.extend(marks.iter().filter_map(Mark::says));
    let member = Member { id: stat.id(), name: stat.comm.clone(), command: proc.command_line(stat.pid) };
    Some(Stray {
        user,
        age_s: process_age(stat.id()),
        directory: std::fs::read_link(path(stat.pid, "cwd")).ok(),
        session: stat.session,
        parent: parent.pid.as_raw_pid(),
        processes: 1,
        ports: Vec::new(),
        marks,
        evidence,
        member,
    })
}

fn path(pid: Pid, file: &str) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_pid().to_string()).join(file)
}
