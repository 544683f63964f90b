//! `pause` and `unpause`: the freezer of the leaf.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::json;

use super::sandboxes::{await_running, end, exec, none_lives, put_in, remove};
use crate::support::{
    Level, Process, Running, Sandbox, TestEnv, Who, has_debug_assertions, is_root, skip, wait_until,
};

/// Where a supervisor, or a client that pauses, dies in a test here.
pub const POINTS: [&str; 2] = ["paused-at-ttl", EXECS_FROZEN];
const EXECS_FROZEN: &str = "execs-frozen-to-pause";
/// Counts in a file until the end, and takes the polite signal with a line in `$UP`.
const COUNTER: &str = "trap 'echo asked >> $UP; exit 0' TERM; setsid sleep 1041 & sleep 1042 &
    while :; do i=$((i + 1)); echo $i > count; sleep 0.01; done";
/// The same, but ignores the polite signal.
const DEAF: &str = "trap '' TERM; setsid sleep 1041 & sleep 1042 & \
    while :; do i=$((i + 1)); echo $i > count; sleep 0.01; done";

/// The environment of a user who can pause, and the levels with a leaf; none where no cgroup can be made.
fn with_leaves() -> Option<(TestEnv, Vec<Level>)> {
    let env = if is_root() { TestEnv::of(Who::Root) } else { Some(TestEnv::new()) }?;
    let mut levels = env.levels();
    levels.retain(|level| *level != Level::Subreaper);
    if levels.first() != Some(&Level::Cgroup) {
        skip("no cgroup can be made here");
        return None;
    }
    Some((env, levels))
}

/// Starts a script that counts, and waits until its tree stands.
#[track_caller]
fn start(env: &TestEnv, flags: &[&str], script: &str) -> (Sandbox, Vec<Process>) {
    for name in ["up", "count"] {
        let _ = fs::remove_file(env.path("work").join(name));
    }
    let sandbox = env.detach([flags, &["--", "sh", "-c", script]].concat());
    await_running(env, &["sleep 1041", "sleep 1042"]);
    wait_until("it counts", || count(env) > 0);
    let mut members = Vec::new();
    wait_until("its own tree stands", || {
        members = sandbox.members(env);
        members.len() >= 3
    });
    (sandbox, members)
}

