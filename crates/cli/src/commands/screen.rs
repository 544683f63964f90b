//! The help texts: the first screen, and that of one verb.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::builder::styling::Styles;
use clap::{Args as _, Command};

use super::{GROUPS, VerbGroup};
use crate::args::verb::{Global, Verb};

/// What penfold does.
pub(super) const ABOUT: &str = "Runs any command as a sandbox and leaves nothing of it behind";
/// Below the list of the first screen.
const FIRST_EXAMPLES: [(&str, &str); 3] = [
    ("penfold run -- npm test", "what it leaves behind is ended"),
    ("penfold run -d --name web npm start", "`penfold stop web` ends it"),
    ("penfold help all", "every command; `penfold help run`: one"),
];
/// The verb with a short help of its own.
const RUN: &str = "run";
/// The options of `run` that most people need, on its short help.
const EVERYDAY: [&str; 12] = [
    "command",
    "timeout",
    "env",
    "workdir",
    "detach",
    "tty",
    "interactive",
    "rm",
    "name",
    "ready",
    "memory",
    "fail_on_leak",
];
/// The examples of `run` on its short help.
const FEW: usize = 2;

/// The first screen: at most 24 lines of 80 columns.
pub(super) fn first() -> StyledStr {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text =
        format!("{ABOUT}\n\n{header}Usage:{header:#} {literal}penfold{literal:#} [OPTIONS] <COMMAND>\n\n");
    for VerbGroup { title, shown, verbs } in GROUPS {
        let mut title = *title;
        for verb in verbs.iter().flatten().take(*shown) {
            let (gap, room) = (10_usize.saturating_sub(title.len()), 9_usize.saturating_sub(verb.name.len()));
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{header}{title}{header:#}{:gap$}{literal}{}{literal:#}{:room$}{}",
                "", verb.name, "", verb.about
            );
            title = "";
        }
    }
    text.push('\n');
    for (example, purpose) in FIRST_EXAMPLES {
        let _ = writeln!(text, "  {literal}{example:<37}{literal:#}{purpose}");
    }
    text.into()
}

/// The help of a verb; the short one of `run` has the everyday options only. The options that every verb has are last.
pub(super) fn of(verb: &Verb, is_long: bool) -> StyledStr {
    let command = (verb.define)(Command::new(verb.name));
    let command = explain(Global::augment_args(command), verb).bin_name(format!("penfold {}", verb.name));
    let mut command = if verb.name == RUN && !is_long { shorten(command, verb) } else { command };
    if is_long { command.render_long_help() } else { command.render_help() }
}

/// Adds the texts of a verb to its definition.
pub(super) fn explain(command: Command, verb: &Verb) -> Command {
    command.about(verb.about).long_about(verb.description).after_help(examples(verb, verb.examples.len()))
}

fn examples(verb: &Verb, most: usize) -> String {
    let mut text = String::from("Examples:\n");
    for (example, purpose) in verb.examples.iter().take(most) {
        let _ = write!(text, "  {example}\n      {purpose}\n");
    }
    text.trim_end().to_owned()
}

/// Shows the everyday options, and of the others one line for each group.
fn shorten(command: Command, verb: &Verb) -> Command {
    let is_everyday = |id: &str| EVERYDAY.contains(&id);
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for option in command.get_arguments().filter(|option| !is_everyday(option.get_id().as_str())) {
        let Some(long) = option.get_long() else { continue };
        let heading = option.get_help_heading().unwrap_or("Other options").to_owned();
        let place = groups.iter().position(|(known, _)| *known == heading).unwrap_or_else(|| {
            groups.push((heading, Vec::new()));
            groups.len() - 1
        });
        if let Some((_, options)) = groups.get_mut(place) {
            options.push(format!("--{long}"));
        }
    }
    let mut text = String::from("More options, which `penfold run --help` explains:\n");
    for (heading, options) in groups {
        let _ = writeln!(text, "  {heading}: {}", options.join(" "));
    }
    let text = format!("{text}\n{}", examples(verb, FEW));
    command
        .mut_args(|option| {
            let hides = !is_everyday(option.get_id().as_str());
            option.hide_short_help(hides).help_heading(None::<&str>)
        })
        .after_help(text)
}
