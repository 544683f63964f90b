//! Virtual machines that penfold did not start.
//!
//! A virtual machine is shown with its chain: the wrappers that exist for its monitor alone, and the runner above them. It is
//! an orphan if its runner is dead.

mod chain;
mod directories;
mod id;
mod program;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use penfold_process::{Pid, ProcFs, ProcessId, Stat};
use penfold_teardown::MARKER;
use serde::Serialize;

use super::host_view::{HostView, read_environment};
use super::{marks, path};
use crate::Member;
use crate::host_processes::process_age;
use chain::Runner;
use directories::{
    Subject, Surroundings, home_directories, real_parent_path, starting_user, working_directory,
};
use id::{Derived, Names};
use penfold_control::descent::{ProcessSandbox, find_owner};
use program::{Role, process_arguments, program_role};

pub use directories::{Held, VmDirectory};

/// Whether the runner of a virtual machine lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VmState {
    /// The process above the wrappers lives and has started them.
    Managed,
    /// That process is dead.
    Orphan,
    /// That process is not visible.
    Unknown,
}

/// A virtual machine that penfold did not start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// The id, different for each virtual machine of a look.
    pub id: String,
    /// The monitor.
    #[serde(flatten)]
    pub member: Member,
    /// The program of the monitor, such as `firecracker`.
    pub monitor: String,
    /// The user id.
    pub user: u32,
    /// The age in seconds.
    pub age_s: u64,
    /// The working directory, if readable.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub directory: Option<PathBuf>,
    /// The API socket, if the arguments name one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub socket: Option<PathBuf>,
    /// Whether the runner lives.
    pub state: VmState,
    /// Up to 16 ancestors, the parent first.
    pub ancestors: Vec<Member>,
    /// The number of ancestors that are wrappers and go with the virtual machine.
    pub wrappers: usize,
    /// The directories that are left without the runner; empty unless the virtual machine is an orphan.
    pub directories: Vec<VmDirectory>,
}

impl Vm {
    /// Returns the parent of the monitor, if it is visible.
    pub fn parent(&self) -> Option<&Member> {
        self.ancestors.first()
    }

    /// Returns the living runner.
    pub fn runner(&self) -> Option<&Member> {
        self.ancestors.get(self.wrappers).filter(|_| self.state == VmState::Managed)
    }

    /// Returns the first process of the chain: with its tree, the virtual machine ends.
    pub fn top(&self) -> ProcessId {
        let wrapper = self.wrappers.checked_sub(1).and_then(|last| self.ancestors.get(last));
        wrapper.map_or(self.member.id, |wrapper| wrapper.id)
    }

    /// Tells whether a process is the monitor or one of its wrappers.
    pub fn has(&self, pid: i32) -> bool {
        let wrappers = self.ancestors.iter().take(self.wrappers);
        wrappers.chain([&self.member]).any(|member| member.id.pid.as_raw_pid() == pid)
    }

    /// Tells whether an id, or the name of the working directory, begins with a word.
    pub fn begins_with(&self, word: &str) -> bool {
        let name = self.directory.as_deref().and_then(Path::file_name);
        self.id.starts_with(word) || name.is_some_and(|name| name.to_string_lossy().starts_with(word))
    }

    /// Tells whether two looks found the same virtual machine with the same chain and the same state.
    pub fn is_same(&self, other: &Vm) -> bool {
        self.member.id == other.member.id && self.top() == other.top() && self.state == other.state
    }
}

/// A monitor, before its directories are judged.
struct Found<'a> {
    /// The id that is shown.
    id: String,
    stat: &'a Stat,
    monitor: String,
    user: u32,
    names: Names,
    derived: Derived,
}

/// Finds the virtual machines of this user, of all users for root.
pub(super) fn find_vms(view: &HostView, proc: &mut ProcFs, protected: &[PathBuf]) -> Vec<Vm> {
    let mut monitors: Vec<Found<'_>> = view.all.values().filter_map(|stat| recognised(view, stat)).collect();
    monitors.sort_unstable_by_key(|found| found.stat.id());
    for (id, found) in shown_ids(&monitors).into_iter().zip(&mut monitors) {
        found.id = id;
    }
    let used: Vec<(Pid, PathBuf)> =
        monitors.iter().flat_map(|found| places(&found.names).map(|place| (found.stat.pid, place))).collect();
    let protected: Vec<PathBuf> = protected.iter().cloned().chain(home_directories()).collect();
    let spared = view.ancestors(rustix::process::getpid());
    let host = Surroundings::new(&protected, &used);
    monitors.into_iter().map(|found| described(found, view, proc, &spared, &host)).collect()
}

