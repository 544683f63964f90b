//! Parses the command line into a call of a verb, or prints help, the version or an error.
//!
//! Only the called verb builds its flags, so that additional verbs do not slow down `run`.

use std::ffi::OsString;
use std::io;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches, ValueEnum};

use super::{INTERNAL_VERBS, define, find, is_lacking, names, screen, verbs};
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::config::Config;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::output::{self, Colour};

/// Shown below the list of commands.
const ROOT_EXAMPLES: &str = "\
Examples:
  penfold run -- npm test
      run a command; penfold ends the processes that it leaves, then exits
  penfold run --timeout 60s sh -c 'sleep 1000 & wait'
      limit the time of the whole tree, daemons included
  penfold run -d --name web npm start
      run in the background: `penfold logs -f web`, `penfold exec -it web sh`, `penfold stop web`
  penfold reap --pid 4121
      end a process tree that penfold did not start
  penfold --host http://127.0.0.1:3000 --token-file token run -- make test
      run a command on a server, `penfold serve`

Topics: penfold help config, penfold help exit-codes, penfold help guarantees, penfold help remote";

/// How to get the whole penfold.
const WHOLE: &str = "`cargo install --locked --path crates/cli` in its sources builds it";

/// A parsed command line.
pub(crate) struct Call {
    pub(crate) global: Global,
    pub(crate) verb: &'static Verb,
    /// The flags of the verb.
    pub(crate) matches: ArgMatches,
    /// Whether `--color` was given. Its default counts as a value, too.
    has_colour: bool,
}

impl Call {
    /// Takes the flags that every verb has from the matches.
    fn of(verb: &'static Verb, mut matches: ArgMatches) -> Result<Call, Error> {
        let has_colour = matches.value_source("color") == Some(ValueSource::CommandLine);
        Ok(Call { global: Global::from_arg_matches_mut(&mut matches)?, verb, matches, has_colour })
    }
}

/// Parses a command line. Each call of `words` returns all words, beginning with the name of the program.
///
/// # Errors
/// For a wrong command line, and for a request for help or the version; [`answer`] handles all of them.
pub(crate) fn parse<W>(words: impl Fn() -> W) -> Result<Call, Error>
where
    W: Iterator<Item = OsString>,
{
    if let Some(call) = parse_verb(|| words().skip(1)) {
        return Ok(call);
    }
    let mut matches = whole(scan(words()).0).try_get_matches_from(words())?;
    let (name, matches) =
        matches.remove_subcommand().ok_or_else(|| Error::new(ErrorKind::MissingSubcommand))?;
    let verb = find(&name).ok_or_else(|| Error::new(ErrorKind::InvalidSubcommand))?;
    // clap copies global flags into the matches of the verb, whether they stand before or after its name.
    Call::of(verb, matches)
}

/// Completes the flags that every verb has by the configuration. What penfold starts itself has all its flags.
///
/// # Errors
/// When the configuration is wrong.
pub(crate) fn configure(call: &mut Call) -> Result<(), Failure> {
    let is_internal = INTERNAL_VERBS.iter().any(|verb| verb.name == call.verb.name);
    // Only `run` has the flag.
    let is_without = matches!(call.matches.try_get_one("without_config"), Ok(Some(true)));
    if is_internal || is_without {
        return Ok(());
    }
    let kind = call.verb.usage_failure;
    let config = Config::read().map_err(|failure| failure.with_kind(kind))?;
    if call.global.root.is_none() {
        call.global.root = config.root().map_err(|failure| failure.with_kind(kind))?;
    }
    if !call.has_colour {
        let colour = config.colour().map_err(|failure| failure.with_kind(kind))?;
        call.global.color = colour.unwrap_or(call.global.color);
    }
    call.global.config = config;
    Ok(())
}

/// The fast path: parses a command line with the definition of its verb only; `run` has a smaller one.
///
/// This saves half of the time from execve(2) to the parsed command line, which is mostly page faults. On an error
/// [`parse`] parses again with all definitions, which give the better message.
pub(super) fn parse_verb<W: Iterator<Item = OsString>>(words: impl Fn() -> W) -> Option<Call> {
    let before = words_before_verb(words());
    let verb = find(words().nth(before)?.to_str()?)?;
    // A flag that every verb has means the same after the verb.
    let flags = || words().take(before).chain(words().skip(before + 1));
    let command = Global::augment_args(Command::new(verb.name).no_binary_name(true).args_override_self(true));
    let definition = define(verb, command, flags());
    Call::of(verb, definition.try_get_matches_from(flags()).ok()?).ok()
}

