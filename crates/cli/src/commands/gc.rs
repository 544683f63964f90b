//! `penfold gc`.

mod choose;
mod foreign;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::time::Duration;

use choose::choose;
use clap::Args;
use penfold_control::leaks::{self, Leak, Member, Survey, Thing};
use penfold_state::events::{About, Journal, What};
use penfold_teardown::Findings;
use serde::Serialize;

use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::output::{self, WriteError};
use crate::text::leak::{USUAL_AGE, describe};
use crate::text::lines::{self, count, say};
use crate::{exit_codes, surroundings, value};

/// The verb `gc`.
pub(crate) const VERB: Verb = Verb {
    name: "gc",
    aliases: &["prune"],
    about: "Remove what outlived its sandbox",
    description: "Ends and removes what `penfold doctor` names: sandboxes that have no supervisor any more, whatever \
        their age; processes, cgroups and directories without a record, and the records of detached sandboxes that \
        have ended, with their log and exit code, once they are old enough. What belongs to another state root is not touched; \
        what lives and may belong to one goes only when its id is given. Acts only on what is ours and completely \
        seen; whatever could not be read counts as alive and stays. Asks first on a terminal, unless ids are given; \
        elsewhere it needs -f. With --foreign it ends the trees of the processes that are named, which penfold did \
        not start, and nothing else.",
    examples: &[
        ("penfold gc -n", "show what would be removed"),
        ("penfold gc -f", "remove it without asking, as in a timer"),
        ("penfold gc -f --kind ended --older-than 7d", "forget sandboxes that ended a week ago"),
        ("penfold gc --foreign 4121", "end the tree of a stray that `penfold doctor --foreign` shows"),
    ],
    usage_failure: FailureKind::Usage,
    define: GcArgs::augment_args,
    call: |global, matches| gc(global, &usage::read(&VERB, matches)?),
};

/// What `penfold gc` was asked to do.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags that have nothing to do with each other")]
pub(crate) struct GcArgs {
    /// Act only on these: ids, unique beginnings of ids or names; with --foreign, pids.
    #[arg(value_name = "ID")]
    pub(crate) words: Vec<String>,
    /// Act only on these kinds of things; may be given again.
    #[arg(
        long = "kind",
        value_name = "KIND",
        value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(Thing::KINDS)
    )]
    pub(crate) kinds: Vec<String>,
    /// End the trees of the processes that are named, which penfold did not start.
    #[arg(long, requires = "words", conflicts_with_all = ["kinds", "older_than"])]
    pub(crate) foreign: bool,
    #[arg(
        short = 't',
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s",
        help = "With --foreign: time between the polite signal and KILL"
    )]
    pub(crate) grace: Duration,
    #[command(flatten)]
    pub(crate) patience: Patience,
    /// Show what would be removed and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Leave alone what is younger than this.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10m"
    )]
    pub(crate) older_than: Duration,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What became of a leak.
#[derive(Serialize)]
struct Collected {
    #[serde(flatten)]
    leak: Leak,
    /// `removed`, `would remove`, `kept`, `failed`.
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    findings: Option<Findings>,
    /// Who keeps it from going, as far as that can be seen.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    holders: Vec<Member>,
    #[serde(skip)]
    forbidden: bool,
}

#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    dry_run: bool,
    complete: bool,
    unread: &'a [String],
    leaks: &'a [Collected],
}

