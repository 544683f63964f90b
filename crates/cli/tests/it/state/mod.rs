//! State on disk: damaged, forged, of other versions, and cut short by a crash.

mod crash;
mod crash_detached;
mod crash_points;
pub mod damage;
pub mod old_protocol;
mod old_supervisor;
mod pid_reuse;
mod promptness;
mod security;

/// The tests that are generated: crash points, damages.
pub fn generated() -> Vec<penfold_harness::Trial> {
    [crash_points::generated, crash_detached::generated, damage::generated]
        .into_iter()
        .flat_map(|of| of())
        .collect()
}
