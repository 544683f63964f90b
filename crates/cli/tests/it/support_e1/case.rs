//! One hostile tree, one ending, one look at everything that could be left.

use std::time::Duration;

use penfold_testkit::catalog::{Entry, Pace, TREES};
use penfold_testkit::proc::{self, Handle, Identity};
use penfold_testkit::{Bystander, Survivor, Tool, ToolExit, Tree, TreeError};
use rustix::process::Signal;

use super::expect::{self, Expected};
use super::house::{House, Ours};
use super::{Ground, Level, Shape, Who, until};

/// How long penfold may take to end: its patience of 10 s and a busy machine.
const TOOL: Duration = Duration::from_secs(20);
/// How long what is left may take to go when nobody could say that it is gone, on a machine that runs storms of other
/// tests as well. That it takes no more than a second is tested where nothing disturbs it.
const SOON: Duration = Duration::from_secs(10);
/// How long the next command may take for what lost all of ours: it looks over the whole host, beside its own work.
const SWEPT: Duration = Duration::from_secs(12);
/// What members that do not listen are granted.
const GRACE: &str = "100ms";
/// Time limits that are tried one after the other: the tree must stand before it is over.
const LIMITS: [&str; 3] = ["1s", "3s", "9s"];

/// What is tried with every tree.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub who: Who,
    pub shape: Shape,
    pub level: Level,
    pub ending: Ending,
}

/// What ends the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    LeaderExit,
    /// SIGTERM to the front.
    Stop,
    /// SIGTERM twice.
    Kill,
    /// SIGINT twice.
    Interrupt,
    Timeout,
    OwnerKilled,
    InnerKilled,
    OuterKilled,
    FrontKilled,
    AllKilled,
}

impl Ending {
    /// Whether the front lives to say that all is gone.
    fn is_told(self) -> bool {
        !matches!(self, Ending::OwnerKilled | Ending::FrontKilled | Ending::AllKilled)
    }

    fn act(self, tree: &Tree, house: impl FnOnce() -> Result<House, String>) -> Result<(), String> {
        let done = match self {
            Ending::LeaderExit => tree.tell_leader_to_exit(),
            Ending::Stop => tree.signal_tool(Signal::TERM),
            Ending::Kill => tree.signal_tool(Signal::TERM).and_then(|()| tree.signal_tool(Signal::TERM)),
            Ending::Interrupt => tree.signal_tool(Signal::INT).and_then(|()| tree.signal_tool(Signal::INT)),
            Ending::Timeout => Ok(()),
            Ending::OwnerKilled => tree.kill_owner(),
            Ending::InnerKilled => return house()?.kill(&[Ours::Inner]),
            Ending::OuterKilled => return house()?.kill(&[Ours::Outer]),
            Ending::FrontKilled => return house()?.kill(&[Ours::Front]),
            Ending::AllKilled => return house()?.kill_all(),
        };
        done.map_err(|error| error.to_string())
    }
}

/// Runs every tree of the catalogue, or the one that `PENFOLD_TREE` names, and panics with all that went wrong.
pub fn every_tree(case: Case) {
    let Case { who, ending, .. } = case;
    if let Err(why) = Ground::new(who) {
        println!("skipped: {why}");
        return;
    }
    // One that exits as soon as it stands has no other ending.
    let named = std::env::var("PENFOLD_TREE").ok();
    // Without a subreaper or a leaf only luck meets who has another pid at every look: SPECIFICATION.md, limit 1.
    let chance = |entry: &Entry| {
        entry.name == "comet" && case.level == Level::Subreaper && ending == Ending::AllKilled
    };
    let wanted = |entry: &&Entry| {
        !chance(entry)
            && (ending == Ending::LeaderExit || entry.pace != Pace::Hasty)
            && named.as_ref().is_none_or(|name| name == entry.name)
    };
    let told = |entry: &'static Entry| one(case, entry).err().map(|why| format!("{}: {why}", entry.name));
    let trees: Vec<_> =
        TREES.iter().filter(wanted).filter(|entry| expect::of(case, entry) != Expected::Unended).collect();
    let lanes = if ending == Ending::Timeout { 6 } else { 1 };
    let failures: Vec<String> = std::thread::scope(|scope| {
        let lane = |number: usize| {
            let mine: Vec<_> = trees.iter().copied().skip(number).step_by(lanes).collect();
            scope.spawn(move || mine.into_iter().filter_map(told).collect::<Vec<_>>())
        };
        let threads: Vec<_> = (0..lanes).map(lane).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert!(failures.is_empty(), "{case:?}:\n  {}", failures.join("\n  "));
}

/// Runs the trees that cannot be ended, all at once: each takes as long as the patience of penfold. Says how many.
pub fn every_unended_tree(cases: &[Case]) -> usize {
    let pairs = cases.iter().flat_map(|&case| TREES.iter().map(move |entry| (case, entry)));
    let unended = |&(case, entry): &(Case, &'static Entry)| {
        expect::of(case, entry) == Expected::Unended && Ground::new(case.who).is_ok()
    };
    let unended: Vec<_> = pairs.filter(unended).collect();
    let failures: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            unended.iter().map(|&(case, entry)| scope.spawn(move || one(case, entry))).collect();
        let told = threads.into_iter().zip(&unended).filter_map(|(thread, (case, entry))| {
            thread.join().unwrap().err().map(|why| format!("{} {case:?}: {why}", entry.name))
        });
        told.collect()
    });
    assert!(failures.is_empty(), "{}", failures.join("\n  "));
    unended.len()
}

