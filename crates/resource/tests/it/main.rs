//! Resources on the real kernel.

#![allow(unreachable_pub, reason = "nobody imports a test program")]

#[macro_use]
extern crate penfold_harness;

mod crash;
mod directory;
mod kinds;
mod mount;
mod netns;
mod own;
mod plan;
mod support;

fn main() -> std::process::ExitCode {
    penfold_harness::main(&[("create-resources", crash::create), ("release-resources", crash::release)], &[])
}
