//! Fixtures for tests of the end: trees with members by handle, locks of other processes, and members that cannot end.

use std::ops::Deref;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use penfold_testkit::{FrozenFs, FrozenFsError};
use rustix::fs::{FlockOperation, flock};

use crate::support::{
    DEADLINE, Finished, Process, Running, Sandbox, TREE, TestEnv, USER, entries, is_root, penfold, skip,
    wait_until,
};

/// A detached sandbox with [`TREE`] in it. All of the tree was seen alive.
pub struct Standing {
    sandbox: Sandbox,
    pub members: Vec<Process>,
}

impl Standing {
    /// Starts it with these flags of `run -d`.
    #[track_caller]
    pub fn start(env: &TestEnv, flags: &[&str]) -> Standing {
        let sandbox = env.detach(flags.iter().chain(&["--", "sh", "-c", TREE]));
        env.await_up(&["deaf", "lead"]);
        let mut members = Vec::new();
        wait_until("the tree stands", || {
            members = sandbox.members(env);
            members.iter().filter(|member| member.command_line() == "sleep 1000 ").count() == 3
        });
        // The next tree of this environment says so again.
        std::fs::remove_file(env.path("work/up")).unwrap();
        assert!(members.len() >= 5, "{members:?}");
        Standing { sandbox, members }
    }

    #[track_caller]
    pub fn assert_alive(&self) {
        let ended = self.members.iter().filter(|member| member.has_ended()).count();
        assert_eq!(ended, 0, "members of {} have ended", self.id);
    }

    /// Panics if a member, a supervisor or the leaf is there.
    #[track_caller]
    pub fn assert_gone(&self) {
        self.sandbox.assert_gone(&self.members);
    }
}

impl Deref for Standing {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.sandbox
    }
}

/// Waits until so many `sleep 1000` run. A child of a shell with a trap loses a signal until it has become its program.
#[track_caller]
pub fn await_sleeps(env: &TestEnv, count: usize) {
    await_count(env, "1000", count);
}

/// Waits until `sleep` runs so often with these seconds.
#[track_caller]
pub fn await_count(env: &TestEnv, seconds: &str, count: usize) {
    wait_until("all sleeps run", || env.running(&format!("sleep {seconds}")).len() == count);
}

/// Waits until `sleep` runs with each of these seconds.
#[track_caller]
pub fn await_running(env: &TestEnv, seconds: &[u32]) {
    wait_until("all sleeps run", || seconds.iter().all(|number| env.is_running(&format!("sleep {number}"))));
}

/// How often scripts have said `echo WORD >> $UP`.
pub fn said(env: &TestEnv, word: &str) -> usize {
    let said = std::fs::read_to_string(env.path("work/up")).unwrap_or_default();
    said.lines().filter(|line| *line == word).count()
}

/// Waits until scripts have said `echo WORD >> $UP` so many times.
#[track_caller]
pub fn await_said(env: &TestEnv, word: &str, times: usize) {
    wait_until(&format!("{times} x `{word}`"), || said(env, word) >= times);
}

/// Starts a script in a detached sandbox.
#[track_caller]
pub fn detach_script(env: &TestEnv, flags: &[&str], script: &str) -> Sandbox {
    env.detach(flags.iter().chain(&["--", "sh", "-c", script]))
}

/// Starts a script in a detached sandbox, and waits until the sandbox has ended and its supervisors with it.
#[track_caller]
pub fn ended(env: &TestEnv, flags: &[&str], script: &str) -> Sandbox {
    let sandbox = detach_script(env, flags, script);
    sandbox.await_end();
    sandbox
}

/// Runs `penfold` to its end, and checks the code and the lines on standard output.
#[track_caller]
pub fn answers(env: &TestEnv, words: &[&str], code: i32, lines: &[&str]) -> Finished {
    let finished = env.call(words);
    let printed = finished.out();
    let printed: Vec<&str> = printed.lines().collect();
    assert_eq!((finished.code(), printed.as_slice()), (Some(code), lines), "{words:?}: {}", finished.err());
    finished
}

/// Whether `ps` says that all of these run.
#[track_caller]
pub fn all_run(env: &TestEnv, sandboxes: &[Sandbox]) -> bool {
    let listed = env.listed(&[]);
    let runs = |sandbox: &Sandbox| {
        listed.iter().any(|one| one["id"] == sandbox.id.as_str() && one["status"] == "running")
    };
    sandboxes.iter().all(runs)
}

/// Waits until a command has connected to a supervisor.
#[track_caller]
pub fn await_connected(command: &Running) {
    let is_socket =
        |fd: &PathBuf| std::fs::read_link(fd).is_ok_and(|link| link.to_string_lossy().starts_with("socket:"));
    wait_until("the command has connected", || {
        entries(Path::new(&format!("/proc/{}/fd", command.pid()))).iter().any(is_socket)
    });
}

/// A shell script that holds the lock of a record, as a command does that cleans up after a sandbox. The directory of the
/// record is its standard input.
#[track_caller]
pub fn hold_lock(sandbox: &Sandbox, script: &str) -> Running {
    let record = std::fs::File::open(&sandbox.record).unwrap();
    flock(&record, FlockOperation::NonBlockingLockExclusive).unwrap();
    Running::start(Command::new("bash").args(["-c", script]).stdin(record))
}

/// A file system on which every writer hangs in state D; nothing, and the reason said, where there can be none.
pub fn frozen() -> Option<FrozenFs> {
    if !is_root() {
        return None;
    }
    match FrozenFs::new() {
        Ok(frozen) => Some(frozen),
        Err(FrozenFsError::Refused(why)) => {
            skip(&why);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The words of a shell that hangs in state D.
pub fn write_to(frozen: &FrozenFs) -> String {
    format!("echo text > {}/file", frozen.path().display())
}

/// Waits until the main thread of a process is in this state.
#[track_caller]
pub fn await_state(process: &Process, state: char) {
    wait_until(&format!("a process is in state {state}"), || process.state() == Some(state));
}

/// Waits until a process hangs in the kernel.
#[track_caller]
pub fn await_state_d(process: &Process) {
    await_state(process, 'D');
}

/// Waits until the report says that nothing is left, and until the supervisors have ended.
#[track_caller]
pub fn await_verified(sandbox: &Sandbox) {
    wait_until("the end is verified", || {
        sandbox.file("report.json").is_some_and(|report| report["verified"] == true)
    });
    sandbox.await_end();
}

/// `penfold` with these words as an ordinary user, and with this state root; nothing, and the reason said, where that cannot
/// be.
pub fn as_user(env: &TestEnv, root: &Path, words: &[&str]) -> Option<Command> {
    if !is_root() {
        return None;
    }
    let mut command = env.command(penfold());
    command.arg("--root").arg(root).args(words).uid(USER).gid(USER);
    Some(command)
}

/// A directory that goes with the value.
pub struct Directory(PathBuf);

impl Directory {
    pub fn make(path: PathBuf) -> std::io::Result<Directory> {
        std::fs::create_dir(&path).map(|()| Directory(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A cgroup stays busy for a moment after its last process.
        let is_busy = |error: std::io::Error| error.kind() == std::io::ErrorKind::ResourceBusy;
        penfold_testkit::until(DEADLINE, || !std::fs::remove_dir(&self.0).is_err_and(is_busy));
    }
}
