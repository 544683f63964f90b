//! Moves processes out of the v1 freezer.

use penfold_testkit::{skip, wait_until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::support::name;
use penfold_cgroup::mountinfo;
use penfold_cgroup::v1freezer::{FreezerRelease, V1Freezer};
use penfold_process::{Pid, ProcFs, Process, Signal};

/// A frozen v1 cgroup and its members; thawed and removed at the end.
struct Ice {
    path: PathBuf,
    children: Vec<Child>,
}

impl Ice {
    fn spawn(&mut self) -> Pid {
        let child = Command::new("sh")
            .args(["-c", "echo $$ > \"$1/cgroup.procs\" || exit 9; exec sleep 1000", "sh"])
            .arg(&self.path)
            .stdin(Stdio::null())
            .spawn()
            .expect("a shell");
        let pid = Pid::from_child(&child);
        self.children.push(child);
        pid
    }

    fn members(&self) -> usize {
        std::fs::read_to_string(self.path.join("cgroup.procs")).map_or(0, |text| text.lines().count())
    }

    fn set(&self, state: &str) {
        std::fs::write(self.path.join("freezer.state"), state).expect("the freezer's state");
        wait_until(state, || {
            std::fs::read_to_string(self.path.join("freezer.state")).is_ok_and(|text| text.trim() == state)
        });
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        let _ = std::fs::write(self.path.join("freezer.state"), "THAWED");
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        wait_until("removed", || std::fs::remove_dir(&self.path).is_ok());
    }
}

/// spec: 1.5
#[test]
fn release_thaws_one_and_not_its_neighbour() {
    let text = std::fs::read("/proc/self/mountinfo").expect("mounts");
    let mount = mountinfo::parse_mountinfo(&text)
        .expect("mounts")
        .into_iter()
        .rfind(|mount| mount.fs_type == "cgroup" && mount.has_option("freezer"));
    let (Some(mount), Some(freezer)) = (mount, V1Freezer::find(&text).expect("the freezer")) else {
        return skip("no v1 freezer is mounted");
    };
    let path = mount.mount_point.join(name());
    if let Err(why) = std::fs::create_dir(&path) {
        return skip(&format!("the v1 freezer is not ours to use: {why}"));
    }
    let mut ice = Ice { path, children: Vec::new() };
    let (released, neighbour) = (ice.spawn(), ice.spawn());
    wait_until("two members", || ice.members() == 2);
    let mut proc = ProcFs::open().expect("/proc");
    let process = Process::open(&mut proc, released).expect("open").expect("alive");

    assert_eq!(freezer.release(&mut proc, &process).expect("a look"), FreezerRelease::NotFrozen);
    assert_eq!(ice.members(), 2, "who is not frozen is left where it is");

    ice.set("FROZEN");
    process.signal(Signal::KILL).expect("a signal");
    assert!(!process.has_exited().expect("poll"), "SIGKILL does not end a frozen process");
    assert_eq!(freezer.release(&mut proc, &process).expect("a move"), FreezerRelease::Released);
    wait_until("ended", || process.has_exited().expect("poll"));

    assert_eq!(freezer.release(&mut proc, &process).expect("a look"), FreezerRelease::NotFrozen);
    let text = std::fs::read_to_string(ice.path.join("freezer.state")).expect("state");
    assert_eq!(text.trim(), "FROZEN");
    assert_eq!(ice.members(), 1, "the neighbour {neighbour} stays frozen");

    let own = Process::open(&mut proc, rustix::process::getpid()).expect("open").expect("alive");
    assert_eq!(freezer.release(&mut proc, &own).expect("a look"), FreezerRelease::NotFrozen);
}