/// Counts the words before the verb, if these are flags whose last value counts. With others before it, the verb is not found.
fn words_before_verb(mut words: impl Iterator<Item = OsString>) -> usize {
    let mut count = 0;
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--root" | "--color" | "--token-file") => {
                words.next();
                count += 2;
            }
            Some("-q" | "--quiet") => count += 1,
            Some(word)
                if ["--root=", "--color=", "--token-file="].iter().any(|flag| word.starts_with(flag)) =>
            {
                count += 1;
            }
            _ => break,
        }
    }
    count
}

/// Prints help, the version or an error; returns the exit code.
///
/// Needs `words` again: an error of clap does not name the verb, and the verb determines the exit code.
pub(crate) fn answer(error: &clap::Error, words: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = words.collect();
    let is_long = wants_long_help(&words);
    let (verb, colour) = scan(words.into_iter());
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = match verb.filter(|_| error.kind() == ErrorKind::DisplayHelp) {
                Some(verb) => screen::of(verb, is_long),
                None => error.render(),
            };
            let text = painted(&text, colour.wanted(&io::stdout()));
            match output::data(text.as_bytes()) {
                Ok(()) => exit_codes::SUCCESS,
                Err(error) => Failure::from(error).report(colour.wanted(&io::stderr())),
            }
        }
        // `penfold` without a command: help goes to standard error, so that a script gets a failure and no data.
        ErrorKind::MissingSubcommand => {
            let text = screen::first();
            output::message(&painted(&text, colour.wanted(&io::stderr())));
            exit_codes::USAGE
        }
        _ => {
            let failure = lacking(error).unwrap_or_else(|| usage::failure_among(error, verb, names()));
            failure.report(colour.wanted(&io::stderr()))
        }
    }
}

/// Says where a verb is that this build lacks.
fn lacking(error: &clap::Error) -> Option<Failure> {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    is_lacking(name).then(|| lacking_verb(name))
}

/// The failure for a verb that only the whole penfold has.
pub(super) fn lacking_verb(name: &str) -> Failure {
    let sentence = format!("`{name}` is not in penfold-init; the whole penfold has it: {WHOLE}");
    Failure::new(FailureKind::Usage, sentence)
}

/// Returns a text of clap with its colours, or without.
pub(super) fn painted(text: &StyledStr, coloured: bool) -> String {
    if coloured { text.ansi().to_string() } else { text.to_string() }
}

/// Tells whether the help was asked for with `--help`, and not with `-h`.
fn wants_long_help(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--help")
}

/// Scans a command line that clap refused for its verb and `--color`.
fn scan(words: impl Iterator<Item = OsString>) -> (Option<&'static Verb>, Colour) {
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
            // The help is that of all verbs.
            "-h" | "--help" => break,
            "--root" | "--host" | "--token-file" if attached.is_none() => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => return (find(word), colour),
        }
    }
    (None, colour)
}

/// Returns the definition of all verbs, with this verb even if it is internal.
fn whole(verb: Option<&'static Verb>) -> Command {
    let internal = verb.filter(|verb| INTERNAL_VERBS.iter().any(|internal| internal.name == verb.name));
    internal
        .into_iter()
        .fold(root(), |root, verb| root.subcommand(command(verb)))
        .override_help(screen::first())
}

/// The definition of all verbs; clap adds the flags of a verb on demand.
pub(super) fn root() -> Command {
    // Flags first: the derive also sets `about`, which the calls below replace.
    let root = Global::augment_args(Command::new("penfold"))
        .version(env!("CARGO_PKG_VERSION"))
        .about(screen::ABOUT)
        .long_about(None)
        .after_help(ROOT_EXAMPLES)
        .subcommand_value_name("COMMAND")
        .subcommand_help_heading("Commands")
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .args_override_self(true);
    verbs().fold(root, |root, verb| root.subcommand(command(verb)))
}

fn command(verb: &'static Verb) -> Command {
    Command::new(verb.name)
        .about(verb.about)
        .visible_aliases(verb.aliases.iter().copied())
        .disable_help_subcommand(true)
        .args_override_self(true)
        .defer(|command| match find(command.get_name()) {
            Some(verb) => screen::explain((verb.define)(command), verb),
            None => command,
        })
}
