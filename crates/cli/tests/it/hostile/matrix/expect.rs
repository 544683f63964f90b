//! What each case must come to. Nothing is skipped: what a user or a level cannot do is written down here, and a
//! case that does better than it is told here fails as well.

use penfold_testkit::ToolExit;
use penfold_testkit::catalog::Entry;
use penfold_testkit::mounts;

use super::{Case, Ending, Shape};
use crate::support::{Level, Who};

/// The result of one case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Nothing is left when penfold says so, or shortly after it was killed.
    Gone,
    /// The host does not let this user build the tree in the first place.
    CannotBuild,
    /// A member that we may not signal: named, exit 120, looked after until it ends.
    Unended,
    /// Every process of ours is dead: the next command of the user ends it.
    NextCommand,
    /// Every process of ours is dead, and nothing that the user may see connects the member to the sandbox.
    Lost,
}

pub fn of(case: Case) -> Expected {
    let Case { tree, ending, .. } = case;
    let super::Config { who, level, shape } = case.config;
    let user = who != Who::Root;
    // In the user namespace that an ordinary user's pid namespace needs there is no root to become.
    let cannot_build = match tree.name {
        "setuid-root" => !user || level == Level::Pidns,
        "pidns" => user,
        "frozen-v1" | "frozen-v1-pidns" => user || mounts::freezer().is_none(),
        // Without a leaf of ours the command sits at the top of what it may use.
        "moved-cgroup" => who == Who::Plain || who == Who::Delegated && level == Level::Subreaper,
        "child-cgroups" | "frozen-v2" => who == Who::Plain,
        _ => false,
    };
    // The marker is all that is left to know members by, and these have none that the user can read or believe.
    let unseen = match tree.name {
        // The last is not in the cgroup that the sandbox was started in: its marker could be a copy.
        "no-environ" | "renamed" | "moved-cgroup" => true,
        "undumpable" | "setuid-root" => user,
        _ => false,
    };
    // With both its parent and that one's parent a leader of our user reaches all of ours, where it can see them.
    let kills_all = ending == Ending::AllKilled
        || ending == Ending::LeaderExit
            && tree.name == "kill-grandparents"
            && shape != Shape::Trio
            && level != Level::Pidns;
    match level {
        _ if cannot_build => Expected::CannotBuild,
        Level::Subreaper if kills_all && unseen => Expected::Lost,
        _ if kills_all => Expected::NextCommand,
        Level::Subreaper if tree.name == "setuid-root" => Expected::Unended,
        _ => Expected::Gone,
    }
}

/// Whether penfold may end so after this ending, in the foreground.
pub fn exit_fits(ending: Ending, tree: &Entry, exit: ToolExit) -> bool {
    // Leaders that attack: what becomes of leader and tool depends on whom they reach.
    let attacks = tree.name.starts_with("kill-") && ending == Ending::LeaderExit;
    let allowed: &[ToolExit] = match ending {
        _ if attacks => return true,
        Ending::LeaderExit => return exit == ToolExit::Code(i32::from(tree.exit_code)),
        // The leader ends by the polite signal, or by the kill after it, and penfold dies as its leader did.
        Ending::Term | Ending::TermTwice | Ending::InterruptTwice => {
            &[ToolExit::Signal(15), ToolExit::Signal(9)]
        }
        Ending::Timeout => &[ToolExit::Code(124)],
        Ending::InnerKilled | Ending::OuterKilled | Ending::LauncherKilled | Ending::AllKilled => {
            &[ToolExit::Signal(9)]
        }
        _ => return true,
    };
    allowed.contains(&exit)
}

/// The causes that the record of a detached sandbox may tell. A leader that attacks may have been the end of itself, or of
/// both supervisors.
pub fn causes(ending: Ending, tree: &Entry) -> &'static [&'static str] {
    match ending {
        Ending::LeaderExit if tree.name.starts_with("kill-") => &["exit", "signal", "supervisor", "lost"],
        Ending::LeaderExit => &["exit"],
        Ending::Stop => &["stop"],
        Ending::Kill | Ending::KillAll | Ending::Remove => &["kill"],
        Ending::Ttl => &["ttl"],
        Ending::InnerKilled => &["supervisor"],
        _ => &[],
    }
}
