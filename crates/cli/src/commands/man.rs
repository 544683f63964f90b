//! `penfold man`.

use std::path::PathBuf;

use clap::Args;

use super::command_line;
use crate::args::usage;
use crate::args::verb::Verb;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind, OrFail as _};

/// The verb `man`.
pub(crate) const VERB: Verb = Verb {
    name: "man",
    aliases: &[],
    about: "Write the manual pages",
    description: "Writes a manual page for penfold and one for each command into an existing directory.",
    examples: &[
        ("penfold man /usr/local/share/man/man1", "install the manual pages"),
        ("penfold man . && man ./penfold-run.1", "read the manual page of `penfold run`"),
    ],
    usage_failure: FailureKind::Usage,
    define: ManArgs::augment_args,
    call: |_, matches| man(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct ManArgs {
    /// The directory for the manual pages.
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: PathBuf,
}

fn man(args: &ManArgs) -> Result<u8, Failure> {
    let sentence = format!("cannot write manual pages to `{}`", args.dir.display());
    clap_mangen::generate_to(command_line::root(), &args.dir).or_fail(FailureKind::Other, &sentence)?;
    Ok(exit_codes::SUCCESS)
}
