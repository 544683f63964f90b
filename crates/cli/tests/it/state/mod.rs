//! State on disk: damaged, forged, of other versions, and cut short by a crash.

mod crash_detached;
mod crash_points;
mod damage;
pub mod old_protocol;
mod old_supervisor;
mod pid_reuse;
mod security;
