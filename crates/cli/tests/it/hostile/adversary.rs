//! Commands that turn against their supervisor, and callers that hand over odd things.

use crate::support::{
    Process, Running, TestEnv, descendants, entries, has_program, is_root, kill_at_once, penfold, wait_until,
};
use penfold_cgroup::LeafPlace;
use rustix::process::Signal;

/// Where `$C` is the command's cgroup, if the host has cgroup2 where most have it.
const LEAF: &str = "L=$(sed -n 's/^0:://p' /proc/self/cgroup); C=$(awk '$3 == \"cgroup2\" { print $2; exit }' \
                    /proc/mounts)$L; ";

#[track_caller]
fn nothing_is_left(env: &TestEnv) {
    env.assert_nothing_left();
    let Ok(place) = LeafPlace::find_here() else { return };
    let names: Vec<String> = entries(&env.path("work"))
        .iter()
        .filter_map(|path| path.file_name()?.to_str()?.strip_prefix("id-").map(|id| format!("penfold-{id}")))
        .collect();
    for name in names {
        let leaf = place.path().join(&name);
        wait_until(&format!("{} is gone", leaf.display()), || !leaf.try_exists().unwrap());
    }
}

/// The processes of penfold that run around a command, launcher first.
fn ours(launcher: &Running) -> Vec<Process> {
    let pids = std::iter::once(launcher.pid()).chain(descendants(launcher.pid()));
    let is_penfold =
        |pid: &i32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program == penfold());
    pids.filter(is_penfold).filter_map(Process::find).collect()
}

/// A script that leaves a file named after its sandbox, for the look afterwards.
fn script(text: &str) -> String {
    format!(": > id-$PENFOLD_SANDBOX; {text}")
}

#[test]
fn a_command_that_stops_its_supervisor_does_not_stop_the_clock() {
    let env = TestEnv::new();
    for level in env.levels() {
        let words = ["--contain", level.word(), "--timeout", "0.5", "bash", "-c"];
        let stops = script("setsid -f sleep 600; kill -STOP $PPID; exec sleep 600");
        env.run(words.iter().copied().chain([&*stops])).with_code(124);
        nothing_is_left(&env);
    }
}

#[test]
fn a_supervisor_that_is_stopped_again_and_again_still_ends_the_command() {
    let env = TestEnv::new();
    // A pause in between, or two processors have nothing else to do.
    let stops = script("while :; do kill -STOP $PPID; sleep 0.001; done");
    env.run(["--timeout", "0.5", "bash", "-c", &stops]).with_code(124);
    nothing_is_left(&env);
}

#[test]
fn a_stopped_supervisor_wakes_up_when_the_launcher_is_killed() {
    let env = TestEnv::new();
    let running = Running::start(&mut env.run_command([
        "bash",
        "-c",
        &script("echo up; setsid -f sleep 600; exec sleep 600"),
    ]));
    running.hear("up", 1);
    let supervisor = ours(&running).pop().unwrap();
    // The launcher would wake it up at once.
    running.signal(Signal::STOP);
    supervisor.signal(Signal::STOP);
    running.signal(Signal::KILL);
    running.finish();
    nothing_is_left(&env);
}

#[test]
fn an_alarm_that_the_caller_has_set_reaches_the_command() {
    if !has_program(&["perl", "-e", "1"]) {
        return;
    }
    let env = TestEnv::new();
    let mut command = env.command("perl");
    command.args(["-e", "alarm 1; exec @ARGV"]).arg(penfold()).arg("--root").arg(env.path("root"));
    Running::start(command.args(["run", "sleep", "600"])).finish().with_code(142);
    nothing_is_left(&env);
}

#[test]
fn a_limit_on_the_size_of_files_hurts_only_who_writes_files() {
    let env = TestEnv::new();
    env.script("ulimit -f 0; exec $PF sleep 0.2").with_code(0);
    nothing_is_left(&env);
}

