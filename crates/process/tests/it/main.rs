//! Reads `/proc` for real processes, and forks.

#[macro_use]
extern crate penfold_harness;

mod descriptors;
mod live;
mod zombie_leader;

fn main() -> std::process::ExitCode {
    penfold_harness::main(&[("zombie-leader", zombie_leader::become_zombie)], &[])
}
