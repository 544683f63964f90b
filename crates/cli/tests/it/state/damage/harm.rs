//! What can happen to the state of a sandbox.

#![expect(clippy::disallowed_methods, reason = "the tests remove what is their own, or is to be lost")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::scene::Scene;
use crate::support::{Impostor, USER};

/// One thing that is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Damage {
    StateMissing,
    StateEmpty,
    StateTruncated,
    StateGarbage,
    StateNewer,
    StateOfAnother,
    StateLink,
    /// `state.json` says that the sandbox has exited.
    StateSaysOver,
    StateDeadPids,
    StateStrangersPids,
    /// Written by supervisors in another pid namespace: the pids are those of other processes here.
    StateOtherNamespace,
    /// All times in the record are of tomorrow.
    ClockSetBack,
    /// All times in the record are of long ago.
    ClockSetForward,
    ExitForged,
    ReportForged,
    IntentMissing,
    IntentGarbage,
    IntentNewer,
    /// Another sandbox's leaf and a stranger's directory are named as this one's.
    IntentForged,
    /// The record belongs to a boot that is over.
    IntentOldBoot,
    NameMissing,
    /// The file of the name holds another id.
    NameForged,
    SocketMissing,
    /// An impostor listens there, and says that all is gone.
    SocketLiar,
    /// An impostor listens there, and says nothing.
    SocketMute,
    LogGone,
    RecordGone,
    RootRemade,
    /// The members are in another cgroup, and theirs is gone.
    LeafGone,
}

impl Damage {
    pub const ALL: &[Damage] = &[
        Damage::StateMissing,
        Damage::StateEmpty,
        Damage::StateTruncated,
        Damage::StateGarbage,
        Damage::StateNewer,
        Damage::StateOfAnother,
        Damage::StateLink,
        Damage::StateSaysOver,
        Damage::StateDeadPids,
        Damage::StateStrangersPids,
        Damage::StateOtherNamespace,
        Damage::ClockSetBack,
        Damage::ClockSetForward,
        Damage::ExitForged,
        Damage::ReportForged,
        Damage::IntentMissing,
        Damage::IntentGarbage,
        Damage::IntentNewer,
        Damage::IntentForged,
        Damage::IntentOldBoot,
        Damage::NameMissing,
        Damage::NameForged,
        Damage::SocketMissing,
        Damage::SocketLiar,
        Damage::SocketMute,
        Damage::LogGone,
        Damage::RecordGone,
        Damage::RootRemade,
        Damage::LeafGone,
    ];

    /// Whether both at once leave no way to tell a stranger's socket from a supervisor's: without a record there is no
    /// lock to look at, and unknown means alive.
    pub fn hide_the_truth(pair: [Damage; 2]) -> bool {
        let hides = |damage| {
            let gone = matches!(damage, Damage::RecordGone | Damage::RootRemade);
            // What cannot be told from a foreground run's record goes with the end.
            gone || matches!(damage, Damage::IntentMissing | Damage::IntentGarbage | Damage::IntentForged)
        };
        let [one, other] = pair;
        one.is_impostor() && hides(other) || hides(one) && other.is_impostor()
    }

    pub fn is_impostor(self) -> bool {
        matches!(self, Damage::SocketLiar | Damage::SocketMute)
    }

    /// Whether `ps` has to name one of these, which were done one after the other.
    pub fn are_seen_in_a_file(damages: &[Damage]) -> bool {
        let later = |number: usize| damages.get(number + 1..).unwrap_or_default();
        let is_left = |(number, &damage): (usize, &Damage)| {
            damage.is_seen_in_a_file() && !later(number).iter().any(|later| later.undoes(damage))
        };
        damages.iter().enumerate().any(is_left)
    }

    fn is_seen_in_a_file(self) -> bool {
        use Damage::{
            IntentGarbage, IntentMissing, StateEmpty, StateGarbage, StateLink, StateNewer, StateOfAnother,
            StateTruncated,
        };
        matches!(
            self,
            StateEmpty
                | StateTruncated
                | StateGarbage
                | StateNewer
                | StateOfAnother
                | StateLink
                | IntentMissing
                | IntentGarbage
        )
    }

    /// Whether this puts a file of ours, or none, where that had put one that is not.
    fn undoes(self, earlier: Damage) -> bool {
        use Damage::{
            ClockSetBack, ClockSetForward, StateDeadPids, StateEmpty, StateGarbage, StateLink, StateMissing,
            StateNewer, StateOfAnother, StateOtherNamespace, StateSaysOver, StateStrangersPids,
            StateTruncated,
        };
        match earlier {
            StateOfAnother | StateLink => {
                let pids = matches!(self, StateDeadPids | StateStrangersPids | StateOtherNamespace);
                pids || matches!(self, StateMissing | StateSaysOver | ClockSetBack | ClockSetForward)
            }
            StateEmpty | StateTruncated | StateGarbage | StateNewer => self == StateMissing,
            _ => false,
        }
    }

