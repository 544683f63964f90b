//! Sandboxes with a member that cannot be ended.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_testkit::FrozenFs;
use rustix::process::Signal;

use super::{Damage, Mode};
use crate::end::standing::{Directory, await_state_d, frozen, write_to};
use crate::state::damage::scene::{SmallDisk, fill};
use crate::support::{
    Finished, Impostor, Process, Running, TestEnv, USER, Who, has_program, json, kill_at_once, penfold, skip,
    wait_until,
};

/// The time that a verb may take.
pub const PATIENCE: &str = "60ms";
/// The command line of the member.
const SLEEP: &str = "sleep 1171";
/// The name of the sandbox.
pub const NAME: &str = "lasting";

/// Why a member cannot be ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// It became root, and has its environment for itself.
    Root,
    /// It became another user.
    OtherUser,
    /// It became root, and `/proc` hides it.
    Hidden,
    /// It became root, in a pid namespace of its own.
    PidNamespace,
    /// It became root, and left the cgroup of the sandbox.
    OtherCgroup,
    /// Root has frozen it, in the v1 freezer.
    Frozen,
    /// It hangs in the kernel.
    StateD,
}

impl Escape {
    pub const ALL: [Escape; 7] = [
        Escape::Root,
        Escape::OtherUser,
        Escape::Hidden,
        Escape::PidNamespace,
        Escape::OtherCgroup,
        Escape::Frozen,
        Escape::StateD,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Escape::Root => "root",
            Escape::OtherUser => "other_user",
            Escape::Hidden => "hidden",
            Escape::PidNamespace => "pid_namespace",
            Escape::OtherCgroup => "other_cgroup",
            Escape::Frozen => "frozen",
            Escape::StateD => "state_d",
        }
    }

    fn who(self) -> Who {
        match self {
            Escape::StateD => Who::Root,
            Escape::OtherCgroup => Who::Delegated,
            _ => Who::Plain,
        }
    }

    fn level(self) -> &'static str {
        if self == Escape::OtherCgroup { "cgroup" } else { "subreaper" }
    }

    /// The words of the shell that becomes the member.
    fn words(self, frozen: Option<&FrozenFs>) -> String {
        let becomes = |user: u32| format!("$BECOME --reuid {user} --regid {user} --clear-groups");
        match self {
            Escape::Root | Escape::Hidden | Escape::OtherCgroup => format!("exec {} {SLEEP}", becomes(0)),
            Escape::OtherUser => format!("exec {} {SLEEP}", becomes(USER - 10)),
            Escape::PidNamespace => format!("exec {} unshare --pid --fork {SLEEP}", becomes(0)),
            Escape::Frozen => format!("exec {SLEEP}"),
            Escape::StateD => write_to(frozen.expect("a frozen file system")),
        }
    }
}

/// What holds a member, until this is dropped.
enum Hold {
    Nothing,
    FileSystem(FrozenFs),
    Group(Directory),
}

/// A sandbox whose end was tried, and whose survivors were named. Fields are dropped in this order.
pub struct Scene {
    small: Option<SmallDisk>,
    escape: Escape,
    pub mode: Mode,
    pub id: String,
    survivors: Vec<Process>,
    supervisors: Vec<Process>,
    pub env: TestEnv,
    hold: Hold,
}

