//! Every crash point × `run -d`, `adopt` and the verbs that end a detached sandbox: SIGKILL there, then any next command, and
//! the host is as it was before.

use std::fs;
use std::os::unix::process::CommandExt as _;

use penfold_harness::Trial;
use penfold_testkit::LeakGuard;
use rustix::process::Signal;

use super::crash::{
    self, LEAVES, POINTS, STAYS, STAYS_AND_WAITS, await_inaction, begin_case, can_crash, clean_up_detached,
    crashing, left, next_command, printed, remove_all, start_silent,
};
use crate::support::{Level, Process, Running, Sandbox, TestEnv, USER, Who, descendants, wait_until};

/// The points that a detached run comes by, and no verb.
const OF_A_RUN: [&str; 8] = [
    "reserving",
    "launch-kept",
    "recorded",
    "leaf-made",
    "standby-forked",
    "supervisor-started",
    "supervisor-cloned",
    "running",
];
/// The points on the way of an adoption that come after the tree is in the leaf.
const AFTER_A_MOVE: [&str; 6] =
    ["adopted", "adopted-kept", "standby-forked", "taking-over", "killed", "releasing"];

/// A test for each crash point and what comes by it.
pub fn generated() -> Vec<Trial> {
    // The launcher of a detached sandbox does not fork a supervisor itself.
    let of_others = ["launcher-forked", "adopted", "adopted-kept", "exec-begun"];
    let of_verbs = POINTS.into_iter().filter(|point| !OF_A_RUN.contains(point) && !of_others.contains(point));
    let of_run =
        |point: &str| [&OF_A_RUN[..], &["killed", "releasing", "taking-over"]].concat().contains(&point);
    let of_adopt =
        |point: &str| [&["reserving", "recorded", "leaf-made"][..], &AFTER_A_MOVE].concat().contains(&point);
    let of_verb = |point: &str| ["recovering", "killed", "releasing"].contains(&point);
    // spec: 12.8
    let runs = "crash_detached::crash_of_a_detached_run_leaves_the_host_as_it_was";
    let runs = crash::each(runs, POINTS, of_run, crash_of_runs);
    // spec: 12.8
    let verbs = "crash_detached::crash_of_a_verb_leaves_the_host_as_it_was";
    let verbs = crash::each(verbs, of_verbs, of_verb, crash_of_verbs);
    // spec: 12.8
    let adoptions = "crash_detached::crash_of_an_adoption_leaves_the_host_as_it_was";
    let adoptions = crash::each(adoptions, POINTS, of_adopt, crash_of_adoptions);
    runs.into_iter().chain(verbs).chain(adoptions).collect()
}

/// Whether the launcher succeeded, and the sandbox whose id it printed.
#[track_caller]
fn begin(env: &TestEnv, level: Level, script: &str, point: Option<&str>) -> (bool, Option<Sandbox>) {
    let words = ["-d", "--contain", level.word(), "--scratch", "--grace", "300ms", "--", "sh", "-c", script];
    let mut command = env.run_command(words);
    if let Some(point) = point {
        command = crashing(command, point);
    }
    let (finished, out) = printed(env, &mut command);
    let sandbox = (!out.is_empty()).then(|| Sandbox::printed(env, &out));
    let succeeded = finished.status.success();
    assert!(!succeeded || sandbox.is_some(), "no id was printed");
    (succeeded, sandbox)
}

/// Crashes on the way of `run -d` at every level. Says whether a process crashed.
fn crash_of_runs(point: &str) -> bool {
    let mut came_by = false;
    for level in Level::ALL {
        begin_case(&level);
        came_by |= crash_of_run(point, level);
    }
    came_by
}

/// Crashes on the way of `run -d`, its own end included. Says whether a process crashed.
fn crash_of_run(point: &str, level: Level) -> bool {
    let env = TestEnv::of(Who::Root).unwrap();
    let takeover = point == "taking-over";
    let script = if takeover { STAYS } else { LEAVES };
    let (succeeded, sandbox) = begin(&env, level, script, Some(point));
    let mut crashed = !succeeded;
    if let Some(sandbox) = sandbox {
        if let (true, [_, inner]) = (takeover, &sandbox.supervisors[..]) {
            inner.signal(Signal::KILL);
        }
        sandbox.supervisors.iter().for_each(Process::await_end);
        await_inaction(&env);
        // A supervisor that crashes writes no report, or the other one writes why.
        crashed |= !sandbox.has_ended() || sandbox.cause().as_deref() == Some("supervisor");
        // A supervisor that crashes right after the kill leaves nothing for the other to end.
        let ended = sandbox.file("report.json").map(|report| report["ended"].clone());
        crashed |= !takeover && ended.is_some_and(|ended| ended.as_array().is_some_and(Vec::is_empty));
        if sandbox.has_ended() {
            assert!(env.processes().is_empty(), "a report, and alive: {:?}", left(&env));
        }
    }
    clean_up_detached(&env);
    crashed
}

/// Commands that end a sandbox, and whether its supervisors are dead, crash at the point.
fn crash_of_verbs(point: &str) -> bool {
    let mut came_by = false;
    for (words, orphan) in [
        (&["kill"][..], true),
        (&["rm", "-f"], true),
        (&["stop"], true),
        (&["kill"], false),
        (&["rm", "-f"], false),
    ] {
        for level in [Level::Cgroup, Level::Subreaper] {
            begin_case(&(words, orphan, level));
            came_by |= crash_of_verb(point, level, words, orphan);
        }
    }
    came_by
}

