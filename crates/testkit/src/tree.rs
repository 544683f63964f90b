//! One tool around one hostile tree.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;

use crate::catalog::{self, Entry, Pace};
use crate::proc::{self, Handle, Identity};
use crate::sweep;
use crate::tool::{NoTestkit, Tool, binary};
use crate::until::until;

/// How long a tree may take to stand.
const READY: Duration = Duration::from_secs(20);
/// How long the clean-up may take.
const END: Duration = Duration::from_secs(15);

/// Why a tree could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// This host, this user or this tool cannot build the tree; nothing is left of it.
    #[error("skipped: {0}")]
    Skipped(String),
    /// There is no tree of this name.
    #[error("there is no tree `{0}`")]
    Unknown(String),
    /// The tool ended, or the time did, before the tree stood; what the tool said follows.
    #[error("tree `{name}` does not stand: {why}: {said}")]
    NotReady {
        /// The tree.
        name: &'static str,
        /// What happened instead.
        why: String,
        /// The end of the tool's standard error.
        said: String,
    },
    /// Something of the tree could not be ended.
    #[error("cannot end the tree: {0}")]
    NotEnded(String),
    /// The testkit program is missing.
    #[error(transparent)]
    NoTestkit(#[from] NoTestkit),
    /// A file or process of the tree could not be handled.
    #[error("cannot handle the tree's files or processes")]
    Io(#[from] io::Error),
}

/// What became of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolExit {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

/// A process that should be gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Survivor {
    /// Who.
    pub id: Identity,
    /// Name of its main thread.
    pub name: String,
    /// State letter of its main thread.
    pub state: char,
    /// Its arguments.
    pub command_line: String,
}

impl std::fmt::Display for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} state {} `{}`", self.id, self.state, self.command_line)
    }
}

/// A tool that runs a hostile tree; everything of it ends with this value.
#[derive(Debug)]
pub struct Tree {
    entry: &'static Entry,
    cookie: String,
    directory: PathBuf,
    /// The tool may be over, with 0, before the tree stands.
    detached: bool,
    subreaper: Child,
    // Closing it is the word to clean up.
    stdin: Option<ChildStdin>,
    subreaper_id: Identity,
    owner: Option<Handle>,
    tool: Option<Handle>,
    members: Vec<Handle>,
}

impl Tree {
    /// Starts the tool around the tree and waits until all of the tree stands.
    ///
    /// # Errors
    /// When the tree cannot be built; whatever had been started is gone then.
    pub fn spawn(tool: &Tool, name: &str) -> Result<Tree, TreeError> {
        let entry = catalog::find(name).ok_or_else(|| TreeError::Unknown(name.to_owned()))?;
        let mut tree = Tree::start(tool, entry)?;
        match tree.await_ready() {
            Ok(()) => Ok(tree),
            Err(error) => {
                tree.end()?;
                Err(error)
            }
        }
    }