impl Scene {
    /// Starts a sandbox, ends its leader, waits until the survivors were named, and does the damage. Nothing where that cannot be.
    #[track_caller]
    pub fn start(escape: Escape, damage: Damage, mode: Mode) -> Option<Scene> {
        let held = if escape == Escape::StateD { Some(frozen()?) } else { None };
        if !has_program(&["setpriv", "--version"]) {
            return None;
        }
        let env = TestEnv::of(escape.who())?;
        let become_another = env.path("become-another");
        std::fs::copy("/usr/bin/setpriv", &become_another).unwrap();
        std::fs::set_permissions(&become_another, std::fs::Permissions::from_mode(0o4755)).unwrap();
        let small = (damage == Damage::DiskFull).then(|| SmallDisk::mount(&env, 64, 24));
        if small.is_some() && env.is_ordinary() {
            chown(env.root(), Some(USER), Some(USER)).unwrap();
        }
        let script = format!(
            "mkfifo go; setsid sh -c '{}' & echo up >> $UP; read x < go; exit 3",
            escape.words(held.as_ref())
        );
        let mut words = vec!["run", "--contain", escape.level(), "--name", NAME, "--patience", PATIENCE];
        if mode == Mode::Detached {
            words.extend(["-d", "--log-size", "64K"]);
        }
        words.extend(["--", "sh", "-c", &script]);
        let mut command = penfold_in(&env, escape, &words);
        let run = match mode {
            // Not pipes: the member holds them open.
            Mode::Foreground => Some(Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()))),
            Mode::Detached => {
                Running::start(&mut command).finish().with_code(0);
                None
            }
        };
        env.await_up(&["up"]);
        let sandboxes = crate::support::entries(&env.root().join("sandboxes"));
        let id = sandboxes[0].file_name().unwrap().to_str().unwrap().to_owned();
        let mut scene = Scene {
            small,
            escape,
            mode,
            id,
            survivors: Vec::new(),
            supervisors: Vec::new(),
            env,
            hold: held.map_or(Hold::Nothing, Hold::FileSystem),
        };
        scene.hold_member()?;
        scene.supervisors = scene.find_supervisors(run.as_ref());
        if scene.small.is_some() {
            fill(&scene.env);
        }
        std::fs::write(scene.env.path("work/go"), "\n").unwrap();
        match run {
            Some(run) => {
                run.finish().with_code(120);
            }
            None => scene.await_named(),
        }
        scene.damage(damage);
        Some(scene)
    }

    /// Finds the member, and takes it out of reach where the member did not do so itself.
    fn hold_member(&mut self) -> Option<()> {
        let line = if self.escape == Escape::StateD { "sh -c echo text" } else { SLEEP };
        let count = if self.escape == Escape::PidNamespace { 2 } else { 1 };
        wait_until("the member is there", || {
            self.survivors = self.env.find(line);
            if self.escape == Escape::PidNamespace {
                self.survivors.extend(self.env.find(&format!("unshare --pid --fork {SLEEP}")));
            }
            self.survivors.len() == count
        });
        match self.escape {
            Escape::StateD => await_state_d(&self.survivors[0]),
            Escape::Frozen => {
                let freezer = Path::new("/sys/fs/cgroup/freezer");
                if !freezer.join("cgroup.procs").is_file() {
                    skip("there is no v1 freezer");
                    return None;
                }
                let group = Directory::make(freezer.join(self.unique())).unwrap();
                self.move_into(group.path());
                std::fs::write(group.path().join("freezer.state"), "FROZEN").unwrap();
                let state = group.path().join("freezer.state");
                self.hold = Hold::Group(group);
                wait_until("it is frozen", || {
                    std::fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN")
                });
            }
            Escape::OtherCgroup => {
                let own = self.env.cgroup().unwrap();
                let group = Directory::make(own.parent().unwrap().join(self.unique())).unwrap();
                self.move_into(group.path());
                self.hold = Hold::Group(group);
            }
            _ => {}
        }
        Some(())
    }

    fn unique(&self) -> PathBuf {
        let name = self.env.dir().file_name().unwrap().to_string_lossy();
        PathBuf::from(format!("{name}-held"))
    }

    fn move_into(&self, group: &Path) {
        for survivor in &self.survivors {
            std::fs::write(group.join("cgroup.procs"), survivor.pid().to_string()).unwrap();
        }
    }

    fn find_supervisors(&self, run: Option<&Running>) -> Vec<Process> {
        if run.is_some() {
            return self.env.find("pf-supervisor");
        }
        let state = json(&self.record().join("state.json")).unwrap_or_default();
        let told = state["supervisors"].as_array().cloned().unwrap_or_default();
        told.iter().filter_map(crate::support::identity).filter_map(Process::open).collect()
    }

    /// Waits until the supervisor of a detached sandbox has told a client of the survivors.
    fn await_named(&self) {
        wait_until("the survivors are named", || {
            self.call(&["wait", "--timeout", "50ms", &self.id]).code() == Some(120)
        });
    }

    fn damage(&self, damage: Damage) {
        match damage {
            Damage::Nothing | Damage::DiskFull => {}
            Damage::SupervisorKilled => {
                let inner = self.supervisors.last().unwrap();
                inner.signal(Signal::KILL);
                inner.await_end();
                if self.mode == Mode::Detached {
                    self.await_named();
                }
            }
            Damage::AllKilled => self.kill_all(),
            Damage::RecordRemoved => crate::support::remove_dir(self.record()),
            Damage::AllKilledAndRecordRemoved => {
                self.kill_all();
                crate::support::remove_dir(self.record());
            }
            Damage::Forged => {
                let outcome = Impostor::all_gone(&self.id);
                let record = self.record();
                self.write(&record.join("report.json"), &outcome["outcome"]["report"].to_string());
                self.write(&record.join("state.json"), "{ \"schema\": 1, ");
            }
        }
    }

    fn write(&self, path: &Path, text: &str) {
        std::fs::write(path, text).unwrap();
        let user = if self.env.is_ordinary() { USER } else { 0 };
        chown(path, Some(user), Some(user)).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn kill_all(&self) {
        kill_at_once(&self.supervisors.iter().collect::<Vec<_>>());
        self.supervisors.iter().for_each(Process::await_end);
    }

    fn record(&self) -> PathBuf {
        self.env.root().join("sandboxes").join(&self.id)
    }

    /// Runs penfold as the user of the sandbox, to the end.
    #[track_caller]
    pub fn call(&self, words: &[&str]) -> Finished {
        Running::start(&mut penfold_in(&self.env, self.escape, words)).finish()
    }

    /// Whether the disk has room to write survivors down.
    pub fn has_room(&self) -> bool {
        self.small.is_none()
    }

    /// The pids of the survivors, as penfold prints them.
    pub fn pids(&self) -> Vec<String> {
        self.survivors.iter().map(|survivor| survivor.pid().to_string()).collect()
    }

    #[track_caller]
    pub fn assert_survivors_live(&self) {
        assert!(self.survivors.iter().all(|survivor| !survivor.has_ended()), "a survivor has ended");
    }

    /// Lets the survivors go, and waits for their end.
    pub fn let_survivors_go(&mut self) {
        match std::mem::replace(&mut self.hold, Hold::Nothing) {
            Hold::FileSystem(frozen) => frozen.thaw().unwrap(),
            Hold::Group(group) => {
                // Only a freezer has this file.
                let state = group.path().join("freezer.state");
                if state.is_file() {
                    std::fs::write(state, "THAWED").unwrap();
                }
                self.hold = Hold::Group(group);
            }
            Hold::Nothing => {}
        }
        for survivor in &self.survivors {
            if !survivor.has_ended() {
                survivor.signal(Signal::KILL);
            }
        }
        self.survivors.iter().for_each(Process::await_end);
    }

    /// Now the sandbox is gone, or every verb makes it so.
    #[track_caller]
    pub fn assert_gone(&self) {
        let done = self.call(&["rm", "-f", &self.id]);
        assert!(matches!(done.code(), Some(0 | 3)), "rm -f: {:?} {}", done.code(), done.err());
        self.supervisors.iter().for_each(Process::await_end);
        let collected = self.call(&["gc", "-f", "--older-than", "0", &self.id]);
        assert!(matches!(collected.code(), Some(0 | 3)), "gc: {}", collected.err());
        assert_eq!(self.env.listed(&["-a"]), Vec::<serde_json::Value>::new());
        assert!(!self.env.root().join("survivors").join(&self.id).is_dir());
        self.env.assert_nothing_left();
    }
}

/// `penfold` with these words, where the sandbox was started.
fn penfold_in(env: &TestEnv, escape: Escape, words: &[&str]) -> Command {
    let mut command = if escape == Escape::Hidden {
        let mut command = env.command("unshare");
        let script = format!(
            "mount -t proc -o hidepid=ptraceable proc /proc && exec setpriv --reuid {USER} --regid {USER} --clear-groups \"$@\""
        );
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(penfold()).arg("--root").arg(env.root());
        command.args(words);
        command
    } else {
        env.penfold(words)
    };
    command.env("BECOME", env.path("become-another"));
    command
}