/// Runs one tree.
fn one(case: Case, entry: &'static Entry) -> Result<(), String> {
    let Case { who, shape, level, ending } = case;
    let expected = expect::of(case, entry);
    let ground = Ground::new(who)?;
    let tree = match stand(&ground, case, entry) {
        Ok(tree) => tree,
        Err(TreeError::Skipped(_)) if expected == Expected::CannotBuild => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if expected == Expected::CannotBuild {
        return Err("stands, and was expected not to".to_owned());
    }
    // A leader that kills its own group would hit a bystander in it, which is not our doing.
    let in_group = entry.name != "kill-group" && entry.pace != Pace::Hasty;
    let user = (who != Who::Root).then_some(super::USER);
    let beside = if in_group { Bystander::beside(&tree, user) } else { Bystander::spawn() };
    // A time limit may be over by now, and the group gone with it.
    let beside =
        beside.or_else(|error| if ending == Ending::Timeout { Bystander::spawn() } else { Err(error) });
    let mut bystanders =
        [beside.map_err(|error| error.to_string())?, Bystander::spawn().map_err(|error| error.to_string())?];
    if ending != Ending::Timeout {
        tree.check_alive()?;
    }
    ending.act(&tree, || House::around(&tree, shape, level))?;
    judge(&ground, &tree, case, entry).map_err(|why| format!("{why}; penfold said: {}", tree.stderr()))?;
    if bystanders.iter_mut().any(|bystander| !bystander.is_alive()) {
        return Err("a bystander was hit".to_owned());
    }
    tree.end().map_err(|error| error.to_string())
}

fn stand(
    ground: &Ground,
    Case { shape, level, ending, .. }: Case,
    entry: &'static Entry,
) -> Result<Tree, TreeError> {
    let spawn = |tool: &Tool| Tree::spawn(tool, entry.name);
    if ending != Ending::Timeout {
        return spawn(&ground.tool(shape, level, &["--grace", GRACE]));
    }
    let mut last = None;
    for limit in LIMITS {
        match spawn(&ground.tool(shape, level, &["--grace", GRACE, "--timeout", limit])) {
            Err(error @ TreeError::NotReady { .. }) => last = Some(error),
            // The limit was over while we looked.
            Ok(tree) if tree.check_alive().is_err() => {}
            other => return other,
        }
    }
    Err(last.unwrap_or(TreeError::NotEnded("the time limit was over too early each time".to_owned())))
}

fn judge(ground: &Ground, tree: &Tree, case: Case, entry: &'static Entry) -> Result<(), String> {
    let ending = case.ending;
    // Its owner is in the group that this one kills, and may die between hearing of the exit and writing it down.
    let unheard = entry.name == "kill-group" && ending == Ending::LeaderExit;
    let mut exit = None;
    until(TOOL, || {
        exit =
            tree.tool_exit().or_else(|| (unheard && !is_alive(tree.tool())).then_some(ToolExit::Signal(9)));
        exit.is_some()
    });
    let exit = exit.ok_or("penfold has not ended")?;
    match expect::of(case, entry) {
        Expected::CannotBuild => Ok(()),
        Expected::Gone => {
            // A leader that kills the front as well leaves nobody to say so.
            if ending.is_told() && exit != ToolExit::Signal(9) {
                nothing(tree.survivors(), ground.left()).map_err(|why| format!("said to be gone: {why}"))?;
            }
            if !expect::exit_fits(ending, entry, exit) {
                return Err(format!("penfold ended with {exit:?}"));
            }
            nothing(tree.await_gone(SOON), ground.await_clean(SOON))
        }
        Expected::Unended => unended(ground, tree, case, exit),
        Expected::NextCommand => {
            ground.next_command()?;
            nothing(tree.await_gone(SWEPT), ground.await_clean(SWEPT))
        }
        Expected::Lost => {
            ground.next_command()?;
            let left = tree.await_gone(Duration::from_millis(300));
            if left.is_empty() { Err("found, and was expected to be lost".to_owned()) } else { Ok(()) }
        }
    }
}

fn is_alive(id: Option<Identity>) -> bool {
    id.and_then(|id| proc::stat(id.pid).filter(|stat| stat.id == id)).is_some_and(|stat| !stat.is_dead())
}

fn nothing(survivors: Vec<Survivor>, left: Vec<String>) -> Result<(), String> {
    if survivors.is_empty() && left.is_empty() {
        return Ok(());
    }
    let count = survivors.len();
    let named: Vec<String> =
        survivors.into_iter().take(4).map(|survivor| survivor.to_string()).chain(left).collect();
    Err(format!("{count} processes and this are left: {}", named.join(", ")))
}

/// One that became root: named, kept in sight, and its end is noticed.
fn unended(ground: &Ground, tree: &Tree, case: Case, exit: ToolExit) -> Result<(), String> {
    let Case { shape, ending, .. } = case;
    let member = tree.members().get(1).copied().ok_or("there is no second member")?;
    if ending.is_told() {
        let said = tree.stderr();
        if exit != ToolExit::Code(120) {
            return Err(format!("penfold ended with {exit:?}, not 120"));
        }
        if !(said.contains(&format!("pid {}", member.pid)) && said.contains("not permitted")) {
            return Err(format!("pid {} and the reason are not named", member.pid));
        }
        if ground.left().is_empty() {
            return Err("the record of a member that lives is gone".to_owned());
        }
    }
    if !tree.survivors().iter().any(|survivor| survivor.id == member) {
        return Err("the member has ended, and was expected not to".to_owned());
    }
    if let Some(handle) = Handle::open(member).map_err(|error| error.to_string())? {
        handle.signal(Signal::KILL).map_err(|error| error.to_string())?;
    }
    let gone = tree.await_gone(SOON);
    // A front that has answered in the supervisor's place is gone as well: the record is left to the next command.
    if shape == Shape::Pair && ending == Ending::InnerKilled {
        ground.next_command()?;
    }
    nothing(gone, ground.await_clean(SOON))
}
