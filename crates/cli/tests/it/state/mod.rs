//! State on disk: damaged, forged, of other versions, and cut short by a crash.

mod crash;
mod crash_detached;
mod crash_points;
mod damage;
pub mod old_protocol;
mod old_supervisor;
mod pid_reuse;
mod security;

/// The tests that are generated: one for each crash point.
pub fn generated() -> Vec<penfold_harness::Trial> {
    crash_points::generated().into_iter().chain(crash_detached::generated()).collect()
}
