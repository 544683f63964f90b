//! The output of `penfold doctor --foreign`: virtual machines that penfold did not start.

use std::time::Duration;

use penfold_doctor::foreign::{Strays, Vm, VmState};
use penfold_doctor::host_checks::State;

use super::Page;
use crate::text::lines::count;
use crate::text::vm;
use penfold_doctor::leaks::age_in_words;

impl Page<'_> {
    pub(super) fn vms(&mut self, found: &Strays) {
        let (managed, left): (Vec<&Vm>, Vec<&Vm>) =
            found.vms.iter().partition(|vm| vm.state == VmState::Managed);
        if found.vms.is_empty() {
            self.line(State::Ok, "no VMs of other tools seen");
        }
        if !left.is_empty() {
            let number = count(left.len(), "VM without a living runner", "VMs without a living runner");
            self.line(
                State::Warn,
                &format!("{number} that penfold did not start; `penfold gc` ends only named ones"),
            );
        }
        for vm in left {
            self.vm(vm);
        }
        if !managed.is_empty() {
            let number = count(managed.len(), "VM with a living runner", "VMs with a living runner");
            self.line(State::Ok, &format!("{number} that penfold did not start"));
        }
        if !self.quiet {
            for vm in managed {
                self.vm(vm);
            }
        }
    }

    fn vm(&mut self, found: &Vm) {
        let mut facts =
            vec![vm::state(found), format!("{} old", age_in_words(Duration::from_secs(found.age_s)))];
        facts.extend(found.directory.iter().map(|directory| format!("in {}", directory.display())));
        facts.extend(found.socket.iter().map(|socket| format!("socket {}", socket.display())));
        let pid = found.member.id.pid.as_raw_pid();
        self.below(&format!("{}  {} ({pid})  {}", found.id, found.monitor, facts.join(", ")));
        self.below(&format!("      below {}", vm::ancestors(found)));
        for directory in &found.directories {
            let kept = directory
                .kept
                .as_ref()
                .map_or_else(|| "goes with the VM".to_owned(), |why| format!("stays: {why}"));
            self.below(&format!("      {} {kept}", directory.path.display()));
        }
        self.below(&format!("      penfold gc --foreign {}", found.id));
    }
}