fn crash_of_verb(point: &str, level: Level, words: &[&str], orphan: bool) -> bool {
    let env = TestEnv::of(Who::Root).unwrap();
    let sandbox = begin(&env, level, STAYS, None).1.unwrap();
    env.await_up(&["up"]);
    if orphan {
        sandbox.kill_supervisors();
    }
    let verb = env.penfold(words.iter().chain([&sandbox.id.as_str()]));
    let finished = Running::start(&mut crashing(verb, point)).finish();
    let crashed = finished.signal() == Some(9);
    assert!(crashed || finished.status.success(), "{}", finished.err());
    next_command(&env);
    clean_up_detached(&env);
    drop(env);
    crashed
}

/// A tree that penfold did not start, and where it was before.
struct Strays {
    root: Option<Running>,
    /// The root first.
    members: Vec<Process>,
    cgroups: Vec<String>,
}

impl Strays {
    #[track_caller]
    fn start(env: &TestEnv) -> Strays {
        let mut command = env.command("sh");
        command.args(["-c", STAYS_AND_WAITS]);
        if env.is_ordinary() {
            command.uid(USER).gid(USER);
        }
        let root = start_silent(&mut command);
        env.await_up(&["up"]);
        wait_until("the tree stands", || env.running("sleep 60").len() == 2);
        let below = descendants(root.pid()).into_iter().chain([root.pid()]).rev();
        let members: Vec<Process> = below.filter_map(Process::find).collect();
        assert_eq!(members.len(), 3, "{members:?}");
        let cgroups = members.iter().map(cgroup).collect();
        Strays { root: Some(root), members, cgroups }
    }

    fn root(&self) -> &Running {
        self.root.as_ref().unwrap()
    }

    fn living(&self) -> usize {
        self.members.iter().filter(|member| !member.has_ended()).count()
    }

    /// Whether all of it is as if nobody had touched it.
    fn is_as_it_was(&self) -> bool {
        self.living() == self.members.len()
            && self.members.iter().map(cgroup).eq(self.cgroups.iter().cloned())
    }

    /// Kills and reaps the first process, as a caller that has nothing to do with penfold.
    fn end_root(&mut self) {
        drop(self.root.take());
    }
}

fn cgroup(member: &Process) -> String {
    fs::read_to_string(format!("/proc/{}/cgroup", member.pid())).unwrap_or_default()
}

/// Crashes on the way of an adoption, in a leaf and by descent. Says whether a process crashed.
fn crash_of_adoptions(point: &str) -> bool {
    let mut came_by = false;
    for who in [Who::Root, Who::Plain] {
        begin_case(&who);
        came_by |= crash_of_adopt(point, who);
    }
    came_by
}

/// Crashes on the way of `adopt`, or of the end of what was adopted. Says whether a process crashed.
fn crash_of_adopt(point: &str, who: Who) -> bool {
    let env = TestEnv::of(who).unwrap();
    let mut strays = Strays::start(&env);
    let adopt = env.penfold(["adopt", &strays.root().pid().to_string()]);
    let (finished, out) = printed(&env, &mut crashing(adopt, point));
    assert_eq!(finished.status.success(), !out.is_empty(), "{} and `{out}`", finished.status);
    let mut crashed = out.is_empty();
    if !crashed {
        let sandbox = Sandbox::printed(&env, &out);
        match (point, &sandbox.supervisors[..]) {
            ("taking-over", [_, inner]) => inner.signal(Signal::KILL),
            _ => strays.end_root(),
        }
        await_inaction(&env);
        // The cause in the record may be that of before.
        let events = fs::read_to_string(env.root().join("events.jsonl")).unwrap_or_default();
        crashed |= !sandbox.has_ended() || events.contains("\"cause\":\"supervisor\"");
        assert!(!sandbox.has_ended() || strays.living() == 0, "a report, and {} alive", strays.living());
        let is_invented = sandbox.file("exit.json").is_some_and(|exited| !exited["exit"].is_null());
        assert!(!is_invented, "a code was invented");
    }
    next_command(&env);
    remove_all(&env);
    let is_done = || strays.living() == 0 || strays.is_as_it_was();
    if who == Who::Plain && crashed {
        // At subreaper level nothing connects the members with a record: nobody ends them.
    } else {
        wait_until("all of the tree has ended, or is as it was", is_done);
        assert!(crashed || strays.living() == 0, "no process crashed, and {} live", strays.living());
    }
    let is_moved = AFTER_A_MOVE.contains(&point) && who == Who::Root;
    assert!(!is_moved || strays.living() == 0, "moved, and alive without a supervisor");
    strays.members.iter().for_each(|member| member.signal(Signal::KILL));
    strays.end_root();
    wait_until("nothing is left", || left(&env).is_empty());
    crashed
}

/// The supervisor dies as soon as a command that was put into its sandbox may begin: the next one knows of it.
/// spec: 13.3
#[test]
fn crash_beside_a_command_that_begins_loses_sight_of_none() {
    if !can_crash() {
        return;
    }
    let guard = LeakGuard::new();
    // In a pid namespace the leader goes with its supervisor.
    for level in [Level::Cgroup, Level::Subreaper] {
        let env = TestEnv::of(Who::Root).unwrap();
        let words = ["-d", "--contain", level.word(), "--on-supervisor-exit", "keep", "--", "sleep", "60"];
        let (_, out) = printed(&env, &mut crashing(env.run_command(words), "exec-begun"));
        let sandbox = Sandbox::printed(&env, &out);
        let exec = start_silent(&mut env.penfold(["exec", &sandbox.id, "sleep", "61"]));
        let listed =
            |what: &str| sandbox.file("state.json").and_then(|state| state[what].as_array().map(Vec::len));
        // One of the two is left, and goes on.
        wait_until("one supervisor has crashed", || listed("supervisors") == Some(1));
        assert_eq!(listed("execs"), Some(1), "{level:?}");
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
        exec.finish();
        clean_up_detached(&env);
    }
    guard.check();
}
