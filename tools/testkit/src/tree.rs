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

/// The time until a tree must be complete.
const READY: Duration = Duration::from_secs(20);
/// The time that the cleanup may take.
const END: Duration = Duration::from_secs(15);

/// The reason why a tree could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// This host, this user or this tool cannot build the tree; nothing of the tree is left.
    #[error("skipped: {0}")]
    Skipped(String),
    /// No tree has this name.
    #[error("there is no tree `{0}`")]
    Unknown(String),
    /// The tool ended, or the time was over, before the tree was complete; the output of the tool follows.
    #[error("tree `{name}` does not stand: {why}: {said}")]
    NotReady {
        /// The tree.
        name: &'static str,
        /// The event that came instead.
        why: String,
        /// The end of the tool's standard error.
        said: String,
    },
    /// A process or object of the tree could not be ended.
    #[error("cannot end the tree: {0}")]
    NotEnded(String),
    /// The testkit program is missing.
    #[error(transparent)]
    NoTestkit(#[from] NoTestkit),
    /// An operation on a file or process of the tree failed.
    #[error("cannot handle the tree's files or processes")]
    Io(#[from] io::Error),
}

/// The exit of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolExit {
    /// The tool exited with this code.
    Code(i32),
    /// This signal ended the tool.
    Signal(i32),
}

/// A process that should be gone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Survivor {
    /// The identity.
    pub id: Identity,
    /// The name of the main thread.
    pub name: String,
    /// The state letter of the main thread.
    pub state: char,
    /// The arguments.
    pub command_line: String,
}

impl std::fmt::Display for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} state {} `{}`", self.id, self.state, self.command_line)
    }
}

/// A tool that runs a hostile tree. When this value is dropped, all their processes end.
#[derive(Debug)]
pub struct Tree {
    entry: &'static Entry,
    cookie: String,
    directory: PathBuf,
    /// Whether the tool may exit with 0 before the tree is complete.
    detached: bool,
    subreaper: Child,
    // When this pipe closes, the subreaper cleans up.
    stdin: Option<ChildStdin>,
    subreaper_id: Identity,
    owner: Option<Handle>,
    tool: Option<Handle>,
    members: Vec<Handle>,
}

