//! One hostile tree under `penfold run`, one ending, one look at everything that could be left.

use std::time::Duration;

use penfold_testkit::catalog::Pace;
use penfold_testkit::proc::{self, Handle, Identity};
use penfold_testkit::{Bystander, Survivor, Tool, ToolExit, Tree, TreeError};
use rustix::process::Signal;

use super::expect::{self, Expected};
use super::{Case, Config, Ending, Shape, supervisors};
use crate::support::{DEADLINE, PATIENCE, Process, TestEnv, USER, Who, kill_at_once, penfold};

/// What members that do not listen are granted.
const GRACE: &str = "100ms";
/// Time limits that are tried one after the other: the tree must stand before it is over.
const LIMITS: [&str; 3] = ["1s", "3s", "9s"];
/// How long it is looked for a member that no command can find.
const LOST: Duration = Duration::from_millis(300);

/// Ends the sandbox, and looks.
pub fn end(env: &TestEnv, tree: &Tree, case: Case) -> Result<(), String> {
    let Case { tree: entry, config, ending, .. } = case;
    // A leader that kills its own group would hit a bystander in it, which is not our doing.
    let in_group = entry.name != "kill-group" && entry.pace != Pace::Hasty;
    let user = (config.who != Who::Root).then_some(USER);
    let beside = if in_group { Bystander::beside(tree, user) } else { Bystander::spawn() };
    // A time limit may be over by now, and the group gone with it.
    let beside =
        beside.or_else(|error| if ending == Ending::Timeout { Bystander::spawn() } else { Err(error) });
    let mut bystanders =
        [beside.map_err(|error| error.to_string())?, Bystander::spawn().map_err(|error| error.to_string())?];
    if ending != Ending::Timeout {
        tree.check_alive()?;
    }
    act(tree, config, ending)?;
    judge(env, tree, case).map_err(|why| format!("{why}; penfold said: {}", tree.stderr()))?;
    if bystanders.iter_mut().any(|bystander| !bystander.is_alive()) {
        return Err("a bystander was hit".to_owned());
    }
    Ok(())
}

/// `penfold run` around the tree of a case.
pub fn tool(env: &TestEnv, case: Case, options: &[&str]) -> Tool {
    let config = case.config;
    let mut words: Vec<std::ffi::OsString> = Vec::new();
    if config.shape == Shape::Trio {
        // The child of the shell becomes one of penfold's; nobody reaps it before.
        words.extend(["sh", "-c", "true & exec \"$@\"", "sh"].map(Into::into));
    }
    words.extend([penfold().into(), "--root".into(), env.root().into_os_string()]);
    words.extend(["run", "--grace", GRACE].map(Into::into));
    if expect::of(case) == Expected::Unended {
        words.extend(["--patience", PATIENCE].map(Into::into));
    }
    words.extend(["--contain", config.level.word()].map(Into::into));
    words.extend(options.iter().map(Into::into));
    words.extend(["--".into(), "{cmd}".into()]);
    let mut tool = Tool::new(words).env("TMPDIR", env.path("tmp"));
    if config.who != Who::Root {
        tool = tool.user(USER);
    }
    if let Some(number) = case.tree.full_size.filter(|_| case.full_size) {
        tool = tool.tree_options(["-n", &number.to_string()]);
    }
    match env.cgroup() {
        Some(cgroup) => tool.cgroup(cgroup),
        None => tool,
    }
}

/// Builds the tree; with a time limit, before that is over.
pub fn stand(env: &TestEnv, case: Case) -> Result<Tree, TreeError> {
    let spawn = |options: &[&str]| Tree::spawn(&tool(env, case, options), case.tree.name);
    if case.ending != Ending::Timeout {
        return spawn(&[]);
    }
    let mut last = None;
    for limit in LIMITS {
        match spawn(&["--timeout", limit]) {
            Err(error @ TreeError::NotReady { .. }) => last = Some(error),
            // The limit was over while we looked.
            Ok(tree) if tree.check_alive().is_err() => {}
            other => return other,
        }
    }
    Err(last.unwrap_or(TreeError::NotEnded("the time limit was over too early each time".to_owned())))
}

fn act(tree: &Tree, config: Config, ending: Ending) -> Result<(), String> {
    let told = |done: Result<(), TreeError>| done.map_err(|error| error.to_string());
    let twice = |signal| tree.signal_tool(signal).and_then(|()| tree.signal_tool(signal));
    let kill = |chosen: fn(&[Process]) -> Vec<&Process>| {
        supervisors::around(tree, config).map(|line| kill_at_once(&chosen(&line)))
    };
    match ending {
        Ending::LeaderExit => told(tree.tell_leader_to_exit()),
        Ending::Term => told(tree.signal_tool(Signal::TERM)),
        Ending::TermTwice => told(twice(Signal::TERM)),
        Ending::InterruptTwice => told(twice(Signal::INT)),
        Ending::OwnerKilled => told(tree.kill_owner()),
        Ending::InnerKilled => kill(|line| line.last().into_iter().collect()),
        Ending::OuterKilled => kill(|line| line.get(1).into_iter().collect()),
        Ending::LauncherKilled => kill(|line| line.first().into_iter().collect()),
        Ending::AllKilled => kill(|line| line.iter().collect()),
        _ => Ok(()),
    }
}

