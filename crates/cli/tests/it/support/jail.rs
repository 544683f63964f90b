//! Tests in namespaces of their own.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::{Running, fresh_id, is_root, skip};

/// In the environment of a test that runs in its jail.
const JAILED: &str = "PENFOLD_TEST_JAILED";

/// Runs a test where it sees no processes and no cgroups but its own, and no loop devices: what ends all leaks of the host must not
/// find those of other tests.
///
/// The test's own program is run again for the same test, in namespaces and a cgroup of its own.
#[expect(
    clippy::disallowed_methods,
    reason = "a test cannot be told in another way that it was started by itself"
)]
pub fn jailed(test: impl FnOnce()) {
    if std::env::var_os(JAILED).is_some() {
        return test();
    }
    if !is_root() {
        return;
    }
    let Ok(place) = penfold_cgroup::LeafPlace::find_here() else { return skip("no cgroup2 to write to") };
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap();
    let mounts = penfold_cgroup::mountinfo::parse_mountinfo(&mounts).unwrap();
    let mount = mounts.into_iter().rfind(|mount| mount.fs_type == "cgroup2").unwrap();
    let cgroup = Cgroup(place.path().join(format!("jail-{}", fresh_id())));
    std::fs::create_dir(&cgroup.0).unwrap();
    let script = r#"echo $$ > "$1/cgroup.procs"; mount=$2; shift 2
        exec unshare --mount --cgroup --pid --fork --kill-child --mount-proc \
            sh -c 'umount -l "$0" && mount -t cgroup2 none "$0" && mount -t tmpfs none /sys/block && exec "$@"' "$mount" "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&cgroup.0).arg(mount.mount_point);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", penfold_harness::name(), "--nocapture"]);
    let finished = Running::start(command.env(JAILED, "1").stdin(Stdio::null())).finish();
    drop(cgroup);
    assert!(
        finished.status.success() && finished.out().contains("1 passed"),
        "{}{}",
        finished.out(),
        finished.err()
    );
}

/// A cgroup that goes with all below it.
struct Cgroup(PathBuf);

impl Drop for Cgroup {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(&self.0).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                drop(Cgroup(entry.path()));
            }
        }
        // A cgroup stays busy for a moment after its last process.
        penfold_testkit::until(Duration::from_secs(10), || std::fs::remove_dir(&self.0).is_ok());
    }
}
