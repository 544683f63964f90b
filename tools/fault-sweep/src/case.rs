//! One case: a process that prepares a sandbox, traces a verb with a fault, and judges the result.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_sys::child::Exit;
use penfold_testkit::proc;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::calls::ObservedCall;
use crate::env::{cgroups, pids};
use crate::tracer::{Start, Tracer};
use crate::tree;
use crate::word::{Fault, Injection, Level, Place, Verb};

/// The parameters of a case.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Directory of its own
    #[arg(long)]
    directory: PathBuf,
    /// Cgroup of its own, in which it runs
    #[arg(long)]
    cgroup: PathBuf,
    /// The binary to judge
    #[arg(long)]
    penfold: PathBuf,
    /// Verb and level; without a fault all calls are listed
    #[arg(long)]
    place: Place,
    /// The fault
    #[arg(long)]
    word: Option<Injection>,
}

/// A kind of wrong result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Defect {
    /// A member lives although penfold reported its sandbox as gone, or long after it should have ended.
    Survivor,
    /// No answer.
    Hang,
    /// A false answer.
    Lie,
    /// A file, or a process of penfold, that no command removes.
    Leftover,
}

/// The result of a case.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Every call, if all are listed.
    pub(crate) calls: Vec<ObservedCall>,
    /// The calls that were hit.
    pub(crate) hits: Vec<ObservedCall>,
    /// The end of the verb.
    pub(crate) answer: String,
    /// The wrong results.
    pub(crate) found: Vec<(Defect, String)>,
}

/// The time that a verb may take.
const HANG: Duration = Duration::from_secs(15);
/// The exit code after SIGTERM.
const TERMINATED: i32 = 143;
/// The time that an end without a promised moment may take.
const LATE: Duration = Duration::from_secs(14);

pub(crate) struct Case {
    options: Options,
    tracer: Tracer,
    verdict: Verdict,
}

/// Runs the case and prints its verdict.
pub(crate) fn run(options: Options) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut tracer = Tracer::new(options.place, options.word.clone())?;
    tracer.listing = options.word.is_none();
    let mut case = Case { options, tracer, verdict: Verdict::default() };
    case.play()?;
    case.verdict.calls = std::mem::take(&mut case.tracer.calls);
    case.verdict.hits = std::mem::take(&mut case.tracer.hits);
    serde_json::to_writer(io::stdout(), &case.verdict)?;
    Ok(())
}

impl Case {
    fn play(&mut self) -> io::Result<()> {
        match self.options.place.verb {
            Verb::Run => self.foreground(),
            Verb::RunStopped => self.stopped(),
            Verb::RunDetached => self.detached(),
            Verb::Exec => self.exec(),
            Verb::Kill | Verb::Stop | Verb::Rm => self.end(),
            Verb::Gc => self.gc(),
        }?;
        self.tidy()
    }

    fn wrong(&mut self, wrong: Defect, text: impl Into<String>) {
        self.verdict.found.push((wrong, text.into()));
    }

    fn directory(&self) -> &Path {
        &self.options.directory
    }

    fn root(&self) -> PathBuf {
        self.directory().join("root")
    }

    /// The command line of the sandbox's command.
    fn command(&self, name: &str, stay: bool) -> Vec<String> {
        let testkit = std::env::current_exe().unwrap_or_default();
        let mut words = vec![
            testkit.to_string_lossy().into_owned(),
            "fault-tree".to_owned(),
            self.directory().to_string_lossy().into_owned(),
            name.to_owned(),
        ];
        words.extend(stay.then(|| "--stay".to_owned()));
        words
    }

    fn start(
        &mut self,
        role: Option<&'static str>,
        output: &str,
        words: &[&str],
        rest: Vec<String>,
    ) -> io::Result<Pid> {
        let mut arguments = vec!["--root".to_owned(), self.root().to_string_lossy().into_owned()];
        arguments.extend(words.iter().map(|&word| word.to_owned()));
        arguments.extend(rest);
        let start = Start {
            program: &self.options.penfold.clone(),
            arguments,
            role,
            output: self.directory().join(output),
            temporary: self.directory().join("tmp"),
        };
        self.tracer.start(&start)
    }

    fn said(&self, output: &str, extension: &str) -> String {
        let text = fs::read(self.directory().join(output).with_extension(extension)).unwrap_or_default();
        String::from_utf8_lossy(&text).trim().to_owned()
    }

