//! `penfold run`: its flags.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::Verb;
use super::bounds::Bounds;
use super::patience::Patience;
use crate::exit_codes;
use crate::value::{self, Label};

/// The verb `run`.
pub(crate) const VERB: Verb = Verb {
    name: "run",
    aliases: &[],
    about: "Run a command; when it ends, nothing of it is left",
    description: "Runs CMD in the foreground as a sandbox: standard input, output and error, the terminal and \
        inherited descriptors pass through. The sandbox ends when CMD exits, its time runs out, it is \
        interrupted, or penfold or its caller dies. Then every process that CMD started is ended and looked \
        for, and only when none is left does penfold exit, with CMD's exit code. With --detach it goes on \
        without its caller, and is looked after, stopped and asked by its id or name. Ctrl-C belongs to CMD: if it \
        dies of INT or exits, what it left is stopped; if it handles INT and goes on, so does the sandbox, and \
        Ctrl-\\ or three times Ctrl-C within a second kill it; if it ignores INT, the sandbox is stopped, and a \
        second Ctrl-C kills it. Options end at the first \
        word that is not one: all that follows CMD belongs to CMD, even `--help`.",
    examples: &[
        ("penfold run -- npm test", "run the tests and end the servers that they forget"),
        ("penfold run --timeout 10m --grace 5s make -j8", "give up after ten minutes: TERM, 5 s later KILL"),
        ("penfold run --fail-on-leak --report report.json ./ci.sh", "fail with 123 if processes were left"),
        (
            "penfold run -d --name web --ttl 8h npm start",
            "go on in the background; `penfold stop web` ends it",
        ),
        ("penfold run -d --replace --name web npm start", "the same in the place of the one that runs"),
    ],
    usage_exit: exit_codes::NOT_STARTED,
    define: RunArgs::augment_args,
    call: |global, matches| crate::run::run(global, super::read(&VERB, matches)?),
};

/// What `penfold run` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// How the processes of the sandbox are known.
    #[arg(long, value_enum, value_name = "LEVEL", default_value = "auto")]
    pub(crate) contain: Contain,
    /// Go on without the caller: print the id once CMD runs, and keep its output for `penfold logs`.
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Give a detached sandbox a terminal, for `penfold attach`.
    #[arg(short, long)]
    pub(crate) tty: bool,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End a detached sandbox after this time, unless `penfold extend` renews it"
    )]
    pub(crate) ttl: Option<Duration>,
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End a detached sandbox that had no output and no exec for this time"
    )]
    pub(crate) idle_timeout: Option<Duration>,
    /// Forget a detached sandbox when it ends, with its log and exit code.
    #[arg(long)]
    pub(crate) rm: bool,
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = value::size,
        default_value = "64M",
        help = "How much output of a detached sandbox is kept; the oldest goes first"
    )]
    pub(crate) log_size: u64,
    #[arg(
        long,
        value_enum,
        value_name = "ACT",
        help = "What happens when the caller dies; kill, unless --detach, then keep"
    )]
    pub(crate) on_owner_exit: Option<OnOwnerExit>,
    /// What happens to a detached sandbox when its supervisor is killed.
    #[arg(long, value_enum, value_name = "ACT", default_value = "kill")]
    pub(crate) on_supervisor_exit: OnSupervisorExit,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Make a new, empty directory that is removed at the end; TMPDIR, and the directory to run in unless -w.
    #[arg(long)]
    pub(crate) scratch: bool,
    /// The first Ctrl-C stops the sandbox and the second kills it, whatever CMD does with INT; not with --detach.
    #[arg(long, conflicts_with = "detach")]
    pub(crate) stop_on_interrupt: bool,
    /// Exit with 123 if the command succeeded but left processes behind; not with --detach.
    #[arg(long)]
    pub(crate) fail_on_leak: bool,
    /// Write what was found and done at the end to this file, as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Name of the sandbox, for its record and report.
    #[arg(long, value_name = "NAME", value_parser = value::name)]
    pub(crate) name: Option<String>,
    /// Stop the sandbox that has the name first, and take it over.
    #[arg(long, requires = "name")]
    pub(crate) replace: bool,
    /// Attach a label; may be repeated, the last of a key counts.
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub(crate) label: Vec<Label>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// How membership in a sandbox is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contain {
    /// The strongest that the host offers.
    Auto,
    /// A cgroup of its own.
    Cgroup,
    /// A pid namespace.
    Pidns,
    /// Descendants of the supervisor.
    Subreaper,
}

/// What the death of the owner does to the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOwnerExit {
    /// End it at once.
    Kill,
    /// End it politely first.
    Stop,
    /// Leave it running until it ends by itself.
    Keep,
}

/// What the death of the supervisor does to a detached sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnSupervisorExit {
    /// End it at once.
    Kill,
    /// Let it go on under another supervisor.
    Keep,
}
