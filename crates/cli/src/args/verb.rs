//! [`Verb`], the definition of a verb, and [`Global`], the flags of every verb.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{ArgAction, ArgMatches, Args, Command};
use penfold_client::Client;

use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::output::Colour;
use crate::place::RemotePlace;
use crate::value;

/// A verb: names, help texts, flags and implementation.
pub(crate) struct Verb {
    /// The word on the command line.
    pub(crate) name: &'static str,
    /// Other names.
    pub(crate) aliases: &'static [&'static str],
    /// The line in the list of verbs.
    pub(crate) about: &'static str,
    /// The paragraph in `--help`.
    pub(crate) description: &'static str,
    /// Two to seven command lines, each with its purpose.
    pub(crate) examples: &'static [(&'static str, &'static str)],
    /// The kind of failure for a wrong command line; the kind determines the exit code.
    pub(crate) usage_failure: FailureKind,
    /// Adds the verb's flags.
    pub(crate) define: fn(Command) -> Command,
    /// Where the verb can act.
    pub(crate) places: Places,
    /// Runs the verb on this host and returns the exit code.
    pub(crate) call: fn(&Global, ArgMatches) -> Result<u8, Failure>,
}

/// Where a verb can act, by `--host` and its variable.
#[derive(Clone, Copy)]
pub(crate) enum Places {
    /// On this host only: it has nothing to do with sandboxes, serves those of this host, or is started by penfold in a sandbox. The
    /// variable does not change it.
    Here,
    /// On this host, and on another one over ssh.
    Hosts,
    /// There, and as a client of a server.
    All(fn(&Global, Client, ArgMatches) -> Result<u8, Failure>),
}

/// The flags that every verb accepts, before or after its name.
#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// State root: the directory with the records of sandboxes [default: `$PENFOLD_ROOT`; else for root `/run/penfold`; for users `penfold` in
    /// `$XDG_RUNTIME_DIR`, else in `/run/user/UID`, else `/tmp/penfold-UID`].
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        value_parser = clap::builder::OsStringValueParser::new().try_map(|given| value::root(&given)),
        help_heading = "Global options"
    )]
    pub(crate) root: Option<PathBuf>,
    /// Act on another host, `ssh://[USER@]HOST[:PORT][/PATH]`, or on a server, `unix:PATH` or `http://HOST:PORT`; several for `ps`
    /// [default: `$PENFOLD_HOST`, else this host].
    #[arg(long, global = true, value_name = "ADDRESS", action = ArgAction::Append, help_heading = "Global options")]
    pub(crate) host: Vec<RemotePlace>,
    /// File with the token for --host, by default `$PENFOLD_TOKEN_FILE`; for `serve`, the tokens of callers on TCP.
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) token_file: Option<PathBuf>,
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
    /// Print only errors.
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Print more; may be repeated.
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// The files of the configuration.
    #[arg(skip)]
    pub(crate) config: Config,
}
