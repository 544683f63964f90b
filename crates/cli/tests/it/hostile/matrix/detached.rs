//! One hostile tree in one detached sandbox, one ending, one look at everything that could be left.

use penfold_testkit::{Bystander, Tree, TreeError, until};
use rustix::process::Signal;

use super::expect::{self, Expected};
use super::foreground::{await_clean, end_as_root, next_command, nothing, second_member, tool};
use super::{Case, Ending};
use crate::support::{DEADLINE, Finished, Sandbox, TestEnv, is_our_name};

/// A lease that is not over before the tree stands, and what becomes of it then.
const LEASE: [&str; 2] = ["10m", "50ms"];

/// Ends the sandbox, and looks.
pub fn end(env: &TestEnv, tree: &Tree, case: Case) -> Result<(), String> {
    // A fast tree stands before the id is printed.
    until(DEADLINE, || tree.stdout().ends_with('\n'));
    let sandbox = Sandbox::printed(env, &tree.stdout());
    let mut bystanders = bystanders(env)?;
    tree.check_alive()?;
    let told = |why: String| {
        let wrote = std::fs::read_to_string(sandbox.record.join("report.json"));
        let report = wrote.unwrap_or_else(|error| error.to_string());
        format!("{why}; penfold said: {}; its report: {}", tree.stderr(), report.trim())
    };
    let finished = act(env, tree, case, &sandbox).map_err(told)?;
    judge(env, tree, case, &sandbox, finished.as_ref()).map_err(told)?;
    if bystanders.iter_mut().any(|bystander| !bystander.is_alive()) {
        return Err("a bystander was hit".to_owned());
    }
    Ok(())
}

/// One where the test runs, and one where penfold makes its leaves.
fn bystanders(env: &TestEnv) -> Result<[Bystander; 2], String> {
    let spawn = || Bystander::spawn().map_err(|error| error.to_string());
    let both = [spawn()?, spawn()?];
    if let Some(cgroup) = env.cgroup() {
        let [_, inside] = &both;
        std::fs::write(cgroup.join("cgroup.procs"), inside.pid().to_string())
            .map_err(|error| error.to_string())?;
    }
    Ok(both)
}

/// Builds the tree.
pub fn stand(env: &TestEnv, case: Case) -> Result<Tree, TreeError> {
    let lease: &[&str] = if case.ending == Ending::Ttl { &["--ttl", LEASE[0]] } else { &[] };
    let options = [&["-d"], lease].concat();
    Tree::spawn(&tool(env, case, &options).detaches(), case.tree.name)
}

/// Ends the sandbox. Gives what the command said that did.
fn act(env: &TestEnv, tree: &Tree, case: Case, sandbox: &Sandbox) -> Result<Option<Finished>, String> {
    let id = sandbox.id.as_str();
    let words: &[&str] = match case.ending {
        Ending::Stop => &["stop", id],
        Ending::Kill => &["kill", id],
        Ending::KillAll => &["kill", "--all", "-f"],
        Ending::Remove => &["rm", "-f", id],
        Ending::Ttl => {
            let finished = env.call(["extend", id, LEASE[1]]);
            let shortened = finished.status.success();
            return if shortened { Ok(None) } else { Err(format!("no shorter lease: {finished:?}")) };
        }
        Ending::InnerKilled => {
            let both = sandbox.supervisors_now();
            let [_, inner] = both.as_slice() else { return Err(format!("{} supervisors", both.len())) };
            inner.signal(Signal::KILL);
            return Ok(None);
        }
        _ => {
            tree.tell_leader_to_exit().map_err(|error| error.to_string())?;
            return Ok(None);
        }
    };
    Ok(Some(env.call(words)))
}

/// Looks whether everything is gone, and whether the record tells it so. Forgets the sandbox.
fn judge(
    env: &TestEnv,
    tree: &Tree,
    case: Case,
    sandbox: &Sandbox,
    finished: Option<&Finished>,
) -> Result<(), String> {
    let expected = expect::of(case);
    match (expected, finished) {
        (Expected::Gone, Some(finished)) => {
            if finished.code() != Some(0) {
                return Err(format!("not ended: {finished:?}"));
            }
            // The supervisors are over when their lock is free, and may be seen for a moment longer.
            let mut members = tree.survivors();
            members.retain(|survivor| !is_our_name(&survivor.name));
            nothing(&members, &leaves(env)).map_err(|why| format!("said to be gone: {why}"))?;
        }
        (Expected::CannotBuild | Expected::Gone, _) => {}
        (Expected::Unended, _) => unended(tree, finished)?,
        (Expected::NextCommand | Expected::Lost, _) => next_command(env)?,
    }
    let survivors = tree.await_gone(DEADLINE);
    until(DEADLINE, || leaves(env).is_empty());
    nothing(&survivors, &leaves(env))?;
    if case.ending != Ending::Remove {
        recorded(case, sandbox)?;
    }
    // What could not be ended kept its record.
    if case.ending != Ending::Remove || expected == Expected::Unended {
        let finished = env.call(["rm", &sandbox.id]);
        if !finished.status.success() {
            return Err(format!("not forgotten: {finished:?}"));
        }
    }
    nothing(&[], &await_clean(env))
}

/// What is left of it but its record, which is kept.
fn leaves(env: &TestEnv) -> Vec<String> {
    env.left().into_iter().filter(|left| !left.starts_with("record ")).collect()
}

fn recorded(case: Case, sandbox: &Sandbox) -> Result<(), String> {
    let entry = case.tree;
    if !until(DEADLINE, || sandbox.has_ended()) {
        return Err(format!("no report of the end; {:?}", sandbox.file("state.json")));
    }
    let why = sandbox.cause().unwrap_or_default();
    if !expect::causes(case.ending, entry).contains(&why.as_str()) {
        return Err(format!("the cause is {why:?}"));
    }
    let code = sandbox.file("exit.json").and_then(|exited| exited.pointer("/exit/code")?.as_i64());
    if why == "exit" && code != Some(entry.exit_code.into()) && !entry.name.starts_with("kill-") {
        return Err(format!("the exit code is {code:?}"));
    }
    Ok(())
}

/// One that became root: named, kept in sight, and its end is noticed.
fn unended(tree: &Tree, finished: Option<&Finished>) -> Result<(), String> {
    let member = second_member(tree)?;
    if let Some(finished) = finished {
        let said = finished.err();
        if finished.code() != Some(5) {
            return Err(format!("not 5: {said}"));
        }
        if !(said.contains(&format!("pid {}", member.pid)) && said.contains("not permitted")) {
            return Err(format!("pid {} and the reason are not named: {said}", member.pid));
        }
    }
    end_as_root(tree, member)
}
