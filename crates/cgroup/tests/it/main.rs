//! Leaves on the real kernel, and on recorded hosts.

#[macro_use]
extern crate penfold_harness;

mod leaf;
mod places;
mod support;
mod traps;
mod v1freezer;

fn main() -> std::process::ExitCode {
    penfold_harness::main(&[], &[])
}
