//! A virtual machine that penfold did not start, in a few words.

use penfold_doctor::Member;
use penfold_doctor::foreign::{Vm, VmState};

/// Describes the runner: `managed by runner (4100)`, `orphan`.
pub(crate) fn state(vm: &Vm) -> String {
    match vm.state {
        VmState::Managed => format!("managed by {}", vm.runner().map_or_else(|| "unknown".to_owned(), named)),
        VmState::Orphan => "orphan".to_owned(),
        VmState::Unknown => "runner unknown".to_owned(),
    }
}

/// Lists the ancestors, the parent first; `unknown` if the parent is not visible.
pub(crate) fn ancestors(vm: &Vm) -> String {
    let named: Vec<String> = vm.ancestors.iter().map(named).collect();
    if named.is_empty() { "unknown".to_owned() } else { named.join(" < ") }
}

/// Names the parent; `unknown` if the parent is not visible.
pub(crate) fn parent(vm: &Vm) -> String {
    vm.parent().map_or_else(|| "unknown".to_owned(), named)
}

fn named(member: &Member) -> String {
    format!("{} ({})", member.name, member.id.pid.as_raw_pid())
}
