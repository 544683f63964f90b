//! The common parts of all trees: fork, registration, the ready file, and the end.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::proc::{self, Identity};
use penfold_sys::ForkSide;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

/// The result of a tree's process, which never returns.
pub(crate) type Never = Result<Infallible, Trouble>;

/// The reason why a tree is incomplete.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// This host or this user cannot build the tree.
    Skip(String),
    /// An operation failed that should have worked.
    Broken(String),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}

impl From<rustix::io::Errno> for Trouble {
    fn from(error: rustix::io::Errno) -> Trouble {
        Trouble::Broken(error.to_string())
    }
}

/// Names the step that failed.
pub(crate) trait Step<T> {
    /// A failure here breaks the tree.
    fn step(self, what: &str) -> Result<T, Trouble>;
    /// A failure here means that the host cannot do it.
    fn or_skip(self, what: &str) -> Result<T, Trouble>;
}

impl<T, E: std::fmt::Display> Step<T> for Result<T, E> {
    fn step(self, what: &str) -> Result<T, Trouble> {
        self.map_err(|error| Trouble::Broken(format!("{what}: {error}")))
    }

    fn or_skip(self, what: &str) -> Result<T, Trouble> {
        self.map_err(|error| Trouble::Skip(format!("{what}: {error}")))
    }
}

/// The longest wait of a process for its own tree.
const PATIENCE: Duration = Duration::from_secs(15);

/// No tree lives longer, even if no test ends it.
const LONGEST: Duration = Duration::from_mins(1);

/// The environment of a tree.
#[derive(Debug, Clone)]
pub(crate) struct TestEnv {
    ready: PathBuf,
    cookie: String,
    spare: Vec<Identity>,
    end: Instant,
    number: Option<u32>,
    target: Option<PathBuf>,
}

impl TestEnv {
    pub(crate) fn new(
        ready: PathBuf,
        cookie: Option<String>,
        spare: Vec<Identity>,
        life: Duration,
    ) -> io::Result<TestEnv> {
        let own = proc::this()?.id;
        let cookie = cookie.unwrap_or_else(|| format!("{}-{}", own.pid, own.start));
        let mut spare = spare;
        let subreaper = fs::read_to_string(ready.with_file_name("subreaper")).ok();
        spare.extend(subreaper.and_then(|text| text.trim().parse::<Identity>().ok()));
        let end = Instant::now() + life.min(LONGEST);
        Ok(TestEnv { ready, cookie, spare, end, number: None, target: None })
    }

    /// Sets the size of the tree and the directory for its files.
    pub(crate) fn sized(mut self, number: Option<u32>, target: Option<PathBuf>) -> TestEnv {
        self.number = number;
        self.target = target;
        self
    }

    pub(crate) fn target(&self) -> Option<&Path> {
        self.target.as_deref()
    }

    /// Creates the list in which the members register; the leader does this once.
    pub(crate) fn open(&self) -> Result<(), Trouble> {
        let part = self.path("part");
        fs::write(&part, "").step("cannot create the list of members")?;
        // Members may have become other users before they register.
        fs::set_permissions(&part, fs::Permissions::from_mode(0o666)).step("cannot open the list to all")?;
        self.register()
    }

    /// Returns the path of a file beside the ready file.
    pub(crate) fn path(&self, suffix: &str) -> PathBuf {
        let mut name = self.ready.clone().into_os_string();
        name.push(".");
        name.push(suffix);
        PathBuf::from(name)
    }

    /// Returns a name for objects that the tree makes outside its directory.
    pub(crate) fn tag(&self) -> String {
        format!("testkit-{}", self.cookie)
    }

    pub(crate) fn number_or(&self, default: u32, most: u32) -> u32 {
        self.number.unwrap_or(default).min(most)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.ready.parent().unwrap_or(Path::new("."))
    }