/// Ends and removes what outlived its sandbox.
pub(crate) fn gc(global: &Global, args: &GcArgs) -> Result<u8, Failure> {
    if args.foreign {
        return foreign::end(global, args);
    }
    let mut survey = look(global)?;
    let mut choice = choose(global, args, &mut survey);
    let is_wanted = |leak: &Leak, survey: &Survey| refusal(leak, survey, args).is_none();
    if !args.dry_run
        && !args.force
        && args.words.is_empty()
        && choice.leaks.iter().any(|leak| is_wanted(leak, &survey))
    {
        choice.leaks.retain(|leak| is_wanted(leak, &survey));
        confirm(global, args, &choice.leaks)?;
        // What the question was about may have changed while it was open, and what has come since was not in it.
        survey = look(global)?;
        let shown = std::mem::replace(&mut choice, choose(global, args, &mut survey)).leaks;
        choice.leaks.retain(|leak| shown.iter().any(|other| is_same(leak, other)));
    }
    let coloured = global.color.wanted(&std::io::stderr());
    let missed: Vec<u8> = choice.missed.iter().map(|failure| failure.report(coloured)).collect();
    let root = surroundings::root(global);
    let collected: Vec<Collected> = choice
        .leaks
        .into_iter()
        .map(|leak| match refusal(&leak, &survey, args) {
            Some(reason) => Collected { reason: Some(reason), ..Collected::of(leak, "kept") },
            None if args.dry_run => Collected::of(leak, "would remove"),
            None => {
                let one = collect(leak, &root, !args.words.is_empty(), args.patience.patience);
                one.write_down(&root);
                one
            }
        })
        .collect();
    if args.json {
        let schema = penfold_teardown::report::SCHEMA;
        let (complete, unread) = (survey.complete, survey.unread.as_slice());
        let result = Answer { schema, dry_run: args.dry_run, complete, unread, leaks: &collected };
        output::json(&result)?;
    }
    tell(global, args, &survey, &collected)?;
    let done = exit_code(&survey, &collected);
    Ok(if done == exit_codes::SUCCESS { missed.first().copied().unwrap_or(done) } else { done })
}

/// Whether two looks have found the same thing.
fn is_same(leak: &Leak, other: &Leak) -> bool {
    leak.id == other.id && leak.thing.kind() == other.thing.kind() && leak.thing.path() == other.thing.path()
}

fn look(global: &Global) -> Result<Survey, Failure> {
    leaks::look(&surroundings::root(global), &[surroundings::temporary()])
        .or_fail(FailureKind::Other, "cannot look at this host")
}

/// Why a leak is left alone.
fn refusal(leak: &Leak, survey: &Survey, args: &GcArgs) -> Option<String> {
    if leak.is_alive() {
        return Some(format!("its supervisor lives; `penfold kill {}` ends it", leak.id));
    }
    if leak.is_certain() {
        return None;
    }
    if !leak.claimed && args.words.is_empty() {
        return Some(format!("it may belong to another state root; `penfold gc {}` ends it", leak.id));
    }
    if !survey.complete {
        return Some("not everything could be looked at, so it may be alive".to_owned());
    }
    (leak.age() < args.older_than).then(|| "younger than --older-than".to_owned())
}

impl Collected {
    fn of(leak: Leak, outcome: &'static str) -> Collected {
        Collected { leak, outcome, reason: None, findings: None, holders: Vec::new(), forbidden: false }
    }

    fn failed(leak: Leak) -> Collected {
        let holders = leak.thing.path().map(leaks::holders).unwrap_or_default();
        Collected { holders, ..Collected::of(leak, "failed") }
    }

    /// Why it is not gone, and who holds it.
    fn why(&self) -> String {
        let survivors = self.findings.iter().flat_map(|findings| &findings.survivors);
        let holders = self
            .holders
            .iter()
            .map(|holder| format!("process {} ({}) holds it", holder.id.pid.as_raw_pid(), holder.name));
        let reasons: Vec<String> =
            self.reason.iter().cloned().chain(survivors.map(ToString::to_string)).chain(holders).collect();
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
    }

    /// Tells those who follow the events. What was kept on purpose was no leak.
    fn write_down(&self, root: &Path) {
        if matches!(self.leak.thing, Thing::Ended { .. }) {
            return;
        }
        let reason = self.why().strip_prefix(": ").map(str::to_owned);
        let what = What::Leak { what: describe(&self.leak), outcome: self.outcome.to_owned(), reason };
        let about = About { id: self.leak.id.clone(), name: self.leak.name.clone(), labels: BTreeMap::new() };
        Journal::new(root, about).tell([what]);
    }
}

