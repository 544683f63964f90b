//! What can happen to the state of a sandbox, and the sandbox that it happens to.

#![allow(
    clippy::disallowed_methods,
    reason = "what is removed is the tests' own; who works on one tree names it in the environment"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use penfold_testkit::proc::Handle;
use penfold_testkit::{Bystander, DelegatedCgroup, proc};
use serde_json::{Value, json};

use crate::support_detach::{self as detach, Small, leaf};
use crate::support_e2::{DEADLINE, Pen, left};
use crate::support_f::socket::{Control, Liar, lie};
use crate::support_f::{Level, Sandbox, said, until};

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
    /// It says that the sandbox has ended.
    StateSaysOver,
    StateDeadPids,
    StateStrangersPids,
    /// Written by supervisors in another pid namespace: the numbers mean others here.
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
    /// Somebody else listens there, and says that all is gone.
    SocketLiar,
    /// Somebody else listens there, and says nothing.
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
        let lies = |damage| matches!(damage, Damage::SocketLiar | Damage::SocketMute);
        let hides = |damage| {
            let gone = matches!(damage, Damage::RecordGone | Damage::RootRemade);
            // What cannot be told from a foreground run's record goes with the end.
            gone || matches!(damage, Damage::IntentMissing | Damage::IntentGarbage | Damage::IntentForged)
        };
        let [one, other] = pair;
        lies(one) && hides(other) || hides(one) && lies(other)
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

    /// Does it.
    ///
    /// # Errors
    /// When it cannot be done; another damage may have been there before.
    pub fn act(self, scene: &mut Scene) -> Result<(), String> {
        let record = scene.sandbox.record.clone();
        let intent = record.join("intent.json");
        match self {
            Damage::ExitForged => {
                let forged = json!({"schema": 1, "exit": {"code": 0}, "cause": "exit", "at_ms": 1});
                write(&record.join("exit.json"), &forged.to_string());
            }
            Damage::ReportForged => {
                let mut report = scene.outcome["outcome"]["report"].clone();
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
            Damage::NameMissing => remove(&scene.pen.path("root/names/web")),
            Damage::NameForged => write(&scene.pen.path("root/names/web"), "000000000000"),
            Damage::SocketMissing => remove(&record.join("control.sock")),
            Damage::SocketLiar | Damage::SocketMute => {
                remove(&record.join("control.sock"));
                let answer = (self == Damage::SocketLiar).then(|| scene.outcome.to_string());
                if record.is_dir() {
                    scene.liars.push(lie(&record, &scene.sandbox.id, answer));
                }
            }
            Damage::LogGone => drop(fs::remove_dir_all(record.join("log"))),
            Damage::RecordGone => drop(fs::remove_dir_all(&record)),
            Damage::RootRemade => {
                drop(fs::remove_dir_all(scene.pen.path("root")));
                fs::create_dir(scene.pen.path("root")).map_err(|error| error.to_string())?;
            }
            Damage::LeafGone => return scene.empty_leaf(),
            Damage::ClockSetBack => {
                let day = Duration::from_hours(24);
                set_times(&record, SystemTime::now() + day);
            }
            Damage::ClockSetForward => set_times(&record, SystemTime::UNIX_EPOCH + Duration::from_secs(1)),
            _ => self.act_on_state(scene, &record.join("state.json")),
        }
        Ok(())
    }

    fn act_on_state(self, scene: &Scene, path: &Path) {
        let stranger = json!({"pid": scene.stranger.id.pid, "start": scene.stranger.id.start});
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
            Damage::StateOfAnother => drop(std::os::unix::fs::chown(path, Some(65534), Some(65534))),
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
            // A time of birth means the same in all of them, but who has a number here was born at another.
            Damage::StateOtherNamespace => change(path, |state| {
                state["leader"]["pid"] = json!(scene.stranger.id.pid);
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
    let Some(mut value) = crate::support_f::json(path) else { return };
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

/// A sandbox with daemons in it, and strangers around it.
pub struct Scene {
    /// Goes first: what is mounted on cannot be removed.
    _small: Option<Small>,
    pub pen: Pen,
    pub sandbox: Sandbox,
    supervisors: Vec<Handle>,
    _bystander: Bystander,
    stranger: Handle,
    /// A stranger's cgroup, with the stranger in it.
    strange: DelegatedCgroup,
    /// A stranger's directory, with a file in it.
    victim: PathBuf,
    /// How a supervisor would tell the end of this sandbox.
    outcome: Value,
    liars: Vec<Liar>,
}

const DAEMONS: [&str; 4] = ["sleep 1031", "sleep 1032", "sleep 1033", "sleep 1034"];
const TREE: &str = "setsid sleep 1032 & (setsid sleep 1033 &); sleep 1034 & exec sleep 1031";

impl Scene {
    /// # Errors
    /// What does not stand.
    pub fn new(level: Level) -> Result<Scene, String> {
        Scene::with(level, Pen::new(), None)
    }

    /// The state is on a file system that has room for little more.
    ///
    /// # Errors
    /// What does not stand.
    pub fn on_a_small_disk() -> Result<Scene, String> {
        let pen = Pen::new();
        let small = Small::mount(&pen, 64, 16).ok_or("no tmpfs")?;
        Scene::with(Level::Cgroup, pen, Some(small))
    }

    fn with(level: Level, pen: Pen, small: Option<Small>) -> Result<Scene, String> {
        let tell = |error: std::io::Error| error.to_string();
        let bystander = Bystander::spawn().map_err(|error| error.to_string())?;
        let pid = i32::try_from(bystander.pid()).unwrap();
        let stranger = proc::stat(pid).and_then(|stat| Handle::open(stat.id).ok()?).ok_or("no bystander")?;
        let strange = DelegatedCgroup::new(0).map_err(tell)?;
        fs::write(strange.path().join("cgroup.procs"), pid.to_string()).map_err(tell)?;
        let victim = pen.path("victim");
        fs::create_dir(&victim).and_then(|()| fs::write(victim.join("file"), "{}")).map_err(tell)?;
        let outcome = outcome(&pen);
        let words = ["--contain", level.word(), "--name", "web", "--log-size", "64K", "--", "sh", "-c", TREE];
        let sandbox = detach::detach(&pen, &words);
        let supervisors = sandbox.supervisors();
        let outcome = outcome.to_string().replace("SANDBOX", &sandbox.id);
        let scene = Scene {
            supervisors,
            _bystander: bystander,
            stranger,
            strange,
            victim,
            outcome: serde_json::from_str(&outcome).map_err(|error| error.to_string())?,
            liars: Vec::new(),
            _small: small,
            pen,
            sandbox,
        };
        until(DEADLINE, || scene.daemons_run().is_ok());
        scene.daemons_run()?;
        Ok(scene)
    }

    /// Takes the last of the room.
    pub fn fill(&mut self) {
        for number in 0..2000 {
            let file = self.pen.path("root").join(format!("full-{number}"));
            let full = fs::write(&file, [0_u8; 4096]).is_err() && fs::write(&file, "").is_err();
            if full {
                return;
            }
        }
    }

    /// # Errors
    /// Who does not.
    pub fn daemons_run(&self) -> Result<(), String> {
        let missing: Vec<_> = DAEMONS.iter().filter(|command| !self.pen.is_running(command)).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("not running: {missing:?}")) }
    }

    /// Moves the members next to where they were, and removes the leaf.
    fn empty_leaf(&self) -> Result<(), String> {
        let Some(leaf) = leaf(&self.sandbox).map(PathBuf::from) else { return Ok(()) };
        let outside = leaf.parent().ok_or("the leaf is a root")?.join("cgroup.procs");
        let gone = until(DEADLINE, || {
            let members = fs::read_to_string(leaf.join("cgroup.procs")).unwrap_or_default();
            members.lines().for_each(|pid| drop(fs::write(&outside, pid)));
            fs::remove_dir(&leaf).is_ok()
        });
        if gone { Ok(()) } else { Err("the leaf cannot be emptied".to_owned()) }
    }

    /// # Errors
    /// When `ps` does not list it, says that it is over, or does not name what is damaged.
    pub fn is_not_said_to_be_over(&self, damaged: bool) -> Result<(), String> {
        let output = detach::output(&self.pen, &["ps", "--json"]);
        let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let id = Some(self.sandbox.id.as_str());
        let one = all.as_array().and_then(|all| all.iter().find(|one| one["id"].as_str() == id));
        let one = one.ok_or_else(|| format!("`ps` does not list it: {}", said(&output)))?;
        let status = one["status"].as_str().unwrap_or_default();
        if !["created", "running", "stopping", "unkillable", "orphaned"].contains(&status) {
            return Err(format!("`ps` says {status:?}: {one}"));
        }
        let told = |list: &str| one[list].as_array().is_some_and(|list| !list.is_empty());
        if damaged && !told("damage") && !told("evidence") {
            return Err(format!("`ps` names no damage: {one}"));
        }
        Ok(())
    }

    /// Ends it by a command of ours.
    ///
    /// # Errors
    /// When it does not say that all is gone, or that is not so.
    pub fn end(&mut self, words: &[&str]) -> Result<(), String> {
        let id = self.sandbox.id.clone();
        let words: Vec<&str> = words
            .iter()
            .map(|&word| match word {
                "ID" => id.as_str(),
                "PREFIX" => id.get(..11).unwrap_or_default(),
                "NAME" => "web",
                other => other,
            })
            .collect();
        let output = detach::output(&self.pen, &words);
        if !output.status.success() {
            return Err(said(&output));
        }
        let alive: Vec<_> = DAEMONS.iter().filter(|command| self.pen.is_running(command)).collect();
        if !alive.is_empty() {
            return Err(format!("said to be gone and running: {alive:?}"));
        }
        leaf(&self.sandbox).map_or(Ok(()), |leaf| Err(format!("said to be gone and there: {leaf}")))
    }

    /// Looks whether nothing is left but what is not ours, and whether that is as it was.
    ///
    /// # Errors
    /// What is not.
    pub fn must_be_over(mut self) -> Result<(), String> {
        self.liars.clear();
        let left = |supervisor: &&Handle| !supervisor.wait(Some(DEADLINE));
        if let Some(supervisor) = self.supervisors.iter().find(left) {
            return Err(format!("supervisor {} is left", supervisor.id));
        }
        if self.stranger.has_ended() {
            return Err("a stranger was hit".to_owned());
        }
        if fs::read_to_string(self.victim.join("file")).ok().as_deref() != Some("{}") {
            return Err("a stranger's file was hit".to_owned());
        }
        let mut status = None;
        let living = |status: Option<&str>| {
            matches!(status, Some("created" | "running" | "stopping" | "unkillable" | "orphaned"))
        };
        let over = until(DEADLINE, || {
            status = detach::status(&self.pen, &self.sandbox);
            !living(status.as_deref())
        });
        if !over {
            return Err(format!("over, and `ps` says {status:?}"));
        }
        // What it owned is gone; what is kept of it goes with `rm`, or is not known to it any more.
        let output = detach::output(&self.pen, &["rm", "-f", &self.sandbox.id]);
        if !matches!(output.status.code(), Some(0 | 3)) {
            return Err(format!("not forgotten: {}", said(&output)));
        }
        let records = crate::support_f::records(&self.pen.path("root"));
        if records.is_empty() { Ok(()) } else { Err(format!("left: {records:?}")) }
    }
}

impl Drop for Scene {
    /// Takes away what a failed test has left.
    fn drop(&mut self) {
        let Some(leaf) = leaf(&self.sandbox) else { return };
        left::end_processes(self.pen.path("root").parent().unwrap_or(Path::new("/nonexistent")));
        until(Duration::from_secs(3), || fs::remove_dir(&leaf).is_ok());
    }
}

/// What a supervisor says at the end, with `SANDBOX` for the id.
fn outcome(pen: &Pen) -> Value {
    let other = detach::detach(pen, &["--log-size", "64K", "--", "sleep", "1030"]);
    let (control, _) = Control::to(&other.record).unwrap();
    control.say("\"kill\"");
    let outcome = control.rest().into_iter().find(|answer| answer.get("outcome").is_some()).unwrap();
    until(DEADLINE, || other.has_ended());
    detach::forget(&other);
    serde_json::from_str(&outcome.to_string().replace(&other.id, "SANDBOX")).unwrap()
}
