//! One hostile tree in one detached sandbox, one ending, one look at everything that could be left.

#![allow(
    clippy::disallowed_methods,
    reason = "what is removed is the tests' own; who works on one tree names it in the environment"
)]

use std::process::Output;
use std::time::Duration;

use penfold_testkit::catalog::{Entry, Pace, TREES};
use penfold_testkit::proc::Handle;
use penfold_testkit::{Bystander, Survivor, Tree, TreeError};
use rustix::process::Signal;

use crate::support_e1::case::{Case as Attached, Ending as AttachedEnding};
use crate::support_e1::expect::{self, Expected};
use crate::support_e1::{Ground, Level, Shape, Who};
use crate::support_f::{Sandbox, said, until};

/// How long what nobody answers for may take, on a machine that runs storms of other tests as well. That it takes no more
/// than a second is tested where nothing disturbs it.
const SOON: Duration = Duration::from_secs(10);
/// How long the next command may take for what lost all of ours: it looks over the whole host, beside its own work.
const SWEPT: Duration = Duration::from_secs(12);
/// A lease that is not over before the tree stands, and what becomes of it then.
const LEASE: [&str; 2] = ["10m", "50ms"];
/// How many trees of one test stand at a time.
const LANES: usize = 2;

/// What is tried with every tree.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub who: Who,
    pub level: Level,
    pub ending: Ending,
}

/// What ends the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    LeaderExit,
    /// `stop ID`
    Stop,
    /// `kill ID`
    Kill,
    /// `kill --all -f`
    KillAll,
    /// `rm -f ID`
    Remove,
    Ttl,
    SupervisorKilled,
    /// Of what somebody asks for, one after the other, from tree to tree; the first tree begins with this one.
    Turns(usize),
}

/// What takes turns.
const ASKED: [Ending; 5] = [Ending::Kill, Ending::Stop, Ending::Remove, Ending::Ttl, Ending::KillAll];
/// Trees for which it makes a difference that penfold is run by an ordinary user.
const USERS: [&str; 12] = [
    "daemon",
    "thread-child",
    "comet",
    "no-environ",
    "undumpable",
    "renamed",
    "user-pidns",
    "moved-cgroup",
    "child-cgroups",
    "frozen-v2",
    "kill-parent",
    "setuid-root",
];

impl Ending {
    /// The command that ends it, if one does.
    fn verb(self, id: &str) -> Option<Vec<&str>> {
        match self {
            Ending::Stop => Some(vec!["stop", id]),
            Ending::Kill => Some(vec!["kill", id]),
            Ending::KillAll => Some(vec!["kill", "--all", "-f"]),
            Ending::Remove => Some(vec!["rm", "-f", id]),
            _ => None,
        }
    }

    /// What the record then says of the end. A leader that attacks may have been the end of itself, or of us.
    fn causes(self, tree: &Entry) -> &'static [&'static str] {
        match self {
            Ending::LeaderExit if tree.name.starts_with("kill-") => &["exit", "signal", "supervisor", "lost"],
            Ending::LeaderExit => &["exit"],
            Ending::Stop => &["stop"],
            Ending::Kill | Ending::KillAll | Ending::Remove => &["kill"],
            Ending::Ttl => &["ttl"],
            Ending::SupervisorKilled => &["supervisor"],
            Ending::Turns(_) => &[],
        }
    }
}

impl Case {
    /// What is expected of a sandbox that is not detached holds for detached ones as well.
    fn expected(self, tree: &Entry) -> Expected {
        let ending = match self.ending {
            Ending::LeaderExit => AttachedEnding::LeaderExit,
            Ending::Stop => AttachedEnding::Stop,
            Ending::Kill | Ending::KillAll | Ending::Remove => AttachedEnding::Kill,
            Ending::Ttl => AttachedEnding::Timeout,
            Ending::SupervisorKilled | Ending::Turns(_) => AttachedEnding::InnerKilled,
        };
        expect::of(Attached { who: self.who, shape: Shape::Pair, level: self.level, ending }, tree)
    }
}

