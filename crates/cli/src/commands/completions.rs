//! `penfold completions`.

use clap::Args;
use clap_complete::Shell;

use super::command_line;
use crate::args::usage;
use crate::args::verb::Verb;
use crate::failure::{Failure, FailureKind};
use crate::{exit_codes, output};

/// The verb `completions`.
pub(crate) const VERB: Verb = Verb {
    name: "completions",
    aliases: &[],
    about: "Print the completion script for a shell",
    description: "Prints a script with which a shell completes the commands and flags of penfold.",
    examples: &[
        (
            "penfold completions bash > /etc/bash_completion.d/penfold",
            "install the completions for all users of bash",
        ),
        ("penfold completions fish | source", "load the completions into this fish only"),
    ],
    usage_failure: FailureKind::Usage,
    define: CompletionsArgs::augment_args,
    call: |_, matches| completions(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line::root(), "penfold", &mut script);
    output::data(&script)?;
    Ok(exit_codes::SUCCESS)
}
