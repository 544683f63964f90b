//! Limits that are refused: by their values, beside other flags, and on a host without controllers for cgroup v2.
//!
//! Limits that hold are the business of `tests/guest/limits.sh`.

use penfold_cgroup::Membership;

use crate::support::{Finished, TestEnv, skip};

#[track_caller]
fn call(env: &TestEnv, words: &[&str]) -> Finished {
    env.call([&["run"], words, &["--", "sh", "-c", "echo started"]].concat())
}

/// spec: 17.1
#[test]
fn a_value_that_means_no_limit_is_refused_in_one_sentence() {
    let env = TestEnv::new();
    for (flag, values) in [
        ("--memory", &["0", "-1", "1023K", "1025T", "16777216T", "1.5", "x", ""][..]),
        ("--pids", &["0", "-1", "4194305", "1.5", "x", ""]),
        ("--cpus", &["0", "-1", "0.001", "8193", "nan", "inf", "1e3", "x", ""]),
    ] {
        for value in values {
            let finished = call(&env, &[flag, value]);
            assert_eq!((finished.code(), finished.out().as_str()), (Some(125), ""), "{flag} {value}");
            let said = finished.err();
            assert!(said.starts_with("penfold: ") && said.contains(flag), "{flag} {value}: {said}");
            assert_eq!(said.lines().count(), 2, "a sentence and a hint: {said}");
        }
    }
}

/// spec: 17.4
#[test]
fn a_level_without_a_cgroup_has_no_limits() {
    let env = TestEnv::new();
    for flag in ["--memory=1G", "--pids=10", "--cpus=1"] {
        let finished = call(&env, &["--contain", "subreaper", flag]);
        assert_eq!((finished.code(), finished.out().as_str()), (Some(125), ""), "{flag}");
        assert!(
            finished.err().contains("cannot be used together with `--contain subreaper`"),
            "{}",
            finished.err()
        );
    }
}

/// spec: 17.4
#[test]
fn controllers_of_cgroup_v1_are_named_and_nothing_is_started() {
    let own = std::fs::read("/proc/self/cgroup").unwrap();
    let has_all = ["memory", "pids", "cpu"]
        .into_iter()
        .all(|controller| Membership::of(&own).v1(controller.as_bytes()).is_some());
    if !has_all {
        return skip("no cgroup v1 with memory, pids and cpu");
    }
    let env = TestEnv::new();
    for (flag, controller) in [("--memory=1G", "memory"), ("--pids=10", "pids"), ("--cpus=1", "cpu")] {
        for more in [&[][..], &["-d"], &["--contain=cgroup"], &["--contain=pidns"], &["--unit=none"]] {
            let finished = call(&env, &[&[flag], more].concat());
            assert_eq!((finished.code(), finished.out().as_str()), (Some(125), ""), "{flag} {more:?}");
            let said = finished.err();
            let reason = format!("the controller `{controller}` belongs to cgroup v1 on this host");
            assert!(said.contains(&reason), "{said}");
            assert!(said.contains("\nhint: boot with systemd.unified_cgroup_hierarchy=1"), "{said}");
        }
    }
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
    let doctor = env.call(["doctor"]);
    assert!(
        doctor.out().contains("limits: none: the controller `memory` belongs to cgroup v1"),
        "{}",
        doctor.out()
    );
}