    /// As part of the name of a test.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_ascii_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// Does it, as far as an earlier damage lets it.
    pub fn act(self, scene: &mut Scene) {
        let record = scene.sandbox.record.clone();
        let intent = record.join("intent.json");
        match self {
            Damage::ExitForged => {
                let forged = json!({"schema": 1, "exit": {"code": 0}, "cause": "exit", "at_ms": 1});
                write(&record.join("exit.json"), &forged.to_string());
            }
            Damage::ReportForged => {
                let mut report = Impostor::all_gone(&scene.sandbox.id)["outcome"]["report"].clone();
                report["exit"] = json!({"code": 0});
                write(&record.join("report.json"), &report.to_string());
            }
            Damage::IntentMissing => remove(&intent),
            Damage::IntentGarbage => write(&intent, "}{"),
            Damage::IntentNewer => change(&intent, |intent| intent["schema"] = json!(99)),
            Damage::IntentForged => {
                let (leaf, scratch) = (scene.strange.path().to_owned(), scene.victim.clone());
                change(&intent, |intent| {
                    (intent["leaf"], intent["scratch"]) = (json!(leaf), json!(scratch));
                });
            }
            Damage::IntentOldBoot => {
                change(&intent, |intent| intent["boot"] = json!("00000000-0000-0000-0000-000000000000"));
            }
            Damage::NameMissing => remove(&scene.env.path("root/names/web")),
            Damage::NameForged => write(&scene.env.path("root/names/web"), "000000000000"),
            Damage::SocketMissing => remove(&record.join("control.sock")),
            Damage::SocketLiar | Damage::SocketMute => {
                if record.is_dir() {
                    let id = scene.sandbox.id.as_str();
                    let lie = vec![json!({"ending": "killing"}), Impostor::all_gone(id)];
                    scene.impostors.push(if self == Damage::SocketLiar {
                        Impostor::answering(&record, Impostor::hello(id), lie)
                    } else {
                        Impostor::new(&record, Vec::new(), false)
                    });
                }
            }
            Damage::LogGone => drop(fs::remove_dir_all(record.join("log"))),
            Damage::RecordGone => drop(fs::remove_dir_all(&record)),
            Damage::RootRemade => {
                fs::remove_dir_all(scene.env.root()).unwrap();
                fs::create_dir(scene.env.root()).unwrap();
            }
            Damage::LeafGone => scene.empty_leaf(),
            Damage::ClockSetBack => {
                let day = Duration::from_hours(24);
                set_times(&record, SystemTime::now() + day);
            }
            Damage::ClockSetForward => set_times(&record, SystemTime::UNIX_EPOCH + Duration::from_secs(1)),
            _ => self.act_on_state(scene, &record.join("state.json")),
        }
    }

    fn act_on_state(self, scene: &Scene, path: &Path) {
        let stranger = json!({"pid": scene.stranger.pid(), "start": scene.stranger.id().start});
        let dead = json!({"pid": 4_000_000, "start": 1});
        match self {
            Damage::StateMissing => remove(path),
            Damage::StateEmpty => write(path, ""),
            Damage::StateTruncated => {
                let text = fs::read_to_string(path).unwrap_or_default();
                write(path, text.get(..text.len() / 2).unwrap_or_default());
            }
            Damage::StateGarbage => write(path, "\u{0}{[\"running\": 12"),
            Damage::StateNewer => change(path, |state| state["schema"] = json!(99)),
            Damage::StateOfAnother => drop(std::os::unix::fs::chown(path, Some(USER), Some(USER))),
            Damage::StateLink => {
                remove(path);
                drop(symlink(scene.victim.join("file"), path));
            }
            Damage::StateSaysOver => change(path, |state| state["word"] = json!("exited")),
            Damage::StateDeadPids => change(path, |state| {
                (state["leader"], state["supervisors"]) = (dead.clone(), json!([dead, dead]));
            }),
            Damage::StateStrangersPids => change(path, |state| {
                (state["leader"], state["supervisors"]) = (stranger.clone(), json!([stranger, stranger]));
            }),
            // A start time means the same in all pid namespaces: no process here has this pid and this start time.
            Damage::StateOtherNamespace => change(path, |state| {
                state["leader"]["pid"] = json!(scene.stranger.pid());
                for (number, supervisor) in
                    state["supervisors"].as_array_mut().into_iter().flatten().enumerate()
                {
                    supervisor["pid"] = json!(number + 1);
                }
            }),
            _ => {}
        }
    }
}

fn remove(path: &Path) {
    if fs::remove_file(path).is_err() {
        drop(fs::remove_dir_all(path));
    }
}

/// Puts a file there in place of what is. A record that is gone stays gone.
fn write(path: &Path, text: &str) {
    let fresh = path.with_extension("damaged");
    drop(fs::write(&fresh, text).and_then(|()| fs::rename(&fresh, path)));
}

fn change(path: &Path, how: impl FnOnce(&mut Value)) {
    let Some(mut value) = crate::support::json(path) else { return };
    how(&mut value);
    write(path, &value.to_string());
}

/// Gives all that is dated in a record, and its files, this time.
fn set_times(record: &Path, time: SystemTime) {
    let ms = time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
    let ms = json!(u64::try_from(ms).unwrap());
    change(&record.join("intent.json"), |intent| intent["made_at_ms"] = ms.clone());
    change(&record.join("state.json"), |state| {
        (state["started_at_ms"], state["expires_at_ms"]) = (ms.clone(), ms.clone());
    });
    let inside = fs::read_dir(record).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in inside.chain([record.to_owned()]) {
        let plain = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() || meta.is_dir());
        if let Some(file) = plain.then(|| fs::File::open(&path).ok()).flatten() {
            drop(file.set_modified(time));
        }
    }
}