impl Tree {
    /// Starts the tool around the tree and waits until the tree is complete.
    ///
    /// # Errors
    /// When the tree cannot be built; then everything that was started is gone.
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
        // Other users write here: the directory's random name keeps strangers out.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777))?;
        let mut command = Command::new(&testkit);
        command.arg("subreaper").arg("--directory").arg(&directory).arg("--cookie").arg(&cookie);
        if let Some(user) = tool.user {
            command.arg("--user").arg(user.to_string());
            if entry.name == "setuid-root" {
                let copy = directory.join("suid");
                // Another process copies: in this one, a child that another thread forks would hold the file open for
                // writing.
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
        // The subreaper is an unreaped child, so its stat exists.
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
            // A fast tree is complete before the owner has written down the pid of the tool.
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

    /// Opens all processes that the ready file names.
    fn hold(&mut self, list: &str) -> Result<(), TreeError> {
        self.owner = self.open("owner")?;
        self.tool = self.open("tool")?;
        let told: Vec<Identity> =
            list.lines().filter_map(|line| line.replace(' ', ":").parse().ok()).collect();
        // If a process exits during a scan, the scan misses its descendants: their recorded parent is the exited
        // process.
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

    /// Returns the end of the tool's standard error so far.
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

    /// Returns the tool's standard output so far.
    pub fn stdout(&self) -> String {
        self.read("tool.out").unwrap_or_default()
    }

    /// Returns the mark that the tool and all processes of the tree carry.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Returns the directory of the tree's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the processes of the tree at the time it was complete, the leader first.
    pub fn members(&self) -> Vec<Identity> {
        self.members.iter().map(|member| member.id).collect()
    }

    /// Returns the tool's first process.
    pub fn tool(&self) -> Option<Identity> {
        self.tool.as_ref().map(|tool| tool.id)
    }

    /// Returns the process that started the tool, the leader of the process group in which the tool was started.
    pub fn owner(&self) -> Option<Identity> {
        self.owner.as_ref().map(|owner| owner.id)
    }

    /// Panics unless all expected processes of the tree live. A test that never saw the tree alive has proved nothing.
    ///
    /// # Panics
    /// When a process is already missing.
    pub fn assert_alive(&self) {
        if let Err(why) = self.check_alive() {
            panic!("tree `{}` is not alive: {why}", self.entry.name);
        }
    }

    /// As [`Tree::assert_alive`], but returns an error.
    ///
    /// # Errors
    /// The missing processes.
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

    /// Returns all living processes of tool and tree: members at the time the tree was complete, descendants, and
    /// carriers of the cookie. A dead, unreaped process does not count. A process that forks and exits faster than the
    /// scan may be missed: [`Tree::await_gone`] is the proof.
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
        // The owner ends a moment after the tool and does not count. A process that died during the scan, which may be
        // long beside a storm, does not live now.
        let owner = self.owner();
        let lives = |id: Identity| proc::stat(id.pid).is_some_and(|stat| stat.id == id && !stat.is_dead());
        found.retain(|survivor| Some(survivor.id) != owner && lives(survivor.id));
        found.sort();
        found
    }

    /// Waits until no process survives, at most this long, and returns the survivors.
    ///
    /// The kernel proves that none survives: it tells the subreaper that no child is left. A scan of /proc alone misses
    /// a process that forks and exits faster. Such a process is returned with pid 0.
    pub fn await_gone(&self, patience: Duration) -> Vec<Survivor> {
        let deadline = Instant::now() + patience;
        let left = || deadline.saturating_duration_since(Instant::now());
        for member in &self.members {
            member.wait(Some(left()));
        }
        let childless = until(left(), || self.directory.join("childless").exists());
        // The scan is the proof and comes last: it takes processor time from the processes that have to end.
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

    /// Requests the leader's exit; in a tree that attacks, requests the attack.
    ///
    /// # Errors
    /// When the request cannot be written.
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

    /// Sends SIGKILL to the process that started the tool.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn kill_owner(&self) -> Result<(), TreeError> {
        self.owner.as_ref().map_or(Ok(()), |owner| owner.signal(Signal::KILL)).map_err(TreeError::from)
    }

    /// Opens the processes of the tool from the leader's parent up to the tool's first.
    fn chain(&self) -> Result<Vec<Handle>, TreeError> {
        let leader = self.members.first().map_or(0, |leader| leader.id.pid);
        let outside = [Some(self.subreaper_id), self.owner()];
        let line = proc::ancestors(leader);
        let inside = line.into_iter().skip(1).take_while(|&id| !outside.contains(&Some(id)));
        let chain: Vec<Option<Handle>> = inside.map(Handle::open).collect::<io::Result<_>>()?;
        let chain: Vec<Handle> = chain.into_iter().flatten().collect();
        if chain.is_empty() {
            return Err(TreeError::Skipped("no process of the tool is above the leader".to_owned()));
        }
        Ok(chain)
    }

    /// Sends SIGKILL to the leader's parent: the tool's innermost process, or the tool itself if it is a single
    /// process.
    ///
    /// # Errors
    /// `EPERM`. [`TreeError::Skipped`] when the leader's parent is no process of the tool.
    pub fn kill_supervisor(&self) -> Result<(), TreeError> {
        self.chain()?.first().map_or(Ok(()), |parent| parent.signal(Signal::KILL)).map_err(TreeError::from)
    }

    /// Sends SIGKILL to every process of the tool between its first and the leader, with the shortest possible delay.
    ///
    /// # Errors
    /// As [`Tree::kill_supervisor`].
    pub fn kill_chain(&self) -> Result<(), TreeError> {
        let chain = self.chain()?;
        chain.iter().try_for_each(|process| process.signal(Signal::KILL)).map_err(TreeError::from)
    }

    /// Returns the exit of the tool, once it has ended.
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
            // The tool has ended; the process that reaps it writes the exit down a moment later.
            deadline = deadline.min(Instant::now() + Duration::from_secs(10));
        }
        let mut exit = None;
        until(deadline.saturating_duration_since(Instant::now()), || {
            exit = self.tool_exit();
            exit.is_some()
        });
        exit
    }

    /// Ends all survivors and removes the tree's objects.
    ///
    /// # Errors
    /// When an object cannot be ended or removed; the error names it.
    pub fn end(mut self) -> Result<(), TreeError> {
        self.finish()
    }

    fn finish(&mut self) -> Result<(), TreeError> {
        let Some(mut stdin) = self.stdin.take() else { return Ok(()) };
        // The byte tells the subreaper that the test has finished and was not killed. The subreaper itself may be gone.
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
            // Its children have another parent now; only their cookie identifies them.
            let found = sweep::sweep(self.subreaper_id.pid, &self.cookie, END, || true);
            left = Some(format!("the subreaper ended with {status}: {} {}", self.stderr(), found.join(", ")));
        }
        fs::remove_dir_all(&self.directory)?;
        left.map_or(Ok(()), |left| Err(TreeError::NotEnded(left)))
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A failure here would panic in a panic; callers of `end` get the error.
        drop(self.finish());
    }
}

/// The command of the tree itself.
fn hostile(testkit: &Path, entry: &Entry, directory: &Path, cookie: &str, own: i32) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![testkit.into(), "hostile".into(), entry.name.into()];
    words.extend(["--ready".into(), directory.join("ready").into(), "--cookie".into(), cookie.into()]);
    let spare: Vec<String> = proc::ancestors(own).iter().map(ToString::to_string).collect();
    words.extend(["--spare".into(), spare.join(",").into()]);
    words
}
