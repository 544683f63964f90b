//! Where a test runs penfold: directories, a state root, a user.

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use penfold_testkit::{DelegatedCgroup, proc, sweep};
use rustix::process::Signal;

use super::process::command_line;
use super::{
    DEADLINE, Finished, Process, Running, Sandbox, assert_others_reach_penfold, descendants, is_root,
    penfold, skip, wait_until,
};

/// In the environment of all that a [`TestEnv`] starts.
pub const MARK: &str = "PENFOLD_TEST_ENV";
/// The ordinary user.
pub const USER: u32 = 65534;

/// Who runs penfold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// Whoever runs the tests, in the cgroup that they run in.
    Tester,
    /// Root in a cgroup of its own.
    Root,
    /// An ordinary user in a cgroup of its own.
    Delegated,
    /// An ordinary user in a cgroup that is not its own.
    Plain,
}

/// The containment asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Cgroup,
    Pidns,
    Subreaper,
}

impl Level {
    pub const ALL: [Level; 3] = [Level::Cgroup, Level::Pidns, Level::Subreaper];

    pub fn word(self) -> &'static str {
        match self {
            Level::Cgroup => "cgroup",
            Level::Pidns => "pidns",
            Level::Subreaper => "subreaper",
        }
    }
}

/// A state root, a TMPDIR and a working directory of a test's own, and who runs penfold there.
///
/// The test's process becomes a subreaper: whatever it starts stays below it, however it leaves, and ends with this value.
pub struct TestEnv {
    dir: tempfile::TempDir,
    pub who: Who,
    cgroup: Option<DelegatedCgroup>,
    levels: OnceLock<Vec<Level>>,
}

impl TestEnv {
    /// For whoever runs the tests.
    pub fn new() -> TestEnv {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let dir = tempfile::Builder::new().prefix("penfold-test-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["root", "tmp", "work"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        TestEnv { dir, who: Who::Tester, cgroup: None, levels: OnceLock::new() }
    }

    /// For this user; nothing, and the reason said, where that cannot be.
    pub fn of(who: Who) -> Option<TestEnv> {
        let mut env = TestEnv::new();
        env.who = who;
        if who != Who::Tester && !is_root() {
            return None;
        }
        if env.is_ordinary() {
            assert_others_reach_penfold();
        }
        let user = if env.is_ordinary() { USER } else { 0 };
        for name in ["root", "tmp", "work"].into_iter().filter(|_| who != Who::Tester) {
            chown(env.path(name), Some(user), Some(user)).unwrap();
        }
        if matches!(who, Who::Root | Who::Delegated) {
            match DelegatedCgroup::new(user) {
                Ok(cgroup) => env.cgroup = Some(cgroup),
                Err(error) => {
                    skip(&format!("no cgroup can be delegated: {error}"));
                    return None;
                }
            }
        }
        Some(env)
    }

    /// Whether penfold runs as another user than root here.
    pub fn is_ordinary(&self) -> bool {
        matches!(self.who, Who::Delegated | Who::Plain)
    }

    /// A file in the directory of this test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The directory of this test, a text that no other test has.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The state root.
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    /// The cgroup that penfold is started in, if it has one of its own.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_ref().map(DelegatedCgroup::path)
    }

