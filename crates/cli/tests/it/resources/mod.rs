//! What a sandbox owns besides its processes. The tests look at the kernel's own lists and never ask penfold.

mod chains;
mod claims;
pub mod crash;
mod endings;
mod held;
mod kinds;
mod storm;
mod unrecorded;
mod vm;

use std::path::Path;
use std::process::{Command, Stdio};

use penfold_harness::Generated;
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::state::find;
use crate::support::{Sandbox, TestEnv, entries, is_root, skip};

pub use claims::RELEASING;

/// A test for each crash point of a resource.
pub const CRASHES: Generated =
    Generated { list: crash::generated, find: |name| find(name, "resources::crash::", crash::generated) };

/// A test for each wrapper chain.
pub const CHAINS: Generated =
    Generated { list: chains::generated, find: |name| find(name, "resources::chains::", chains::generated) };

/// A test for each ending of a VM.
pub const VMS: Generated =
    Generated { list: vm::generated, find: |name| find(name, "resources::vm::", vm::generated) };

/// Whether resources can be made here; says so if not.
///
/// The test gets a mount and a network namespace of its own: what it leaves for a moment is no leak for the `doctor` of
/// another test.
#[expect(deprecated, reason = "the other function is unsafe because of flags that are not used here")]
pub fn can_make() -> bool {
    if !is_root() {
        skip("only root may make namespaces and mounts");
        return false;
    }
    rustix::thread::unshare(UnshareFlags::NEWNS | UnshareFlags::NEWNET).unwrap();
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", propagation).unwrap();
    let names = "/run/netns";
    std::fs::create_dir_all(names).unwrap();
    rustix::mount::mount("none", names, "tmpfs", MountFlags::empty(), None).unwrap();
    true
}

/// Flags for a resource of each kind that penfold makes; there are nine.
pub fn flags(env: &TestEnv) -> Vec<String> {
    // Tests run in parallel, and no address may be there twice.
    let number = std::process::id() & 0xffff;
    let net = format!("10.{}.{}", 100 + (number >> 14), number >> 6 & 255);
    let host = (number & 63) * 4;
    let work = env.path("work");
    let work = work.display();
    std::fs::create_dir_all(env.path("work/lower")).unwrap();
    std::fs::write(env.path("work/lower/below"), "").unwrap();
    for point in ["files", "layers", "bound"] {
        std::fs::create_dir_all(env.path("work").join(point)).unwrap();
    }
    vec![
        format!("--address={net}.{}/30", host + 2),
        format!("--gateway={net}.{}", host + 1),
        "--tap".to_owned(),
        "--sockets".to_owned(),
        format!("--workspace={work}/space"),
        format!("--mount=type=tmpfs,target={work}/files"),
        format!("--mount=type=overlay,lower={work}/lower,target={work}/layers"),
        format!("--mount=type=bind,source={work}/lower,target={work}/bound"),
    ]
}

/// A sandbox that is removed at the end of a test, with all its resources, even if the test fails.
pub struct Removed<'a>(pub &'a TestEnv, pub &'a Sandbox);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let mut command = self.0.penfold(["rm", "-f", &self.1.id]);
        let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The number of resources that these flags plan: workspace, sockets, namespace, link, tap, two directories of the overlay,
/// three mounts.
pub const PLANNED: usize = 10;

/// A script that cleans up, also after a test that failed.
pub struct CleanUp(pub String);

impl Drop for CleanUp {
    fn drop(&mut self) {
        let _ = Command::new("sh").args(["-c", &self.0]).stderr(Stdio::null()).status();
    }
}

/// Whether the own network namespace has this link. The files below /sys are those of the namespace in which it was mounted.
pub fn has_link(name: &str) -> bool {
    let links = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    links.lines().any(|line| line.trim_start().starts_with(&format!("{name}:")))
}

/// The traces of a sandbox that the kernel shows.
pub fn traces(env: &TestEnv, id: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut look = |path: &Path| {
        if path.symlink_metadata().is_ok() {
            found.push(path.display().to_string());
        }
    };
    look(&Path::new("/run/netns").join(format!("penfold-{id}")));
    let link = format!("pf-{id}");
    found.extend(has_link(&link).then_some(link));
    let mut look = |path: &Path| {
        if path.symlink_metadata().is_ok() {
            found.push(path.display().to_string());
        }
    };
    look(&env.path("work/space"));
    look(&env.root().join("sockets").join(id));
    for path in entries(&env.path("tmp")) {
        look(&path);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let work = env.path("work").display().to_string();
    let ours = mounts.lines().filter(|line| line.contains(&work) || line.contains(&format!("penfold-{id}")));
    found.extend(ours.map(str::to_owned));
    found
}

/// Panics unless each kind is there.
#[track_caller]
pub fn assert_all_there(env: &TestEnv, id: &str) {
    let found = traces(env, id);
    for part in
        ["/run/netns/penfold-", "pf-", "work/space", "sockets/", "work/files", "work/layers", "work/bound"]
    {
        assert!(found.iter().any(|trace| trace.contains(part)), "no {part} in {found:#?}");
    }
}

/// Panics unless nothing is there.
#[track_caller]
pub fn assert_none_there(env: &TestEnv, id: &str) {
    assert_eq!(traces(env, id), Vec::<String>::new());
}