#[test]
fn closed_standard_streams_are_no_trouble() {
    let env = TestEnv::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let outcome = env.script(&format!("$PF sh -c 'exit 5' {closed}"));
        assert_eq!(outcome.code(), Some(5), "{closed}: {}", outcome.err());
    }
    nothing_is_left(&env);
}

#[test]
fn what_a_command_puts_into_its_record_goes_with_it() {
    let env = TestEnv::new();
    let precious = env.path("work/precious");
    std::fs::create_dir(&precious).unwrap();
    std::fs::write(precious.join("file"), "x").unwrap();
    let litters = format!(
        "cd {}/$PENFOLD_SANDBOX; mkdir -p a/b; : > a/b/c; ln -s {} d; chmod 0 a; exit 3",
        env.path("root/sandboxes").display(),
        precious.display()
    );
    env.run(["bash", "-c", &litters]).with_code(3);
    nothing_is_left(&env);
    assert!(precious.join("file").try_exists().unwrap());
}

#[test]
fn a_command_that_removes_its_record_is_ended_all_the_same() {
    let env = TestEnv::new();
    let removes = format!("rm -rf {}; setsid -f sleep 600; exit 3", env.path("root/sandboxes").display());
    env.run(["bash", "-c", &script(&removes)]).with_code(3);
    nothing_is_left(&env);
}

#[test]
fn a_command_line_of_a_mebibyte_is_recovered_like_any_other() {
    let env = TestEnv::new();
    let long = "x".repeat(100_000);
    let text = script("echo up; exec sleep 600");
    let running =
        Running::start(&mut env.run_command(
            ["--scratch", "bash", "-c", &text].into_iter().chain(std::iter::repeat_n(&*long, 12)),
        ));
    running.hear("up", 1);
    let all = ours(&running);
    kill_at_once(&all.iter().collect::<Vec<_>>());
    drop(running);
    wait_until("the next command has ended the sandbox", || {
        env.run(["sleep", "0.05"]);
        env.left().is_empty()
    });
    nothing_is_left(&env);
}

#[test]
fn a_command_that_takes_its_supervisor_into_its_cgroup_gets_its_own_code() {
    let env = TestEnv::new();
    if !is_root() || env.run(["--contain", "cgroup", "true"]).code() != Some(0) {
        return;
    }
    for below in ["", "/a/b"] {
        let takes = script(&format!(
            "{LEAF} mkdir -p $C{below}; echo $PPID > $C{below}/cgroup.procs || exit 9; setsid -f sleep 600; exit 3"
        ));
        env.run(["--contain", "cgroup", "bash", "-c", &takes]).with_code(3);
        nothing_is_left(&env);
    }
}

#[test]
fn a_command_that_leaves_its_cgroup_and_removes_it_is_ended() {
    let env = TestEnv::new();
    if !is_root() || env.run(["--contain", "cgroup", "true"]).code() != Some(0) {
        return;
    }
    let leaves = script(&format!(
        "{LEAF} echo $$ > ${{C%/*}}/cgroup.procs && rmdir $C || exit 9; setsid -f sleep 600; exit 3"
    ));
    env.run(["--contain", "cgroup", "bash", "-c", &leaves]).with_code(3);
    nothing_is_left(&env);
}

#[test]
fn cgroups_that_a_command_makes_go_with_it_frozen_or_not() {
    let env = TestEnv::new();
    if !is_root() || env.run(["--contain", "cgroup", "true"]).code() != Some(0) {
        return;
    }
    let makes = script(&format!(
        "{LEAF} mkdir -p $C/a/b/c $C/d; sleep 600 & echo $! > $C/a/b/cgroup.procs; sleep 600 & \
         echo $! > $C/d/cgroup.procs; echo 1 > $C/d/cgroup.freeze; exit 3"
    ));
    env.run(["--contain", "cgroup", "bash", "-c", &makes]).with_code(3);
    nothing_is_left(&env);
}
