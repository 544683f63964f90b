//! A caller whose own cgroup was killed once. Linux 6.14 to 7.2 and stable branches kill every process at birth that such a
//! caller clones directly into a cgroup. <https://git.kernel.org/linus/b69bb476dee9>

use crate::support::{Running, TestEnv, Who, json, wait_until};

/// spec: 3.4
#[test]
fn a_caller_in_a_killed_cgroup_gets_a_leaf_all_the_same() {
    let Some(env) = TestEnv::of(Who::Root) else { return };
    let cgroup = env.cgroup().unwrap();
    // A shell joins by a write, which the trap does not touch.
    let join = format!("echo 0 > {}/cgroup.procs || exit 99", cgroup.display());
    let member = env.shell(&format!("{join}; exec sleep 600"));
    wait_until("the member has joined", || {
        !std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap().is_empty()
    });
    std::fs::write(cgroup.join("cgroup.kill"), "1").unwrap();
    assert_eq!(member.finish().signal(), Some(9));
    let inside = r#"cut -d" " -f6 /proc/$$/stat; tail -n1 /proc/self/cgroup; sleep 600 & exit 5"#;
    let script =
        format!("{join}; cut -d' ' -f6 /proc/$$/stat; exec $PF --report report.json sh -c \"$INSIDE\"");
    let mut command = env.command("sh");
    let finished = Running::start(command.args(["-c", &script]).env("INSIDE", inside)).finish().with_code(5);
    let said = finished.out();
    let [outside, inside, leaf] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    assert_eq!(outside, inside, "the command left the session of its caller");
    assert!(leaf.contains("/penfold-"), "{leaf}");
    let report = json(&env.path("work/report.json")).unwrap();
    assert_eq!((&report["level"], &report["verified"]), (&"cgroup".into(), &true.into()));
    assert_eq!(report["ended"].as_array().map(Vec::len), Some(1));
    env.assert_nothing_left();
}
