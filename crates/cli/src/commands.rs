//! The verbs of penfold: a file for each, with its flags, its texts and its work.

mod adopt;
mod attach;
mod command_line;
mod completions;
mod doctor;
mod events;
mod exec;
mod extend;
mod gc;
mod help;
mod inspect;
mod kill;
mod logs;
mod man;
mod ps;
mod reap;
mod report;
mod rm;
mod run;
mod status;
mod stop;
#[cfg(test)]
mod tests;
mod tree;
mod version;
mod wait;

use crate::args::verb::Verb;

pub(crate) use command_line::{answer, parse};

/// Every verb, in the order of the help.
const VERBS: &[&Verb] = &[
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

/// The verb with this name or alias.
fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().copied().find(|verb| verb.name == name || verb.aliases.contains(&name))
}
