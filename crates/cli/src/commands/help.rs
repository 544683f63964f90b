//! `penfold help`: commands and topics.

use std::fmt::Write as _;
use std::io;

use clap::Args;

use super::command_line;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::{exit_codes, output};

/// The verb `help`.
pub(crate) const VERB: Verb = Verb {
    name: "help",
    aliases: &[],
    about: "Explain a command or a topic",
    description: "Explains a command as its --help does, or a topic: `exit-codes` or `guarantees`.",
    examples: &[
        ("penfold help run", "the flags of `penfold run`"),
        ("penfold help exit-codes", "what every exit code means"),
        ("penfold help guarantees", "what penfold promises"),
    ],
    usage_failure: FailureKind::Usage,
    define: HelpArgs::augment_args,
    call: |global, matches| help(global, &usage::read(&VERB, matches)?),
};

const GUARANTEES: &str = "\
What penfold promises:

1. A sandbox ends when its command exits, it is stopped or killed, its time runs out, its owner dies or its
   supervisor dies. Whichever it is, everything it owned is gone before penfold reports the end.
2. `gone` means seen to be gone: a signal that was sent is no proof. What is still there is named with its pid,
   its state and what it waits for, and has an exit code of its own.
3. Nothing is signalled by name or by a number that may have been reused. A process that is not part of the
   sandbox is never hit.
4. `kill -9` of any one penfold process leaves nothing running that was meant to end.
5. Damaged, missing or forged state on disk never makes a live sandbox look stopped and never deletes other
   people's files. What is not known counts as alive.
6. No lock for all: any number of penfold commands work at the same time, and a frozen one blocks no other.
7. Every wait has a deadline: a process that is stuck in the kernel makes a report, not a hang.
";

#[derive(Args, Clone, Debug)]
struct HelpArgs {
    /// A command or a topic.
    #[arg(value_name = "COMMAND|TOPIC")]
    topic: Option<String>,
}

fn help(global: &Global, args: &HelpArgs) -> Result<u8, Failure> {
    let text = match args.topic.as_deref() {
        None => command_help(global, None)?,
        Some("exit-codes") => exit_codes_text(),
        Some("guarantees") => GUARANTEES.to_owned(),
        Some(word) => match super::find(word) {
            Some(verb) => command_help(global, Some(verb))?,
            None => {
                return Err(Failure::new(
                    FailureKind::Usage,
                    format!("no command or topic is called `{word}`"),
                )
                .hint("`penfold help` lists the commands; topics are `exit-codes` and `guarantees`"));
            }
        },
    };
    output::data(text.as_bytes())?;
    Ok(exit_codes::SUCCESS)
}

fn command_help(global: &Global, verb: Option<&Verb>) -> Result<String, Failure> {
    let mut root = command_line::root();
    root.build();
    let text = match verb {
        None => root.render_help(),
        Some(verb) => root
            .find_subcommand_mut(verb.name)
            .map(clap::Command::render_long_help)
            .ok_or_else(|| Failure::new(FailureKind::Other, "cannot find the definition of a command"))?,
    };
    let coloured = global.color.wanted(&io::stdout());
    Ok(if coloured { text.ansi().to_string() } else { text.to_string() })
}

fn exit_codes_text() -> String {
    let mut text = String::from("Exit codes:\n");
    for group in exit_codes::TABLE {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{}\n", group.verbs);
        for (code, meaning) in group.codes {
            let _ = writeln!(text, "  {code:<6} {meaning}");
        }
    }
    text
}
