//! The summary that penfold prints at the end of a sandbox.

use std::fmt::Write as _;
use std::time::Duration;

use penfold_state::wire::Ending;
use penfold_state::{DescribedProcess, ExitStatus, Outcome, Report, Totals, cause_clause};
use penfold_supervisor::LauncherProgress;
use penfold_teardown::report::SPARE;
use penfold_teardown::{Cause, EndedMember, SparedProcess};

use crate::text::lines::{self, count};
use crate::text::{requester, template};
use crate::{output, value};

/// The number of strays in the summary, which must stay short; `--report` lists all.
const NAMED: usize = 4;
/// What is before the first stray.
const FIRST: &str = "  strays: ";
/// What is before the others.
const NEXT: &str = "          ";
/// What is before the first process that ran at a time limit, and before the others.
const FIRST_RUNNING: &str = "  ran: ";
const NEXT_RUNNING: &str = "       ";
/// The characters of a command that a narrow terminal shows all the same.
const SHORTEST: usize = 12;

/// The line for a terminal while a sandbox is ending.
pub(crate) fn progress(progress: LauncherProgress) -> String {
    match progress {
        LauncherProgress::PassedOn => {
            "penfold: the command handles Ctrl-C itself; Ctrl-\\, or Ctrl-C three times within a second, kills\n"
                .to_owned()
        }
        LauncherProgress::Ending(Ending::Stopping(grace)) => {
            let grace = human(Duration::from_millis(grace));
            format!("penfold: stopping; what is left after {grace} is killed, Ctrl-C kills now\n")
        }
        LauncherProgress::Ending(Ending::Killing) => "penfold: killing, and waiting until all members are gone\n".to_owned(),
        LauncherProgress::Awaiting(_) => String::new(),
    }
}

/// The summary; empty if the command ended by itself without strays. `quiet` prints errors only.
pub(crate) fn of(outcome: &Outcome, verbose: bool, quiet: bool) -> String {
    let mut text = String::new();
    let report = &outcome.report;
    if verbose {
        let took = Duration::from_micros(report.findings.took_us).as_secs_f64() * 1000.0;
        line(&mut text, &format!("{} level {}, teardown {took:.3}ms", report.id, report.level));
        if let Some(weaker) = &report.weaker {
            line(&mut text, &format!("{} no stronger level: {weaker}", report.id));
        }
    }
    if !quiet {
        for missing in &report.missing {
            line(&mut text, missing);
        }
        let by_itself = matches!(report.cause, Cause::Exit | Cause::Signal | Cause::StartFailed);
        if !by_itself || outcome.totals.strays > 0 {
            let mut words = format!("{} {}", report.id, describe_end(report));
            if outcome.totals.ended > 0 {
                let _ = write!(words, "; {}", what_was_done(&outcome.totals, report.findings.took_us));
            }
            line(&mut text, &words);
            running(&mut text, report, output::message_width());
            strays(&mut text, outcome, output::message_width());
        }
    } else if report.cause == Cause::Timeout {
        text.push_str(&time_limit(report));
    }
    if !quiet {
        let engine_clients = engine_clients(report);
        for words in spared(report, "spared").into_iter().chain(outside(report)).chain(engine_clients) {
            line(&mut text, &format!("{} {words}", report.id));
        }
    }
    text.push_str(&losses(outcome));
    text
}

/// What is said whatever the caller has asked for and read elsewhere: that the report is not written, and what is not gone.
pub(crate) fn losses(outcome: &Outcome) -> String {
    let mut text = String::new();
    if let Some(error) = &outcome.unwritten {
        line(&mut text, &format!("{}: cannot write the report: {error}", outcome.report.id));
    }
    text.push_str(&survivors(outcome));
    text
}

/// A line for each process that was left alone by rule, with the command that ends it, and for each that could not be.
pub(crate) fn spared(report: &Report, verb: &str) -> Vec<String> {
    let limits = if report.limits.is_empty() { "" } else { ", without the limits of the sandbox" };
    let findings = &report.findings;
    let named = findings.spared.iter().map(|spared| {
        let SparedProcess { command, pid, rule, start_time, .. } = spared;
        format!(
            "{verb}: {command} (pid {pid}, rule {rule}{limits}); `penfold reap --pid {pid}@{start_time}` ends it"
        )
    });
    let failed = findings.steps.iter().filter(|step| step.what == SPARE);
    named.chain(failed.filter_map(|step| step.error.clone())).collect()
}

/// A line about the containers that clients of container engines may have started.
pub(crate) fn engine_clients(report: &Report) -> Option<String> {
    let names: Vec<String> = report.engine_clients.iter().map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| {
        format!("{} ran: containers of an engine are not followed, and may still run", names.join(", "))
    })
}

/// A line for each sandbox that members have started outside, with the command that ends it.
fn outside(report: &Report) -> impl Iterator<Item = String> {
    report.findings.outside.iter().map(|sandbox| {
        let name = sandbox.name.as_ref().unwrap_or(&sandbox.id);
        format!("outside: sandbox {name} ({}) goes on; `penfold stop {name}` ends it", sandbox.id)
    })
}

