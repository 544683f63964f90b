//! Reads `/proc` for real processes.

#[macro_use]
extern crate penfold_harness;

mod live;
mod zombie_leader;

fn main() -> std::process::ExitCode {
    penfold_harness::main(&[("zombie-leader", zombie_leader::become_zombie)], &[])
}