/// Whether the launcher lives to say that all is gone.
fn is_told(ending: Ending) -> bool {
    !matches!(ending, Ending::OwnerKilled | Ending::LauncherKilled | Ending::AllKilled)
}

fn judge(env: &TestEnv, tree: &Tree, case: Case) -> Result<(), String> {
    let Case { tree: entry, ending, .. } = case;
    // Its owner is in the group that this one kills, and may die between hearing of the exit and writing it down.
    let unheard = entry.name == "kill-group" && ending == Ending::LeaderExit;
    let mut exit = if unheard { None } else { tree.await_tool_exit(DEADLINE) };
    if unheard {
        penfold_testkit::until(DEADLINE, || {
            exit = tree.tool_exit().or_else(|| (!is_alive(tree.tool())).then_some(ToolExit::Signal(9)));
            exit.is_some()
        });
    }
    let exit = exit.ok_or("penfold has not ended")?;
    match expect::of(case) {
        Expected::CannotBuild => Ok(()),
        Expected::Gone => {
            // A leader that kills the launcher as well leaves nobody to say so.
            let is_killed = entry.name.starts_with("kill-") && exit == ToolExit::Signal(9);
            if is_told(ending) && !is_killed {
                nothing(&tree.survivors(), &env.left()).map_err(|why| format!("said to be gone: {why}"))?;
            }
            if !expect::exit_fits(ending, entry, exit) {
                return Err(format!("penfold ended with {exit:?}"));
            }
            nothing(&tree.await_gone(DEADLINE), &await_clean(env))
        }
        Expected::Unended => unended(env, tree, case, exit),
        Expected::NextCommand => {
            next_command(env)?;
            nothing(&tree.await_gone(DEADLINE), &await_clean(env))
        }
        Expected::Lost => {
            next_command(env)?;
            let left = tree.await_gone(LOST);
            if left.is_empty() { Err("found, and was expected to be lost".to_owned()) } else { Ok(()) }
        }
    }
}

/// The next command of the same user, which ends what has lost all of its supervisors; one that still exits holds its lock.
pub fn next_command(env: &TestEnv) -> Result<(), String> {
    let is_unlocked = || {
        let records = crate::support::entries(&env.path("root/sandboxes")).into_iter();
        records.filter_map(|record| std::fs::File::open(record).ok()).all(|file| file.try_lock().is_ok())
    };
    penfold_testkit::until(DEADLINE, is_unlocked);
    let finished = env.run(["--contain", "subreaper", "--", "true"]);
    if finished.status.success() { Ok(()) } else { Err(format!("the next command: {finished:?}")) }
}

/// Waits until neither record nor leaf nor directory is there, and returns what is.
pub fn await_clean(env: &TestEnv) -> Vec<String> {
    penfold_testkit::until(DEADLINE, || env.left().is_empty());
    env.left()
}

fn is_alive(id: Option<Identity>) -> bool {
    id.and_then(|id| proc::stat(id.pid).filter(|stat| stat.id == id)).is_some_and(|stat| !stat.is_dead())
}

/// An error that names what is left, if something is.
pub fn nothing(survivors: &[Survivor], left: &[String]) -> Result<(), String> {
    if survivors.is_empty() && left.is_empty() {
        return Ok(());
    }
    let named: Vec<String> =
        survivors.iter().take(4).map(ToString::to_string).chain(left.iter().cloned()).collect();
    Err(format!("{} processes and this are left: {}", survivors.len(), named.join(", ")))
}

/// One that became root: named, kept in sight, and its end is noticed.
fn unended(env: &TestEnv, tree: &Tree, case: Case, exit: ToolExit) -> Result<(), String> {
    let member = second_member(tree)?;
    if is_told(case.ending) {
        let said = tree.stderr();
        if exit != ToolExit::Code(120) {
            return Err(format!("penfold ended with {exit:?}, not 120"));
        }
        if !(said.contains(&format!("pid {}", member.pid)) && said.contains("not permitted")) {
            return Err(format!("pid {} and the reason are not named", member.pid));
        }
        if env.left().is_empty() {
            return Err("the record of a member that lives is gone".to_owned());
        }
    }
    end_as_root(tree, member)?;
    let gone = tree.await_gone(DEADLINE);
    // A launcher that has answered in the supervisor's place is gone as well: the record is left to the next command.
    if case.config.shape == Shape::Pair && case.ending == Ending::InnerKilled {
        next_command(env)?;
    }
    nothing(&gone, &await_clean(env))
}

/// The member that became root.
pub fn second_member(tree: &Tree) -> Result<Identity, String> {
    tree.members().get(1).copied().ok_or_else(|| "there is no second member".to_owned())
}

/// Ends a member that must still live.
pub fn end_as_root(tree: &Tree, member: Identity) -> Result<(), String> {
    if !tree.survivors().iter().any(|survivor| survivor.id == member) {
        return Err("the member has ended, and was expected not to".to_owned());
    }
    match Handle::open(member).map_err(|error| error.to_string())? {
        Some(handle) => handle.signal(Signal::KILL).map_err(|error| error.to_string()),
        None => Ok(()),
    }
}