    /// Any command, as whoever runs the tests. `$PF` in it is `penfold --root … run`, `$PENFOLD` and `$ROOT` are its parts; a
    /// script says that it stands with `echo NAME >> $UP` ([`TestEnv::await_up`]).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).current_dir(self.path("work"));
        command.env(MARK, self.dir.path()).env("TMPDIR", self.path("tmp")).env("UP", self.path("work/up"));
        let run = format!("{} --root {} run", penfold().display(), self.root().display());
        command.env("PF", run).env("PENFOLD", penfold()).env("ROOT", self.root());
        let stripped =
            "NO_COLOR CLICOLOR_FORCE COLUMNS MAKEFLAGS MFLAGS XDG_RUNTIME_DIR".split(' ').map(Into::into);
        // What the tests are told, and the sandbox that they may run in.
        let told = std::env::vars_os().map(|(name, _)| name);
        let told = told.filter(|name| name.as_encoded_bytes().starts_with(b"PENFOLD_"));
        for name in told.chain(stripped).filter(|name| name != MARK && name != "PENFOLD") {
            command.env_remove(name);
        }
        command
    }

    /// `penfold --root …` with these words, as the user of this environment and in its cgroup.
    pub fn penfold<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = match self.cgroup() {
            None => self.command(penfold()),
            Some(cgroup) => {
                // The shell joins, or starts nothing; an ordinary user may not write to the cgroup that it comes from.
                let mut command = self.command("sh");
                command.args(["-c", r#"echo 0 > "$0/cgroup.procs" && exec "$@""#]).arg(cgroup);
                if self.is_ordinary() {
                    let user = USER.to_string();
                    command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]);
                }
                command.arg(penfold());
                command
            }
        };
        if self.is_ordinary() {
            // Not that of root, which may hold directories that are closed to others.
            command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
            if self.cgroup.is_none() {
                command.uid(USER).gid(USER);
            }
        }
        command.arg("--root").arg(self.root()).args(words);
        command
    }

    /// `penfold --root … run` with these words.
    pub fn run_command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.penfold(["run"]);
        command.args(words);
        command
    }

    /// Runs `penfold run` with these words to its end.
    #[track_caller]
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Finished {
        Running::start(&mut self.run_command(words)).finish()
    }

    /// Runs `penfold` with these words to its end.
    #[track_caller]
    pub fn call<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Finished {
        Running::start(&mut self.penfold(words)).finish()
    }

    /// Starts `penfold` with these words.
    #[track_caller]
    pub fn begin<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Running {
        Running::start(&mut self.penfold(words))
    }

    /// The sandboxes of this state root that `ps --json` with these flags lists, the youngest first.
    ///
    /// `ps` lists orphans of other tests, too: nothing tells below which state root they were.
    #[track_caller]
    pub fn listed(&self, flags: &[&str]) -> Vec<serde_json::Value> {
        let words = ["ps", "--json"].iter().chain(flags);
        let mut listed = self.call(words).with_code(0).json().as_array().cloned().unwrap();
        listed.retain(|one| one["claimed"] == true);
        listed
    }

    /// The ids of [`TestEnv::listed`].
    #[track_caller]
    pub fn listed_ids(&self, flags: &[&str]) -> Vec<String> {
        self.listed(flags).iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Starts a detached sandbox that must run: `run -d` with these words.
    #[track_caller]
    pub fn detach<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Sandbox {
        let mut command = self.run_command(["-d"]);
        let finished = Running::start(command.args(words)).finish().with_code(0);
        assert_eq!(finished.err(), "");
        Sandbox::printed(self, &finished.out())
    }

    /// Starts a script without penfold, but for what it does with `$PF`.
    #[track_caller]
    pub fn shell(&self, script: &str) -> Running {
        Running::start(self.command("bash").args(["-c", script]))
    }

    /// Runs such a script to its end.
    #[track_caller]
    pub fn script(&self, script: &str) -> Finished {
        self.shell(script).finish()
    }

    /// Waits until scripts have said `echo NAME >> $UP` for each of these.
    #[track_caller]
    pub fn await_up(&self, names: &[&str]) {
        wait_until("the tree stands", || {
            let said = std::fs::read_to_string(self.path("work/up")).unwrap_or_default();
            names.iter().all(|name| said.lines().any(|line| line == *name))
        });
    }

    /// The levels that work for this user, strongest first.
    #[track_caller]
    pub fn levels(&self) -> Vec<Level> {
        self.levels.get_or_init(|| self.find_levels()).clone()
    }

    #[track_caller]
    fn find_levels(&self) -> Vec<Level> {
        let works = |level: &Level| self.run(["--contain", level.word(), "true"]).code() == Some(0);
        let levels: Vec<Level> = Level::ALL.into_iter().filter(works).collect();
        let missing = Level::ALL.len() - levels.len() - usize::from(self.who == Who::Plain);
        if missing > 0 {
            skip(&format!("only the levels {levels:?} can be tried here"));
        }
        assert!(levels.contains(&Level::Subreaper), "{levels:?}");
        levels
    }

    /// All living processes that were started here, by handle: those below this process with the mark of this environment,
    /// and those without any environment.
    pub fn processes(&self) -> Vec<Process> {
        let entry = format!("{MARK}={}", self.dir.path().display());
        let is_ours = |process: &Process| {
            // While a process calls execve(2), it seems to have neither arguments nor environment.
            let mut seen = String::new();
            let mut environ = Vec::new();
            penfold_testkit::until(Duration::from_secs(1), || {
                let before = std::mem::replace(&mut seen, command_line(process.pid()));
                environ =
                    proc::read_proc_file(&format!("/proc/{}/environ", process.pid())).unwrap_or_default();
                !environ.is_empty() || process.has_ended() || !seen.is_empty() && seen == before
            });
            environ.is_empty() || environ.split(|&byte| byte == 0).any(|one| one == entry.as_bytes())
        };
        let below = descendants(proc::this().unwrap().id.pid).into_iter().filter_map(Process::find);
        below.filter(|process| !process.has_ended() && is_ours(process)).collect()
    }

    /// Those below this process that work in a directory of this environment: the sandboxes of a server have no mark.
    fn working_here(&self) -> Vec<Process> {
        let works_here = |pid: &i32| {
            let directory = std::fs::read_link(format!("/proc/{pid}/cwd"));
            directory.is_ok_and(|directory| directory.starts_with(self.dir.path()))
        };
        let below = descendants(proc::this().unwrap().id.pid).into_iter().filter(works_here);
        below.filter_map(Process::find).filter(|process| !process.has_ended()).collect()
    }

    /// Those of them whose command line begins with this.
    pub fn find(&self, command: &str) -> Vec<Process> {
        let mut found = self.processes();
        found.retain(|process| command_line(process.pid()).starts_with(command));
        found
    }

    /// Those of them with this command line.
    pub fn running(&self, command: &str) -> Vec<Process> {
        let mut found = self.processes();
        found.retain(|process| process.command_line().trim_end() == command);
        found
    }

    pub fn is_running(&self, command: &str) -> bool {
        !self.running(command).is_empty()
    }

    /// Records, leaves, and what is in the TMPDIR.
    pub fn left(&self) -> Vec<String> {
        let named = |kind: &'static str, place: &Path| {
            let found = super::entries(place).into_iter();
            found.map(move |path| format!("{kind} {}", path.display())).collect::<Vec<_>>()
        };
        let mut left = named("record", &self.path("root/sandboxes"));
        left.extend(named("file", &self.path("tmp")));
        let is_leaf = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("penfold-"))
        };
        let leaves = self.cgroup.iter().flat_map(DelegatedCgroup::children).filter(is_leaf);
        left.extend(leaves.map(|path| format!("cgroup {}", path.display())));
        left
    }

    /// Panics if a process, record, leaf or scratch directory is left; processes of ours may take a moment to exit.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let look = || self.processes().iter().map(Process::command_line).collect::<Vec<_>>();
        let mut running = Vec::new();
        penfold_testkit::until(DEADLINE, || {
            // One look may miss a process that is on its way to a new parent.
            running = [look(), look()].concat();
            running.is_empty()
        });
        assert_eq!(running, Vec::<String>::new(), "left running");
        assert_eq!(self.left(), Vec::<String>::new());
    }
}

