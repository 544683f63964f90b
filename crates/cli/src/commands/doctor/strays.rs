//! The output of `penfold doctor --foreign`: strays of other tools.

use std::time::Duration;

use penfold_doctor::foreign::{OwnerState, Stray, Strays};
use penfold_doctor::host_checks::State;

use super::Page;
use crate::text::lines::count;
use penfold_doctor::leaks::age_in_words;

/// The number of session variables that are shown in addition to the evidence.
const MARKS: usize = 3;

impl Page<'_> {
    pub(super) fn strays(&mut self, found: &Strays) {
        if !found.complete {
            self.line(
                State::Warn,
                "some processes could not be read: there may be more strays of other tools",
            );
        }
        // A VM has lines of its own.
        let is_vm = |stray: &Stray| found.vms.iter().any(|vm| vm.has(stray.member.id.pid.as_raw_pid()));
        let strays: Vec<&Stray> = found.strays.iter().filter(|stray| !is_vm(stray)).collect();
        if strays.is_empty() {
            self.line(State::Ok, "no strays of other tools seen");
            return;
        }
        let number = count(strays.len(), "stray", "strays");
        self.line(
            State::Warn,
            &format!("{number} that penfold did not start; `penfold gc` ends only named ones"),
        );
        for stray in strays {
            self.stray(stray);
        }
    }

    fn stray(&mut self, stray: &Stray) {
        let pid = stray.member.id.pid.as_raw_pid();
        let command = stray.member.command.as_deref().unwrap_or(&stray.member.name);
        let mut facts = vec![format!("{} old", age_in_words(Duration::from_secs(stray.age_s)))];
        if stray.processes > 1 {
            facts.push(count(stray.processes, "process", "processes"));
        }
        if let Some(directory) = &stray.directory {
            facts.push(format!("in {}", directory.display()));
        }
        if !stray.ports.is_empty() {
            let ports: Vec<String> = stray.ports.iter().map(ToString::to_string).collect();
            facts.push(format!("listens on {}", ports.join(" ")));
        }
        self.below(&format!("{pid}  {command}  {}", facts.join(", ")));
        let shown = stray.marks.iter().filter(|mark| mark.owner != OwnerState::Dead).take(MARKS);
        let marks = shown.map(|mark| format!("{}={}", mark.key, mark.value));
        let evidence: Vec<String> = stray.evidence.iter().cloned().chain(marks).collect();
        self.below(&format!("      {}", evidence.join("; ")));
        self.below(&format!("      penfold adopt {pid}     penfold gc --foreign {pid}"));
    }
}
