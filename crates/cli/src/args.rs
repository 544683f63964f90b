//! The command line: global flags, the table of verbs, and the way from words to a call.
//!
//! A verb is one file with its flags and its [`Verb`], named in [`VERBS`]. Only the verb that is called builds
//! its flags, so more verbs do not make `run` slower.

pub(crate) mod adopt;
pub(crate) mod attach;
pub(crate) mod bounds;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod extend;
pub(crate) mod gc;
pub(crate) mod ids;
pub(crate) mod inspect;
pub(crate) mod kill;
pub(crate) mod logs;
pub(crate) mod patience;
pub(crate) mod ps;
pub(crate) mod reap;
pub(crate) mod report;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod signal;
pub(crate) mod status;
pub(crate) mod stop;
#[cfg(test)]
mod tests;
pub(crate) mod tree;
pub(crate) mod usage;
pub(crate) mod wait;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::TypedValueParser as _;
use clap::error::{Error, ErrorKind};
use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::failure::Failure;
use crate::output::Colour;
use crate::{completions, help, man, value, version};

/// Every verb, in the order of the help.
pub(crate) const VERBS: &[&Verb] = &[
    &run::VERB,
    &exec::VERB,
    &attach::VERB,
    &ps::VERB,
    &tree::VERB,
    &status::VERB,
    &inspect::VERB,
    &report::VERB,
    &logs::VERB,
    &events::VERB,
    &wait::VERB,
    &stop::VERB,
    &kill::VERB,
    &rm::VERB,
    &extend::VERB,
    &adopt::VERB,
    &reap::VERB,
    &doctor::VERB,
    &gc::VERB,
    &help::VERB,
    &version::VERB,
    &completions::VERB,
    &man::VERB,
];

/// A verb: what it is called, what it takes, what it does.
pub(crate) struct Verb {
    /// The word on the command line.
    pub(crate) name: &'static str,
    /// Other words for it.
    pub(crate) aliases: &'static [&'static str],
    /// One line for the list of verbs.
    pub(crate) about: &'static str,
    /// One paragraph.
    pub(crate) description: &'static str,
    /// Two to four calls, each with what it is for.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// The exit code of a wrong command line.
    pub(crate) usage_exit: u8,
    /// Adds the verb's flags; the texts come from the fields above.
    pub(crate) define: fn(Command) -> Command,
    /// Does the work and returns the exit code.
    pub(crate) call: fn(&Global, ArgMatches) -> Result<u8, Failure>,
}

/// Flags that every verb takes, before or after its name.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Directory that holds the state of sandboxes.
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        value_parser = clap::builder::OsStringValueParser::new().try_map(|given| value::root(&given)),
        help_heading = "Global options"
    )]
    pub(crate) root: Option<PathBuf>,
    /// When to use colour.
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true,
        help = "When to use colour: auto, always, never",
        help_heading = "Global options"
    )]
    pub(crate) color: Colour,
    /// Say only what went wrong.
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Say more; twice for even more.
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
}

/// A command line that was understood.
pub(crate) struct Call {
    pub(crate) global: Global,
    pub(crate) verb: &'static Verb,
    pub(crate) matches: ArgMatches,
}

/// Reads a command line; `words` gives it, the name of the program included, as often as asked.
///
/// # Errors
/// What is wrong with it, or that help or the version is asked for; [`usage::answer`] handles both.
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
fn parse_verb(mut words: impl Iterator<Item = OsString>) -> Option<Call> {
    let verb = find(words.next()?.to_str()?)?;
    let command = Command::new(verb.name).no_binary_name(true).args_override_self(true);
    let matches = (verb.define)(Global::augment_args(command)).try_get_matches_from(words).ok()?;
    Some(Call { global: Global::from_arg_matches(&matches).ok()?, verb, matches })
}

/// The flags of a verb out of its matches.
///
/// # Errors
/// None that a user can cause: the matches were made from the same definition.
pub(crate) fn read<A: FromArgMatches>(verb: &Verb, mut matches: ArgMatches) -> Result<A, Failure> {
    A::from_arg_matches_mut(&mut matches).map_err(|error| usage::failure(&error, Some(verb)))
}

/// The verb with this name or alias.
pub(crate) fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().copied().find(|verb| verb.name == name || verb.aliases.contains(&name))
}

/// The whole definition; flags of verbs are filled in when they are needed.
pub(crate) fn root() -> Command {
    // First the flags: what deriving them says about the command is replaced below.
    let root = Global::augment_args(Command::new("penfold"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("Runs any command as a sandbox and leaves nothing of it behind")
        .long_about(None)
        .after_help(help::ROOT_EXAMPLES)
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
