//! From the words of a command line to a call of a verb, or to the answer where there is none to call.
//!
//! Only the verb that is called builds its flags, so more verbs do not make `run` slower.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;

use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use super::{VERBS, find};
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::exit_codes;
use crate::failure::Failure;
use crate::output::{self, Colour};

/// Shown below the list of commands.
const ROOT_EXAMPLES: &str = "\
Examples:
  penfold run -- npm test
      run a command; whatever it leaves is ended before penfold exits
  penfold run --timeout 60s sh -c 'sleep 1000 & wait'
      a time limit for the whole tree, daemons included
  penfold run -d --name web npm start
      in the background: `penfold logs -f web`, `penfold exec -it web sh`, `penfold stop web`
  penfold reap --pid 4121
      end a tree that penfold did not start

Topics: penfold help exit-codes, penfold help guarantees";

/// A command line that was understood.
pub(crate) struct Call {
    pub(crate) global: Global,
    pub(crate) verb: &'static Verb,
    pub(crate) matches: ArgMatches,
}

/// Reads a command line; `words` gives it, the name of the program included, as often as asked.
///
/// # Errors
/// What is wrong with it, or that help or the version is asked for; [`answer`] handles both.
pub(crate) fn parse<W>(words: impl Fn() -> W) -> Result<Call, Error>
where
    W: Iterator<Item = OsString>,
{
    if let Some(call) = parse_verb(words().skip(1)) {
        return Ok(call);
    }
    let mut matches = root().try_get_matches_from(words())?;
    let (name, matches) =
        matches.remove_subcommand().ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
    let verb = find(&name).ok_or_else(|| Error::new(ErrorKind::InvalidSubcommand))?;
    // Global flags are handed down: the verb's matches hold those given on either side of its name.
    Ok(Call { global: Global::from_arg_matches(&matches)?, verb, matches })
}

/// The short way: a line that starts with its verb needs the definition of no other.
///
/// It takes a third off the time from exec to a read command line, most of which is first touches of memory.
/// What is refused here is judged again by the whole definition, which knows the words for it.
pub(super) fn parse_verb(mut words: impl Iterator<Item = OsString>) -> Option<Call> {
    let verb = find(words.next()?.to_str()?)?;
    let command = Command::new(verb.name).no_binary_name(true).args_override_self(true);
    let matches = (verb.define)(Global::augment_args(command)).try_get_matches_from(words).ok()?;
    Some(Call { global: Global::from_arg_matches(&matches).ok()?, verb, matches })
}

/// Prints the answer and returns the exit code.
///
/// Takes the words again: what clap refused it does not hand back, and which verb was meant decides the code.
pub(crate) fn answer(error: &clap::Error, words: impl Iterator<Item = OsString>) -> u8 {
    let (verb, colour) = glance(words);
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = rendered(error, colour.wanted(&io::stdout()));
            match output::data(text.as_bytes()) {
                Ok(()) => exit_codes::SUCCESS,
                Err(error) => Failure::from(error).report(colour.wanted(&io::stderr())),
            }
        }
        // A bare `penfold`: a person gets the help, a script a failure and a clean standard output.
        ErrorKind::MissingSubcommand => {
            let text = root().render_help();
            let coloured = colour.wanted(&io::stderr());
            output::talk(&if coloured { text.ansi().to_string() } else { text.to_string() });
            exit_codes::USAGE
        }
        _ => usage::failure(error, verb).report(colour.wanted(&io::stderr())),
    }
}

fn rendered(error: &clap::Error, coloured: bool) -> String {
    let text = error.render();
    if coloured { text.ansi().to_string() } else { text.to_string() }
}

/// The verb that a command line names and the colour that it asks for, as far as they can be told.
fn glance(words: impl Iterator<Item = OsString>) -> (Option<&'static Verb>, Colour) {
    let mut colour = Colour::default();
    let mut words = words.skip(1);
    while let Some(word) = words.next() {
        let Some(word) = word.to_str() else { break };
        let (flag, attached) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (word, None),
        };
        match flag {
            "--color" => {
                let value = attached.or_else(|| words.next().and_then(|word| word.into_string().ok()));
                colour = value.and_then(|value| Colour::from_str(&value, false).ok()).unwrap_or_default();
            }
            "--root" if attached.is_none() => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => return (find(word), colour),
        }
    }
    (None, colour)
}

/// The whole definition; flags of verbs are filled in when they are needed.
pub(super) fn root() -> Command {
    // First the flags: what deriving them says about the command is replaced below.
    let root = Global::augment_args(Command::new("penfold"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs any command as a sandbox and leaves nothing of it behind")
        .long_about(None)
        .after_help(ROOT_EXAMPLES)
        .subcommand_value_name("COMMAND")
        .subcommand_help_heading("Commands")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .args_override_self(true);
    VERBS.iter().fold(root, |root, verb| root.subcommand(command(verb)))
}

fn command(verb: &'static Verb) -> Command {
    Command::new(verb.name)
        .about(verb.about)
        .visible_aliases(verb.aliases.iter().copied())
        .disable_help_subcommand(true)
        .args_override_self(true)
        .defer(|command| match find(command.get_name()) {
            Some(verb) => explain((verb.define)(command), verb),
            None => command,
        })
}

fn explain(command: Command, verb: &Verb) -> Command {
    let mut text = String::from("Examples:\n");
    for (example, purpose) in verb.examples {
        // Writing to a String cannot fail.
        let _ = write!(text, "  {example}\n      {purpose}\n");
    }
    command.about(verb.about).long_about(verb.description).after_help(text.trim_end().to_owned())
}
