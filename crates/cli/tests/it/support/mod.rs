//! What the tests share: one environment, one sandbox, one guard for processes, one wait.
//!
//! - [`TestEnv`]: a state root, directories and a user of a test's own; all that it starts ends with it.
//! - [`Running`] and [`Finished`]: a command that a test talks to, and how it ended.
//! - [`Sandbox`]: a detached sandbox, what its record says, and its processes by handle.
//! - [`Process`]: any process, by handle.
//! - [`ControlClient`], [`Impostor`]: both sides of a control socket, spelled out.
//! - [`Terminal`]: tmux with a shell in it. [`jail`]: a test in namespaces of its own.
//! - [`manager`]: a stand-in for systemd on a private bus.
//! - [`wait_until`]: the only way to wait for what can only be looked at.

mod control_client;
mod env;
pub mod filter;
mod impostor;
pub mod jail;
pub mod manager;
mod prng;
mod process;
mod running;
mod sandbox;
mod terminal;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::thread::CapabilitySet;

pub use penfold_testkit::{DEADLINE, skip, wait_until};

pub use control_client::ControlClient;
pub use env::{Level, MARK, TestEnv, USER, Who};
pub use impostor::Impostor;
pub use prng::Prng;
pub use process::{Process, children, descendants, kill_at_once};
pub use running::{Finished, Running};
pub use sandbox::{Sandbox, TREE, identity};
pub use terminal::Terminal;

/// What tests give a kill that cannot succeed; the default is ten seconds.
pub const PATIENCE: &str = "300ms";

/// The binary under test: the one that was built with the tests, unless `PENFOLD_TEST_BIN` names another.
///
/// `scripts/test` puts a copy into the directory `PENFOLD_TEST_PROGRAMS`, for two reasons: the clone may be closed to other
/// users, and tests mount over `/tmp`.
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
pub fn penfold() -> &'static Path {
    static BINARY: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    BINARY.get_or_init(|| {
        let copy = || std::env::var_os("PENFOLD_TEST_PROGRAMS").map(|dir| Path::new(&dir).join("penfold"));
        let other = std::env::var_os("PENFOLD_TEST_BIN").map(Into::into);
        other.or_else(copy).unwrap_or_else(built_penfold)
    })
}

/// The binary that was built with the tests, where it was built.
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
pub fn built_penfold() -> PathBuf {
    // The clone may have been moved since then.
    std::env::var_os("NEXTEST_BIN_EXE_penfold").unwrap_or_else(|| env!("CARGO_BIN_EXE_penfold").into()).into()
}

/// Whether the binary under test was built with the tests, which have debug assertions and crash points.
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
pub fn has_debug_assertions() -> bool {
    cfg!(debug_assertions) && std::env::var_os("PENFOLD_TEST_BIN").is_none()
}

/// Panics if other users cannot start the binary under test, where each test would fail in another way.
#[track_caller]
pub fn assert_others_reach_penfold() {
    let closed = penfold()
        .ancestors()
        .skip(1)
        .find(|dir| std::fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 == 0));
    assert_eq!(
        closed, None,
        "other users cannot start penfold below this directory; `scripts/test` copies it"
    );
}

/// Whether a process with this name is one of penfold, as far as the name tells.
pub fn is_our_name(name: &str) -> bool {
    ["penfold", "pf-supervisor"].contains(&name)
}

/// Whether the test runs as root with the capabilities of root, as it does outside of containers; says so if not.
pub fn is_root() -> bool {
    if !rustix::process::geteuid().is_root() {
        skip("needs root");
        return false;
    }
    let all = rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE | CapabilitySet::NET_ADMIN)
    });
    if !all {
        skip("needs the capabilities of root, which a container without privileges does not have");
    }
    all
}

/// Whether pseudo-terminals can be made here; says so if not.
pub fn has_terminals() -> bool {
    let made = rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY);
    if let Err(error) = &made {
        skip(&format!("no terminal can be made here: {error}"));
    }
    made.is_ok()
}

/// Whether this user can tell of all ancestors of the test whether they are penfold; says so if not. As long as one of them is
/// another user's, penfold takes no process below it for an orphan.
pub fn has_readable_ancestors() -> bool {
    let parent = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let mut above = std::iter::successors(parent(rustix::process::getpid().as_raw_pid()), |&pid| parent(pid));
    let hidden = above.find(|&pid| pid > 1 && std::fs::read_link(format!("/proc/{pid}/exe")).is_err());
    if hidden.is_some() {
        skip("an ancestor of the test is another user's process");
    }
    hidden.is_none()
}

/// Whether a program is installed and works here; says so if not.
pub fn has_program(words: &[&str]) -> bool {
    let [name, rest @ ..] = words else { return false };
    let mut command = Command::new(name);
    command.args(rest).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let runs = command.status().is_ok_and(|status| status.success());
    if !runs {
        skip(&format!("`{}` does not work here", words.join(" ")));
    }
    runs
}

/// A file of JSON, if it is there and whole.
pub fn json(path: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// What is in a directory; nothing if there is none.
pub fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Twelve random hexadecimal digits, as an id has.
pub fn fresh_id() -> String {
    let uuid = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap();
    uuid.trim().replace('-', "")[20..].to_owned()
}

/// Removes a directory of the test's own, if it is there.
#[expect(clippy::disallowed_methods, reason = "it holds nothing but what the test has put there")]
pub fn remove_dir(path: impl AsRef<Path>) {
    let _ = std::fs::remove_dir_all(path);
}
