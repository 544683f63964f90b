//! Few descriptors (`RLIMIT_NOFILE`): a sandbox starts with enough for its end, or leaves nothing.

use crate::support::{Finished, Level, Running, Sandbox, TestEnv, Who, penfold, wait_until};

/// So many suffice, at every level.
const ENOUGH: u32 = 24;

/// Every number up to more than enough, and some beyond.
fn limits() -> impl Iterator<Item = u32> {
    (3..=32).chain([40, 48, 64])
}

/// `penfold run` with these words and so many descriptors.
#[track_caller]
fn run_with(env: &TestEnv, most: u32, words: &[&str]) -> Finished {
    let script =
        r#"{ test -z "$0" || echo $$ > "$0/cgroup.procs"; } && ulimit -n "$1" && shift && exec "$@""#;
    let cgroup = env.cgroup().map(|path| path.to_str().unwrap()).unwrap_or_default();
    let mut command = env.command("bash");
    command.args(["-c", script, cgroup, &most.to_string()]).arg(penfold());
    Running::start(command.arg("--root").arg(env.root()).arg("run").args(words)).finish()
}

/// Where leaves are seen; without a cgroup of its own where none can be had.
fn environment() -> TestEnv {
    TestEnv::of(Who::Root).unwrap_or_else(TestEnv::new)
}

/// Records, leaves and directories, in an order that does not change.
fn left(env: &TestEnv) -> Vec<String> {
    let mut left = env.left();
    left.sort();
    left
}

/// Says that nothing was started: 125, and the reason.
#[track_caller]
fn is_refusal(most: u32, level: Level, finished: &Finished) {
    let said = finished.err();
    assert_eq!(finished.code(), Some(125), "{most} {level:?}: {finished:?} {said}");
    assert!(most < ENOUGH, "{most} {level:?}: {said}");
    assert_eq!(finished.out(), "", "{most} {level:?}: {said}");
    assert!(said.contains("os error 24"), "{most} {level:?}: {said}");
}

/// spec: 1.6
#[test]
fn run_works_with_24_descriptors_and_works_or_starts_nothing_with_fewer() {
    let env = environment();
    let script = "setsid -f sleep 600; echo ran; exit 3";
    for level in env.levels() {
        for most in limits() {
            let finished = run_with(&env, most, &["--contain", level.word(), "--", "sh", "-c", script]);
            if finished.code() != Some(3) {
                is_refusal(most, level, &finished);
                env.assert_nothing_left();
                continue;
            }
            let said = finished.err();
            assert_eq!(finished.out(), "ran\n", "{most} {level:?}: {said}");
            assert!(!said.contains("no record"), "{most} {level:?}: {said}");
            env.assert_nothing_left();
        }
    }
}

/// spec: 1.6
#[test]
fn run_detached_works_with_24_descriptors_and_works_or_starts_nothing_with_fewer() {
    let env = environment();
    let script = "setsid sleep 600 & echo ran; exec sleep 601";
    for level in env.levels() {
        let mut running = Vec::new();
        for most in limits() {
            let before = left(&env);
            let finished = run_with(&env, most, &["-d", "--contain", level.word(), "--", "sh", "-c", script]);
            if finished.code() == Some(0) {
                running.push((most, Sandbox::printed(&env, &finished.out())));
                continue;
            }
            is_refusal(most, level, &finished);
            assert_eq!(left(&env), before, "{most} {level:?}");
        }
        // Those of refused ones would be among them.
        wait_until("their members run", || env.find("sleep 600").len() == running.len());
        for (most, sandbox) in &running {
            assert!(sandbox.leader().is_some_and(|leader| !leader.has_ended()), "{most} {level:?}");
            if *most < 32 {
                wait_until("it has written", || sandbox.call(&env, &["logs", "ID"]).out() == "ran\n");
            }
        }
        env.call(["kill", "--all", "-f"]).with_code(0);
        for (most, sandbox) in &running {
            let report = sandbox.await_end();
            assert_eq!(report["verified"], true, "{most} {level:?}: {report}");
            assert_eq!(
                (&report["cause"], &report["exit"]["signal"]),
                (&"kill".into(), &9.into()),
                "{report}"
            );
        }
        env.call(["rm", "--all", "-f"]).with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 1.6
#[test]
fn deep_scratch_directory_goes_with_few_descriptors() {
    let env = environment();
    let script = "cd \"$PENFOLD_SCRATCH\" 2>/dev/null || cd \"$TMPDIR\"; pwd
        for i in $(seq 40); do mkdir d && cd d || exit 9; done; exit 3";
    let finished = run_with(&env, 24, &["--scratch", "--", "sh", "-c", script]);
    finished.with_code(3);
    env.assert_nothing_left();
}