/// A line for each survivor.
pub(crate) fn survivors(outcome: &Outcome) -> String {
    let mut text = String::new();
    for survivor in &outcome.report.findings.survivors {
        line(&mut text, &format!("{} not gone: {survivor}", outcome.report.id));
    }
    text
}

fn line(text: &mut String, words: &str) {
    lines::say(text, words);
}

fn describe_end(report: &Report) -> String {
    match (report.cause, report.exit) {
        (Cause::Timeout, _) => {
            let ran = report.duration_ms.saturating_sub(report.findings.took_us / 1000);
            format!("timed out after {}", human(Duration::from_millis(ran)))
        }
        (Cause::Stop, _) => format!("stopped{}", requester::words(report.by.as_ref())),
        // The command has exited at the very moment.
        (Cause::Kill, Some(ExitStatus::Code(code))) => {
            format!("exited with {code} before the kill{}", requester::words(report.by.as_ref()))
        }
        (Cause::Kill, _) => format!("killed{}", requester::words(report.by.as_ref())),
        (Cause::Lost, _) => "lost both its supervisors".to_owned(),
        (Cause::StartFailed, _) => "did not start".to_owned(),
        (Cause::Exit | Cause::Signal, Some(ExitStatus::Code(code))) => format!("exited with {code}"),
        (Cause::Exit | Cause::Signal, Some(ExitStatus::Signal(signal))) => {
            format!("ended by signal {signal}")
        }
        (Cause::Exit | Cause::Signal, None) => "ended".to_owned(),
        (Cause::Owner, _) => format!("ended{}{}", because(report), requester::words(report.by.as_ref())),
        (Cause::Ttl | Cause::Idle | Cause::Memory | Cause::Oom | Cause::Stdin | Cause::Supervisor, _) => {
            format!("ended{}", because(report))
        }
    }
}

/// The reason of an end that nobody has requested: ` because it was idle`.
fn because(report: &Report) -> String {
    let clause =
        cause_clause(report.cause).map(|clause| format!(" because {clause}{}", memory_limit(report)));
    clause.unwrap_or_default()
}

/// The memory limit that was reached, if it was the sandbox's own.
fn memory_limit(report: &Report) -> String {
    let limit = report.limits.memory_bytes.filter(|_| report.cause == Cause::Memory);
    limit.map_or_else(String::new, |bytes| format!(" (limit {})", value::Bytes(bytes).spelled()))
}

/// The message for viewers of a sandbox; `None` if the command ended by itself.
pub(crate) fn for_viewer(report: &Report) -> Option<String> {
    let code = report.exit.map(ExitStatus::shell_code);
    let how = match (report.cause, report.exit) {
        (Cause::Signal, Some(ExitStatus::Signal(signal)))
            if signal == rustix::process::Signal::KILL.as_raw() =>
        {
            "was killed".to_owned()
        }
        (Cause::Exit | Cause::Signal | Cause::StartFailed, _) => return None,
        (Cause::Stop, exit) if template::is_polite(exit) => "was stopped".to_owned(),
        (Cause::Stop | Cause::Kill, _) => "was killed".to_owned(),
        (Cause::Timeout, _) => "timed out".to_owned(),
        (
            Cause::Ttl
            | Cause::Idle
            | Cause::Memory
            | Cause::Oom
            | Cause::Owner
            | Cause::Stdin
            | Cause::Supervisor
            | Cause::Lost,
            _,
        ) => format!("was ended{}", because(report)),
    };
    Some(match code {
        Some(code) => format!("{how} ({code})"),
        None => how,
    })
}

/// The number of ended processes by signal, and the duration.
pub(crate) fn what_was_done(totals: &Totals, took_us: u64) -> String {
    const KILL: i32 = rustix::process::Signal::KILL.as_raw();
    let mut signals: Vec<(i32, usize)> = totals.signals.iter().map(|(&signal, &sum)| (signal, sum)).collect();
    signals.sort_by_key(|&(signal, _)| (signal == KILL, signal));
    let how: Vec<String> =
        signals.into_iter().map(|(signal, sum)| format!("{sum} {}", value::signal_name(signal))).collect();
    let took = human(Duration::from_micros(took_us));
    let how = if how.is_empty() { String::new() } else { format!(" ({})", how.join(", ")) };
    format!("ended {}{how} in {took}", count(totals.ended, "process", "processes"))
}

/// The one line about a time limit, which is an error, for those who want only errors.
pub(crate) fn time_limit(report: &Report) -> String {
    let first = report.running.first().map(|ran| format!(" while {} ran", name_running(ran, None)));
    let mut text = String::new();
    line(&mut text, &format!("{} {}{}", report.id, describe_end(report), first.unwrap_or_default()));
    text
}

/// A line for each process that ran at the time limit, as wide as the terminal.
pub(crate) fn running(text: &mut String, report: &Report, width: Option<usize>) {
    for (number, ran) in report.running.iter().take(NAMED).enumerate() {
        let before = if number == 0 { FIRST_RUNNING } else { NEXT_RUNNING };
        line(text, &format!("{before}{}", name_running(ran, width)));
    }
}

