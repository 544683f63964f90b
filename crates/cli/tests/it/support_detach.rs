//! Detached sandboxes in a pen.

#![allow(
    clippy::disallowed_methods,
    reason = "what is removed is the tests' own; who works on one tree names it in the environment"
)]

use std::ffi::OsStr;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::support_e2::{self, DEADLINE, Ended, Pen};
use crate::support_f::socket::Control;
use crate::support_f::{Sandbox, until, word};

/// What the guarantee allows after a process of ours was killed.
pub const PROMPT: Duration = Duration::from_secs(1);

/// `penfold --root …` in a pen.
pub fn command<S: AsRef<OsStr>>(pen: &Pen, words: impl IntoIterator<Item = S>) -> Command {
    let mut command = pen.command(support_e2::penfold());
    command.arg("--root").arg(pen.path("root")).args(words);
    command
}

pub fn output(pen: &Pen, words: &[&str]) -> Output {
    command(pen, words).output().unwrap()
}

/// `run -d` with these words.
#[track_caller]
pub fn begin(pen: &Pen, words: &[&str]) -> Ended {
    pen.end([&["-d"], words].concat())
}

/// Starts one that must run.
#[track_caller]
pub fn detach(pen: &Pen, words: &[&str]) -> Sandbox {
    let ended = begin(pen, words).with_code(0);
    assert_eq!(ended.err(), "");
    Sandbox::printed(&pen.path("root"), &ended.out()).unwrap()
}

/// How many `ps` lists of this state root.
pub fn listed(pen: &Pen) -> usize {
    let listed: Value = serde_json::from_slice(&output(pen, &["ps", "--json"]).stdout).unwrap_or_default();
    listed.as_array().map_or(0, |all| all.iter().filter(|one| one["claimed"] == true).count())
}

/// What `ps` says of it.
pub fn status(pen: &Pen, sandbox: &Sandbox) -> Option<String> {
    word(&output(pen, &["ps", "-a", "--json"]), &sandbox.id)
}

/// Kills it by its socket, and waits until it is over.
#[track_caller]
pub fn kill(sandbox: &Sandbox) {
    let (control, _) = Control::to(&sandbox.record).expect("nobody listens");
    control.say("\"kill\"");
    control.rest();
    assert!(until(DEADLINE, || sandbox.has_ended() || !sandbox.record.exists()), "killed and not over");
}

/// Waits until it is over, and gives status, cause, and how its command ended.
#[track_caller]
pub fn over(pen: &Pen, sandbox: &Sandbox) -> (String, String, serde_json::Value) {
    assert!(until(DEADLINE, || sandbox.has_ended()), "not over: {:?}", sandbox.file("state.json"));
    let exit = sandbox.file("exit.json").and_then(|exited| exited.get("exit").cloned());
    // Its supervisors leave a moment after the report is there.
    let mut status_now = None;
    until(DEADLINE, || {
        status_now = status(pen, sandbox);
        !matches!(status_now.as_deref(), Some("running" | "stopping" | "created" | "orphaned"))
    });
    (status_now.unwrap_or_default(), sandbox.cause().unwrap_or_default(), exit.unwrap_or_default())
}

/// Removes the record of one that is over; then nothing of it may be left.
#[track_caller]
pub fn forget(sandbox: &Sandbox) {
    std::fs::remove_dir_all(&sandbox.record).unwrap();
}

/// The leaves of these tests' sandboxes that are there.
pub fn leaves() -> Vec<String> {
    let cgroups = penfold_testkit::mounts::cgroups().into_iter().map(|path| path.display().to_string());
    cgroups.filter(|path| path.contains("/penfold-")).collect()
}

/// The leaf of one.
pub fn leaf(sandbox: &Sandbox) -> Option<String> {
    leaves().into_iter().find(|path| path.ends_with(&format!("penfold-{}", sandbox.id)))
}

/// A file system with room for so many files and so many pages, gone with this value.
pub struct Small(std::path::PathBuf);

impl Small {
    pub fn mount(pen: &Pen, files: u32, pages: u32) -> Option<Small> {
        let place = pen.path("root");
        let options = std::ffi::CString::new(format!("size={}k,nr_inodes={files}", pages * 4)).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &place, "tmpfs", flags, options.as_c_str()).ok()?;
        Some(Small(place))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
