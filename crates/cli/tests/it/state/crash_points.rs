//! Every crash point × containment × shape of a foreground sandbox: SIGKILL there, and the host is as it was before, at once
//! or after the next command where no process of penfold was left to act.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_harness::Trial;
use rustix::process::Signal;

use super::crash::{
    self, LEAVES, POINTS, STAYS, await_inaction, begin_case, clean_up, crashing, left, start_silent,
};
use crate::serve;
use crate::support::{
    Level, Process, Running, TestEnv, Who, built_penfold, descendants, entries, has_debug_assertions,
    kill_at_once, penfold, skip,
};

/// Only detached sandboxes come by there: `crash_detached.rs`.
const DETACHED: [&str; 5] = ["running", "launch-kept", "adopted", "adopted-kept", "exec-begun"];

fn points() -> impl Iterator<Item = &'static str> {
    POINTS.into_iter().filter(|point| !DETACHED.contains(point))
}

/// A test for each crash point.
pub fn generated() -> Vec<Trial> {
    // spec: 4.1
    let test = "crash_points::crash_at_any_point_leaves_the_host_as_it_was";
    crash::each(
        test,
        points(),
        |_| true,
        |point| {
            let mut came_by = false;
            for shape in [Shape::Pair, Shape::Trio] {
                for level in Level::ALL {
                    begin_case(&(shape, level));
                    came_by |= crash_at(point, shape, level);
                }
            }
            came_by
        },
    )
}

/// How many processes of penfold stand above the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Launcher and supervisor.
    Pair,
    /// An standby between them, because the launcher has a child when it starts.
    Trio,
}

/// `penfold run` around a script.
fn run(env: &TestEnv, shape: Shape, level: Level, script: &str) -> Command {
    let run = env.run_command(["--contain", level.word(), "--scratch", "--", "sh", "-c", script]);
    if shape == Shape::Pair {
        return run;
    }
    // The child of the shell becomes one of penfold's; nobody reaps it before.
    let mut with_child = env.command(run.get_program());
    for word in run.get_args() {
        if word == penfold() {
            with_child.args(["sh", "-c", "true & exec \"$@\"", "sh"]);
        }
        with_child.arg(word);
    }
    with_child
}

/// What must happen for a run to come by a point.
enum Way {
    /// Nothing out of the ordinary.
    Run,
    /// The supervisor is killed.
    Takeover,
    /// All of ours are killed, and the next command comes by.
    Recovery,
}

impl Way {
    fn to(point: &str) -> Way {
        match point {
            "taking-over" => Way::Takeover,
            "recovering" => Way::Recovery,
            _ => Way::Run,
        }
    }
}

/// Launcher, standby if there is one, and supervisor, once the tree stands.
#[track_caller]
fn ours(env: &TestEnv, launcher: &Running, shape: Shape) -> Vec<Process> {
    env.await_up(&["up"]);
    let below = descendants(launcher.pid()).into_iter();
    let is_ours = |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == penfold());
    let count = if shape == Shape::Trio { 3 } else { 2 };
    // The init of a pid namespace is below the supervisor.
    let ours = std::iter::once(launcher.pid()).chain(below).filter(is_ours).take(count);
    let ours: Vec<Process> = ours.filter_map(Process::find).collect();
    assert_eq!(ours.len(), count, "{ours:?}");
    ours
}

/// Runs a command that leaves processes behind, crashes at the point, and looks at all that could be left. Says whether a
/// process crashed.
fn crash_at(point: &str, shape: Shape, level: Level) -> bool {
    let env = TestEnv::of(Who::Root).unwrap();
    let way = Way::to(point);
    let script = if matches!(way, Way::Run) { LEAVES } else { STAYS };
    let mut command = crashing(run(&env, shape, level, script), point);
    // Killed is what the command was, or penfold: the summary, its last word, tells the two apart.
    let said = env.path("said");
    command.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap());
    let launcher = Running::spawn(&mut command);
    match way {
        Way::Run => {}
        Way::Takeover => ours(&env, &launcher, shape).last().unwrap().signal(Signal::KILL),
        Way::Recovery => kill_at_once(&ours(&env, &launcher, shape).iter().collect::<Vec<_>>()),
    }
    let finished = launcher.finish();
    let status = finished.status;
    let said = fs::read_to_string(said).unwrap();
    let is_summed_up = said.contains("ended because a process of penfold was killed");
    await_inaction(&env);
    let crashed = match way {
        Way::Run => status.code() != Some(0),
        // The launcher or the standby, which took over.
        Way::Takeover => finished.code() != Some(128 + 9) || !is_summed_up,
        Way::Recovery => {
            let next = env.run_command(["--contain", "subreaper", "--", "true"]);
            let next = start_silent(&mut crashing(next, point)).finish();
            assert!(next.status.success(), "the next command: {}", next.status);
            await_inaction(&env);
            !left(&env).is_empty()
        }
    };
    // A launcher that answers, answers for all of it.
    let is_told = is_summed_up || status.code().is_some_and(|code| code != 120);
    let left = left(&env);
    assert!(!is_told || left.is_empty(), "{left:?} after {status}");
    clean_up(&env);
    crashed
}

/// The names of the crash points in the sources below a directory.
fn points_in(directory: &Path, points: &mut BTreeSet<String>) {
    for path in entries(directory) {
        if path.is_dir() {
            points_in(&path, points);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let found = text.split("crash_point!(\"").skip(1).filter_map(|rest| rest.split('"').next());
            points.extend(found.map(str::to_owned));
        }
    }
}

#[test]
fn every_crash_point_in_the_sources_is_tested() {
    let mut found = BTreeSet::new();
    for directory in entries(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()) {
        points_in(&directory.join("src"), &mut found);
    }
    let others = crate::resources::crash::POINTS.into_iter().chain(crate::run::spare::POINTS);
    let others = others
        .chain(crate::detached::restart::POINTS)
        .chain(serve::native::races::POINTS)
        .chain([crate::resources::RELEASING, crate::end::MEMBERS_ENDED])
        .chain(crate::detached::pause::POINTS)
        .chain(crate::oci::POINTS)
        .chain(crate::oci::exec::POINTS)
        .chain([crate::oci::exec::RUN_POINT]);
    let tested = POINTS.into_iter().chain(serve::crash::points()).chain(others).map(str::to_owned);
    assert_eq!(found, tested.collect());
}

/// The release binary beside the one of the tests.
fn release() -> PathBuf {
    built_penfold().parent().and_then(Path::parent).unwrap().join("release/penfold")
}

#[test]
fn release_has_no_crash_points() {
    const VARIABLE: &[u8] = b"PENFOLD_CRASH_AT";
    let names = |path: &Path| fs::read(path).unwrap().windows(VARIABLE.len()).any(|bytes| bytes == VARIABLE);
    assert!(!has_debug_assertions() || names(penfold()), "the search finds nothing");
    if !release().is_file() {
        return skip("there is no release binary beside the binary under test");
    }
    assert!(!names(&release()), "{}", release().display());
    let env = TestEnv::new();
    for point in points() {
        let mut command = crashing(env.command(release()), point);
        command.arg("--root").arg(env.root()).args(["run", "--", "true"]).stdin(Stdio::null());
        assert_eq!(Running::start(&mut command).finish().code(), Some(0), "{point}");
    }
}