    /// Waits for the answer of the verb; no answer is a hang.
    fn answer(&mut self, pid: Pid) -> io::Result<Option<Exit>> {
        self.tracer.pump(HANG, |tracer| tracer.exit_of(pid).is_some())?;
        let exit = self.tracer.exit_of(pid);
        let text = self.said("verb", "err").replace('\n', " / ");
        self.verdict.answer = match exit {
            Some(Exit::Code(code)) => format!("{code} {text}"),
            Some(Exit::Signal(signal)) => format!("signal {signal} {text}"),
            None => {
                let frozen: Vec<String> = self.ours().into_iter().map(describe).collect();
                self.wrong(Defect::Hang, format!("no answer within {HANG:?}; {}", frozen.join(", ")));
                self.tracer.disarm();
                format!("none {text}")
            }
        };
        Ok(exit)
    }

    /// Returns the living members of the command with this name.
    fn members(&self, name: &str) -> Vec<i32> {
        let own = self.directory().to_string_lossy().into_owned();
        let wanted: Vec<u8> = ["fault-tree", &own, name].join("\0").into_bytes();
        let mut living = pids(&self.options.cgroup);
        living.retain(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            // penfold's own processes have these words among their arguments, too.
            program != self.options.penfold && line.windows(wanted.len()).any(|window| window == wanted)
        });
        living
    }

    /// Returns the living processes of penfold.
    fn ours(&self) -> Vec<i32> {
        let mut living = pids(&self.options.cgroup);
        living.retain(|pid| {
            fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == self.options.penfold)
        });
        living
    }

    fn killed(&self, role: &str) -> bool {
        !self.tracer.hits.is_empty()
            && self
                .options
                .word
                .as_ref()
                .is_some_and(|word| word.fault == Fault::Kill && word.aim.role == role)
    }

    fn any_killed(&self) -> bool {
        self.options.word.as_ref().is_some_and(|word| word.fault == Fault::Kill)
    }

    fn ran(&self, name: &str) -> bool {
        tree::has_run(self.directory(), name)
    }

    fn stood(&self, name: &str) -> bool {
        tree::has_stood(self.directory(), name)
    }

    /// Checks that no member lives at the time of the answer.
    fn must_be_gone(&mut self, name: &str) {
        let living = self.members(name);
        if !living.is_empty() {
            let text: Vec<String> = living.iter().map(|&pid| describe(pid)).collect();
            self.wrong(Defect::Survivor, format!("at the answer: {}", text.join(", ")));
        }
    }

    /// Checks that no member lives after a while, where no promise names the moment.
    fn must_go(&mut self, name: &str) -> io::Result<()> {
        let deadline = Instant::now() + LATE;
        let mut living = self.members(name);
        while !living.is_empty() && Instant::now() < deadline {
            self.tracer.pump(Duration::from_millis(10), |_| false)?;
            living = self.members(name);
        }
        if !living.is_empty() {
            let text: Vec<String> = living.iter().map(|&pid| describe(pid)).collect();
            self.wrong(Defect::Survivor, format!("after {LATE:?}: {}", text.join(", ")));
        }
        Ok(())
    }

    /// Checks the exit code of `penfold run` for a command that exits by itself.
    fn judge_code(&mut self, name: &str, exit: Option<Exit>, speaker: &str) -> io::Result<()> {
        let code = match exit {
            None => return self.must_go(name),
            Some(Exit::Signal(_)) if self.killed(speaker) => return self.must_go(name),
            // penfold dies of the signal that ended the command.
            Some(Exit::Signal(signal)) => 128 + signal,
            Some(Exit::Code(code)) => code,
        };
        let (ran, stood) = (self.ran(name), self.stood(name));
        match code {
            TERMINATED if self.options.place.verb == Verb::RunStopped => {}
            7 if !stood => self.wrong(Defect::Lie, "7 although the command did not finish"),
            125..=127 if ran => self.wrong(Defect::Lie, format!("{code} although the command ran")),
            7 | 120 | 125..=127 | 137 => {}
            _ => self.wrong(Defect::Lie, format!("{code} for a command that exits with 7")),
        }
        if code == 120 {
            // A member that penfold cannot examine stays until it can.
            self.tracer.disarm();
        } else {
            self.must_be_gone(name);
        }
        self.must_go(name)
    }

    fn start_foreground(&mut self) -> io::Result<Pid> {
        let level = self.options.place.level.name();
        let words = ["run", "--contain", level, "--grace", "1", "--patience", "3", "--scratch", "--"];
        let stay = self.options.place.verb == Verb::RunStopped;
        let command = self.command("a", stay);
        self.start(Some("launcher"), "verb", &words, command)
    }

    fn foreground(&mut self) -> io::Result<()> {
        self.tracer.arm();
        let pid = self.start_foreground()?;
        let exit = self.answer(pid)?;
        self.judge_code("a", exit, "launcher")
    }

    fn stopped(&mut self) -> io::Result<()> {
        let pid = self.start_foreground()?;
        self.stands()?;
        self.tracer.arm();
        self.tracer.signal(pid, Signal::TERM);
        let exit = self.answer(pid)?;
        self.judge_code("a", exit, "launcher")
    }

    fn start_detached(&mut self, output: &str, stay: bool) -> io::Result<Pid> {
        let level = self.options.place.level.name();
        let words =
            ["run", "-d", "--name", "swept", "--contain", level, "--grace", "1", "--patience", "3", "--"];
        let command = self.command("a", stay);
        self.start(Some("launcher"), output, &words, command)
    }

    fn detached(&mut self) -> io::Result<()> {
        self.tracer.arm();
        let pid = self.start_detached("verb", true)?;
        let exit = self.answer(pid)?;
        let id = self.said("verb", "out");
        if exit == Some(Exit::Code(0)) && id.is_empty() {
            self.wrong(Defect::Lie, "0 without an id");
        }
        if let Some(Exit::Code(code)) = exit
            && code != 0
        {
            if code == 125 {
                self.must_be_gone("a");
            }
            self.must_go("a")?;
        }
        if exit == Some(Exit::Code(0)) {
            // The command runs, or a fault after the answer has ended it.
            let directory = self.directory().to_path_buf();
            let cgroup = self.options.cgroup.clone();
            let own = i32::try_from(std::process::id()).unwrap_or(0);
            let alone = |cgroup: &Path| pids(cgroup).iter().all(|&pid| pid == own);
            let quiet = self.tracer.pump(HANG, |_| tree::has_stood(&directory, "a") || alone(&cgroup))?;
            if !quiet {
                self.wrong(Defect::Hang, "0 although the command does not run");
            }
            // Time for the work of the supervisors after the start.
            self.tracer.pump(Duration::from_millis(15), |_| false)?;
        }
        Ok(())
    }

    /// Starts a detached sandbox and waits until its tree is complete.
    fn stage(&mut self) -> io::Result<()> {
        let pid = self.start_detached("stage", true)?;
        self.tracer.pump(HANG, |tracer| tracer.exit_of(pid).is_some())?;
        self.stands()
    }

    /// Waits until the tree is complete.
    fn stands(&mut self) -> io::Result<()> {
        let directory = self.directory().to_path_buf();
        self.tracer.pump(HANG, |_| tree::has_stood(&directory, "a"))?;
        // The grandchild's parent is about to exit.
        let deadline = Instant::now() + HANG;
        while self.members("a").len() != tree::SIZE && Instant::now() < deadline {
            self.tracer.pump(Duration::from_millis(2), |_| false)?;
        }
        let count = self.members("a").len();
        if count != tree::SIZE {
            let text = format!("the tree is incomplete: {count} members: {}", self.said("stage", "err"));

            return Err(io::Error::other(text));
        }
        self.tracer.pump(Duration::from_millis(8), |_| false)?;
        Ok(())
    }

    fn exec(&mut self) -> io::Result<()> {
        self.stage()?;
        self.tracer.arm();
        let command = self.command("b", false);
        let pid = self.start(Some("client"), "verb", &["exec", "swept"], command)?;
        let exit = self.answer(pid)?;
        if self.killed("exec") && self.options.place.level == Level::Subreaper {
            // Without a leaf, only the exec supervisor knew the exec's members: they end with the sandbox.
            if !matches!(exit, Some(Exit::Code(120))) {
                self.wrong(Defect::Lie, "not 120 although the exec supervisor was killed");
            }
        } else {
            self.judge_code("b", exit, "client")?;
        }
        self.tracer.disarm();
        if !self.any_killed() && self.members("a").len() != tree::SIZE {
            self.wrong(Defect::Lie, "the sandbox ended although only the exec had to");
        }
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.stage()?;
        self.tracer.arm();
        let words: &[&str] = match self.options.place.verb {
            Verb::Stop => &["stop", "swept"],
            Verb::Rm => &["rm", "-f", "swept"],
            _ => &["kill", "swept"],
        };
        let pid = self.start(Some("client"), "verb", words, Vec::new())?;
        let exit = self.answer(pid)?;
        self.judge_end(exit);
        self.tracer.disarm();
        Ok(())
    }

    fn judge_end(&mut self, exit: Option<Exit>) {
        match exit {
            Some(Exit::Code(0)) => {
                self.must_be_gone("a");
                let left = self.records();
                if self.options.place.verb == Verb::Rm && !left.is_empty() {
                    self.wrong(Defect::Lie, format!("0 although these are left: {}", left.join(", ")));
                }
            }
            Some(Exit::Code(3)) if !self.members("a").is_empty() => {
                self.wrong(Defect::Lie, "3 (no such id) although the sandbox lives");
            }
            Some(Exit::Code(1..=7)) | None => {}
            Some(Exit::Signal(_)) if self.killed("client") => {}
            Some(other) => self.wrong(Defect::Lie, format!("{other:?} is no code of this verb")),
        }
    }

    fn records(&self) -> Vec<String> {
        let mut found: Vec<String> = fs::read_dir(self.root().join("sandboxes"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        found.sort();
        found
    }

    fn gc(&mut self) -> io::Result<()> {
        self.stage()?;
        // Both at once: neither can react to the other's death.
        self.tracer.kill_all();
        self.tracer.pump(HANG, Tracer::is_idle)?;
        if self.ours().is_empty() && self.records().is_empty() {
            return Err(io::Error::other("there is no orphan"));
        }
        self.tracer.arm();
        let pid = self.start(Some("client"), "verb", &["gc", "-f"], Vec::new())?;
        let exit = self.answer(pid)?;
        if exit == Some(Exit::Code(0)) {
            self.must_be_gone("a");
        }
        self.tracer.disarm();
        Ok(())
    }

    /// Ends and cleans up by commands without faults, and looks for leftovers.
    fn tidy(&mut self) -> io::Result<()> {
        self.tracer.disarm();
        let ids = self.records();
        if !ids.is_empty() {
            let pid = self.start(None, "rm", &["rm", "-f"], ids)?;
            if !self.tracer.pump(HANG, |tracer| tracer.exit_of(pid).is_some())? {
                self.wrong(Defect::Hang, "`rm -f` afterwards gives no answer");
            }
        }
        if self.any_killed() {
            // Its leftovers are young; no other state root has any of these kinds.
            let young = ["gc", "-f", "--older-than", "0", "--kind", "file", "--kind", "record"];
            let pid = self.start(None, "gc", &young, Vec::new())?;
            self.tracer.pump(HANG, |tracer| tracer.exit_of(pid).is_some())?;
        }
        let pid = self.start(None, "gc", &["gc", "-f"], Vec::new())?;
        if !self.tracer.pump(HANG, |tracer| tracer.exit_of(pid).is_some())? {
            self.wrong(Defect::Hang, "`gc -f` afterwards gives no answer");
        }
        if self.verdict.found.iter().all(|(wrong, _)| *wrong != Defect::Survivor) {
            self.must_go("a")?;
            self.must_go("b")?;
        }
        // The last files disappear only with the last process.
        let deadline = Instant::now() + LATE;
        while !self.ours().is_empty() && Instant::now() < deadline {
            self.tracer.pump(Duration::from_millis(10), |_| false)?;
        }
        let left = self.left();
        if !left.is_empty() {
            let (rm, gc) = (self.said("rm", "err"), self.said("gc", "err"));
            self.wrong(Defect::Leftover, format!("{}; rm: {rm}; gc: {gc}", left.join(", ")));
        }
        Ok(())
    }

    /// Returns the objects that should be gone.
    fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = self.ours().into_iter().map(describe).collect();
        let places = ["root/sandboxes", "root/names", "tmp", "root"];
        for place in places {
            for entry in fs::read_dir(self.directory().join(place)).into_iter().flatten().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                if place == "root/names" && is_free(&entry.path()) {
                    // A name without an owner: the next `gc` removes it once it is old enough.
                    continue;
                }
                if place != "root"
                    || !["sandboxes", "names", "events.jsonl", "counters", "history"].contains(&name.as_str())
                {
                    left.push(format!("{place}/{name}"));
                }
            }
        }
        left.extend(cgroups(&self.options.cgroup).iter().map(|cgroup| cgroup.display().to_string()));
        left
    }
}

/// Describes a process for people.
fn describe(pid: i32) -> String {
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let state = proc::stat(pid).map_or('?', |stat| stat.state);
    let arguments = file("cmdline").replace('\0', " ");
    let arguments: String = arguments.chars().filter(|letter| *letter != '\n').collect();
    let tail: String = arguments.rsplit("--root").next().unwrap_or_default().chars().take(90).collect();
    format!("{pid} {state} {} {tail}", file("wchan"))
}

/// Tells whether no process holds the lock of a file.
fn is_free(path: &Path) -> bool {
    fs::File::open(path).is_ok_and(|file| {
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    })
}