    fn start(tool: &Tool, entry: &'static Entry) -> Result<Tree, TreeError> {
        let testkit = binary()?;
        let cookie = fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned();
        let directory = std::env::temp_dir().join(format!("testkit-{cookie}"));
        fs::create_dir(&directory)?;
        // Other users write here: the directory's random name is what keeps strangers out.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        let mut command = Command::new(&testkit);
        command.arg("subreaper").arg("--directory").arg(&directory).arg("--cookie").arg(&cookie);
        if let Some(user) = tool.user {
            command.arg("--user").arg(user.to_string());
            if entry.name == "setuid-root" {
                let copy = directory.join("suid");
                // Not by this process: whatever another thread forks meanwhile would hold the file open for writing.
                let copied = Command::new("cp").arg(&testkit).arg(&copy).status()?;
                if !copied.success() {
                    return Err(io::Error::other(format!("cp: {copied}")).into());
                }
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755))?;
            }
        }
        if let Some(cgroup) = &tool.cgroup {
            command.arg("--cgroup").arg(cgroup);
        }
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let mut hostile = hostile(&testkit, entry, &directory, &cookie, own);
        hostile.extend(tool.tree_options.iter().cloned());
        let words = tool.words(&hostile);
        command.arg("--").args(words).envs(tool.environment.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(fs::File::create(directory.join("subreaper.err"))?);
        let mut subreaper = command.spawn().inspect_err(|_| drop(fs::remove_dir_all(&directory)))?;
        let stdin = subreaper.stdin.take();
        let pid = i32::try_from(subreaper.id()).unwrap_or(0);
        // The subreaper is a child that nobody has reaped, so its stat is there.
        let subreaper_id = proc::stat(pid).map_or(Identity { pid, start: 0 }, |stat| stat.id);
        let (owner, detached, tool, members) = (None, tool.detaches, None, Vec::new());
        Ok(Tree { entry, cookie, directory, detached, subreaper, stdin, subreaper_id, owner, tool, members })
    }

    fn await_ready(&mut self) -> Result<(), TreeError> {
        let deadline = Instant::now() + READY;
        loop {
            if let Some(why) = self.read("ready.skip") {
                return Err(TreeError::Skipped(why));
            }
            // A fast tree stands before the owner has written down who the tool is.
            if let Some(list) = self.read("ready").filter(|_| self.directory.join("tool").exists()) {
                return self.hold(&list);
            }
            let ended = self
                .read("tool-exit")
                .filter(|told| !(self.detached && told.trim() == "code 0"))
                .filter(|_| !self.directory.join("ready").exists());
            let late = Instant::now() >= deadline;
            if ended.is_some() || late {
                // A skip is written before the tool can see its leader exit.
                if let Some(why) = self.read("ready.skip") {
                    return Err(TreeError::Skipped(why));
                }
                let why = ended.unwrap_or_else(|| format!("not ready within {READY:?}"));
                return Err(TreeError::NotReady { name: self.entry.name, why, said: self.stderr() });
            }
            sleep(Duration::from_millis(2));
        }
    }

    /// Opens everybody that the ready file names.
    fn hold(&mut self, list: &str) -> Result<(), TreeError> {
        self.owner = self.open("owner")?;
        self.tool = self.open("tool")?;
        let told: Vec<Identity> =
            list.lines().filter_map(|line| line.replace(' ', ":").parse().ok()).collect();
        // A look misses those below one that exits meanwhile: its children have moved, and were read with it as their parent.
        let mut found = proc::resolve(&told, self.subreaper_id.pid);
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.entry.pace != Pace::Hasty && found.contains(&None) && Instant::now() < deadline {
            sleep(Duration::from_millis(2));
            found = proc::resolve(&told, self.subreaper_id.pid);
        }
        for id in found.into_iter().flatten() {
            self.members.extend(Handle::open(id)?);
        }
        Ok(())
    }

    fn open(&self, file: &str) -> Result<Option<Handle>, TreeError> {
        let id = self.read(file).and_then(|text| text.trim().parse().ok());
        Ok(id.map(Handle::open).transpose()?.flatten())
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.directory.join(file)).ok()
    }

    /// What the tool wrote to its standard error so far, the end of it.
    pub fn stderr(&self) -> String {
        let mut text = Vec::new();
        for file in ["tool.err", "subreaper.err"] {
            if let Ok(file) = fs::File::open(self.directory.join(file)) {
                drop(file.take(1 << 20).read_to_end(&mut text));
            }
        }
        let start = text.len().saturating_sub(2000);
        String::from_utf8_lossy(&text[start..]).trim().to_owned()
    }

    /// What the tool wrote to its standard output so far.
    pub fn stdout(&self) -> String {
        self.read("tool.out").unwrap_or_default()
    }

    /// The mark that the tool and all processes of the tree carry.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }

    /// The directory of the tree's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The processes of the tree at the time it stood, the leader first.
    pub fn members(&self) -> Vec<Identity> {
        self.members.iter().map(|member| member.id).collect()
    }

    /// The tool's first process.
    pub fn tool(&self) -> Option<Identity> {
        self.tool.as_ref().map(|tool| tool.id)
    }

    /// The process that started the tool; it leads the process group that the tool was born in.
    pub fn owner(&self) -> Option<Identity> {
        self.owner.as_ref().map(|owner| owner.id)
    }

    /// Panics unless all of the tree lives that can be expected to; a test that never saw the tree alive has
    /// proved nothing.
    ///
    /// # Panics
    /// When somebody is missing already.
    pub fn assert_alive(&self) {
        if let Err(why) = self.check_alive() {
            panic!("tree `{}` is not alive: {why}", self.entry.name);
        }
    }

    /// As [`Tree::assert_alive`], but returns what is wrong.
    ///
    /// # Errors
    /// Who is missing.
    pub fn check_alive(&self) -> Result<(), String> {
        let told = self.read("ready").unwrap_or_default().lines().count();
        let ended = self.members.iter().filter(|member| member.has_ended()).count();
        match self.entry.pace {
            Pace::Hasty => Ok(()),
            _ if self.members.len() < told => Err(format!("{} of {told} found", self.members.len())),
            _ if ended > 0 => Err(format!("{ended} of {told} have ended")),
            Pace::Steady => Ok(()),
            Pace::Moving => {
                let deadline = Instant::now() + Duration::from_secs(10);
                let others = || self.living().iter().any(|survivor| !self.members().contains(&survivor.id));
                while !others() {
                    if Instant::now() >= deadline {
                        return Err("only the leader is there".to_owned());
                    }
                    sleep(Duration::from_millis(2));
                }
                Ok(())
            }
        }
    }

    fn living(&self) -> Vec<Survivor> {
        sweep::living(self.subreaper_id.pid, &self.cookie)
            .into_iter()
            .map(|process| Survivor {
                id: process.id,
                command_line: proc::command_line(&process),
                name: process.name,
                state: process.state,
            })
            .collect()
    }

    /// Everything of tool and tree that lives now: who was in the tree when it stood, who descends from it and
    /// who carries its cookie. A dead process that nobody has reaped does not count. One that forks and exits
    /// faster than the look can be missed: [`Tree::await_gone`] is the proof.
    pub fn survivors(&self) -> Vec<Survivor> {
        let mut found = self.living();
        for member in self.members.iter().filter(|member| !member.has_ended()) {
            if found.iter().any(|survivor| survivor.id == member.id) {
                continue;
            }
            if let Some(stat) = proc::stat(member.id.pid).filter(|stat| stat.id == member.id) {
                let command_line = proc::command_line(&stat);
                found.push(Survivor { id: stat.id, name: stat.name, state: stat.state, command_line });
            }
        }
        // The owner ends a moment after the tool and is none of the tool's business. Whoever has died during the look, which
        // beside a storm may be a long one, does not live now.
        let owner = self.owner();
        let lives = |id: Identity| proc::stat(id.pid).is_some_and(|stat| stat.id == id && !stat.is_dead());
        found.retain(|survivor| Some(survivor.id) != owner && lives(survivor.id));
        found.sort();
        found
    }

    /// Waits until nobody survives, at most this long, and returns who does.
    ///
    /// That nobody does is taken from the kernel, which tells the subreaper that it has no child left; a look at
    /// /proc alone misses what moves faster. Such a one is returned with pid 0.
    pub fn await_gone(&self, patience: Duration) -> Vec<Survivor> {
        let deadline = Instant::now() + patience;
        let left = || deadline.saturating_duration_since(Instant::now());
        for member in &self.members {
            member.wait(Some(left()));
        }
        let childless = until(left(), || self.directory.join("childless").exists());
        // The look is the proof, and comes last: a look at everything takes the time of those that are to end.
        let mut survivors = Vec::new();
        until(left(), || {
            survivors = self.survivors();
            survivors.is_empty()
        });
        if survivors.is_empty() && !childless {
            survivors.push(Survivor {
                id: Identity { pid: 0, start: 0 },
                name: String::new(),
                state: '?',
                command_line: "moves faster than a look at /proc".to_owned(),
            });
        }
        survivors
    }

    /// Tells the leader to exit, or in a tree that attacks, to attack.
    ///
    /// # Errors
    /// When the word cannot be left.
    pub fn tell_leader_to_exit(&self) -> Result<(), TreeError> {
        Ok(fs::write(self.directory.join("ready.exit"), "")?)
    }

    /// Signals the tool's first process.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn signal_tool(&self, signal: Signal) -> Result<(), TreeError> {
        self.tool.as_ref().map_or(Ok(()), |tool| tool.signal(signal)).map_err(TreeError::from)
    }

    /// SIGKILL to the process that started the tool.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn kill_owner(&self) -> Result<(), TreeError> {
        self.owner.as_ref().map_or(Ok(()), |owner| owner.signal(Signal::KILL)).map_err(TreeError::from)
    }

    /// The processes of the tool from the leader's parent up to the tool's first, by handle.
    fn chain(&self) -> Result<Vec<Handle>, TreeError> {
        let leader = self.members.first().map_or(0, |leader| leader.id.pid);
        let outside = [Some(self.subreaper_id), self.owner()];
        let line = proc::ancestors(&proc::all(), leader);
        let inside = line.into_iter().skip(1).take_while(|&id| !outside.contains(&Some(id)));
        let chain: Vec<Option<Handle>> = inside.map(Handle::open).collect::<io::Result<_>>()?;
        let chain: Vec<Handle> = chain.into_iter().flatten().collect();
        if chain.is_empty() {
            return Err(TreeError::Skipped("no process of the tool is above the leader".to_owned()));
        }
        Ok(chain)
    }

    /// SIGKILL to the parent of the leader: the tool's innermost process, or the tool itself where it has one only.
    ///
    /// # Errors
    /// `EPERM`. [`TreeError::Skipped`] when the leader's parent is no process of the tool.
    pub fn kill_supervisor(&self) -> Result<(), TreeError> {
        self.chain()?.first().map_or(Ok(()), |parent| parent.signal(Signal::KILL)).map_err(TreeError::from)
    }

    /// SIGKILL to every process of the tool between its first and the leader, as close together as can be.
    ///
    /// # Errors
    /// As [`Tree::kill_supervisor`].
    pub fn kill_chain(&self) -> Result<(), TreeError> {
        let chain = self.chain()?;
        chain.iter().try_for_each(|process| process.signal(Signal::KILL)).map_err(TreeError::from)
    }

    /// What became of the tool, once it has ended.
    pub fn tool_exit(&self) -> Option<ToolExit> {
        let text = self.read("tool-exit")?;
        let (kind, number) = text.split_once(' ')?;
        let number = number.trim().parse().ok()?;
        Some(if kind == "code" { ToolExit::Code(number) } else { ToolExit::Signal(number) })
    }

    /// Waits until the tool has ended, at most this long.
    pub fn await_tool_exit(&self, patience: Duration) -> Option<ToolExit> {
        let mut deadline = Instant::now() + patience;
        if let Some(tool) = &self.tool
            && tool.wait(Some(patience))
        {
            // It has ended; whoever reaps it writes that down a moment later.
            deadline = deadline.min(Instant::now() + Duration::from_secs(10));
        }
        let mut exit = None;
        until(deadline.saturating_duration_since(Instant::now()), || {
            exit = self.tool_exit();
            exit.is_some()
        });
        exit
    }

    /// Ends whatever is left and removes what the tree made.
    ///
    /// # Errors
    /// When something cannot be ended or removed; its name is told.
    pub fn end(mut self) -> Result<(), TreeError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), TreeError> {
        let Some(mut stdin) = self.stdin.take() else { return Ok(()) };
        // The subreaper tells a test that is done from one that was killed. It may be gone itself.
        let _ = stdin.write(b".");
        drop(stdin);
        let deadline = Instant::now() + END;
        let status = loop {
            if let Some(status) = self.subreaper.try_wait()? {
                break status;
            }
            if Instant::now() >= deadline {
                self.subreaper.kill()?;
                break self.subreaper.wait()?;
            }
            sleep(Duration::from_millis(1));
        };
        let mut left = self.read("left");
        if status.code().is_none_or(|code| code > 1) {
            // Its children are somebody else's now; their cookie is all there is to know them by.
            let found = sweep::sweep(self.subreaper_id.pid, &self.cookie, END, || true);
            left = Some(format!("the subreaper ended with {status}: {} {}", self.stderr(), found.join(", ")));
        }
        fs::remove_dir_all(&self.directory)?;
        left.map_or(Ok(()), |left| Err(TreeError::NotEnded(left)))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A failure here would panic in a panic; `end` is the way to hear of it.
        drop(self.finish());
    }
}

/// The command of the tree itself.
fn hostile(testkit: &Path, entry: &Entry, directory: &Path, cookie: &str, own: i32) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![testkit.into(), "hostile".into(), entry.name.into()];
    words.extend(["--ready".into(), directory.join("ready").into(), "--cookie".into(), cookie.into()]);
    let spare: Vec<String> = proc::ancestors(&proc::all(), own).iter().map(ToString::to_string).collect();
    words.extend(["--spare".into(), spare.join(",").into()]);
    words
}