/// Runs every tree of the catalogue, or the one that `PENFOLD_TREE` names, and panics with all that went wrong.
pub fn every_tree(case: Case) {
    if let Err(why) = Ground::new(case.who) {
        println!("skipped: {why}");
        return;
    }
    let named = std::env::var("PENFOLD_TREE").ok();
    let wanted = |entry: &&Entry| {
        (case.ending == Ending::LeaderExit || entry.pace != Pace::Hasty)
            && (case.who == Who::Root || USERS.contains(&entry.name))
            && named.as_ref().is_none_or(|name| name == entry.name)
    };
    let concrete = |(index, entry): (usize, &'static Entry)| match case.ending {
        Ending::Turns(first) => (Case { ending: ASKED[(first + index) % ASKED.len()], ..case }, entry),
        _ => (case, entry),
    };
    let runs: Vec<_> = TREES.iter().filter(wanted).enumerate().map(concrete).collect();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let lane = |number: usize| {
            let mine: Vec<_> = runs.iter().copied().skip(number).step_by(LANES).collect();
            let told = |(case, entry): (Case, &'static Entry)| {
                one(case, entry).err().map(|why| format!("{} {:?}: {why}", entry.name, case.ending))
            };
            scope.spawn(move || mine.into_iter().filter_map(told).collect::<Vec<_>>())
        };
        let threads: Vec<_> = (0..LANES).map(lane).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{case:?}:\n  {}", failures.join("\n  "));
}

