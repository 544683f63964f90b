//! What the tests of `reap`, `doctor` and `gc` share: processes with a mark that end with the test, and deadlines.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use penfold_testkit::{FrozenFs, FrozenFsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longer than anything here may take on a busy machine.
pub const DEADLINE: Duration = Duration::from_secs(30);
/// In the environment of all that a [`Yard`] starts, but for what hides it.
const MARK: &str = "PENFOLD_TEST_YARD";
/// An ordinary user.
pub const USER: u32 = 1000;

/// A directory and everything that was started with its mark; both go with this value.
pub struct Yard {
    dir: tempfile::TempDir,
}

impl Yard {
    pub fn new() -> Yard {
        let dir = tempfile::Builder::new().prefix("penfold-test-").tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        std::fs::create_dir(dir.path().join("tmp")).unwrap();
        Yard { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A value that no other test has.
    pub fn cookie(&self) -> String {
        self.dir.path().display().to_string()
    }

    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env(MARK, self.dir.path()).env("TMPDIR", self.path("tmp"));
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "PENFOLD_SANDBOX", "XDG_RUNTIME_DIR"] {
            command.env_remove(name);
        }
        command
    }

    /// `penfold` with a state root of its own.
    pub fn penfold<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_penfold"));
        command.arg("--root").arg(self.path("root")).args(words);
        command
    }

    /// The same as an ordinary user; the reason if that cannot be.
    pub fn penfold_as_user(&self, words: &[&str]) -> Result<Command, &'static str> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root can become another user");
        }
        let copy = self.path("penfold");
        // Not by this process: whatever another thread forks meanwhile would hold the file open for writing.
        assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_penfold")).arg(&copy).status().unwrap().success());
        let mut command = self.command(copy);
        command.arg("--root").arg("/nonexistent/penfold").args(words);
        std::os::unix::process::CommandExt::uid(&mut command, USER);
        std::os::unix::process::CommandExt::gid(&mut command, USER);
        Ok(command)
    }

    /// A shell that runs this script and says so by `up NAME` in a file.
    pub fn shell(&self, script: &str) -> Started {
        Started::of(self.command("bash").arg("-c").arg(script).env("UP", self.path("up")))
    }

    /// Waits until the script has said `echo NAME >> $UP` for each of these.
    pub fn await_up(&self, names: &[&str]) {
        until("the tree stands", || {
            let said = std::fs::read_to_string(self.path("up")).unwrap_or_default();
            names.iter().all(|name| said.lines().any(|line| line == *name))
        });
    }

    /// The live processes with the mark, with their command lines.
    pub fn marked(&self) -> Vec<(Pid, OwnedFd, String)> {
        let entry = format!("{MARK}={}", self.dir.path().display());
        pids()
            .into_iter()
            .filter_map(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)))
            .filter(|(pid, _)| {
                let environment =
                    std::fs::read(format!("/proc/{}/environ", pid.as_raw_pid())).unwrap_or_default();
                environment.split(|&byte| byte == 0).any(|text| text == entry.as_bytes())
            })
            .map(|(pid, handle)| (pid, handle, command_line(pid)))
            .collect()
    }

    /// The live marked processes whose command line starts with this.
    pub fn find(&self, text: &str) -> Vec<Pid> {
        self.marked()
            .into_iter()
            .filter(|(_, _, line)| line.starts_with(text))
            .map(|(pid, _, _)| pid)
            .collect()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let marked = self.marked();
        for (_, handle, _) in &marked {
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
        // What still dies after its test has the output of that open.
        for (_, handle, _) in &marked {
            let mut fds = [rustix::event::PollFd::new(handle, rustix::event::PollFlags::IN)];
            let _ = rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 }));
        }
        penfold_testkit::sweep::remove_leaves(self.dir.path(), Duration::from_secs(2));
    }
}

/// A child; killed and reaped when dropped.
pub struct Started {
    pub child: std::process::Child,
}

impl Started {
    pub fn of(command: &mut Command) -> Started {
        Started { child: command.spawn().unwrap() }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pids() -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw)
        })
        .collect()
}

fn command_line(pid: Pid) -> String {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default();
    String::from_utf8_lossy(&line).replace('\0', " ")
}

