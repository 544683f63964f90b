//! Where the soak takes place: a state root, a cgroup to make leaves in, and the processes that are started.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use penfold_testkit::proc::{self, Handle};
use penfold_testkit::{DelegatedCgroup, binary};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

use super::model::{self, Model};
use super::plan::Mishap;
use crate::hostile::pause;
use crate::support::{Level, MARK, TestEnv, penfold, skip};

/// The most that one command may take: a stop with its grace, a kill with its patience, on a machine that is busy.
const EACH: Duration = Duration::from_secs(45);

pub struct Fixture {
    pub env: TestEnv,
    pub ground: Option<DelegatedCgroup>,
    pub levels: Vec<&'static str>,
    pub testkit: PathBuf,
    pub seed: u64,
    model: Mutex<Model>,
    /// Children that somebody here waits for by handle; others that end were given to us by the death of their parent.
    awaited: Mutex<BTreeSet<i32>>,
    wrong: Mutex<Vec<String>>,
    counts: Mutex<BTreeMap<String, usize>>,
    begun: Instant,
}

/// What a command has answered.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fixture {
    pub fn new(seed: u64) -> Fixture {
        let env = TestEnv::new();
        let ground = DelegatedCgroup::new(rustix::process::geteuid().as_raw()).ok();
        if ground.is_none() {
            skip("no cgroup can be made here: left cgroups are not looked for");
        }
        let levels = env.levels().into_iter().map(Level::word).collect();
        Fixture {
            ground,
            levels,
            testkit: binary().unwrap(),
            seed,
            env,
            model: Mutex::default(),
            awaited: Mutex::default(),
            wrong: Mutex::default(),
            counts: Mutex::default(),
            begun: Instant::now(),
        }
    }

    pub fn model(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }

    pub fn leaves(&self) -> Option<PathBuf> {
        self.ground.as_ref().map(|ground| ground.path().to_owned())
    }

    /// The ids of the sandboxes of which something is alive.
    pub fn living(&self) -> BTreeSet<String> {
        let mark = format!("{MARK}={}", self.env.dir().display());
        model::living(mark.as_bytes(), self.leaves().as_ref())
    }

    pub fn complain(&self, text: &str) {
        lock(&self.wrong).push(format!("after {:.1} s: {text}", self.begun.elapsed().as_secs_f64()));
    }

    pub fn wrongs(&self) -> Vec<String> {
        lock(&self.wrong).clone()
    }

    pub fn count(&self, what: &str) {
        *lock(&self.counts).entry(what.to_owned()).or_default() += 1;
    }

    pub fn counts(&self) -> String {
        let counts: Vec<String> =
            lock(&self.counts).iter().map(|(what, count)| format!("{what} {count}")).collect();
        counts.join(", ")
    }

    /// `penfold --root …` with these words, in the cgroup that leaves are looked for in.
    fn command(&self, words: &[String]) -> Command {
        let mut command = self.env.command(penfold());
        command.arg("--root").arg(self.env.path("root")).args(words);
        command
    }

    fn spawn(&self, command: &mut Command) -> Option<(Child, Handle)> {
        // Under the lock, so that nobody reaps it before it is known.
        let mut awaited = lock(&self.awaited);
        let child = match &self.ground {
            Some(ground) => {
                let file = File::options().write(true).open(ground.path().join("cgroup.procs")).ok()?;
                penfold_sys::launch::spawn_joined(command, file.into()).ok()?
            }
            None => command.spawn().ok()?,
        };
        let pid = i32::try_from(child.id()).unwrap();
        awaited.insert(pid);
        let handle = proc::stat(pid).and_then(|stat| Handle::open(stat.id).ok()?)?;
        Some((child, handle))
    }

    /// Runs a command to its end; nothing if something was done to it, so that its answer means nothing.
    pub fn call(&self, words: &[&str], mishap: Option<Mishap>) -> Option<Answer> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let (out, err) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let mut command = self.command(&words);
        command.stdout(out.try_clone().unwrap()).stderr(err.try_clone().unwrap());
        let begun = Instant::now();
        let Some((mut child, handle)) = self.spawn(&mut command) else {
            self.complain(&format!("{words:?} cannot be started"));
            return None;
        };
        befall(&handle, mishap);
        let in_time = handle.wait(Some(EACH));
        if !in_time {
            let at = |file: &str| {
                std::fs::read_to_string(format!("/proc/{}/{file}", handle.id.pid)).unwrap_or_default()
            };
            self.complain(&format!("{words:?} hangs in {} {}", at("wchan"), at("stack")));
            let _ = handle.signal(Signal::KILL);
        }
        let status = child.wait().unwrap();
        lock(&self.awaited).remove(&handle.id.pid);
        let text = |mut file: File| {
            let mut text = Vec::new();
            file.rewind().unwrap();
            file.read_to_end(&mut text).unwrap();
            String::from_utf8_lossy(&text).into_owned()
        };
        let (out, err) = (text(out), text(err));
        if err.contains("panicked") || err.contains("internal error") {
            self.complain(&format!("{words:?}: {err}"));
        }
        self.count(&format!("{}:{}", words[0], status.code().unwrap_or(-1)));
        let killed = mishap.is_some_and(|mishap| mishap.stopped_for_us.is_none());
        match status.code() {
            Some(code) if in_time => Some(Answer { code, out, err, took: begun.elapsed() }),
            Some(_) => None,
            None if killed || !in_time => None,
            None => {
                self.complain(&format!("{words:?} died of signal {:?}: {err}", status.signal()));
                None
            }
        }
    }

    /// Reaps what was given to this process by the death of its parent.
    pub fn reap(&self) {
        let own = proc::this().map_or(0, |stat| stat.id.pid);
        let awaited = lock(&self.awaited);
        let ended = proc::all().into_iter().filter(|process| process.parent == own && process.is_dead());
        for process in ended.filter(|process| !awaited.contains(&process.id.pid)) {
            let _ = waitpid(Pid::from_raw(process.id.pid), WaitOptions::NOHANG);
        }
    }
}

/// Kills a command on its way, or stops it for a while.
fn befall(handle: &Handle, mishap: Option<Mishap>) {
    let Some(Mishap { after_us, stopped_for_us }) = mishap else { return };
    if handle.wait(Some(Duration::from_micros(after_us))) {
        return;
    }
    let Some(time) = stopped_for_us else {
        let _ = handle.signal(Signal::KILL);
        return;
    };
    let _ = handle.signal(Signal::STOP);
    pause(Duration::from_micros(time));
    let _ = handle.signal(Signal::CONT);
}