/// Runs one tree.
fn one(case: Case, entry: &'static Entry) -> Result<(), String> {
    let expected = case.expected(entry);
    let ground = Ground::new(case.who)?;
    let tree = match stand(&ground, case, entry) {
        Ok(tree) => tree,
        Err(TreeError::Skipped(_)) if expected == Expected::CannotBuild => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if expected == Expected::CannotBuild {
        return Err("stands, and was expected not to".to_owned());
    }
    // A fast tree stands before the id is printed.
    until(SOON, || tree.stdout().ends_with('\n'));
    let sandbox = Sandbox::printed(&ground.root(), &tree.stdout())?;
    let mut bystanders = bystanders(&ground)?;
    tree.check_alive()?;
    let told = |why: String| {
        let wrote = std::fs::read_to_string(sandbox.record.join("report.json"));
        let report = wrote.unwrap_or_else(|error| error.to_string());
        format!("{why}; penfold said: {}; its report: {}", tree.stderr(), report.trim())
    };
    let output = act(&ground, &tree, case, &sandbox).map_err(told)?;
    judge(&ground, &tree, case, entry, (&sandbox, output.as_ref())).map_err(told)?;
    if bystanders.iter_mut().any(|bystander| !bystander.is_alive()) {
        return Err("a bystander was hit".to_owned());
    }
    tree.end().map_err(|error| error.to_string())
}

/// One where we are, and one where penfold makes its leaves.
fn bystanders(ground: &Ground) -> Result<[Bystander; 2], String> {
    let tell = |error: &dyn std::error::Error| error.to_string();
    let both = [
        Bystander::spawn().map_err(|error| tell(&error))?,
        Bystander::spawn().map_err(|error| tell(&error))?,
    ];
    if let Some(cgroup) = ground.cgroup() {
        let [_, inside] = &both;
        std::fs::write(cgroup.join("cgroup.procs"), inside.pid().to_string())
            .map_err(|error| tell(&error))?;
    }
    Ok(both)
}

fn stand(ground: &Ground, case: Case, entry: &'static Entry) -> Result<Tree, TreeError> {
    let lease: &[&str] = if case.ending == Ending::Ttl { &["--ttl", LEASE[0]] } else { &[] };
    let options = [&["-d", "--grace", "100ms"], lease].concat();
    Tree::spawn(&ground.tool(Shape::Pair, case.level, &options).detaches(), entry.name)
}

/// Ends the sandbox. Gives what the command said that did.
fn act(ground: &Ground, tree: &Tree, case: Case, sandbox: &Sandbox) -> Result<Option<Output>, String> {
    if let Some(words) = case.ending.verb(&sandbox.id) {
        return ground.command(words).output().map(Some).map_err(|error| error.to_string());
    }
    match case.ending {
        Ending::LeaderExit => tree.tell_leader_to_exit().map_err(|error| error.to_string())?,
        Ending::Ttl => {
            let output = ground.command(["extend", &sandbox.id, LEASE[1]]).output();
            let output = output.map_err(|error| error.to_string())?;
            if !output.status.success() {
                return Err(format!("the lease is not shortened: {}", said(&output)));
            }
        }
        Ending::SupervisorKilled => {
            let both = sandbox.supervisors();
            let [_, inner] = both.as_slice() else { return Err(format!("{} supervisors", both.len())) };
            inner.signal(Signal::KILL).map_err(|error| error.to_string())?;
        }
        _ => {}
    }
    Ok(None)
}

/// Looks whether everything is gone, and whether the record tells it so. Forgets the sandbox.
fn judge(
    ground: &Ground,
    tree: &Tree,
    case: Case,
    entry: &'static Entry,
    (sandbox, output): (&Sandbox, Option<&Output>),
) -> Result<(), String> {
    let expected = case.expected(entry);
    let code = output.and_then(|output| output.status.code());
    match expected {
        Expected::CannotBuild => return Ok(()),
        Expected::Gone if output.is_some() => {
            if code != Some(0) {
                return Err(format!("not ended: {}", output.map(said).unwrap_or_default()));
            }
            // Its supervisors are over when their lock is free, and may be seen for a moment longer.
            let mut members = tree.survivors();
            members.retain(|survivor| survivor.name != "penfold");
            nothing(&members, &leaves(ground)).map_err(|why| format!("said to be gone: {why}"))?;
        }
        Expected::Gone => {}
        Expected::Unended => unended(tree, output)?,
        Expected::NextCommand | Expected::Lost => ground.next_command()?,
    }
    let patience = match expected {
        Expected::NextCommand => SWEPT,
        _ => SOON,
    };
    let survivors = tree.await_gone(patience);
    until(SOON, || leaves(ground).is_empty());
    nothing(&survivors, &leaves(ground))?;
    if case.ending != Ending::Remove {
        recorded(case, entry, sandbox)?;
        forget(ground, sandbox)?;
    } else if expected == Expected::Unended {
        // What could not be ended kept its record.
        forget(ground, sandbox)?;
    }
    nothing(&[], &ground.await_clean(SOON))
}

/// What is left of it but its record, which is kept.
fn leaves(ground: &Ground) -> Vec<String> {
    ground.left().into_iter().filter(|left| !left.starts_with("record ")).collect()
}

fn recorded(case: Case, entry: &Entry, sandbox: &Sandbox) -> Result<(), String> {
    if !until(SOON, || sandbox.has_ended()) {
        return Err(format!("no report of the end; {:?}", sandbox.file("state.json")));
    }
    let why = sandbox.cause().unwrap_or_default();
    if !case.ending.causes(entry).contains(&why.as_str()) {
        return Err(format!("the cause is {why:?}"));
    }
    let code = sandbox.file("exit.json").and_then(|exited| exited.pointer("/exit/code")?.as_i64());
    if why == "exit" && code != Some(entry.exit_code.into()) && !entry.name.starts_with("kill-") {
        return Err(format!("the exit code is {code:?}"));
    }
    Ok(())
}

fn forget(ground: &Ground, sandbox: &Sandbox) -> Result<(), String> {
    let output = ground.command(["rm", &sandbox.id]).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(format!("not forgotten: {}", said(&output))) }
}

fn nothing(survivors: &[Survivor], left: &[String]) -> Result<(), String> {
    if survivors.is_empty() && left.is_empty() {
        return Ok(());
    }
    let named: Vec<String> =
        survivors.iter().take(4).map(ToString::to_string).chain(left.iter().cloned()).collect();
    Err(format!("{} processes and this are left: {}", survivors.len(), named.join(", ")))
}

/// One that became root: named, kept in sight, and its end is noticed.
fn unended(tree: &Tree, output: Option<&Output>) -> Result<(), String> {
    let member = tree.members().get(1).copied().ok_or("there is no second member")?;
    if let Some(output) = output {
        let said = said(output);
        if output.status.code() != Some(5) {
            return Err(format!("not 5: {said}"));
        }
        if !(said.contains(&format!("pid {}", member.pid)) && said.contains("not permitted")) {
            return Err(format!("pid {} and the reason are not named: {said}", member.pid));
        }
    }
    if !tree.survivors().iter().any(|survivor| survivor.id == member) {
        return Err("the member has ended, and was expected not to".to_owned());
    }
    if let Some(handle) = Handle::open(member).map_err(|error| error.to_string())? {
        handle.signal(Signal::KILL).map_err(|error| error.to_string())?;
    }
    Ok(())
}
