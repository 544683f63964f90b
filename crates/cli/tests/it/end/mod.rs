//! What ends sandboxes: `stop`, `kill`, `rm`, `reap`, `gc`, and the death of penfold itself.

mod gc;
mod gc_remains;
mod gc_roots;
mod kill;
mod kill_damage;
mod kill_moments;
mod kill_stuck;
mod own_death;
pub mod reap;
mod rm;
mod stop;
mod survivors;
mod sweeper;
