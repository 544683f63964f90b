//! The processes of penfold between a tree's tool and its leader, by handle.

use penfold_testkit::Tree;
use penfold_testkit::proc;

use super::{Config, Shape};
use crate::support::{Level, Process};

/// The launcher, the outer one where there is one, and the supervisor, which is the inner one.
pub fn around(tree: &Tree, config: Config) -> Result<Vec<Process>, String> {
    let leader = tree.members().first().copied().ok_or("no leader")?;
    let launcher = tree.tool().ok_or("no tool")?;
    let above = proc::ancestors(leader.pid);
    let end = above.iter().position(|&id| id == launcher).ok_or("the tool is not above the leader")?;
    // Our init stands between the leader and the supervisor.
    let start = if config.level == Level::Pidns { 2 } else { 1 };
    let ours = above.get(start..=end).unwrap_or_default().iter().rev();
    let line: Vec<Process> = ours.filter_map(|&id| Process::open(id)).collect();
    let wanted = if config.shape == Shape::Trio { 3 } else { 2 };
    if line.len() == wanted { Ok(line) } else { Err(format!("{} processes of penfold", line.len())) }
}
