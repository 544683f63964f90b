//! `penfold tree`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;

/// The verb `tree`.
pub(crate) const VERB: Verb = Verb {
    name: "tree",
    aliases: &[],
    about: "Show the processes of sandboxes as trees",
    description: "Shows the processes of one sandbox or of all: those below its command, those below each command \
        that was put into it later, and strays, which have a session of their own, have lost their parent, or have \
        left the cgroup.",
    examples: &[
        ("penfold tree", "what is running in all sandboxes?"),
        ("penfold tree -p web", "one of them, with the numbers of its processes"),
        ("penfold tree --full 3f9", "with whole command lines"),
    ],
    usage_exit: exit_codes::USAGE,
    define: TreeArgs::augment_args,
    call: |global, matches| crate::tree::tree(global, &super::read(&VERB, matches)?),
};

/// What `penfold tree` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreeArgs {
    /// An id, the unique beginning of one, or a name; all that live if none is given.
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Show the numbers of processes.
    #[arg(short, long)]
    pub(crate) pids: bool,
    /// Show whole command lines instead of names.
    #[arg(long)]
    pub(crate) full: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
