//! `penfold version`.

use clap::Args;

use crate::args::usage;
use crate::args::verb::{Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::{exit_codes, output};

/// The verb `version`.
pub(crate) const VERB: Verb = Verb {
    name: "version",
    aliases: &[],
    about: "Print the version",
    description: "Prints the version as text, or as JSON for scripts.",
    examples: &[
        ("penfold version", "print `penfold 0.1.0`"),
        ("penfold version --json", "print an object with the field `version`"),
    ],
    usage_failure: FailureKind::Usage,
    define: VersionArgs::augment_args,
    places: Places::Here,
    call: |_, matches| version(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct VersionArgs {
    /// Print the version as a JSON object.
    #[arg(long)]
    json: bool,
}

fn version(args: &VersionArgs) -> Result<u8, Failure> {
    let text = if args.json {
        concat!("{\"schema\":1,\"version\":\"", env!("CARGO_PKG_VERSION"), "\"}\n")
    } else {
        concat!("penfold ", env!("CARGO_PKG_VERSION"), "\n")
    };
    output::data(text.as_bytes())?;
    Ok(exit_codes::SUCCESS)
}
