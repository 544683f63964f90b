//! A tree where nothing can be proved.

use std::process::Command;
use std::time::Duration;

use penfold_testkit::mounts::mounts;
use penfold_testkit::skip;
use penfold_tree::{Options, Proof, Survivor};

use crate::support::{as_user, start};

const NAME: &str = "hidden::tree_below_a_proc_that_hides_says_so_and_is_never_gone";

/// spec: 33.1
#[test]
fn tree_below_a_proc_that_hides_says_so_and_is_never_gone() {
    let is_hidden =
        mounts().unwrap().iter().any(|mount| mount.fs_type == "proc" && mount.options.contains("hidepid"));
    match (is_hidden, rustix::process::geteuid().is_root()) {
        (false, false) => skip("only root can mount a `/proc`"),
        (false, true) => run_below_hidden_proc(),
        (true, true) => as_user(NAME),
        (true, false) => is_never_gone(),
    }
}

/// Runs this test again where `/proc` hides the processes of other users.
fn run_below_hidden_proc() {
    let script = "mount -t proc -o hidepid=ptraceable proc /proc && exec \"$@\"";
    let mut again = Command::new("unshare");
    again.args(["--mount", "sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
    let done = again.args(["--exact", NAME, "--nocapture"]).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

fn is_never_gone() {
    let options = Options::new().patience(Duration::from_millis(50));
    let (mut tree, daemon) = start(&options, "setsid sleep 3901 & echo $!");
    assert!(matches!(tree.proof(), Proof::None(_)), "{:?}", tree.proof());
    tree.wait().unwrap();
    assert!(!daemon.has_ended());
    let report = tree.kill();
    assert!(daemon.has_ended() && !report.gone(), "{report}");
    assert!(
        report.survivors().iter().any(|survivor| matches!(survivor, Survivor::Unknown { .. })),
        "{report:?}"
    );
}
