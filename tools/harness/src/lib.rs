//! The `main` of test binaries that need more than the built-in harness.
//!
//! - Tests may be generated: [`main`] takes [`Generated`] tests beside the functions marked with [`macro@test`].
//! - A single test, as nextest runs it, runs on the main thread of a process with one thread.
//! - A test knows its own [`name`], and can start itself again in another environment.
//! - Programs that tests start beside penfold are in the same binary.
//!
//! The test crate declares `harness = false` for its binary, and its root contains:
//!
//! ```ignore
//! #[macro_use]
//! extern crate penfold_harness;
//!
//! fn main() -> std::process::ExitCode {
//!     penfold_harness::main(&[], &[])
//! }
//! ```
//!
//! Non-goals: `#[should_panic]`, tests that return a `Result`, benchmarks.

use std::cell::Cell;
use std::process::ExitCode;

pub use inventory;
pub use libtest_mimic::Trial;
pub use penfold_harness_macros::test;

/// A test function, as [`macro@test`] registers it.
#[derive(Debug)]
pub struct Registered {
    /// The name with the path of its module, which begins with the name of the binary.
    pub name: &'static str,
    /// Whether the test runs only if ignored tests are requested.
    pub is_ignored: bool,
    /// The function, which panics if the test fails.
    pub run: fn(),
}

inventory::collect!(Registered);

/// Tests that are generated. A process that runs one test finds that test by its name, without generating the others.
#[derive(Debug, Clone, Copy)]
pub struct Generated {
    /// Generates all tests.
    pub list: fn() -> Vec<Trial>,
    /// Generates the test with this name.
    pub find: fn(&str) -> Option<Trial>,
}

/// An argument of the test binary, and the program that then runs instead of the tests.
pub type Program = (&'static str, fn());

thread_local! {
    static NAME: Cell<&'static str> = const { Cell::new("") };
}

/// Returns the name of the test function that this thread runs; empty in a generated test.
pub fn name() -> &'static str {
    NAME.get()
}

/// Runs the program or the tests of the command line.
#[expect(clippy::print_stderr, reason = "a test binary talks to its runner")]
pub fn main(programs: &[Program], generated: &[Generated]) -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    if let Some((_, program)) = programs.iter().find(|(name, _)| *name == word) {
        program();
        return ExitCode::SUCCESS;
    }
    let mut arguments = libtest_mimic::Arguments::from_args();
    let trials = match &arguments.filter {
        Some(name) if arguments.exact && !arguments.list => {
            // A single test runs on the main thread, without any other thread.
            arguments.test_threads = Some(1);
            arguments.include_ignored = true;
            arguments.ignored = false;
            let named = registered().find(|trial| trial.name() == name);
            named.or_else(|| generated.iter().find_map(|tests| (tests.find)(name))).into_iter().collect()
        }
        _ => {
            let mut all: Vec<Trial> =
                registered().chain(generated.iter().flat_map(|tests| (tests.list)())).collect();
            all.sort_by(|one, other| one.name().cmp(other.name()));
            all
        }
    };
    if trials.is_empty() && arguments.exact {
        eprintln!("there is no test of this name");
        return ExitCode::FAILURE;
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn registered() -> impl Iterator<Item = Trial> {
    inventory::iter::<Registered>.into_iter().map(|test| {
        let name = test.name.split_once("::").map_or(test.name, |(_binary, name)| name);
        let run = move || {
            NAME.set(name);
            (test.run)();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(test.is_ignored)
    })
}
