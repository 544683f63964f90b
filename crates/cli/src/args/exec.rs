//! `penfold exec`: its flags.

use std::ffi::OsString;

use clap::Args;

use super::Verb;
use super::bounds::Bounds;
use crate::exit_codes;

/// The verb `exec`.
pub(crate) const VERB: Verb = Verb {
    name: "exec",
    aliases: &[],
    about: "Run a command in a running sandbox",
    description: "Runs CMD in a detached sandbox, with the environment and directory that the sandbox was started with. \
        CMD has a group of its own: when it exits, is interrupted or loses its caller, all that it started is ended, and \
        nothing else of the sandbox. When the sandbox ends, CMD ends with it. Without --signal it is asked to end as the \
        sandbox is; where neither says how, with what penfold itself is sent, INT or TERM. Exits with CMD's code; \
        with 125 when ID means no sandbox or several, or CMD cannot be put into it.",
    examples: &[
        ("penfold exec web ls -l", "run a command where the sandbox runs"),
        ("penfold exec -it web bash", "a shell in it, with a terminal"),
        ("penfold exec -d web ./worker.sh", "start another process in it and go on"),
        ("penfold exec -i db psql <dump.sql", "with standard input"),
    ],
    usage_exit: exit_codes::NOT_STARTED,
    define: ExecArgs::augment_args,
    call: |global, matches| crate::exec::exec(global, &super::read(&VERB, matches)?),
};

/// What `penfold exec` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExecArgs {
    /// Pass standard input on.
    #[arg(short, long)]
    pub(crate) interactive: bool,
    /// Give the command a terminal of its own.
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// Do not wait: the command goes on until it ends or the sandbox does.
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) bounds: Bounds,
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}
