//! A caller whose own cgroup was killed once: the kernel (Linux 6.14 to 7.2, and stable branches) kills at birth whatever it
//! clones straight into a cgroup. <https://git.kernel.org/linus/b69bb476dee9>

#![expect(clippy::print_stdout, reason = "a test that skips says why")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A cgroup that was killed, removed at the end.
struct Killed(PathBuf);

impl Killed {
    fn make(mount: &Path) -> Killed {
        let cgroup = Killed(mount.join(format!("penfold-test-trap-{}", std::process::id())));
        std::fs::create_dir(&cgroup.0).unwrap();
        let mut member = cgroup.shell("exec sleep 600").spawn().unwrap();
        // The member is in once the kernel lists it.
        while std::fs::read_to_string(cgroup.0.join("cgroup.procs")).unwrap().is_empty() {
            assert!(member.try_wait().unwrap().is_none(), "the member could not join");
        }
        std::fs::write(cgroup.0.join("cgroup.kill"), "1").unwrap();
        member.wait().unwrap();
        cgroup
    }

    /// A shell that joins by a write, which the trap does not touch, and then does as told.
    fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo 0 > {}/cgroup.procs || exit 99; {script}", self.0.display())]);
        command
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.join("cgroup.kill"), "1");
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn a_caller_in_a_killed_cgroup_gets_a_leaf_all_the_same() {
    let mount = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
    let mount = mount.into_iter().find(|mount| mount.join("cgroup.procs").try_exists().unwrap_or(false));
    let (Some(mount), true) = (mount, rustix::process::geteuid().is_root()) else {
        println!("skipped: needs root and a cgroup2 mount");
        return;
    };
    let state = tempfile::tempdir().unwrap();
    let report = state.path().join("report.json");
    let cgroup = Killed::make(&mount);
    let script = format!(
        "cut -d' ' -f6 /proc/$$/stat; exec {} --root {} run --report {} sh -c \
         'cut -d\" \" -f6 /proc/$$/stat; tail -n1 /proc/self/cgroup; sleep 600 & exit 5'",
        env!("CARGO_BIN_EXE_penfold"),
        state.path().display(),
        report.display(),
    );
    let output = cgroup.shell(&script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(5), "{said} {}", String::from_utf8_lossy(&output.stderr));
    let [outside, inside, leaf] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(outside, inside, "the command left the session of its caller");
    assert!(leaf.contains("/penfold-"), "{leaf}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!((&report["level"], &report["verified"]), (&"cgroup".into(), &true.into()));
    assert_eq!(report["ended"].as_array().map(Vec::len), Some(1));
}
