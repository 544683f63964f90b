//! `penfold report`.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use penfold_control::resolve::Candidate;
use penfold_control::{ResolveError, Resolver, SandboxRef, SandboxView, view};
use penfold_state::lives::KEPT_LIVES;
use penfold_state::state::Status;
use penfold_state::time::now_ms;
use penfold_state::{Report, Totals, cause_word, history};

use penfold_process::quote_words;
use penfold_teardown::SparedProcess;
use serde::Serialize;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::sandboxes::find::{self, Among};
use crate::text::lines::{self, count};
use crate::text::summary::{self, human};
use crate::text::{requester, table, template, time, usage as usage_text};
use crate::{exit_codes, output};

/// The longest command in the table.
const COMMAND: usize = 60;

/// The verb `report`.
pub(crate) const VERB: Verb = Verb {
    name: "report",
    aliases: &[],
    about: "Show the teardown reports of ended sandboxes",
    description: "Shows the reports of ended sandboxes: the cause of the end, the strays, CPU time and memory, the steps of the \
        teardown, and whether the end was verified. Without an ID it lists all reports, the newest first. The report of a detached \
        sandbox is kept with its record, also those of its last 100 former lives. Of foreground sandboxes that failed or left processes behind, the last 200 reports are kept.",
    examples: &[
        ("penfold report", "list the reports of all ended sandboxes"),
        ("penfold report web", "show one report with all steps"),
        ("penfold report --life 1 web", "show how the first life of a restarted sandbox ended"),
        ("penfold report --last", "show why the last command failed, or what it left"),
        ("penfold report --last --json", "print the newest report as JSON"),
        ("penfold report --failed", "list commands that failed or left processes behind"),
    ],
    usage_failure: FailureKind::Usage,
    define: ReportArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| report(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold report`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReportArgs {
    /// Ids, unique prefixes of ids, or names; `-` reads them from standard input.
    #[arg(value_name = "ID")]
    pub(crate) ids: Vec<String>,
    /// Show only the report of the sandbox that ended last.
    #[arg(long, conflicts_with = "ids")]
    pub(crate) last: bool,
    /// Show only reports of commands that failed or left processes behind, and of unverified ends.
    #[arg(long)]
    pub(crate) failed: bool,
    /// Show the report of this life of a sandbox that was restarted, from 1 [default: the last one that has ended].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "ids", conflicts_with = "last")]
    pub(crate) life: Option<u32>,
    /// Print the reports as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows the reports of ended sandboxes.
pub(crate) fn report(global: &Global, args: &ReportArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let coloured = global.color.wanted(&std::io::stderr());
    let mut exit = exit_codes::SUCCESS;
    let mut fail = |failure: Failure| {
        let code = failure.report(coloured);
        if exit == exit_codes::SUCCESS {
            exit = code;
        }
    };
    let kept = history::read_history(resolver.root()).unwrap_or_else(|error| {
        fail(error.into());
        Vec::new()
    });
    let named = !args.ids.is_empty();
    let mut reports: Vec<Report> = Vec::new();
    if named {
        for word in find::read_words(&args.ids)? {
            let found = match args.life {
                Some(life) => find_life(&resolver, &word, life),
                None => find_report(&resolver, &kept, &word),
            };
            match found {
                Ok(report) if reports.iter().any(|other| other.id == report.id) => {}
                Ok(report) => reports.push(report),
                Err(failure) => fail(failure),
            }
        }
    } else {
        for (known, seen) in find::list(&resolver, Among::Every)? {
            // Of a sandbox that is restarted, the last life that has ended.
            if !seen.status.is_living() || seen.restarts > 0 || seen.status == Status::Waiting {
                // A sandbox that was lost has no report, which is no failure of a list.
                match read(&known, &seen) {
                    Ok(report) => reports.push(report),
                    Err(failure) => drop(failure.report(coloured)),
                }
            }
        }
        let others: Vec<Report> =
            kept.into_iter().filter(|kept| reports.iter().all(|other| other.id != kept.id)).collect();
        reports.extend(others);
        reports.sort_by_key(|report| std::cmp::Reverse(ended_at(report)));
    }
    if args.failed {
        reports.retain(history::is_remarkable);
    }
    if args.last {
        reports.truncate(1);
    }
    if args.json {
        let dated = |report| Dated { report, started_at: time::utc_ms(report.started_at_ms) };
        output::json(&reports.iter().map(dated).collect::<Vec<_>>())?;
        return Ok(exit);
    }
    let text = if named || args.last {
        reports.iter().map(page).collect::<Vec<_>>().join("\n")
    } else {
        table(&reports)
    };
    output::data(text.as_bytes())?;
    Ok(exit)
}

/// A report, with its time as people read it.
#[derive(Serialize)]
struct Dated<'a> {
    #[serde(flatten)]
    report: &'a Report,
    started_at: String,
}

/// Finds the report of the sandbox that `word` means: of a sandbox with a record, or of the history. A name means the sandbox that
/// ended last.
fn find_report(resolver: &Resolver, kept: &[Report], word: &str) -> Result<Report, Failure> {
    let found = resolver.resolve(word).and_then(|known| match view::observe_sandbox(resolver, &known) {
        Some(seen) => Ok((known, seen)),
        None => Err(ResolveError::NotFound { word: word.to_owned() }),
    });
    let (known, seen) = match found {
        Ok(found) => found,
        Err(error @ ResolveError::NotFound { .. }) => {
            return find_kept(kept, word)?.cloned().ok_or_else(|| error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let is_prefix = known.id.starts_with(word) && known.id != word && known.name.as_deref() != Some(word);
    if is_prefix && let Some(other) = find_kept(kept, word)?.filter(|other| other.id != known.id) {
        if other.name.as_deref() == Some(word) {
            return Ok(other.clone());
        }
        let candidates = vec![
            Candidate { id: known.id, name: known.name },
            Candidate { id: other.id.clone(), name: other.name.clone() },
        ];
        return Err(ResolveError::Ambiguous { word: word.to_owned(), candidates }.into());
    }
    let found = read(&known, &seen);
    // What survived a foreground sandbox was reported, although the sandbox has not ended.
    let own = kept.iter().find(|kept| kept.id == known.id);
    match (found, own, newest(kept, word)) {
        (Ok(report), _, Some(newer)) if ended_at(newer) > ended_at(&report) => Ok(newer.clone()),
        (Err(_), Some(report), _) => Ok(report.clone()),
        (found, ..) => found,
    }
}

/// Finds the report of a life of the sandbox that `word` means.
fn find_life(resolver: &Resolver, word: &str, life: u32) -> Result<Report, Failure> {
    let known = resolver.resolve(word)?;
    let sentence = format!("sandbox {} has no report of life {life}", known.id);
    let none = |why: String| Failure::new(FailureKind::Other, sentence.clone()).because(why);
    let files = known.record.as_ref().ok_or_else(|| none("its record is gone".to_owned()))?;
    if let Some(report) = files.report_of(life).or_fail(FailureKind::Other, &sentence)? {
        return Ok(report);
    }
    let newest = files.life();
    Err(none(match life.cmp(&newest) {
        Ordering::Less => format!("the reports of its last {KEPT_LIVES} former lives are kept"),
        Ordering::Equal => "this life has not ended".to_owned(),
        Ordering::Greater => format!("its newest life is {newest}"),
    }))
}

/// Finds the report of the history that `word` means: an id, a name, or the beginning of an id.
fn find_kept<'a>(kept: &'a [Report], word: &str) -> Result<Option<&'a Report>, Failure> {
    let found = kept.iter().find(|report| report.id == word).or_else(|| newest(kept, word));
    if found.is_some() || word.is_empty() {
        return Ok(found);
    }
    let begin: Vec<&Report> = kept.iter().filter(|report| report.id.starts_with(word)).collect();
    if let [] | [_] = begin.as_slice() {
        return Ok(begin.first().copied());
    }
    let candidate = |report: &Report| Candidate { id: report.id.clone(), name: report.name.clone() };
    let candidates = begin.into_iter().map(candidate).collect();
    Err(ResolveError::Ambiguous { word: word.to_owned(), candidates }.into())
}

/// Returns the newest report of a sandbox with this name.
fn newest<'a>(kept: &'a [Report], name: &str) -> Option<&'a Report> {
    let named = kept.iter().filter(|report| report.name.as_deref() == Some(name));
    named.max_by_key(|report| ended_at(report))
}

fn read(known: &SandboxRef, seen: &SandboxView) -> Result<Report, Failure> {
    let none = |why: &str| {
        Failure::new(FailureKind::Other, format!("sandbox {} has no report: {why}", known.id))
            .hint(format!("`penfold status {}` shows its status", known.id))
    };
    match known.record.as_ref().map(penfold_state::Files::report) {
        Some(Ok(Some(report))) if report.findings.verified && is_unended(seen.status) => {
            Err(none("one beside it says that nothing is left, but the sandbox has not ended"))
        }
        Some(Ok(Some(report))) => Ok(report),
        Some(Err(error)) => Err(none(&error.to_string())),
        _ if seen.status.is_living() && seen.restarts > 0 => {
            let former =
                known.record.as_ref().and_then(|files| files.report_of(seen.restarts).ok().flatten());
            former.ok_or_else(|| none("its newest life has not ended"))
        }
        _ if seen.status.is_living() => Err(none("the sandbox has not ended")),
        _ => Err(none("no supervisor saw the end")),
    }
}

/// Tells whether a sandbox with this status has members that live, and no life that goes on.
fn is_unended(status: Status) -> bool {
    matches!(status, Status::Unkillable | Status::Orphaned)
}

fn ended_at(report: &Report) -> u64 {
    report.started_at_ms.saturating_add(report.duration_ms)
}

fn verdict(report: &Report) -> String {
    if report.findings.verified {
        "verified gone".to_owned()
    } else {
        format!("not gone: {}", count(report.findings.survivors.len(), "survivor", "survivors"))
    }
}

fn strays(report: &Report) -> usize {
    let omitted = report.omitted.map_or(0, |omitted| omitted.strays);
    report.findings.strays().count() + omitted
}

fn name(report: &Report) -> &str {
    report.name.as_deref().unwrap_or("-")
}

fn table(reports: &[Report]) -> String {
    let now = now_ms();
    let heading = ["ID", "NAME", "CAUSE", "EXIT", "RAN", "ENDED", "STRAYS", "TEARDOWN", "RESULT", "COMMAND"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for report in reports {
        rows.push(vec![
            report.id.clone(),
            template::printable(name(report)),
            cause_word(report.cause),
            report.exit.map_or_else(|| "?".to_owned(), |exit| exit.to_string()),
            human(Duration::from_millis(report.duration_ms)),
            format!("{} ago", template::ago(ended_at(report), now)),
            strays(report).to_string(),
            human(Duration::from_micros(report.findings.took_us)),
            verdict(report),
            lines::cut(&template::printable(&quote_words(&report.command)), COMMAND).into_owned(),
        ]);
    }
    table::aligned(&rows)
}

fn page(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |what: &str, words: &str| {
        let _ = writeln!(text, "{what:<10}{}", template::printable(words));
    };
    let findings = &report.findings;
    line("sandbox", &format!("{}  {}", report.id, name(report)));
    if let Some(life) = report.life {
        line("life", &life.to_string());
    }
    line("command", &quote_words(&report.command));
    line("cause", &cause_word(report.cause));
    if let Some(by) = &report.by {
        let command = by.command.as_ref().map_or_else(String::new, |command| format!(": {command}"));
        line(
            "by",
            &format!("{}{command}", requester::words(Some(by)).trim_start().trim_start_matches("by ")),
        );
    }
    line("exit", &report.exit.map_or_else(|| "unknown".to_owned(), |exit| exit.to_string()));
    line("ran", &human(Duration::from_millis(report.duration_ms)));
    line("ended", &time::utc(ended_at(report)));
    line("level", &report.level.to_string());
    line("used", &usage_text::ended(findings));
    line("teardown", &summary::what_was_done(&Totals::of(findings), findings.took_us));
    for ran in &report.running {
        line("running", &summary::name_running(ran, None));
    }
    for stray in findings.strays() {
        let name = stray.command.as_deref().unwrap_or(&stray.name);
        let why = stray.why.as_deref().map_or_else(String::new, |why| format!(", {why}"));
        line("stray", &format!("{name} (pid {}{why})", stray.pid));
    }
    if let Some(omitted) = report.omitted {
        let words = format!("{} more, {} of them strays", omitted.ended, omitted.strays);
        line("not kept", &words);
    }
    for spared in &findings.spared {
        let SparedProcess { command, pid, start_time, rule, .. } = spared;
        let words =
            format!("{command} (pid {pid}, rule {rule}); `penfold reap --pid {pid}@{start_time}` ends it");
        line("spared", &words);
    }
    for step in &findings.steps {
        let error = step.error.as_deref().map_or_else(String::new, |error| format!(": {error}"));
        let (at, took) = (Duration::from_micros(step.at_us), Duration::from_micros(step.took_us));
        line("step", &format!("{:>7}  {} ({}){error}", human(at), step.what, human(took)));
    }
    for survivor in &findings.survivors {
        line("not gone", &survivor.to_string());
    }
    line("result", &verdict(report));
    text
}
