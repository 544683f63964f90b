//! The verbs of penfold: one file each, with flags, help texts and implementation.

mod adopt;
mod agent;
mod as_user;
mod ask_vmm;
mod attach;
mod command_line;
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
mod keep;
pub(crate) mod kill;
pub(crate) mod logs;
mod man;
mod mcp;
mod metrics;
mod next_life;
pub(crate) mod oci;
pub(crate) mod pause;
pub(crate) mod ps;
mod reap;
mod report;
mod restart;
pub(crate) mod rm;
pub(crate) mod run;
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
mod top;
mod tree;
mod version;
pub(crate) mod wait;
mod watch;

use std::ffi::OsString;

use clap::Command;

use crate::args::verb::Verb;

pub(crate) use command_line::{answer, configure, parse};
pub(crate) use completions::answer as complete;

/// Every verb, in the order in which `penfold --help` lists them.
const VERBS: &[&Verb] = &[
    &run::VERB,
    &sh::VERB,
    &guard::VERB,
    &guard::EACH,
    &exec::VERB,
    &attach::VERB,
    &ps::VERB,
    &top::VERB,
    &stats::VERB,
    &tree::VERB,
    &status::VERB,
    &inspect::VERB,
    &report::VERB,
    &logs::VERB,
    &events::VERB,
    &wait::VERB,
    &stop::VERB,
    &kill::VERB,
    &restart::VERB,
    &pause::VERB,
    &pause::UNPAUSE,
    &rm::VERB,
    &extend::VERB,
    &adopt::VERB,
    &keep::VERB,
    &reap::VERB,
    &slurm::VERB,
    &doctor::VERB,
    &gc::VERB,
    &metrics::VERB,
    &serve::VERB,
    &watch::VERB,
    &agent::VERB,
    &mcp::VERB,
    &oci::VERB,
    &help::VERB,
    &version::VERB,
    &completions::VERB,
    &man::VERB,
];

/// The verbs that only other parts of penfold call. Help, completions and manual pages leave them out.
const INTERNAL_VERBS: &[&Verb] = &[
    &session_host::VERB,
    &as_user::VERB,
    &jail::OUTSIDE,
    &jail::INSIDE,
    &ask_vmm::VERB,
    &crate::ssh::far::VERB,
    &next_life::VERB,
    &start_request::VERB,
];

/// Finds the verb with this name or alias.
fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().chain(INTERNAL_VERBS).copied().find(|verb| verb.name == name || verb.aliases.contains(&name))
}

/// Adds the flags of a verb that a command line needs: all of them, but `run` has many.
fn define(verb: &Verb, command: Command, words: impl Iterator<Item = OsString>) -> Command {
    if verb.name == run::VERB.name {
        run::definition::for_words(command, words)
    } else {
        (verb.define)(command)
    }
}
