//! `bench`: the costs of penfold, compared with the kernel's own floor and with other tools.
//!
//! **Purpose.** One run prints comparable tables. Every number of penfold stands beside its limit, and beside the floor
//! or a peer that was measured in the same rounds.
//!
//! **Non-goals.** No statistics beyond p50 and p90, no history, no gate: a shared machine is too noisy to fail a build.
//!
//! **Invariants.** Contenders take turns. A missing measurement is named with its reason. Nothing is left behind, also
//! after an interruption. Each process started here ends by itself within minutes.

mod contender;
mod crowd;
mod detached;
mod document;
mod error;
mod floor;
mod footprint;
mod guardian;
mod host;
mod resources;
mod samples;
mod scan;
mod server;
mod size;
mod start;
mod table;
mod teardown;
mod tools;
mod wait;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use penfold_state::error_chain;

use crate::document::Section;
use crate::error::Error;
use crate::tools::Tools;

/// Rounds of `run`; the other measurements have fewer, in proportion.
const ROUNDS: u32 = 200;

/// Measures penfold against the kernel's floor and other tools.
#[derive(Parser, Debug)]
#[command(name = "bench")]
pub(crate) struct Args {
    /// The measurements; by default all but `build`.
    #[arg(value_enum)]
    names: Vec<Name>,
    /// Run everything once, with small numbers, as a check that it works.
    #[arg(long)]
    quick: bool,
    /// Rounds of `run`; the others have fewer, in proportion.
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rounds: u32,
    /// Measure crowds of this size only.
    #[arg(long, value_name = "N")]
    size: Option<u32>,
    /// Also measure a clean release build, which takes minutes.
    #[arg(long)]
    build: bool,
    /// Replace the sections of this file that have the same names.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "docs/performance.md")]
    write: Option<PathBuf>,
}

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Name {
    /// Start and end of a command that does nothing.
    Run,
    /// The end of many sleeping processes.
    Teardown,
    /// Memory and wake-ups of a running sandbox.
    Memory,
    /// A scan of all processes of the host.
    Scan,
    /// A thousand detached sandboxes.
    Detached,
    /// Network namespaces.
    Resources,
    /// `penfold serve`: latency, throughput, memory.
    Server,
    /// Size of the binary, and the time of a clean build.
    Build,
}

impl Args {
    /// Scales a number of rounds; `usual` is the number for a run of 200 rounds.
    pub(crate) fn rounds(&self, usual: u32) -> u32 {
        if self.quick { 1 } else { (usual.saturating_mul(self.rounds) / ROUNDS).max(1) }
    }

    fn names(&self) -> Vec<Name> {
        let mut names = self.names.clone();
        if names.is_empty() {
            names = vec![
                Name::Run,
                Name::Teardown,
                Name::Memory,
                Name::Scan,
                Name::Detached,
                Name::Resources,
                Name::Server,
            ];
        }
        if self.build && !names.contains(&Name::Build) {
            names.push(Name::Build);
        }
        names
    }
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    // This program starts itself with these arguments. clap does not see them: its work would be part of the
    // measurement.
    let result = match first.as_deref() {
        Some(crowd::VERB) => crowd::lead(words),
        Some(start::NOTHING) => Ok(()),
        Some(detached::SLEEP) => {
            detached::sleep();
            Ok(())
        }
        Some(start::AS_USER) => start::as_user(words),
        _ => keep(&Args::parse()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn keep(args: &Args) -> Result<(), Error> {
    let tools = Tools::prepare()?;
    guardian::guard(&tools, || bench(args, &tools))
}

fn bench(args: &Args, tools: &Tools) -> Result<(), Error> {
    for name in args.names() {
        let noise = host::noise(if args.quick { Duration::from_millis(100) } else { Duration::from_secs(2) });
        let section = match name {
            Name::Run => start::measure(args, tools)?,
            Name::Teardown => teardown::measure(args, tools)?,
            Name::Memory => footprint::measure(args, tools)?,
            Name::Scan => scan::measure(args, tools)?,
            Name::Detached => detached::measure(args, tools)?,
            Name::Resources => resources::measure(args, tools)?,
            Name::Server => server::measure(args, tools)?,
            Name::Build => size::measure(tools)?,
        };
        let section = Section { conditions: host::conditions(args, name, noise), ..section };
        print(&section.markdown())?;
        if let Some(path) = &args.write {
            document::replace(path, &section)?;
        }
    }
    Ok(())
}

fn print(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|source| Error::io("cannot write to standard output", source))
}

/// Prints an error.
pub(crate) fn complain(error: &Error) {
    talk(&format!("error: {}", error_chain(error)));
}

/// Writes a line for people to standard error.
pub(crate) fn talk(line: &str) {
    // If this fails, there is no place left for a message.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
