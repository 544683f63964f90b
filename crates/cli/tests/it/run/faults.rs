//! `penfold run` where a system call fails.

use rustix::io::Errno;

use crate::support::filter::denied;
use crate::support::{Running, TestEnv, entries};

/// spec: 5.1
#[test]
fn first_write_of_a_record_that_fails_leaves_no_directory() {
    for (call, errno) in [("symlinkat", Errno::AGAIN), ("symlinkat", Errno::NOSPC), ("flock", Errno::AGAIN)] {
        let env = TestEnv::new();
        let calls = [(call, errno.raw_os_error())];
        let Some(mut command) = denied(&env, &calls, &["run", "-d", "--", "sleep", "1000"]) else { return };
        let refused = Running::start(&mut command).finish().with_code(125);
        assert!(refused.err().contains("cannot"), "{call}: {}", refused.err());
        assert_eq!(
            entries(&env.root().join("sandboxes")),
            Vec::<std::path::PathBuf>::new(),
            "{call} {errno}"
        );
        env.assert_nothing_left();
    }
}

/// spec: 8.2
#[test]
fn clone3_that_a_filter_refuses_is_done_without() {
    for errno in [Errno::PERM, Errno::NOSYS] {
        for level in ["auto", "cgroup", "subreaper"] {
            let env = TestEnv::new();
            let script = "setsid sleep 1000 & exit 3";
            let words = ["run", "--contain", level, "--", "sh", "-c", script];
            // Where there is no cgroup to be had, that level is refused with or without a filter.
            if env.run(["--contain", level, "true"]).code() != Some(0) {
                continue;
            }
            let Some(mut command) = denied(&env, &[("clone3", errno.raw_os_error())], &words) else { return };
            let ended = Running::start(&mut command).finish();
            assert_eq!(ended.code(), Some(3), "{level} {errno}: {}", ended.err());
            env.assert_nothing_left();
        }
    }
}
