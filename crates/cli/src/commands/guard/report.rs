//! What `guard` prints.

use std::time::Duration;

use penfold_state::{DescribedProcess, ExitStatus, LeakedObject, Report};
use penfold_teardown::{Cause, Level};

use crate::output;
use crate::text::lines::{self, count};
use crate::text::summary::{self, human};

/// The most leaks that are printed; the report has all.
const PRINTED: usize = 50;
/// The most parents and files in one line.
const PARTS: usize = 5;

/// Daemons that build tools and shells leave on purpose: the rule that keeps one, and a word of its command line.
const DAEMONS: [(&str, &str); 11] = [
    ("sccache", "sccache"),
    ("ccache", "ccache"),
    ("watchman", "watchman"),
    ("ssh-agent", "ssh-agent"),
    ("gpg-agent", "gpg-agent"),
    ("dbus-daemon", "dbus-daemon"),
    ("tmux", "tmux"),
    ("adb", "adb"),
    (
        "java:org.gradle.launcher.daemon.bootstrap.GradleDaemon",
        "org.gradle.launcher.daemon.bootstrap.GradleDaemon",
    ),
    (
        "java:org.jetbrains.kotlin.daemon.KotlinCompileDaemon",
        "org.jetbrains.kotlin.daemon.KotlinCompileDaemon",
    ),
    ("java:A-server.jar", "A-server.jar"),
];

/// What helps against the exit code of leaks.
pub(super) fn ways_on(report: &Report) -> String {
    let spare = if may_spare(report.level) { ", keep a daemon with `--spare NAME`" } else { "" };
    format!(
        "hint: 123 is for what was left: end it in the tests{spare}, or name leaks only, with `--leaks warn`\n"
    )
}

/// Whether a sandbox of this level can spare anything: all that is in a pid namespace ends with it.
fn may_spare(level: Level) -> bool {
    level != Level::Pidns
}

/// Returns what the tests have left. If the supervisor was killed, the report of the launcher has the strays only.
pub(super) fn leaks(report: &Report) -> Vec<DescribedProcess> {
    if report.leaks.is_empty() {
        return report.findings.strays().map(DescribedProcess::of).collect();
    }
    report.leaks.clone()
}

/// The lines about the end of the tests.
pub(super) fn text(report: &Report, leaks: &[DescribedProcess], appeared: &[String]) -> String {
    let mut text = String::new();
    let end = end(report);
    let took = human(Duration::from_micros(report.findings.took_us));
    let gone = if report.findings.verified { "no process is left" } else { "not all processes are gone" };
    if leaks.is_empty() {
        lines::say(&mut text, &format!("{end}, without leaks; {gone}"));
    } else {
        let outlived = count(leaks.len(), "process was left and", "processes were left and");
        lines::say(&mut text, &format!("{end}; {outlived} ended in {took}; {gone}"));
    }
    summary::running(&mut text, report, output::message_width());
    for leak in leaks.iter().take(PRINTED) {
        for line in describe(leak) {
            lines::say(&mut text, &format!("  {line}"));
        }
        if let Some(rule) = rule_that_keeps(&leak.command).filter(|_| may_spare(report.level)) {
            lines::say(&mut text, &format!("    if it stays on purpose: `--spare {rule}`"));
        }
    }
    if leaks.len() > PRINTED {
        lines::say(&mut text, &format!("  and {} more; --report FILE has all", leaks.len() - PRINTED));
    }
    for words in summary::spared(report, "ignored") {
        lines::say(&mut text, &format!("  {words}"));
    }
    for LeakedObject { kind, name, pid, command } in &report.objects {
        lines::say(&mut text, &format!("  left, and no process: {kind} {name}, of {command} (pid {pid})"));
    }
    if let Some(words) = summary::engine_clients(report) {
        lines::say(&mut text, &format!("  {words}"));
    }
    let is_known = |thing: &&String| {
        report.objects.iter().any(|known| format!("{} {}", known.kind, known.name) == **thing)
    };
    for thing in appeared.iter().filter(|thing| !is_known(thing)) {
        lines::say(&mut text, &format!("  appeared meanwhile, perhaps made by others: {thing}"));
    }
    text
}

fn end(report: &Report) -> String {
    match (report.cause, report.exit) {
        (Cause::Timeout, _) => "the tests timed out".to_owned(),
        (Cause::Exit, Some(ExitStatus::Code(0))) => "the tests passed".to_owned(),
        (Cause::Exit, Some(ExitStatus::Code(code))) => format!("the tests exited with {code}"),
        (Cause::Signal, Some(ExitStatus::Signal(signal))) => {
            format!("the tests were ended by signal {signal}")
        }
        (Cause::StartFailed, _) => "the tests did not start".to_owned(),
        _ => "the tests were ended".to_owned(),
    }
}