fn collect(leak: Leak, root: &Path, named: bool, patience: Duration) -> Collected {
    match leaks::collect(&leak, root, named, patience) {
        Ok(findings) if findings.verified => {
            Collected { findings: Some(findings), ..Collected::of(leak, "removed") }
        }
        Ok(findings) => Collected { findings: Some(findings), ..Collected::failed(leak) },
        Err(error) => Collected {
            forbidden: FailureKind::from(&error) == FailureKind::NotPermitted,
            reason: Some(error.to_string()),
            ..Collected::failed(leak)
        },
    }
}

/// Asks a person; refuses where there is none.
fn confirm(global: &Global, args: &GcArgs, wanted: &[Leak]) -> Result<(), Failure> {
    let ended = wanted.iter().filter(|leak| matches!(leak.thing, Thing::Ended { .. })).count();
    let number = match (wanted.len() - ended, ended) {
        (leaks, 0) => count(leaks, "leak", "leaks"),
        (0, ended) => count(ended, "ended sandbox", "ended sandboxes"),
        (leaks, ended) => {
            let ended = count(ended, "ended sandbox", "ended sandboxes");
            format!("{} and {ended}", count(leaks, "leak", "leaks"))
        }
    };
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        let sentence = format!("refused to end and remove {number} without being asked twice");
        return Err(
            Failure::new(FailureKind::Usage, sentence).hint(format!("`{}` does it", command(global, args)))
        );
    }
    let mut text = String::new();
    for leak in wanted {
        lines::push(&mut text, &format!("  {}", describe(leak)));
        text.push('\n');
    }
    let _ = write!(text, "End and remove {number}? [y/N] ");
    output::talk(&text);
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(FailureKind::Usage, "nothing was removed"))
}

/// The command to type.
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

fn tell(global: &Global, args: &GcArgs, survey: &Survey, collected: &[Collected]) -> Result<(), WriteError> {
    let mut data = String::new();
    let mut talk = String::new();
    for unread in &survey.unread {
        say(&mut talk, &format!("not seen: {unread}"));
    }
    for one in collected {
        let what = describe(&one.leak);
        match one.outcome {
            "failed" if args.json || global.quiet => {
                say(&mut talk, &format!("not gone: {what}{}", one.why()));
            }
            "failed" => line(&mut data, &format!("[FAIL] {what}{}", one.why())),
            "kept" => {}
            "removed" => line(&mut data, &format!("[ok]   removed {what}")),
            outcome => line(&mut data, &format!("{outcome} {what}")),
        }
    }
    if !global.quiet {
        kept(args, collected, &mut talk);
    }
    output::talk(&talk);
    if args.json || (global.quiet && !args.dry_run) { Ok(()) } else { output::data(data.as_bytes()) }
}

/// Names what was kept and why. Where nobody asked for it by name, one line for each reason is enough.
fn kept(args: &GcArgs, collected: &[Collected], talk: &mut String) {
    let mut reasons: Vec<(String, Vec<&Collected>)> = Vec::new();
    for one in collected.iter().filter(|one| one.outcome == "kept") {
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
                say(talk, &format!("kept {}{}", describe(&one.leak), one.why()));
            }
        }
    }
}

fn line(text: &mut String, words: &str) {
    lines::push(text, words);
    text.push('\n');
}

fn exit_code(survey: &Survey, collected: &[Collected]) -> u8 {
    let failed: Vec<&Collected> = collected.iter().filter(|one| one.outcome == "failed").collect();
    let kept = || collected.iter().any(|one| one.outcome == "kept");
    let unjudged = !survey.unjudged.is_empty() || !survey.complete && kept();
    if !failed.is_empty() && failed.iter().all(|one| one.forbidden) {
        exit_codes::NOT_PERMITTED
    } else if !failed.is_empty() || unjudged {
        exit_codes::STILL_THERE
    } else {
        exit_codes::SUCCESS
    }
}
