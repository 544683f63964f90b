//! The tests of the `penfold` binary: real processes on the real kernel, a room for each thing that users do.
//!
//! Needs the program `testkit`, which `--workspace` builds. Most of it needs root; what lacks something says `skipped: ` and
//! why.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test that does not run says why")]
#![allow(unreachable_pub, reason = "nobody imports a test program")]

#[macro_use]
extern crate penfold_harness;

mod detached;
mod end;
mod hostile;
mod mcp;
mod observe;
mod oci;
mod resources;
mod run;
mod serve;
mod slurm;
mod ssh;
mod state;
mod support;

/// What tests start beside `penfold`.
const PROGRAMS: &[penfold_harness::Program] = &[
    ("child-of-a-thread", end::reap::child_of_a_thread),
    ("old-supervisor", state::old_protocol::supervisor),
];

fn main() -> std::process::ExitCode {
    penfold_harness::main(
        PROGRAMS,
        &[
            hostile::matrix::TESTS,
            resources::CHAINS,
            resources::CRASHES,
            resources::VMS,
            serve::crash::TESTS,
            serve::hostile::TESTS,
            state::CRASH_POINTS,
            state::CRASHES_OF_DETACHED,
            state::DAMAGE,
            state::REMEMBERED,
        ],
    )
}
