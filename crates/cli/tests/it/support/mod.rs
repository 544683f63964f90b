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

use std::path::Path;
use std::process::{Command, Stdio};

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
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
pub fn penfold() -> &'static Path {
    static BINARY: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    let built = || env!("CARGO_BIN_EXE_penfold").into();
    BINARY.get_or_init(|| std::env::var_os("PENFOLD_TEST_BIN").map_or_else(built, Into::into))
}

/// Whether the binary under test was built with the tests, which have debug assertions and crash points.
pub fn has_debug_assertions() -> bool {
    cfg!(debug_assertions) && penfold() == Path::new(env!("CARGO_BIN_EXE_penfold"))
}

/// Whether a process with this name is one of penfold, as far as the name tells.
pub fn is_our_name(name: &str) -> bool {
    ["penfold", "pf-supervisor"].contains(&name)
}

/// Whether the test runs as root; says so if not.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip("needs root");
    }
    is_root
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
pub fn entries(dir: &Path) -> Vec<std::path::PathBuf> {
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
