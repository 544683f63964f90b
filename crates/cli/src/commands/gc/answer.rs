//! The questions and messages of `penfold gc`.

use std::fmt::Write as _;

use penfold_doctor::leaks::{Leak, Survey, Thing, USUAL_AGE, describe_leak};

use super::GcArgs;
use super::collected::{Collected, Outcome};
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::text::lines::{self, count, say};

/// Asks for confirmation; refuses without a terminal.
pub(super) fn confirm(global: &Global, args: &GcArgs, wanted: &[Leak]) -> Result<(), Failure> {
    let ended = wanted.iter().filter(|leak| matches!(leak.thing, Thing::Ended { .. })).count();
    let number = match (wanted.len() - ended, ended) {
        (leaks, 0) => count(leaks, "leak", "leaks"),
        (0, ended) => count(ended, "ended sandbox", "ended sandboxes"),
        (leaks, ended) => {
            let ended = count(ended, "ended sandbox", "ended sandboxes");
            format!("{} and {ended}", count(leaks, "leak", "leaks"))
        }
    };
    if !output::can_ask() {
        let sentence = format!("refused to end and remove {number} without confirmation");
        return Err(
            Failure::new(FailureKind::Usage, sentence).hint(format!("`{}` does it", command(global, args)))
        );
    }
    let mut text = String::new();
    for leak in wanted {
        lines::push(&mut text, &format!("  {}", describe_leak(leak)));
        text.push('\n');
    }
    let _ = write!(text, "End and remove {number}? [y/N] ");
    if output::ask(&text) {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, "nothing was removed: the answer was not `y`"))
}

/// The command that does the same without a question.
fn command(global: &Global, args: &GcArgs) -> String {
    let root = global.root.as_ref().map_or_else(String::new, |root| format!(" --root {}", root.display()));
    let age = if args.older_than == USUAL_AGE {
        String::new()
    } else {
        format!(" --older-than {}", args.older_than.as_secs_f64())
    };
    let kinds =
        if args.kinds.is_empty() { String::new() } else { format!(" --kind {}", args.kinds.join(",")) };
    format!("penfold{root} gc -f{age}{kinds}")
}

/// Prints the result for each leak.
pub(super) fn tell(
    global: &Global,
    args: &GcArgs,
    survey: &Survey,
    collected: &[Collected],
) -> Result<(), WriteError> {
    let mut data = String::new();
    let mut talk = String::new();
    for unread in &survey.unread {
        say(&mut talk, &format!("incomplete search: {unread}"));
    }
    for one in collected {
        let what = describe_leak(&one.leak);
        match one.outcome {
            Outcome::Survived { .. } | Outcome::Failed { .. } if args.json || global.quiet => {
                say(&mut talk, &format!("not gone: {what}{}", one.why()));
            }
            Outcome::Survived { .. } | Outcome::Failed { .. } => {
                line(&mut data, &format!("[FAIL] {what}{}", one.why()));
            }
            Outcome::Kept { .. } => {}
            Outcome::Removed { .. } => line(&mut data, &format!("[ok]   removed {what}")),
            Outcome::WouldRemove => line(&mut data, &format!("would remove {what}")),
        }
    }
    if !global.quiet {
        kept(args, collected, &mut talk);
        if args.dry_run && survey.complete && collected.is_empty() {
            say(&mut talk, "nothing would be removed");
        }
    }
    output::message(&talk);
    if args.json || (global.quiet && !args.dry_run) { Ok(()) } else { output::data(data.as_bytes()) }
}

/// Names the kept leaks with the reason. With `--force` and without ids, prints one line for each reason.
fn kept(args: &GcArgs, collected: &[Collected], talk: &mut String) {
    let mut reasons: Vec<(String, Vec<&Collected>)> = Vec::new();
    for one in collected.iter().filter(|one| one.is_kept()) {
        let why = one.why();
        let why = if one.leak.id.is_empty() { why } else { why.replace(&one.leak.id, "ID") };
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, same)) => same.push(one),
            None => reasons.push((why, vec![one])),
        }
    }
    let summed_up = args.force && args.words.is_empty();
    for (why, same) in reasons {
        if summed_up && same.len() > 1 {
            say(talk, &format!("kept {} leaks{why}; `penfold gc -n` names them", same.len()));
        } else {
            for one in same {
                say(talk, &format!("kept {}{}", describe_leak(&one.leak), one.why()));
            }
        }
    }
}

fn line(text: &mut String, words: &str) {
    lines::push(text, words);
    text.push('\n');
}