    /// Tells whether the judge or the clock has ended the tree.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.end || self.is_marked("end")
    }

    /// Adds this process to the list of those that must be ended.
    pub(crate) fn register(&self) -> Result<(), Trouble> {
        let own = proc::this().step("cannot read /proc/self/stat")?.id;
        let mut list = OpenOptions::new()
            .append(true)
            .open(self.path("part"))
            .step("cannot open the list of members")?;
        list.write_all(format!("{} {}\n", own.pid, own.start).as_bytes()).step("cannot register")
    }

    /// Waits until `count` processes have registered, including the caller, and returns them.
    pub(crate) fn await_members(&self, count: usize) -> Result<Vec<Identity>, Trouble> {
        let part = self.path("part");
        let list = || fs::read_to_string(&part).unwrap_or_default();
        self.until(|| list().lines().count() >= count).step("not all members have registered")?;
        Ok(list().lines().filter_map(|line| line.replace(' ', ":").parse().ok()).collect())
    }

    /// Waits until `count` processes have registered, then publishes the ready file.
    pub(crate) fn stands(&self, count: usize) -> Result<(), Trouble> {
        self.await_members(count)?;
        fs::rename(self.path("part"), &self.ready).step("cannot publish the list of members")
    }

    /// Leaves a mark for other processes of the tree. An existing mark costs a look only: hundreds of processes repeat
    /// this, and would wait for each other in the directory.
    pub(crate) fn mark(&self, name: &str) -> Result<(), Trouble> {
        if self.is_marked(name) { Ok(()) } else { fs::write(self.path(name), "").step("cannot leave a mark") }
    }

    pub(crate) fn is_marked(&self, name: &str) -> bool {
        rustix::fs::access(self.path(name), rustix::fs::Access::EXISTS).is_ok()
    }

    /// Waits until a condition holds.
    pub(crate) fn until(&self, mut holds: impl FnMut() -> bool) -> Result<(), &'static str> {
        let end = self.end.min(Instant::now() + PATIENCE);
        while !holds() {
            if Instant::now() >= end {
                return Err("waited too long");
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Forks a child that never returns from `life`.
    pub(crate) fn child(&self, life: impl FnOnce(&TestEnv) -> Never) -> Result<Pid, Trouble> {
        match penfold_sys::fork().step("cannot fork")? {
            ForkSide::Parent(pid) => Ok(pid),
            ForkSide::Child => self.live(life),
        }
    }

    /// Runs a forked process to its end.
    pub(crate) fn live(&self, life: impl FnOnce(&TestEnv) -> Never) -> ! {
        let Err(trouble) = life(self);
        self.report(&trouble)
    }

    /// Reports why this process gives up, and exits.
    pub(crate) fn report(&self, trouble: &Trouble) -> ! {
        let (text, code) = match trouble {
            Trouble::Skip(why) => {
                drop(fs::write(self.path("skip.new"), why));
                drop(fs::rename(self.path("skip.new"), self.path("skip")));
                (why, 77)
            }
            Trouble::Broken(why) => (why, 70),
        };
        drop(writeln!(io::stderr(), "testkit: {text}"));
        std::process::exit(code)
    }

    /// Forks a grandchild whose parent is gone when this returns.
    pub(crate) fn orphan(&self, life: impl FnOnce(&TestEnv) -> Never) -> Result<(), Trouble> {
        let middle = self.child(|env| {
            env.child(life)?;
            std::process::exit(0)
        })?;
        rustix::process::waitpid(Some(middle), WaitOptions::empty())
            .step("cannot wait for the middle process")?;
        Ok(())
    }

    /// Forks a double-forked daemon in a session of its own.
    pub(crate) fn daemon(&self, life: impl FnOnce(&TestEnv) -> Never) -> Result<(), Trouble> {
        self.orphan(|env| {
            rustix::process::setsid().step("cannot start a session")?;
            life(env)
        })
    }

    /// Returns a command that runs this program as a single sleeping member.
    pub(crate) fn member(&self, extra: &[&str]) -> Result<Command, Trouble> {
        Ok(self.member_of(&std::env::current_exe().step("cannot find this program")?, extra))
    }

    /// As [`TestEnv::member`], from another copy of the program.
    pub(crate) fn member_of(&self, program: impl AsRef<OsStr>, extra: &[&str]) -> Command {
        let mut command = Command::new(program);
        let left = self.end.saturating_duration_since(Instant::now());
        command.arg("member").arg("--ready").arg(&self.ready);
        command.arg("--life").arg(left.as_secs().to_string()).args(extra);
        command
    }

    /// Registers and sleeps.
    pub(crate) fn sleeper(&self) -> Never {
        self.register()?;
        self.linger()
    }

    /// Sleeps until the tree's time is over, also if signals interrupt the sleep.
    pub(crate) fn linger(&self) -> ! {
        while let Some(left) = self.end.checked_duration_since(Instant::now()) {
            sleep(left + Duration::from_millis(1));
        }
        std::process::exit(0)
    }

    /// Waits for the request to exit, as a leader.
    pub(crate) fn wait_for_word(&self) {
        while !self.is_marked("exit") && !self.is_over() {
            sleep(Duration::from_millis(10));
        }
    }

    /// Runs a leader once the tree is complete: exits with 0 on request.
    pub(crate) fn lead(&self) -> ! {
        self.lead_to(0)
    }

    pub(crate) fn lead_to(&self, code: i32) -> ! {
        self.wait_for_word();
        std::process::exit(code)
    }

    /// Tells whether no tree may kill this process.
    pub(crate) fn is_spared(&self, id: Identity) -> bool {
        id.pid <= 1 || self.spare.contains(&id)
    }

    /// Tells whether the caller's process group has a process that must not be killed.
    pub(crate) fn group_is_spared(&self) -> bool {
        let own = proc::this().map_or(0, |stat| stat.group);
        self.spare.iter().any(|id| proc::stat(id.pid).is_some_and(|stat| stat.group == own))
    }

    /// Forks a daemon that ends `pid` when the tree's time is over, because `pid` cannot end itself.
    pub(crate) fn watch(&self, pid: Pid, freezer: Option<PathBuf>) -> Result<(), Trouble> {
        // An unreaped child of this process: no other process can have the pid.
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).step("cannot open the child")?;
        self.daemon(|env| {
            env.register()?;
            while !env.is_over() {
                sleep(Duration::from_millis(200));
            }
            if let Some(cgroup) = freezer {
                drop(fs::write(cgroup.join("freezer.state"), "THAWED"));
                drop(fs::write(cgroup.join("cgroup.freeze"), "0"));
            }
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            std::process::exit(0)
        })
    }
}