/// Recognises a monitor that penfold did not start. The processes that a monitor forks are part of it.
fn recognised<'a>(view: &HostView, stat: &'a Stat) -> Option<Found<'a>> {
    let arguments = process_arguments(stat.pid);
    let Role::Monitor(monitor) = program_role(stat.pid, &arguments) else { return None };
    let parent_is_monitor = stat.parent.is_some_and(
        |parent| matches!(program_role(parent, &self::process_arguments(parent)), Role::Monitor(name) if name == monitor),
    );
    let user = starting_user(stat.pid)?;
    let own = rustix::process::geteuid();
    let is_permitted = own.is_root() || own.as_raw() == user;
    if parent_is_monitor || !is_permitted || view.ancestors(rustix::process::getpid()).contains(&stat.pid) {
        return None;
    }
    let is_marked = marks::variable_value(&read_environment(stat.pid)?, MARKER).is_some();
    if is_marked || find_owner(stat.pid).ok()? != ProcessSandbox::Nobody {
        return None;
    }
    let names = Names::read(working_directory(stat.pid), &arguments);
    let derived = names.derive();
    Some(Found { id: String::new(), stat, monitor, user, names, derived })
}

/// Returns a different id for each monitor: the derived one, with the pid if others have it, too.
fn shown_ids(monitors: &[Found<'_>]) -> Vec<String> {
    let plain = |found: &Found<'_>| {
        let text = found.derived.text.as_deref().unwrap_or_default();
        let text: String =
            text.chars()
                .map(|character| {
                    if character.is_ascii_alphanumeric() || "._-".contains(character) {
                        character
                    } else {
                        '-'
                    }
                })
                .collect();
        let text = text.trim_matches('-').to_owned();
        match text.as_str() {
            "" => format!("vm-{}", found.stat.pid.as_raw_pid()),
            // A number would be taken for a pid.
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("vm-{number}"),
            _ => text,
        }
    };
    let mut ids: Vec<String> = monitors.iter().map(plain).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for id in &ids {
        *counts.entry(id.clone()).or_default() += 1;
    }
    for (id, found) in ids.iter_mut().zip(monitors) {
        while counts.get(id).is_some_and(|count| *count > 1) {
            *id = format!("{id}-{}", found.stat.pid.as_raw_pid());
            *counts.entry(id.clone()).or_default() += 1;
        }
    }
    ids
}

/// Returns the directories that a monitor uses, as it names them: the workspace and the directory of its socket.
fn places(names: &Names) -> impl Iterator<Item = PathBuf> {
    let socket = names.socket.as_deref().and_then(Path::parent).map(real_parent_path);
    let directory = names.directory.clone();
    let socket = socket.filter(|socket| Some(socket) != directory.as_ref());
    directory.into_iter().chain(socket)
}

fn described(
    found: Found<'_>,
    view: &HostView,
    proc: &mut ProcFs,
    spared: &HashSet<Pid>,
    host: &Surroundings<'_>,
) -> Vm {
    let chain = chain::chain_above(view, proc, found.stat, spared);
    let mut member = |pid: &Pid| {
        let stat = view.all.get(pid)?;
        Some(Member { id: stat.id(), name: stat.comm.clone(), command: proc.command_line(*pid) })
    };
    let ancestors = chain.ancestors.iter().map_while(&mut member).collect();
    let own = member(&found.stat.pid);
    let mut vm = Vm {
        id: found.id,
        member: own.unwrap_or_else(|| Member {
            id: found.stat.id(),
            name: found.stat.comm.clone(),
            command: None,
        }),
        monitor: found.monitor,
        user: found.user,
        age_s: process_age(found.stat.id()),
        directory: found.names.directory.clone(),
        socket: found.names.socket.clone(),
        state: match chain.runner {
            Runner::Alive => VmState::Managed,
            Runner::Dead => VmState::Orphan,
            Runner::Unknown => VmState::Unknown,
        },
        ancestors,
        wrappers: chain.wrappers,
        directories: Vec::new(),
    };
    if vm.state == VmState::Orphan {
        vm.directories = judged(&vm, view, &found.names, &found.derived, host);
    }
    vm
}

/// Judges the directories of an orphan.
fn judged(
    vm: &Vm,
    view: &HostView,
    names: &Names,
    derived: &Derived,
    host: &Surroundings<'_>,
) -> Vec<VmDirectory> {
    let monitor = vm.member.id.pid;
    let wrappers = vm.ancestors.iter().take(vm.wrappers).filter_map(|wrapper| starting_user(wrapper.id.pid));
    let subject = Subject {
        monitor,
        users: [vm.user].into_iter().chain(wrappers).collect(),
        top: vm.top(),
        id: derived.text.as_deref().unwrap_or_default(),
        is_certain: derived.is_certain && derived.text.is_some(),
        is_complete: view.complete,
        tree: view.tree(vm.top().pid).into_iter().collect(),
    };
    let seen_by = |place: &Path| {
        if Some(place) == names.directory.as_deref() {
            return path(monitor, "cwd");
        }
        path(monitor, "root").join(place.strip_prefix("/").unwrap_or(place))
    };
    places(names).map(|place| VmDirectory::judge(&place, &seen_by(&place), &subject, host)).collect()
}
