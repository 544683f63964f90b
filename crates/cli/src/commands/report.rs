//! `penfold report`.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use penfold_control::{SandboxRef, View};
use penfold_state::time::now_ms;
use penfold_state::{ExitStatus, Report, Totals};

use penfold_process::quoted;
use penfold_teardown::Spared;

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::{self, Among, Chosen};
use crate::text::lines::count;
use crate::text::summary::{self, human};
use crate::text::{table, template, time, usage as usage_text};
use crate::{exit_codes, output};

/// The verb `report`.
pub(crate) const VERB: Verb = Verb {
    name: "report",
    aliases: &[],
    about: "Show the teardown reports of ended sandboxes",
    description: "Shows the reports of ended sandboxes while their records are kept: the cause of the end, the strays, \
        CPU time and memory, the steps of the teardown, and whether the end was verified. Without an ID it lists all reports, the newest \
        first.",
    examples: &[
        ("penfold report", "list the reports of all ended sandboxes"),
        ("penfold report web", "show one report with all steps"),
        ("penfold report --last --json", "print the newest report as JSON"),
        ("penfold report --failed", "list failed commands and unverified ends"),
    ],
    usage_failure: FailureKind::Usage,
    define: ReportArgs::augment_args,
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
    /// Show only reports of a command that did not exit with 0, or of an unverified end.
    #[arg(long)]
    pub(crate) failed: bool,
    /// Print the reports as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Shows the reports of ended sandboxes.
pub(crate) fn report(global: &Global, args: &ReportArgs) -> Result<u8, Failure> {
    let resolver = find::resolver(global);
    let named = !args.ids.is_empty();
    let chosen = if named {
        find::choose(global, &resolver, &args.ids)?
    } else {
        let ended =
            find::list(&resolver, Among::Every)?.into_iter().filter(|(_, seen)| !seen.status.is_living());
        Chosen { found: ended.collect(), exit: exit_codes::SUCCESS }
    };
    let mut exit = chosen.exit;
    let mut reports: Vec<(View, Report)> = Vec::new();
    for (known, seen) in chosen.found {
        match read(&known, &seen) {
            Ok(report) => reports.push((seen, report)),
            Err(failure) => {
                let code = failure.report(global.color.wanted(&std::io::stderr()));
                if named && exit == exit_codes::SUCCESS {
                    exit = code;
                }
            }
        }
    }
    if !named {
        reports.sort_by_key(|(_, report)| std::cmp::Reverse(ended_at(report)));
    }
    if args.failed {
        reports.retain(|(_, report)| has_failed(report));
    }
    if args.last {
        reports.truncate(1);
    }
    if args.json {
        let only: Vec<&Report> = reports.iter().map(|(_, report)| report).collect();
        output::json(&only)?;
        return Ok(exit);
    }
    let text = if named || args.last {
        reports.iter().map(|(seen, report)| page(seen, report)).collect::<Vec<_>>().join("\n")
    } else {
        table(&reports)
    };
    output::data(text.as_bytes())?;
    Ok(exit)
}

fn read(known: &SandboxRef, seen: &View) -> Result<Report, Failure> {
    let none = |why: &str| {
        Failure::new(FailureKind::Other, format!("sandbox {} has no report: {why}", known.id))
            .hint(format!("`penfold status {}` shows its status", known.id))
    };
    match known.record.as_ref().map(penfold_state::Files::report) {
        Some(Ok(Some(report))) => Ok(report),
        Some(Err(error)) => Err(none(&error.to_string())),
        _ if seen.status.is_living() => Err(none("the sandbox has not ended")),
        _ => Err(none("no supervisor saw the end")),
    }
}

fn ended_at(report: &Report) -> u64 {
    report.started_at_ms.saturating_add(report.duration_ms)
}

fn has_failed(report: &Report) -> bool {
    !report.findings.verified || report.exit != Some(ExitStatus::Code(0))
}

fn verdict(report: &Report) -> String {
    if report.findings.verified {
        "verified gone".to_owned()
    } else {
        format!("not gone: {}", count(report.findings.survivors.len(), "survivor", "survivors"))
    }
}

fn strays(report: &Report) -> usize {
    report.findings.strays().count()
}

fn table(reports: &[(View, Report)]) -> String {
    let now = now_ms();
    let heading = ["ID", "NAME", "CAUSE", "EXIT", "RAN", "ENDED", "STRAYS", "TEARDOWN", "RESULT"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (seen, report) in reports {
        rows.push(vec![
            seen.id.clone(),
            template::printable(&template::name(seen)),
            template::cause(report.cause),
            report.exit.map_or_else(|| "?".to_owned(), template::exit),
            human(Duration::from_millis(report.duration_ms)),
            format!("{} ago", template::ago(ended_at(report), now)),
            strays(report).to_string(),
            human(Duration::from_micros(report.findings.took_us)),
            verdict(report),
        ]);
    }
    table::aligned(&rows)
}

fn page(seen: &View, report: &Report) -> String {
    let mut text = String::new();
    let mut line = |what: &str, words: &str| {
        let _ = writeln!(text, "{what:<10}{}", template::printable(words));
    };
    let findings = &report.findings;
    line("sandbox", &format!("{}  {}", seen.id, template::name(seen)));
    line("command", &quoted(&report.command));
    line("cause", &template::cause(report.cause));
    line("exit", &report.exit.map_or_else(|| "unknown".to_owned(), template::exit));
    line("ran", &human(Duration::from_millis(report.duration_ms)));
    line("ended", &time::utc(ended_at(report)));
    line("level", &report.level.to_string());
    line("used", &usage_text::ended(findings));
    line("teardown", &summary::what_was_done(&Totals::of(findings), findings.took_us));
    for stray in findings.strays() {
        let name = stray.command.as_deref().unwrap_or(&stray.name);
        let why = stray.why.as_deref().map_or_else(String::new, |why| format!(", {why}"));
        line("stray", &format!("{name} (pid {}{why})", stray.pid));
    }
    for spared in &findings.spared {
        let Spared { command, pid, start_time, rule, .. } = spared;
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
