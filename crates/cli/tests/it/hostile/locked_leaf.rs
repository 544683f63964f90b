//! The leaf of an ordinary user belongs to the command as much as to penfold.

use crate::support::{Level, TestEnv, Who};

/// An ordinary user without a cgroup of its own asks for one: refused, with the reason, before anything runs.
#[test]
fn cgroup_level_without_a_cgroup_is_refused() {
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let file = env.path("work/ran");
    let words = ["--contain", Level::Cgroup.word(), "--", "touch"].map(std::ffi::OsString::from);
    env.run(words.into_iter().chain([file.clone().into()])).refused(125, "cgroup");
    assert!(!file.try_exists().unwrap(), "the command ran");
    assert_eq!(env.left(), Vec::<String>::new());
}

/// spec: 1.5
#[test]
fn a_leaf_that_a_command_has_locked_is_emptied_and_removed() {
    let Some(env) = TestEnv::of(Who::Delegated) else { return };
    let locks = [
        "mkdir $C/x; chmod 000 $C/x",
        "mkdir -p $C/x/y; sleep 4421 & echo $! > $C/x/y/cgroup.procs; chmod 000 $C/x/y/cgroup.procs $C/x/y $C/x",
        "chmod 000 $C/cgroup.procs $C/cgroup.kill",
        "chmod 000 $C",
    ];
    for lock in locks {
        for report in [None, Some("--report=/dev/null")] {
            let script = format!(
                "for m in /sys/fs/cgroup /sys/fs/cgroup/unified; do C=$m$(sed -n s/^0:://p /proc/self/cgroup); \
                 [ -d $C ] && break; done; {lock}; setsid sleep 4422 & exit 3"
            );
            let words = ["--contain", "cgroup"].into_iter().chain(report);
            let finished = env.run(words.chain(["--", "bash", "-c", &script])).with_code(3);
            let said = finished.err();
            assert!(said.contains("verified gone") && !said.contains("NOT"), "{lock}: {said}");
            assert_eq!(env.left(), Vec::<String>::new(), "{lock}");
        }
    }
}
