//! A verb as a value, and the flags that every verb takes.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{ArgAction, ArgMatches, Args, Command};

use crate::failure::{Failure, FailureKind};
use crate::output::Colour;
use crate::value;

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
    /// What a wrong command line is.
    pub(crate) usage_failure: FailureKind,
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