/// Reaps orphans of pid namespaces that have become children of this process: the first process of a namespace ends after them.
fn reap_of_namespaces() {
    let own = proc::this().unwrap().id.pid;
    for stat in proc::all().into_iter().filter(|stat| stat.is_dead() && stat.parent == own) {
        let pid = stat.id.pid;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        if numbers.is_some_and(|numbers| numbers.split_whitespace().count() > 1) {
            let _ = rustix::process::waitpid(
                rustix::process::Pid::from_raw(pid),
                rustix::process::WaitOptions::NOHANG,
            );
        }
    }
}

impl Drop for TestEnv {
    fn drop(&mut self) {
        // A tree that moves is met by one of the looks; one look may miss a process that is on its way to a new parent.
        sweep::thaw(&self.dir.path().file_name().unwrap_or_default().to_string_lossy());
        let mut empty = 0;
        let ended = || {
            let left: Vec<Process> = self.processes().into_iter().chain(self.working_here()).collect();
            for process in &left {
                process.signal(Signal::KILL);
            }
            reap_of_namespaces();
            empty = if left.is_empty() { empty + 1 } else { 0 };
            empty == 3
        };
        penfold_testkit::until(Duration::from_secs(10), ended);
        sweep::remove_leaves(self.dir.path(), Duration::from_secs(2));
        // A supervisor that was missed writes its record while the directory is removed.
        #[expect(clippy::disallowed_methods, reason = "our own directory, as tempfile removes it")]
        let removed = || match std::fs::remove_dir_all(self.dir.path()) {
            Ok(()) => true,
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
        };
        penfold_testkit::until(Duration::from_secs(2), removed);
    }
}