/// The state letter of a process.
pub fn state(pid: Pid) -> Option<char> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    text.rsplit(") ").next()?.chars().next()
}

/// The children of a process's main thread.
pub fn children(pid: Pid) -> Vec<Pid> {
    let number = pid.as_raw_pid();
    let text = std::fs::read_to_string(format!("/proc/{number}/task/{number}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).filter_map(Pid::from_raw).collect()
}

/// Waits until it is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < DEADLINE, "not in time: {what}");
        pause();
    }
}

fn pause() {
    const SHORT: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    let _ = poll(&mut [], Some(&SHORT));
}

/// Whether what this handle stands for has ended.
pub fn has_ended(handle: &OwnedFd) -> bool {
    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&NOW)).unwrap() > 0
}

/// A handle, to see later whether it ended.
pub fn handle(pid: Pid) -> OwnedFd {
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

pub fn signal(pid: Pid, signal: Signal) {
    pidfd_send_signal(handle(pid), signal).unwrap();
}

/// Runs a command to its end.
/// Kills all of these, of which the first is the oldest, in one instant: none of them can act on the death of another.
pub fn kill_at_once(pids: &[Pid]) {
    let handles: Vec<_> = pids.iter().map(|&pid| handle(pid)).collect();
    for &pid in pids {
        signal(pid, Signal::STOP);
    }
    until("all are stopped", || pids.iter().all(|&pid| state(pid) == Some('T')));
    // The youngest first: the death of a parent wakes its child.
    for pidfd in handles.iter().rev() {
        pidfd_send_signal(pidfd, Signal::KILL).unwrap();
    }
    until("all are dead", || handles.iter().all(has_ended));
}

/// A file system that can be frozen; none, and the reason said, where there can be none.
pub fn frozen() -> Option<FrozenFs> {
    if !rustix::process::geteuid().is_root() {
        skip("only root can freeze a file system");
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

pub fn output(command: &mut Command) -> Output {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap()
}

pub fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {}", said(output)))
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

/// Says why a test did not run.
pub fn skip(reason: &str) {
    let line = format!("skipped: {reason}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
}

/// Makes a directory that goes with the value.
pub struct Directory(pub PathBuf);

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
        let begun = Instant::now();
        // A cgroup stays busy for a moment after its last process.
        while std::fs::remove_dir(&self.0)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy)
        {
            if begun.elapsed() > DEADLINE {
                break;
            }
            pause();
        }
    }
}

/// Twelve random hexadecimal digits, as an id has.
pub fn fresh_id() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    uuid.trim().replace('-', "")[20..].to_owned()
}

/// Runs a test where it sees no processes and no cgroups but its own: what ends all leaks of the host must not find
/// those of others.
///
/// The test's own program is run again for the same test, in namespaces and a cgroup of its own.
#[expect(clippy::disallowed_methods, reason = "the only way to tell a test that it was started by itself")]
pub fn jailed(test: impl FnOnce()) {
    const JAILED: &str = "PENFOLD_TEST_JAILED";
    if std::env::var_os(JAILED).is_some() {
        return test();
    }
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make the namespaces that keep the test apart from the host");
    }
    let Ok(place) = penfold_cgroup::Place::find_here() else { return skip("no cgroup2 to write to") };
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap();
    let mount = penfold_cgroup::mountinfo::parse(&mounts)
        .unwrap()
        .into_iter()
        .rfind(|mount| mount.fs_type == "cgroup2");
    let jail = Jail(Directory::make(place.path().join(format!("gc-test-{}", fresh_id()))).unwrap());
    let script = r#"echo $$ > "$1/cgroup.procs"; mount=$2; shift 2
        exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc \
            sh -c 'umount -l "$0" && mount -t cgroup2 none "$0" && exec "$@"' "$mount" "$@""#;
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg("sh").arg(jail.0.path()).arg(mount.unwrap().mount_point);
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", penfold_harness::name(), "--nocapture"])
        .env(JAILED, "1");
    let done = output(command.stdin(Stdio::null()));
    drop(jail);
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && printed.contains("1 passed"), "{printed}\n{}", said(&done));
}

/// A cgroup that goes with all below it.
struct Jail(Directory);

impl Drop for Jail {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                drop(Jail(Directory(entry.path())));
            }
        }
    }
}
