//! The verbs of penfold: one file each, with flags, help texts and implementation.

mod adopt;
#[cfg(feature = "full")]
mod agent;
mod as_user;
mod ask_vmm;
mod attach;
mod command_line;
#[cfg(feature = "full")]
mod completions;
mod doctor;
mod events;
pub(crate) mod exec;
pub(crate) mod extend;
mod gc;
mod guard;
mod help;
pub(crate) mod inspect;
mod jail;
#[cfg(feature = "full")]
mod jail_dial;
mod keep;
pub(crate) mod kill;
pub(crate) mod logs;
#[cfg(feature = "full")]
mod man;
#[cfg(feature = "full")]
mod mcp;
mod metrics;
mod next_life;
pub(crate) mod oci;
pub(crate) mod pause;
mod ports;
pub(crate) mod ps;
mod reap;
mod report;
mod restart;
pub(crate) mod rm;
pub(crate) mod run;
mod screen;
#[cfg(feature = "full")]
mod serve;
mod session_host;
pub(crate) mod sh;
mod slurm;
mod start_request;
mod stats;
mod status;
pub(crate) mod stop;
#[cfg(test)]
mod tests;
#[cfg(feature = "full")]
mod top;
mod tree;
mod version;
pub(crate) mod wait;
mod watch;

use std::ffi::OsString;

use clap::Command;

use crate::args::verb::Verb;

pub(crate) use command_line::{answer, configure, parse};
#[cfg(feature = "full")]
pub(crate) use completions::answer as complete;

/// A verb that only the whole penfold has, by the name of its module, which is that of the verb. penfold-init, which is built without the
/// feature `full`, has this name alone.
#[cfg(feature = "full")]
macro_rules! whole {
    ($name:ident) => {
        Ok(&$name::VERB)
    };
}
#[cfg(not(feature = "full"))]
macro_rules! whole {
    ($name:ident) => {
        Err(stringify!($name))
    };
}

/// A verb, or its name if this build lacks it.
type KnownVerb = Result<&'static Verb, &'static str>;

/// Verbs with one purpose. The first ones are on the first screen of the help.
struct VerbGroup {
    title: &'static str,
    shown: usize,
    verbs: &'static [KnownVerb],
}

/// Every verb, in the order of the help.
const GROUPS: &[VerbGroup] = &[
    VerbGroup {
        title: "Run",
        shown: 3,
        verbs: &[
            Ok(&run::VERB),
            Ok(&exec::VERB),
            Ok(&guard::VERB),
            Ok(&guard::EACH),
            Ok(&sh::VERB),
            Ok(&attach::VERB),
        ],
    },
    VerbGroup {
        title: "Look",
        shown: 4,
        verbs: &[
            Ok(&ps::VERB),
            Ok(&logs::VERB),
            Ok(&status::VERB),
            Ok(&ports::VERB),
            whole!(top),
            Ok(&tree::VERB),
            Ok(&stats::VERB),
            Ok(&report::VERB),
            Ok(&inspect::VERB),
            Ok(&events::VERB),
            Ok(&wait::VERB),
        ],
    },
    VerbGroup {
        title: "Act",
        shown: 3,
        verbs: &[
            Ok(&stop::VERB),
            Ok(&kill::VERB),
            Ok(&restart::VERB),
            Ok(&pause::VERB),
            Ok(&pause::UNPAUSE),
            Ok(&extend::VERB),
            Ok(&adopt::VERB),
            Ok(&keep::VERB),
        ],
    },
    VerbGroup {
        title: "Clean up",
        shown: 3,
        verbs: &[Ok(&doctor::VERB), Ok(&gc::VERB), Ok(&reap::VERB), Ok(&rm::VERB), Ok(&slurm::VERB)],
    },
    VerbGroup {
        title: "Connect",
        shown: 2,
        verbs: &[
            whole!(serve),
            whole!(agent),
            whole!(mcp),
            Ok(&oci::VERB),
            Ok(&watch::VERB),
            Ok(&metrics::VERB),
        ],
    },
    VerbGroup {
        title: "Help",
        shown: 0,
        verbs: &[Ok(&help::VERB), Ok(&version::VERB), whole!(completions), whole!(man)],
    },
];

/// The verbs that only other parts of penfold call. Help, completions and manual pages leave them out.
const INTERNAL_VERBS: &[&Verb] = &[
    &session_host::VERB,
    &as_user::VERB,
    &jail::OUTSIDE,
    &jail::INSIDE,
    #[cfg(feature = "full")]
    &jail_dial::VERB,
    &ask_vmm::VERB,
    &crate::ssh::far::VERB,
    &next_life::VERB,
    &start_request::VERB,
];

fn known() -> impl Iterator<Item = KnownVerb> {
    GROUPS.iter().flat_map(|group| group.verbs.iter().copied())
}

/// The verbs of this build.
fn verbs() -> impl Iterator<Item = &'static Verb> {
    known().flatten()
}

/// The names of the verbs of this build, and their aliases.
fn names() -> impl Iterator<Item = &'static str> {
    verbs().flat_map(|verb| std::iter::once(verb.name).chain(verb.aliases.iter().copied()))
}

/// Whether only the whole penfold has a verb with this name.
fn is_lacking(name: &str) -> bool {
    known().any(|verb| verb.is_err_and(|lacking| lacking == name))
}

/// Finds the verb with this name or alias.
fn find(name: &str) -> Option<&'static Verb> {
    verbs()
        .chain(INTERNAL_VERBS.iter().copied())
        .find(|verb| verb.name == name || verb.aliases.contains(&name))
}

/// Adds the flags of a verb that a command line needs: all of them, but `run` has many.
fn define(verb: &Verb, command: Command, words: impl Iterator<Item = OsString>) -> Command {
    if verb.name == run::VERB.name {
        run::definition::for_words(command, words)
    } else {
        (verb.define)(command)
    }
}
