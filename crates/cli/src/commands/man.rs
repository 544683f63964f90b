//! `penfold man`.

use std::path::PathBuf;

use clap::Args;

use super::command_line;
use crate::args::usage;
use crate::args::verb::Verb;
use crate::exit_codes;
use crate::failure::Failure;

/// The verb `man`.
pub(crate) const VERB: Verb = Verb {
    name: "man",
    aliases: &[],
    about: "Write the manual pages",
    description: "Writes one manual page for penfold and one for each command into a directory that exists.",
    examples: &[
        ("penfold man /usr/local/share/man/man1", "install them"),
        ("penfold man . && man ./penfold-run.1", "read one"),
    ],
    usage_exit: exit_codes::USAGE,
    define: ManArgs::augment_args,
    call: |_, matches| man(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct ManArgs {
    /// Where to write to.
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: PathBuf,
}

fn man(args: &ManArgs) -> Result<u8, Failure> {
    clap_mangen::generate_to(command_line::root(), &args.dir).map_err(|error| {
        let sentence = format!("cannot write manual pages to `{}`", args.dir.display());
        Failure::new(exit_codes::FAILURE, sentence).because(error)
    })?;
    Ok(exit_codes::SUCCESS)
}
