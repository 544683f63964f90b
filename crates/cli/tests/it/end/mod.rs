//! The causes that end sandboxes: `stop`, `kill`, `rm`, `reap`, `gc`, and the death of penfold itself.

mod busy_leaf;
mod copied_marker;
mod elsewhere;
mod foreground;
mod foreign_vms;
mod gc;
mod gc_remains;
mod gc_roots;
mod kill;
mod kill_damage;
mod kill_moments;
mod kill_stuck;
mod killed_by_name;
pub mod leaks;
mod own_death;
mod patience;
mod progress;
mod promptness;
pub mod reap;
mod reap_home;
mod requested_by;
mod rm;
pub mod standing;
mod stop;
mod stop_command;
mod survivors;
mod sweeper;

/// After a command has ended the members without their supervisor.
pub const MEMBERS_ENDED: &str = "members-ended";
