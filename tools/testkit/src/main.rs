//! `testkit`: hostile trees to start, and a judge that runs a tool against them.

use std::process::ExitCode;

fn main() -> ExitCode {
    penfold_testkit::program::main()
}
