//! The chain of processes above a monitor: wrappers that exist for it alone, and then its runner.

use std::collections::HashSet;

use penfold_process::{Pid, ProcFs, Stat};

use super::super::host_view::{HostView, has_no_terminal, read_environment};
use super::super::marks;
use super::program::{Role, process_arguments, program_role};

/// The most ancestors that are shown.
pub(super) const MOST: usize = 16;

/// What is known of the runner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// The parent of the chain, which has started it.
    Alive,
    /// The parent of the chain has adopted it.
    Dead,
    /// The parent is not visible.
    Unknown,
}

/// The processes above a monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chain {
    /// The ancestors, the nearest first.
    pub(super) ancestors: Vec<Pid>,
    /// The number of ancestors that are wrappers of this monitor.
    pub(super) wrappers: usize,
    /// What the ancestor above the wrappers is.
    pub(super) runner: Runner,
}

/// Finds the chain above a monitor. Without a complete list of processes nothing is taken for a wrapper: it may have other
/// children.
pub(super) fn chain_above(
    view: &HostView,
    proc: &mut ProcFs,
    monitor: &Stat,
    spared: &HashSet<Pid>,
) -> Chain {
    let mut ancestors = Vec::new();
    let mut below = monitor;
    while let Some(parent) = view.parent(below).filter(|_| ancestors.len() < MOST) {
        ancestors.push(parent.pid);
        below = parent;
    }
    let mut below = monitor;
    let mut wrappers = 0;
    let runner = loop {
        let Some(parent) = view.parent(below) else { break Runner::Unknown };
        if view.is_orphan(below, parent) {
            let is_kept = is_container(proc, below, parent) || is_kept_by_service(proc, below);
            break if is_kept { Runner::Alive } else { Runner::Dead };
        }
        let is_wrapper = view.complete && wrappers < MOST && !spared.contains(&parent.pid);
        if !is_wrapper || !serves_only(view, parent, below) {
            break Runner::Alive;
        }
        wrappers += 1;
        below = parent;
    };
    Chain { ancestors, wrappers, runner }
}

/// Tells whether a process is a wrapper or a shell that has no child but this one, and that no person types into.
fn serves_only(view: &HostView, parent: &Stat, child: &Stat) -> bool {
    let has_one_child = view.children.get(&parent.pid).is_some_and(|children| children.len() == 1);
    let arguments = process_arguments(parent.pid);
    let leads = parent.session == parent.pid.as_raw_pid();
    // With job control, a shell gives each of its jobs a process group.
    let has_jobs = child.group != parent.group;
    let is_interactive = !has_no_terminal(parent) && (leads || has_jobs || reads_commands(&arguments));
    has_one_child
        && match program_role(parent.pid, &arguments) {
            Role::Wrapper => true,
            Role::Shell => !is_interactive,
            Role::Monitor(_) | Role::Other => false,
        }
}

/// Tells whether a shell has neither a script nor a command among its arguments.
fn reads_commands(arguments: &[String]) -> bool {
    let is_option = |word: &String| word.starts_with('-') && (word.starts_with("--") || !word.contains('c'));
    arguments.iter().skip(1).all(is_option)
}

/// Tells whether a process is the first of a container, which the container's keeper has started.
fn is_container(proc: &mut ProcFs, stat: &Stat, parent: &Stat) -> bool {
    let is_keeper = parent.comm.starts_with("containerd-shim") || parent.comm == "conmon";
    let mut status = || proc.status(stat.pid).ok().flatten();
    is_keeper
        && status().is_some_and(|status| {
            let pids = status.namespace_pids;
            pids.len() > 1 && pids.last().is_some_and(|pid| pid.is_init())
        })
}

/// Tells whether a service manager has started the process itself, or has been given it by another service. systemd.exec(5)
/// describes the variable.
fn is_kept_by_service(proc: &mut ProcFs, stat: &Stat) -> bool {
    let environment = read_environment(stat.pid).unwrap_or_default();
    let own = stat.pid.as_raw_pid().to_string();
    let is_machine = |part: &str| part.starts_with("machine-") && part.strip_suffix(".scope").is_some();
    let groups = proc.cgroups(stat.pid).ok().flatten().unwrap_or_default();
    marks::variable_value(&environment, "SYSTEMD_EXEC_PID") == Some(own.as_bytes())
        || String::from_utf8_lossy(&groups).split(['/', '\n']).any(is_machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_without_script_and_command_reads_commands() {
        let reads = |line: &str| reads_commands(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert!(reads("bash") && reads("-bash") && reads("bash --norc -i") && reads("sh -l"));
        assert!(
            !reads("bash -c x") && !reads("sh -ec x") && !reads("bash run.sh") && !reads("bash -x run.sh")
        );
    }
}