fn count(env: &TestEnv) -> u64 {
    let text = fs::read_to_string(env.path("work/count")).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// The processor time of these, in ticks of the kernel.
fn ticks(members: &[Process]) -> Vec<String> {
    let of = |process: &Process| {
        let text = fs::read_to_string(format!("/proc/{}/stat", process.pid())).unwrap_or_default();
        let fields = text.rsplit_once(')').map(|(_, rest)| rest.to_owned()).unwrap_or_default();
        fields.split_whitespace().skip(11).take(2).collect::<Vec<_>>().join(" ")
    };
    members.iter().map(of).collect()
}

fn events(sandbox: &Sandbox) -> String {
    fs::read_to_string(sandbox.leaf.as_ref().unwrap().join("cgroup.events")).unwrap()
}

#[track_caller]
fn pause(env: &TestEnv, sandbox: &Sandbox) {
    assert_eq!(sandbox.call(env, &["pause", "ID"]).with_code(0).out(), format!("{}\n", sandbox.id));
    assert!(events(sandbox).contains("frozen 1"), "{}", events(sandbox));
    assert_eq!(sandbox.status(env).as_deref(), Some("paused"));
}

/// spec: 12.13
#[test]
fn paused_members_make_no_progress_and_go_on_afterwards() {
    let Some((env, levels)) = with_leaves() else { return };
    for level in levels {
        let (sandbox, members) = start(&env, &["--contain", level.word()], COUNTER);
        for _ in 0..2 {
            pause(&env, &sandbox);
            // The loop starts a process each time, so these are others than before.
            let frozen = sandbox.members(&env);
            let (counted, used) = (count(&env), ticks(&frozen));
            // Commands of penfold take their time, in which a loop would go on.
            let listed = env.call(["ps", "--filter", "status=paused", "--format", "{{.ID}} {{.Status}}"]);
            assert_eq!(listed.out(), format!("{} paused\n", sandbox.id));
            assert!(env.call(["status", &sandbox.id]).out().contains("penfold unpause"));
            // Again changes nothing.
            pause(&env, &sandbox);
            exec(&env, &sandbox, &["true"]).refused(125, "is paused");
            assert_eq!((count(&env), ticks(&frozen)), (counted, used), "{level:?}: it goes on");
            assert!(frozen.len() >= 3 && !frozen.iter().any(Process::has_ended));
            env.call(["unpause", &sandbox.id]).with_code(0);
            assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
            wait_until("it goes on", || count(&env) > counted);
            exec(&env, &sandbox, &["true"]).with_code(0);
        }
        env.call(["unpause", &sandbox.id]).with_code(0);
        remove(&env, &sandbox);
        sandbox.assert_gone(&members);
    }
    env.assert_nothing_left();
}

/// spec: 12.13, 11.1
#[test]
fn paused_sandbox_stops_politely_and_at_once() {
    let Some((env, levels)) = with_leaves() else { return };
    for level in levels {
        let (sandbox, members) = start(&env, &["--contain", level.word(), "--grace", "1h"], COUNTER);
        pause(&env, &sandbox);
        sandbox.call(&env, &["stop", "ID"]).with_code(0);
        env.await_up(&["asked"]);
        assert_eq!(end(&env, &sandbox), ("killed".into(), "stop".into(), json!({"code": 0})), "{level:?}");
        sandbox.assert_gone(&members);
        remove(&env, &sandbox);
    }
    // A member that ignores the signal is killed after the grace; the stop command runs in the thawed leaf.
    let flags = ["--contain", "cgroup", "--grace", "2s", "--stop-command", "echo asked by command >> $UP"];
    let (sandbox, members) = start(&env, &flags, DEAF);
    pause(&env, &sandbox);
    sandbox.call(&env, &["stop", "ID"]).with_code(0);
    env.await_up(&["asked by command"]);
    sandbox.assert_gone(&members);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.13, 11.1
#[test]
fn every_end_reaches_a_paused_sandbox() {
    let Some((env, levels)) = with_leaves() else { return };
    for level in levels {
        let word = level.word();
        for script in [COUNTER, DEAF] {
            let (sandbox, members) = start(&env, &["--contain", word], script);
            pause(&env, &sandbox);
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
            sandbox.assert_gone(&members);
            remove(&env, &sandbox);

            let (sandbox, members) = start(&env, &["--contain", word], script);
            pause(&env, &sandbox);
            sandbox.kill_supervisors();
            env.call(["gc", "-f"]).with_code(0);
            assert!(none_lives(&members), "{level:?}");
            sandbox.assert_gone(&members);
            remove(&env, &sandbox);

            // Without supervisors a stop is polite, too.
            let (sandbox, members) = start(&env, &["--contain", word, "--grace", "500ms"], script);
            pause(&env, &sandbox);
            sandbox.kill_supervisors();
            sandbox.call(&env, &["stop", "ID"]).with_code(0);
            sandbox.assert_gone(&members);
            remove(&env, &sandbox);
        }
        let (sandbox, members) = start(&env, &["--contain", word, "--ttl", "3s", "--grace", "1h"], COUNTER);
        pause(&env, &sandbox);
        assert_eq!(sandbox.await_end()["cause"], "ttl");
        sandbox.assert_gone(&members);
        remove(&env, &sandbox);
        // The supervisor alone dies.
        let (sandbox, members) = start(&env, &["--contain", word], DEAF);
        pause(&env, &sandbox);
        sandbox.supervisors_now()[1].signal(Signal::KILL);
        sandbox.await_end();
        sandbox.assert_gone(&members);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.13
#[test]
fn sandbox_in_the_foreground_is_paused_and_its_time_limit_fires() {
    let Some((env, _)) = with_leaves() else { return };
    let words = ["run", "--contain", "cgroup", "--name", "job", "--timeout", "4s", "--", "sh", "-c", COUNTER];
    let run = env.begin(words);
    let members = await_running(&env, &["sleep 1041", "sleep 1042"]);
    env.call(["pause", "job"]).with_code(0);
    let shown = env.call(["ps", "--json"]).json();
    assert_eq!(shown[0]["status"], "paused", "{shown}");
    let done = run.finish();
    assert_eq!(done.code(), Some(124), "{}", done.err());
    assert!(none_lives(&members));
    env.assert_nothing_left();
}

/// spec: 12.13, 11.5
#[test]
fn what_cannot_be_paused_is_left_as_it_was() {
    let Some((env, _)) = with_leaves() else { return };
    let (sandbox, members) = start(&env, &["--contain", "subreaper"], COUNTER);
    for verb in ["pause", "unpause"] {
        env.call([verb, &sandbox.id]).refused(1, "it has no cgroup of its own");
        env.call([verb, "nothing"]).refused(3, "nothing");
        env.call([verb, "--all"]).refused(2, "without confirmation");
    }
    let counted = count(&env);
    wait_until("it goes on", || count(&env) > counted);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    assert!(!none_lives(&members));
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    env.call(["pause", &sandbox.id]).refused(1, "it is killed");
    remove(&env, &sandbox);
    // A member would freeze itself.
    let sandbox = env.detach(["--contain", "cgroup", "--name", "self", "--", "sleep", "1043"]);
    let inside = "\"$PENFOLD\" --root \"$ROOT\" pause self; echo code $?";
    let done = exec(&env, &sandbox, &["sh", "-c", inside]);
    assert!(done.out().contains("code 1") && done.err().contains("is a member of it"), "{}", done.err());
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.13
#[test]
fn a_client_that_dies_while_it_pauses_execs_leaves_what_unpause_continues() {
    if !has_debug_assertions() {
        return skip("only a debug build has crash points");
    }
    let Some((env, _)) = with_leaves() else { return };
    let (sandbox, members) = start(&env, &["--contain", "cgroup"], COUNTER);
    let counting = "while :; do j=$((j + 1)); echo $j > execs; sleep 0.01; done";
    put_in(&env, &sandbox, &["sh", "-c", counting]);
    let counts = || {
        [
            count(&env),
            fs::read_to_string(env.path("work/execs")).map_or(0, |text| text.trim().parse().unwrap_or(0)),
        ]
    };
    wait_until("the exec counts", || counts()[1] > 0);
    let mut client = env.penfold(["pause", &sandbox.id]);
    Running::start(client.env("PENFOLD_CRASH_AT", EXECS_FROZEN)).finish().with_code(137);
    assert_eq!(sandbox.status(&env).as_deref(), Some("paused"));
    // Paused again, and by the leaf alone.
    pause(&env, &sandbox);
    let exec = below(&sandbox, "exec-1");
    let read = |name: &str| fs::read_to_string(exec.join(name)).unwrap();
    assert_eq!(read("cgroup.freeze").trim(), "0");
    assert!(read("cgroup.events").contains("frozen 1"));
    let before = counts();
    fs::write(exec.join("cgroup.freeze"), "1").unwrap();
    env.call(["unpause", &sandbox.id]).with_code(0);
    wait_until("all go on", || counts().iter().zip(before).all(|(now, before)| *now > before));
    remove(&env, &sandbox);
    sandbox.assert_gone(&members);
    env.assert_nothing_left();
}

/// That it stands still with the one around it is no pause of its own.
/// spec: 12.13
#[test]
fn a_sandbox_below_a_frozen_one_stays_paused_when_that_goes_on() {
    let Some((env, _)) = with_leaves() else { return };
    let script = "\"$PENFOLD\" --root \"$ROOT\" run -d --contain cgroup --name inner sleep 1052; sleep 1051";
    let outer = env.detach(["--contain", "cgroup", "sh", "-c", script]);
    let members = await_running(&env, &["sleep 1051", "sleep 1052"]);
    let inner = || env.listed(&["--filter", "name=inner"])[0]["status"].clone();
    let freeze = below(&outer, "cgroup.freeze");
    fs::write(&freeze, "1").unwrap();
    wait_until("both stand still", || inner() == "paused");
    env.call(["pause", "inner"]).with_code(0);
    fs::write(&freeze, "0").unwrap();
    wait_until("the outer one goes on", || outer.status(&env).as_deref() == Some("running"));
    assert_eq!(inner(), "paused");
    env.call(["unpause", "inner"]).with_code(0);
    assert_eq!(inner(), "running");
    remove(&env, &outer);
    outer.assert_gone(&members);
    env.call(["rm", "inner"]);
    env.assert_nothing_left();
}

/// A path below the leaf.
fn below(sandbox: &Sandbox, name: &str) -> PathBuf {
    sandbox.leaf.as_ref().unwrap().join(name)
}

/// spec: 12.13
#[test]
fn status_is_that_of_the_kernel() {
    let Some((env, _)) = with_leaves() else { return };
    let (sandbox, members) = start(&env, &["--contain", "cgroup"], COUNTER);
    let freeze = below(&sandbox, "cgroup.freeze");
    fs::write(&freeze, "1").unwrap();
    wait_until("it is frozen", || events(&sandbox).contains("frozen 1"));
    assert_eq!(sandbox.status(&env).as_deref(), Some("paused"));
    fs::write(&freeze, "0").unwrap();
    wait_until("it is not frozen", || events(&sandbox).contains("frozen 0"));
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    // All that are named, each of them reported.
    let (other, others) = start(&env, &["--contain", "cgroup"], COUNTER);
    let done = env.call(["pause", "--all", "-f"]).with_code(0);
    let mut ids: Vec<String> = done.out().lines().map(str::to_owned).collect();
    ids.sort();
    let mut expected = vec![sandbox.id.clone(), other.id.clone()];
    expected.sort();
    assert_eq!(ids, expected);
    env.call(["unpause", "--filter", "status=paused", "-f"]).with_code(0);
    for one in [&sandbox, &other] {
        assert_eq!(one.status(&env).as_deref(), Some("running"));
        remove(&env, one);
    }
    sandbox.assert_gone(&members);
    other.assert_gone(&others);
    env.assert_nothing_left();
}

/// spec: 12.3.1
#[test]
fn a_lease_may_end_in_a_pause() {
    let Some((env, levels)) = with_leaves() else { return };
    for level in levels {
        let flags =
            ["--contain", level.word(), "--ttl", "300ms", "--ttl-pauses", "--on-supervisor-exit", "keep"];
        let flags = if level == Level::Pidns { &flags[..5] } else { &flags[..] };
        let (sandbox, _) = start(&env, flags, COUNTER);
        let members = await_running(&env, &["sleep 1041", "sleep 1042"]);
        let is_paused = || sandbox.status(&env).as_deref() == Some("paused");
        wait_until("it is paused", is_paused);
        assert!(!members.iter().any(Process::has_ended), "{level:?}");
        let expires = || env.listed(&[])[0]["expires_at_ms"].clone();
        assert_eq!(expires(), json!(null), "{level:?}: it has no lease");
        let counted = count(&env);
        // The next lease ends in the next pause, also under another supervisor.
        if level != Level::Pidns {
            sandbox.supervisors[1].signal(Signal::KILL);
            sandbox.supervisors[1].await_end();
        }
        sandbox.call(&env, &["extend", "ID", "400ms"]).with_code(0);
        env.call(["unpause", &sandbox.id]).with_code(0);
        wait_until("it goes on", || count(&env) > counted);
        wait_until("it is paused again", is_paused);
        remove(&env, &sandbox);
        sandbox.assert_gone(&members);
    }
    env.assert_nothing_left();
}

/// spec: 12.3.1
#[test]
fn a_supervisor_that_dies_while_it_pauses_leaves_nothing_for_ever() {
    if !has_debug_assertions() {
        return skip("only a debug build has crash points");
    }
    let Some((env, _)) = with_leaves() else { return };
    for keeps in [false, true] {
        let mut command = env.run_command(["-d", "--contain", "cgroup", "--ttl", "300ms", "--ttl-pauses"]);
        if keeps {
            command.args(["--on-supervisor-exit", "keep"]);
        }
        command
            .args(["--", "sh", "-c", "setsid sleep 1049 & exec sleep 1050"])
            .env("PENFOLD_CRASH_AT", POINTS[0]);
        let sandbox = Sandbox::printed(&env, &Running::start(&mut command).finish().with_code(0).out());
        let members = await_running(&env, &["sleep 1049", "sleep 1050"]);
        // With `keep`, the standby takes over, finds the lease at its end, and dies in the same place.
        for supervisor in &sandbox.supervisors {
            supervisor.await_end();
        }
        if keeps {
            // The kernel freezes them one by one.
            wait_until("it is frozen", || events(&sandbox).contains("frozen 1"));
            assert!(!members.iter().any(Process::has_ended));
            env.call(["kill", &sandbox.id]).with_code(0);
        }
        sandbox.assert_gone(&members);
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.3.1
#[test]
fn a_lease_without_a_leaf_ends_in_the_end() {
    let env = TestEnv::new();
    let sandbox =
        env.detach(["--contain", "subreaper", "--ttl", "300ms", "--ttl-pauses", "--", "sleep", "1047"]);
    assert_eq!(end(&env, &sandbox).1, "ttl");
    remove(&env, &sandbox);
    env.run(["-d", "--ttl-pauses", "true"]).refused(125, "--ttl");
    env.run(["--ttl", "1s", "--ttl-pauses", "true"]).refused(125, "detached sandboxes only");
    env.assert_nothing_left();
}
