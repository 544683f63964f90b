//! State on disk: damaged, forged, of other versions, and cut short by a crash.

pub mod crash;
mod crash_detached;
mod crash_points;
pub mod damage;
mod lost_files;
pub mod old_protocol;
mod old_supervisor;
mod pid_reuse;
mod promptness;
pub mod remembered;
mod roots;
mod security;

use penfold_harness::{Generated, Trial};

/// A test for each crash point of a foreground sandbox.
pub const CRASH_POINTS: Generated = Generated {
    list: crash_points::generated,
    find: |name| find(name, "state::crash_points::", crash_points::generated),
};
/// A test for each crash point of a detached sandbox.
pub const CRASHES_OF_DETACHED: Generated = Generated {
    list: crash_detached::generated,
    find: |name| find(name, "state::crash_detached::", crash_detached::generated),
};
/// A test for each damage of a record, and for each pair of damages.
pub const DAMAGE: Generated =
    Generated { list: damage::generated, find: |name| find(name, "state::damage::", damage::generated) };

/// A test for each cell of the table of members that could not be ended.
pub const REMEMBERED: Generated = Generated {
    list: remembered::generated,
    find: |name| find(name, "state::remembered::", remembered::generated),
};

pub fn find(name: &str, prefix: &str, list: fn() -> Vec<Trial>) -> Option<Trial> {
    name.starts_with(prefix).then(list)?.into_iter().find(|trial| trial.name() == name)
}
