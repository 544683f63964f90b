//! `penfold gc`.

mod answer;
mod choose;
mod collected;
mod foreign;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use penfold_doctor::leaks::{self, GcRules, KeepReason, Leak, Survey, Thing, describe_leak};
use serde::Serialize;

use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::text::live_line::LiveLine;
use crate::{exit_codes, output, surroundings, value};
use choose::choose;
use collected::{Collected, Outcome};

/// The verb `gc`.
pub(crate) const VERB: Verb = Verb {
    name: "gc",
    aliases: &["prune"],
    about: "Remove leaks and old records",
    description: "Ends and removes the leaks that `penfold doctor` lists: sandboxes without a supervisor at any age; \
        processes, cgroups, directories, network namespaces, links, mounts and loop devices without a record if they are \
        older than --older-than; and what is left of containers of `penfold oci` that their engine has lost. Also removes the \
        records of ended detached sandboxes of that age, with log and exit code. gc leaves everything of another state \
        root alone; it ends processes that may belong to one only if their id is given. If gc cannot read something, \
        that counts as alive and stays. Without ids gc asks for confirmation on a terminal; elsewhere it needs -f. With \
        --foreign it ends only the named process trees and virtual machines, which penfold did not start. A virtual \
        machine ends with its wrappers; if the process that started them is dead, its directories are removed, too.",
    examples: &[
        ("penfold gc -n", "list what would be removed"),
        ("penfold gc -f", "remove leaks without confirmation, as in a timer"),
        (
            "penfold gc -f --kind ended --older-than 7d",
            "remove the records of sandboxes that ended a week ago",
        ),
        ("penfold gc --foreign 4121", "end the tree of a stray that `penfold doctor --foreign` lists"),
        ("penfold gc --foreign 3f9a1c", "end a virtual machine with its wrappers, after a question"),
    ],
    usage_failure: FailureKind::Usage,
    define: GcArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| gc(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold gc`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags that have nothing to do with each other")]
pub(crate) struct GcArgs {
    /// Act only on these: ids, unique prefixes of ids, or names; with --foreign, pids and ids of VMs.
    #[arg(value_name = "ID")]
    pub(crate) words: Vec<String>,
    /// Act only on leaks of this kind; may be repeated.
    #[arg(
        long = "kind",
        value_name = "KIND",
        value_delimiter = ',',
        value_parser = clap::builder::PossibleValuesParser::new(Thing::KINDS)
    )]
    pub(crate) kinds: Vec<String>,
    /// End the named process trees and virtual machines, which penfold did not start.
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
    /// List what would be removed, and change nothing.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Keep leaks and records that are younger than this.
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

/// The time after which a terminal shows which leak is being removed.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);
/// The time between two writes of that line.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct GcOutput<'a> {
    schema: u32,
    dry_run: bool,
    complete: bool,
    unread: &'a [String],
    leaks: &'a [Collected],
}

/// Ends and removes leaks, and removes old records.
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
        answer::confirm(global, args, &choice.leaks)?;
        // Search again: during the question a leak may have changed. Leaks that the question did not list stay.
        survey = look(global)?;
        let shown = std::mem::replace(&mut choice, choose(global, args, &mut survey)).leaks;
        choice.leaks.retain(|leak| shown.iter().any(|other| other.is_same(leak)));
    }
    let coloured = global.color.wanted(&std::io::stderr());
    let missed: Vec<u8> = choice.missed.iter().map(|failure| failure.report(coloured)).collect();
    let root = surroundings::root(global);
    let collected: Vec<Collected> = choice
        .leaks
        .into_iter()
        .map(|leak| match refusal(&leak, &survey, args) {
            Some(reason) => Collected { leak, outcome: Outcome::Kept { reason } },
            None if args.dry_run => Collected { leak, outcome: Outcome::WouldRemove },
            None => {
                let named = !args.words.is_empty();
                let one = watched(global, leak, |leak| {
                    Collected::collect(leak, &root, named, args.patience.patience)
                });
                one.write_event(&root);
                one
            }
        })
        .collect();
    if !args.dry_run {
        // A note that stays hides no leak: what it names has ended.
        let _ = leaks::prune_spared(&root);
    }
    if args.json {
        let schema = penfold_teardown::report::SCHEMA;
        let (complete, unread) = (survey.complete, survey.unread.as_slice());
        let result = GcOutput { schema, dry_run: args.dry_run, complete, unread, leaks: &collected };
        output::json(&result)?;
    }
    answer::tell(global, args, &survey, &collected)?;
    let done = collected::exit_code(&survey, &collected);
    Ok(if done == exit_codes::SUCCESS { missed.first().copied().unwrap_or(done) } else { done })
}

/// Collects a leak. If that takes longer than a second, a terminal shows which leak it is.
fn watched(global: &Global, leak: Leak, collect: impl FnOnce(Leak) -> Collected) -> Collected {
    let mut line = LiveLine::new(global.quiet);
    if !line.is_wanted() {
        return collect(leak);
    }
    let what = format!("removing {}", describe_leak(&leak));
    let (done, is_done) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let begun = Instant::now();
            let mut pause = PROGRESS_DELAY;
            while is_done.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                line.show(|| format!("{what} ({}s)", begun.elapsed().as_secs()));
                pause = PROGRESS_INTERVAL;
            }
        });
        let collected = collect(leak);
        drop(done);
        collected
    })
}

fn look(global: &Global) -> Result<Survey, Failure> {
    leaks::find_leaks(&surroundings::root(global), &[surroundings::temporary()])
        .or_fail(FailureKind::Other, "cannot search this host for leaks")
}

/// The reason to keep a leak, in words; `None` if gc removes it.
fn refusal(leak: &Leak, survey: &Survey, args: &GcArgs) -> Option<String> {
    let (is_named, is_complete) = (!args.words.is_empty(), survey.complete);
    let rules = GcRules { older_than: args.older_than, is_named, is_complete };
    Some(match rules.keep_reason(leak)? {
        KeepReason::Supervised => format!("its supervisor lives; `penfold kill {}` ends it", leak.id),
        KeepReason::OtherRoot => {
            format!("it may belong to another state root; `penfold gc {}` ends it", leak.id)
        }
        KeepReason::Unread => "parts of this host could not be read, so it may be alive".to_owned(),
        KeepReason::Young => "younger than --older-than".to_owned(),
    })
}