/// A process that ran at the time limit, with what is known of it.
pub(crate) fn name_running(ran: &DescribedProcess, width: Option<usize>) -> String {
    let mut facts = format!("pid {}", ran.pid);
    if let Some(age) = ran.age_ms {
        let _ = write!(facts, ", for {}", human(Duration::from_millis(age)));
    }
    if !ran.ports.is_empty() {
        let _ = write!(facts, ", listens on {}", ran.ports.join(", "));
    }
    if let Some(test) = &ran.test {
        let _ = write!(facts, ", test {}", template::printable(test));
    }
    cut_before(&ran.command, &facts, FIRST_RUNNING, width)
}

/// A line for each stray, as wide as the terminal, and whether all members are gone.
fn strays(text: &mut String, outcome: &Outcome, width: Option<usize>) {
    let findings = &outcome.report.findings;
    if outcome.totals.strays == 0 {
        return;
    }
    let known = findings.ended.iter().filter(|stray| stray.command.is_some() || !stray.name.is_empty());
    let named: Vec<String> = known.take(NAMED).map(|stray| name(stray, width)).collect();
    let more = outcome.totals.strays.saturating_sub(named.len());
    let more = (more > 0).then(|| format!("{more} more"));
    for (number, words) in named.into_iter().chain(more).enumerate() {
        line(text, &format!("{}{words}", if number == 0 { FIRST } else { NEXT }));
    }
    let verified = if findings.verified { "verified gone" } else { "NOT verified gone" };
    line(text, &format!("  {verified}"));
}

fn name(stray: &EndedMember, width: Option<usize>) -> String {
    let command = stray.command.as_deref().unwrap_or(&stray.name);
    let mut facts = format!("pid {}", stray.pid);
    for fact in stray.why.iter().cloned().chain(stray.signal.map(value::signal_name)) {
        facts.push_str(", ");
        facts.push_str(&fact);
    }
    cut_before(command, &facts, FIRST, width)
}

/// A command with facts behind it, cut so that its line, which begins with `before`, has this width.
fn cut_before(command: &str, facts: &str, before: &str, width: Option<usize>) -> String {
    let command = template::printable(command);
    let room = width.map_or(usize::MAX, |width| {
        width.saturating_sub("penfold: ".len() + before.len() + facts.len() + " ()".len())
    });
    format!("{} ({facts})", lines::cut(&command, room.max(SHORTEST)))
}

/// A rounded duration: `320us`, `12ms`, `1.2s`, `3m5s`.
pub(crate) fn human(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds >= 60 {
        format!("{}m{}s", seconds / 60, seconds % 60)
    } else if seconds >= 1 {
        let tenths = duration.subsec_millis() / 100;
        if tenths == 0 { format!("{seconds}s") } else { format!("{seconds}.{tenths}s") }
    } else if duration.as_millis() >= 1 {
        format!("{}ms", duration.as_millis())
    } else {
        format!("{}us", duration.as_micros())
    }
}

#[cfg(test)]
mod tests {
    use penfold_teardown::report::EndedBy;

    use super::*;

    #[test]
    fn a_stray_is_cut_to_the_width_of_the_terminal() {
        let stray = EndedMember {
            pid: 4121,
            start_time: 0,
            name: "sh".to_owned(),
            command: Some("sh -c 'while :; do\nsleep 1000; done'".to_owned()),
            how: EndedBy::Kill,
            signal: Some(9),
            stray: true,
            why: Some("setsid".to_owned()),
        };
        let facts = "(pid 4121, setsid, KILL)";
        assert_eq!(name(&stray, None), format!("sh -c 'while :; do\u{fffd}sleep 1000; done' {facts}"));
        let cut = name(&stray, Some(60));
        assert_eq!(cut, format!("sh -c 'while :;… {facts}"));
        assert_eq!("penfold: ".len() + FIRST.len() + cut.chars().count(), 60);
        assert_eq!(name(&stray, Some(10)), format!("sh -c 'whil… {facts}"));
    }

    fn ended(cause: Cause, exit: ExitStatus) -> String {
        let report = serde_json::json!({
            "schema": 1, "id": "0123456789ab", "command": [], "level": "cgroup", "cause": cause, "exit": exit,
            "by": {"verb": "kill", "pid": 4121, "uid": 1000}, "started_at_ms": 0, "duration_ms": 0, "ended": [],
            "survivors": [], "steps": [], "verified": true, "took_us": 0, "cpu_us": 0, "peak_memory_bytes": 0,
        });
        describe_end(&serde_json::from_value(report).unwrap())
    }

    /// spec: 2.6
    #[test]
    fn what_has_exited_is_not_called_killed() {
        let by = "by `penfold kill` (pid 4121, user 1000)";
        assert_eq!(ended(Cause::Kill, ExitStatus::Signal(9)), format!("killed {by}"));
        assert_eq!(ended(Cause::Stop, ExitStatus::Code(3)), format!("stopped {by}"));
        let exited = ended(Cause::Kill, ExitStatus::Code(3));
        assert_eq!(exited, format!("exited with 3 before the kill {by}"));
        assert!(!exited.contains("killed"));
    }
}
