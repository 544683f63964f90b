//! `penfold tree`: what it does.

use std::fmt::Write as _;

use penfold_control::view::Member;
use penfold_state::time::now_ms;
use serde::Serialize;

use crate::args::Global;
use crate::args::tree::TreeArgs;
use crate::failure::Failure;
use crate::sandboxes::find::{self, Among, Chosen};
use crate::text::process_tree::{self, Style};
use crate::text::row::Row;
use crate::text::{lines, template};
use crate::{exit_codes, output};

#[derive(Serialize)]
struct Grown<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    members: Vec<Member>,
}

/// Shows the processes of sandboxes.
pub(crate) fn tree(global: &Global, args: &TreeArgs) -> Result<u8, Failure> {
    let finder = find::finder(global);
    let chosen = if args.ids.is_empty() {
        Chosen { found: find::list(&finder, Among::Living)?, exit: exit_codes::SUCCESS }
    } else {
        find::choose(global, &finder, &args.ids)?
    };
    let style = Style { pids: args.pids, full: args.full };
    let mut rows = Vec::new();
    let mut text = String::new();
    for (known, seen) in &chosen.found {
        let members = process_tree::grow(&finder, known, seen, style)?;
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
        lines::json(&rows, exit_codes::FAILURE)?;
    } else {
        output::data(text.as_bytes(), exit_codes::FAILURE)?;
    }
    Ok(chosen.exit)
}