/// The lines about one leak.
pub(super) fn describe(leak: &DescribedProcess) -> Vec<String> {
    let age =
        leak.age_ms.map(|age| format!(", {} old", human(Duration::from_millis(age)))).unwrap_or_default();
    let mut all = vec![format!("leak: {} (pid {}{age})", leak.command, leak.pid)];
    if let Some(test) = &leak.test {
        all.push(format!("  test: {test}"));
    }
    let parents: Vec<String> = leak.parents.iter().map(|parent| parent.command.clone()).collect();
    let files: Vec<String> = leak.files.iter().map(|file| file.display().to_string()).collect();
    for (title, parts) in [("started by", &parts(&parents, " < ")), ("listens on", &parts(&leak.ports, ", "))]
    {
        all.extend(parts.as_ref().map(|parts| format!("  {title}: {parts}")));
    }
    all.extend(leak.directory.as_ref().map(|directory| format!("  directory: {}", directory.display())));
    all.extend(parts(&files, ", ").map(|files| format!("  open files: {files}")));
    all
}

/// The rule that keeps a daemon that is known.
fn rule_that_keeps(command: &str) -> Option<&'static str> {
    let names = |(position, word): (usize, &str)| {
        let name = word.rsplit('/').next().unwrap_or(word).to_owned();
        // The program is the first word; a class, or an archive of classes, is a later one.
        move |(rule, known): &&(&str, &str)| (position == 0 || rule.contains(':')) && name == *known
    };
    let mut words = command.split(' ').enumerate();
    words.find_map(|word| DAEMONS.iter().find(names(word))).map(|(rule, _)| *rule)
}

fn parts(all: &[String], between: &str) -> Option<String> {
    let rest = all.len().saturating_sub(PARTS);
    let mut shown = all.get(..all.len().min(PARTS))?.to_vec();
    if rest > 0 {
        shown.push(format!("{rest} more"));
    }
    (!all.is_empty()).then(|| shown.join(between))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in super::super) fn leak() -> DescribedProcess {
        serde_json::from_value(json!({ "pid": 7, "start_time": 1, "command": "sleep 9", "age_ms": 1200 }))
            .unwrap()
    }

    pub(in super::super) fn report() -> Report {
        let report = json!({
            "schema": 1, "id": "0123456789ab", "command": ["t"], "level": "cgroup", "cause": "exit", "exit": { "code": 0 },
            "started_at_ms": 0, "duration_ms": 1500, "ended": [], "survivors": [], "steps": [], "verified": true,
            "took_us": 2000, "cpu_us": 0, "peak_memory_bytes": 0,
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn a_daemon_that_is_known_is_named_with_the_rule_that_keeps_it() {
        for (command, rule) in [
            ("/usr/bin/sccache", Some("sccache")),
            ("ssh-agent -s", Some("ssh-agent")),
            ("bazel(x) -jar /a/b/A-server.jar", Some("java:A-server.jar")),
            (
                "java -cp x org.gradle.launcher.daemon.bootstrap.GradleDaemon 8",
                Some("java:org.gradle.launcher.daemon.bootstrap.GradleDaemon"),
            ),
            ("grep sccache", None),
            ("sccache2", None),
            ("", None),
        ] {
            assert_eq!(rule_that_keeps(command), rule, "{command}");
        }
        let sccache = [DescribedProcess { command: "sccache".to_owned(), ..leak() }];
        let (mut report, words) = (report(), "    if it stays on purpose: `--spare sccache`\n");
        assert!(text(&report, &sccache, &[]).ends_with(words));
        assert!(ways_on(&report).contains("--spare"));
        report.level = Level::Pidns;
        assert!(!text(&report, &sccache, &[]).contains("--spare"));
        assert!(!ways_on(&report).contains("--spare"));
    }

    #[test]
    fn a_leak_is_named_with_all_that_is_known() {
        let leak = DescribedProcess {
            test: Some("a::b".to_owned()),
            ports: vec!["127.0.0.1:80".to_owned(), "[::1]:81".to_owned()],
            parents: (0..7)
                .map(|pid| penfold_state::FormerParent { pid, command: format!("p{pid}") })
                .collect(),
            ..leak()
        };
        let printed = text(&report(), &[leak], &["mount /x".to_owned()]);
        let expected = "\
            penfold: the tests passed; 1 process was left and ended in 2ms; no process is left\n\
            penfold:   leak: sleep 9 (pid 7, 1.2s old)\n\
            penfold:     test: a::b\n\
            penfold:     started by: p0 < p1 < p2 < p3 < p4 < 2 more\n\
            penfold:     listens on: 127.0.0.1:80, [::1]:81\n\
            penfold:   appeared meanwhile, perhaps made by others: mount /x\n";
        assert_eq!(printed, expected);
    }
}
