//! `penfold tree`.

use std::fmt::Write as _;

use clap::Args;
use penfold_control::view::MemberView;
use penfold_state::time::now_ms;
use serde::Serialize;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::{self, Among, ChosenSandboxes};
use crate::sandboxes::here::Here;
use crate::text::process_tree::{self, Style};
use crate::text::row::Row;
use crate::text::template;
use crate::{exit_codes, output};

/// The verb `tree`.
pub(crate) const VERB: Verb = Verb {
    name: "tree",
    aliases: &[],
    about: "Show the processes of sandboxes as trees",
    description: "Shows the processes of one sandbox or of all: the tree of the command, the tree of each exec, and the \
        strays. A stray has a session of its own, has lost its parent, or has left the cgroup.",
    examples: &[
        ("penfold tree", "show the processes of all sandboxes"),
        ("penfold tree -p web", "show one sandbox with pids"),
        ("penfold tree --full 3f9", "show complete command lines"),
    ],
    usage_failure: FailureKind::Usage,
    define: TreeArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| tree(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold tree`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TreeArgs {
    /// Id, unique prefix of an id, or name [default: all sandboxes with live members].
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Show pids.
    #[arg(short, long)]
    pub(crate) pids: bool,
    /// Show complete command lines instead of names.
    #[arg(long)]
    pub(crate) full: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Grown<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    members: Vec<MemberView>,
}

/// Shows the processes of sandboxes.
pub(crate) fn tree(global: &Global, args: &TreeArgs) -> Result<u8, Failure> {
    let here = Here::new(global);
    let chosen = if args.ids.is_empty() {
        ChosenSandboxes { found: find::list(&here.resolver, Among::Living)?, exit: exit_codes::SUCCESS }
    } else {
        find::choose(global, &here, &args.ids)?
    };
    let resolver = here.resolver;
    let style = Style { pids: args.pids, full: args.full };
    let mut rows = Vec::new();
    let mut text = String::new();
    for (known, seen) in &chosen.found {
        let members = find::members(&resolver, known, seen, style.full)?;
        if args.json {
            rows.push(Grown { row: Row::of(seen), members });
            continue;
        }
        let words =
            [&seen.id, &template::name(seen), &template::status(seen, now_ms()), &template::command(seen)]
                .map(|word| template::printable(word));
        let _ = writeln!(text, "{}", words.join("  "));
        text.push_str(&process_tree::draw(seen, &members, style));
    }
    if args.json {
        output::json(&rows)?;
    } else {
        output::data(text.as_bytes())?;
    }
    Ok(chosen.exit)
}
