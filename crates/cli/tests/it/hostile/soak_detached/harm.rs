//! What is done to sandboxes that no command of ours does.

use std::fs;
use std::path::{Path, PathBuf};

use penfold_testkit::proc::{Handle, Identity};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::fixture::Fixture;
use super::plan::{Damage, Part};

/// Outer and inner of a sandbox by its state file.
pub fn supervisors(record: &Path) -> Vec<Handle> {
    let text = fs::read(record.join("state.json")).unwrap_or_default();
    let state: Value = serde_json::from_slice(&text).unwrap_or_default();
    let told = state.get("supervisors").and_then(Value::as_array).cloned().unwrap_or_default();
    let identity = |told: &Value| {
        let pid = i32::try_from(told.get("pid")?.as_i64()?).ok()?;
        Some(Identity { pid, start: told.get("start")?.as_u64()? })
    };
    told.iter().filter_map(identity).filter_map(|id| Handle::open(id).ok()?).collect()
}

/// Kills or stops those who look after the sandbox of a slot. Gives the identities of those that were stopped.
pub fn hit(fixture: &Fixture, slot: usize, part: Part, kills: bool) -> Vec<Identity> {
    let mut model = fixture.model();
    let Some(id) = model.slots[slot].clone() else { return Vec::new() };
    let Some(known) = model.known.get_mut(&id) else { return Vec::new() };
    (known.touched, known.hurt) = (true, true);
    let chosen = known.supervisors.iter().enumerate().filter(|(index, _)| match part {
        Part::Both => true,
        Part::Outer => *index == 0,
        Part::Inner => *index == 1,
    });
    let mut stopped = Vec::new();
    for (_, handle) in chosen {
        let _ = handle.signal(if kills { Signal::KILL } else { Signal::STOP });
        if !kills {
            stopped.push(handle.id);
        }
    }
    stopped
}

/// Lets those go on that were stopped.
pub fn go_on(stopped: &[Identity]) {
    for &id in stopped {
        if let Ok(Some(handle)) = Handle::open(id) {
            let _ = handle.signal(Signal::CONT);
        }
    }
}

/// Damages a record. `stranger` is a process that has nothing to do with it.
pub fn damage(fixture: &Fixture, slot: usize, damage: Damage, stranger: Identity) {
    let Some(id) = fixture.model().slots[slot].clone() else { return };
    if let Some(known) = fixture.model().known.get_mut(&id) {
        known.hurt = true;
        // A record that cannot be read, or that nobody finds, may be swept.
        known.touched |= matches!(damage, Damage::IntentMissing | Damage::IntentGarbage | Damage::RecordGone);
        known.misnamed |= matches!(
            damage,
            Damage::NameMissing
                | Damage::NameForged
                | Damage::IntentMissing
                | Damage::IntentGarbage
                | Damage::RecordGone
        );
        known.unlogged |= matches!(damage, Damage::LogGone | Damage::RecordGone);
    }
    let record = fixture.env.path("root/sandboxes").join(&id);
    let name = fixture.env.path(&format!("root/names/s{slot}"));
    // A sandbox that is just being started may have the name by now.
    let by_name = matches!(damage, Damage::NameMissing | Damage::NameForged);
    if by_name {
        fixture.model().damage_begins(slot);
    }
    act(&record, &name, damage, stranger);
    if by_name {
        fixture.model().damage_is_over(slot);
    }
}

fn act(record: &Path, name: &Path, damage: Damage, stranger: Identity) {
    let (state, intent) = (record.join("state.json"), record.join("intent.json"));
    let stranger = json!({"pid": stranger.pid, "start": stranger.start});
    match damage {
        Damage::StateMissing => drop(fs::remove_file(&state)),
        Damage::StateEmpty => write(&state, ""),
        Damage::StateTruncated => {
            let text = fs::read_to_string(&state).unwrap_or_default();
            write(&state, text.get(..text.len() / 2).unwrap_or_default());
        }
        Damage::StateGarbage => write(&state, "\u{0}{[\"running\": 12"),
        Damage::StateNewer => change(&state, |state| state["schema"] = json!(99)),
        Damage::StateSaysOver => change(&state, |state| state["word"] = json!("exited")),
        Damage::StateStranger => change(&state, |state| {
            (state["leader"], state["supervisors"]) = (stranger.clone(), json!([stranger, stranger]));
        }),
        Damage::IntentMissing => drop(fs::remove_file(&intent)),
        Damage::IntentGarbage => write(&intent, "}{"),
        Damage::NameMissing => drop(fs::remove_file(name)),
        Damage::NameForged => write(name, "000000000000"),
        Damage::SocketMissing => drop(fs::remove_file(record.join("control.sock"))),
        Damage::LogGone => remove(&record.join("log")),
        Damage::RecordGone => remove(record),
    }
}

/// Writes over what is there; what is gone stays gone.
fn write(path: &Path, text: &str) {
    if let Ok(mut file) = fs::OpenOptions::new().write(true).truncate(true).open(path) {
        let _ = std::io::Write::write_all(&mut file, text.as_bytes());
    }
}

fn change(path: &PathBuf, how: impl FnOnce(&mut Value)) {
    let text = fs::read(path).unwrap_or_default();
    let Ok(mut value) = serde_json::from_slice::<Value>(&text) else { return };
    if value.is_object() {
        how(&mut value);
        write(path, &value.to_string());
    }
}

#[expect(clippy::disallowed_methods, reason = "a directory of the test's own")]
fn remove(path: &Path) {
    if fs::remove_file(path).is_err() {
        drop(fs::remove_dir_all(path));
    }
}
