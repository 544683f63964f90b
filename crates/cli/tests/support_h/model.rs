//! What is known of the sandboxes, and what may be said of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use penfold_testkit::proc::{self, Handle};

use super::plan::SLOTS;

/// One sandbox whose id was printed.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is something else that has happened")]
pub struct Known {
    pub slot: usize,
    /// The code that it exits with if nobody interferes.
    pub natural: Option<i32>,
    /// It may exit with any code.
    pub any: bool,
    /// Somebody or something may have ended it, or will.
    pub touched: bool,
    /// Its record was damaged, or a process of ours that looks after it was hit.
    pub hurt: bool,
    /// Its name or its record may lead elsewhere.
    pub misnamed: bool,
    /// Its log may be gone.
    pub unlogged: bool,
    /// The code that was told first.
    pub code: Option<i32>,
    /// Outer and inner, while that was certain.
    pub supervisors: Vec<Handle>,
}

/// All of them.
#[derive(Debug)]
pub struct Model {
    pub known: BTreeMap<String, Known>,
    pub slots: [Option<String>; SLOTS],
    /// How often somebody began or ceased to end what has the name of a slot.
    endings: [usize; SLOTS],
    /// How many are at it.
    ending: usize,
}

impl Default for Model {
    fn default() -> Model {
        Model { known: BTreeMap::new(), slots: [const { None }; SLOTS], endings: [0; SLOTS], ending: 0 }
    }
}

impl Model {
    /// Somebody is about to end what has the name of a slot, or all.
    pub fn ending_begins(&mut self, slot: Option<usize>) {
        self.ending += 1;
        self.touch(slot);
    }

    /// Somebody has done so.
    pub fn ending_is_over(&mut self, slot: Option<usize>) {
        self.ending -= 1;
        self.touch(slot);
    }

    fn touch(&mut self, slot: Option<usize>) {
        let is_meant = |other: usize| slot.is_none_or(|slot| slot == other);
        self.endings
            .iter_mut()
            .enumerate()
            .filter(|(slot, _)| is_meant(*slot))
            .for_each(|(_, count)| *count += 1);
        self.known.values_mut().filter(|known| is_meant(known.slot)).for_each(|known| known.touched = true);
    }

    /// A sandbox is about to be started in a slot: which was there, and what [`Model::was_touched`] wants to know.
    pub fn begin(&self, slot: usize) -> (Option<String>, usize) {
        (self.slots[slot].clone(), self.endings[slot])
    }

    /// Whether a sandbox whose id was not known yet may have been ended by its name.
    pub fn was_touched(&self, slot: usize, endings: usize) -> bool {
        self.ending > 0 || self.endings[slot] != endings
    }

    /// The code of a sandbox was told.
    ///
    /// # Errors
    /// When it cannot be that.
    pub fn told(&mut self, id: &str, code: Option<i32>) -> Result<(), String> {
        let Some(known) = self.known.get_mut(id) else { return Ok(()) };
        let Some(code) = code else {
            let may = known.touched || known.hurt;
            return if may { Ok(()) } else { Err(format!("{id}: unknown, and nobody touched it")) };
        };
        let asked = known.touched || known.hurt;
        // 42: a script that exits so when it is asked to; 143 and 129: one that is ended by the asking.
        let possible =
            known.any || known.natural == Some(code) || (asked && [42, 137, 143, 129, 0].contains(&code));
        if !possible {
            return Err(format!("{id}: told to have exited with {code}: {known:?}"));
        }
        match known.code {
            Some(other) if other != code => Err(format!("{id}: {code} after {other} was told")),
            _ => {
                known.code = Some(code);
                Ok(())
            }
        }
    }
}

/// The ids of all sandboxes of which something is alive: what has ended before a look is never in it. `mark` is in the
/// environment of all that this soak has started.
pub fn living(mark: &[u8], leaves: Option<&PathBuf>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for process in proc::all() {
        if process.is_dead() || process.parent == 2 {
            continue;
        }
        let directory = PathBuf::from(format!("/proc/{}", process.id.pid));
        let mut texts = vec![std::fs::read(directory.join("environ")).unwrap_or_default()];
        if process.state == 'Z' {
            let tasks = std::fs::read_dir(directory.join("task")).into_iter().flatten().flatten();
            texts.extend(tasks.filter_map(|task| std::fs::read(task.path().join("environ")).ok()));
        }
        for text in texts {
            if !text.split(|&byte| byte == 0).any(|entry| entry == mark) {
                continue;
            }
            let entries = text.split(|&byte| byte == 0);
            let ids = entries.filter_map(|entry| entry.strip_prefix(b"PENFOLD_SANDBOX="));
            found.extend(ids.map(|id| String::from_utf8_lossy(id).into_owned()));
        }
    }
    let entries = leaves.and_then(|path| std::fs::read_dir(path).ok()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let events = std::fs::read_to_string(entry.path().join("cgroup.events")).unwrap_or_default();
        if let Some(id) = name.strip_prefix("penfold-").filter(|_| events.contains("populated 1")) {
            found.insert(id.to_owned());
        }
    }
    found
}
