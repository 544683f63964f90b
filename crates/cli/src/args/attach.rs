//! `penfold attach`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;
use crate::value::{self, Keys};

/// The verb `attach`.
pub(crate) const VERB: Verb = Verb {
    name: "attach",
    aliases: &[],
    about: "Sit down at the terminal of a detached sandbox",
    description: "Connects the terminal that penfold is called from with that of a sandbox started with `penfold run -d -t`. \
        Ctrl-P Ctrl-Q, or what --detach-keys says, leaves it, and the sandbox goes on; every other key, Ctrl-C included, goes to the program in it. The end \
        of standard input leaves it, too, once all of that was typed. The terminal inside is as large as the smallest that \
        is attached. When the sandbox ends, penfold exits with its command's code; with 125 when ID means no sandbox or \
        several, when it has no terminal, or when penfold runs in that very sandbox.",
    examples: &[
        ("penfold attach shell", "sit down; Ctrl-P Ctrl-Q leaves"),
        ("penfold attach --no-stdin shell", "only look on"),
        ("penfold attach --detach-keys ctrl-x,d shell", "where Ctrl-P is needed for something else"),
    ],
    usage_exit: exit_codes::NOT_STARTED,
    define: AttachArgs::augment_args,
    call: |global, matches| crate::attach::attach(global, &super::read(&VERB, matches)?),
};

/// What `penfold attach` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct AttachArgs {
    /// Only look: what is typed stays here.
    #[arg(long)]
    pub(crate) no_stdin: bool,
    #[arg(
        long,
        value_name = "KEYS",
        value_parser = value::keys,
        default_value = "ctrl-p,ctrl-q",
        help = "What to type to leave it; an empty word for nothing"
    )]
    pub(crate) detach_keys: Keys,
    /// Id, unique beginning of an id, or name.
    #[arg(value_name = "ID")]
    pub(crate) id: String,
}
