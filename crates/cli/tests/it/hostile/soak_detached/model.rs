//! What is known of the sandboxes, and what may be said of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use penfold_testkit::proc::{self, Handle};

use super::plan::SLOTS;

/// One sandbox whose id was printed.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is something else that has happened")]
pub struct ExpectedSandbox {
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
    pub known: BTreeMap<String, ExpectedSandbox>,
    pub slots: [Option<String>; SLOTS],
    /// Who ends what has the name of a slot.
    endings: Meddling,
    /// Who damages the file of a name.
    damages: Meddling,
}

/// What is done to the names of slots while it is not known whose they are.
#[derive(Debug, Clone, Copy, Default)]
struct Meddling {
    /// How often it began or was over.
    turns: [usize; SLOTS],
    /// How many are at it.
    now: [usize; SLOTS],
}

impl Meddling {
    fn begins(&mut self, slot: Option<usize>) {
        for slot in slot.map_or(0..SLOTS, |slot| slot..slot + 1) {
            (self.turns[slot], self.now[slot]) = (self.turns[slot] + 1, self.now[slot] + 1);
        }
    }

    fn is_over(&mut self, slot: Option<usize>) {
        for slot in slot.map_or(0..SLOTS, |slot| slot..slot + 1) {
            (self.turns[slot], self.now[slot]) = (self.turns[slot] + 1, self.now[slot] - 1);
        }
    }

    fn happened(&self, slot: usize, turns: usize) -> bool {
        self.now[slot] > 0 || self.turns[slot] != turns
    }
}

/// How things were when a sandbox was about to be started.
#[derive(Debug)]
pub struct Before {
    slot: usize,
    /// Which sandbox was in the slot.
    pub other: Option<String>,
    endings: usize,
    damages: usize,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            known: BTreeMap::new(),
            slots: [const { None }; SLOTS],
            endings: Meddling::default(),
            damages: Meddling::default(),
        }
    }
}

impl Model {
    /// Somebody is about to end what has the name of a slot, or all.
    pub fn ending_begins(&mut self, slot: Option<usize>) {
        self.endings.begins(slot);
        self.touch(slot);
    }

    /// Somebody has done so.
    pub fn ending_is_over(&mut self, slot: Option<usize>) {
        self.endings.is_over(slot);
        self.touch(slot);
    }

    fn touch(&mut self, slot: Option<usize>) {
        let meant = self.known.values_mut().filter(|known| slot.is_none_or(|slot| slot == known.slot));
        meant.for_each(|known| known.touched = true);
    }

    /// The file of a slot's name is about to be damaged.
    pub fn damage_begins(&mut self, slot: usize) {
        self.damages.begins(Some(slot));
    }

    /// It has been.
    pub fn damage_is_over(&mut self, slot: usize) {
        self.damages.is_over(Some(slot));
    }

    /// A sandbox is about to be started in a slot.
    pub fn begin(&self, slot: usize) -> Before {
        let (endings, damages) = (self.endings.turns[slot], self.damages.turns[slot]);
        Before { slot, other: self.slots[slot].clone(), endings, damages }
    }

    /// Whether a sandbox whose id was not known yet may have been ended by its name.
    pub fn was_ended(&self, before: &Before) -> bool {
        self.endings.happened(before.slot, before.endings)
    }

    /// Whether a sandbox whose id was not known yet may have lost its name.
    pub fn was_misnamed(&self, before: &Before) -> bool {
        self.damages.happened(before.slot, before.damages)
    }

    /// The code of a sandbox was told.
    ///
    /// # Errors
    /// When it cannot be that.
    pub fn told(&mut self, id: &str, code: Option<i32>) -> Result<(), String> {
        let Some(known) = self.known.get_mut(id) else { return Ok(()) };
        let Some(code) = code else {
            let may = known.touched || known.hurt;
            return if may {
                Ok(())
            } else {
                Err(format!("{id}: unknown, and nobody touched it: {known:?}"))
            };
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
