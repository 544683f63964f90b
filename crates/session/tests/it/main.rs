//! The tests of the session host: a real bash, and a directory in the place of a sandbox's record.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test that does not run says why")]
#![allow(unreachable_pub, reason = "nobody imports a test program")]

#[macro_use]
extern crate penfold_harness;

mod clients;
mod commands;
mod document;
mod interrupts;
mod promptness;
mod support;
mod table;

/// The host is a program of its own, in a process of its own.
const PROGRAMS: &[penfold_harness::Program] = &[("host", support::host)];

fn main() -> std::process::ExitCode {
    penfold_harness::main(PROGRAMS, &[])
}
