//! Counters of a state root: `<root>/counters`, for monitoring. They outlive the events, which are bounded.
//!
//! Counters are news, never evidence: no part of penfold acts on them. A count that cannot be written is lost, and changes
//! nothing else.
//!
//! Invariants:
//! - The file is one page and is written by one write(2) under its lock. A writer that is killed leaves the old numbers or
//!   the new ones.
//! - A number never falls while the file is whole. A damaged file begins again with zero, and counts that.

mod families;
mod store;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use penfold_teardown::{Cause, Findings};

pub use families::{BOUNDS_US, CounterFamily, CounterSample, CounterValue, LEAKS};
pub use store::{Counters, read_counters};

use families::{ended_key, resource_kind, time_bucket};

/// How a sandbox was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartMode {
    /// By `run`, which waits for it.
    Foreground,
    /// By `run -d`, `adopt` or a server.
    Detached,
}

impl StartMode {
    fn word(self) -> &'static str {
        match self {
            StartMode::Foreground => "foreground",
            StartMode::Detached => "detached",
        }
    }
}

/// Numbers that are to be added to the counters of a state root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, u64>);

impl Counts {
    /// The end of a sandbox. `None` for a foreground sandbox whose end is not counted: nothing went wrong.
    pub fn of_end(mode: StartMode, cause: Cause, findings: &Findings) -> Option<Counts> {
        let failed = failed_releases(findings);
        let is_usual = findings.verified
            && findings.busy.is_none()
            && failed.is_empty()
            && !matches!(cause, Cause::Supervisor | Cause::Lost);
        if mode == StartMode::Foreground && is_usual {
            return None;
        }
        let mut counts = Counts::of_exec(findings).unwrap_or_default();
        counts.put(&ended_key(mode, cause, findings.verified), 1);
        counts.put(&format!("seconds/{}", time_bucket(findings.took_us)), 1);
        counts.put("seconds/sum_us", findings.took_us);
        Some(counts)
    }

    /// The end of an exec: only what went wrong. `None` if nothing did.
    pub fn of_exec(findings: &Findings) -> Option<Counts> {
        let mut counts = Counts::default();
        for what in failed_releases(findings) {
            counts.put(&format!("release-failed/{}", resource_kind(what)), 1);
        }
        if findings.busy.is_some() {
            counts.put("rmdir-busy", 1);
        }
        (!counts.0.is_empty()).then_some(counts)
    }

    /// A leak that was found, and whether it was mended.
    pub fn of_leak(kind: &str, mended: bool) -> Counts {
        let mut counts = Counts::of_mended(kind, mended);
        counts.put(&format!("leak-found/{kind}"), 1);
        counts
    }

    /// Whether a leak that was counted before is mended now.
    pub fn of_mended(kind: &str, mended: bool) -> Counts {
        let mut counts = Counts::default();
        if mended {
            counts.put(&format!("leak-mended/{kind}"), 1);
        }
        counts
    }

    /// Adds the numbers of another count.
    #[must_use]
    pub fn and(mut self, other: &Counts) -> Counts {
        for (key, number) in &other.0 {
            self.put(key, *number);
        }
        self
    }

    /// Adds the numbers to the counters of a state root.
    ///
    /// # Errors
    /// The numbers are lost: there is no state root, no room, or another process does not give up the lock.
    pub fn add_to(&self, root: &Path) -> io::Result<()> {
        store::add_counters(root, &self.0)
    }

    fn put(&mut self, key: &str, number: u64) {
        let sum = self.0.entry(key.to_owned()).or_default();
        *sum = sum.saturating_add(number);
    }
}

/// The resources that could not be released, each once.
fn failed_releases(findings: &Findings) -> Vec<&str> {
    let failed = findings.steps.iter().filter(|step| step.error.is_some());
    let mut failed: Vec<&str> = failed.filter_map(|step| step.what.strip_prefix("release ")).collect();
    failed.sort_unstable();
    failed.dedup();
    failed
}

#[cfg(test)]
mod tests {
    use penfold_teardown::report::{RmdirBusy, TeardownStep};

    use super::*;

    fn step(what: &str, error: Option<&str>) -> TeardownStep {
        TeardownStep { what: what.to_owned(), at_us: 0, took_us: 0, error: error.map(str::to_owned) }
    }

    fn busy() -> RmdirBusy {
        RmdirBusy { path: "/x".into(), errno: 16, pids: Vec::new(), tries: 1, took_us: 1 }
    }

    fn clean() -> Findings {
        Findings { verified: true, took_us: 2_000, ..Findings::default() }
    }

    fn keys(counts: Option<Counts>) -> Vec<(String, u64)> {
        counts.map(|counts| counts.0.into_iter().collect()).unwrap_or_default()
    }

    /// spec: 10.5
    #[test]
    fn a_foreground_sandbox_counts_only_if_something_went_wrong() {
        let end = |findings: &Findings, cause| keys(Counts::of_end(StartMode::Foreground, cause, findings));
        for cause in [Cause::Exit, Cause::Signal, Cause::Timeout, Cause::Stop, Cause::Owner] {
            assert_eq!(end(&clean(), cause), []);
        }
        let unverified = Findings { verified: false, ..clean() };
        let refused = Findings { busy: Some(busy()), ..clean() };
        let stuck = Findings { steps: vec![step("release cgroup /x", Some("EPERM"))], ..clean() };
        for findings in [&unverified, &refused, &stuck] {
            let ended = end(findings, Cause::Exit);
            assert_eq!(ended.iter().filter(|(key, _)| key.starts_with("ended/foreground/exit/")).count(), 1);
        }
        assert!(end(&unverified, Cause::Exit).contains(&("ended/foreground/exit/unverified".to_owned(), 1)));
        assert!(end(&refused, Cause::Exit).contains(&("rmdir-busy".to_owned(), 1)));
        assert!(end(&stuck, Cause::Exit).contains(&("release-failed/cgroup".to_owned(), 1)));
        assert_eq!(end(&clean(), Cause::Supervisor).len(), 3);
    }

    #[test]
    fn a_detached_sandbox_counts_once_with_its_time() {
        let ended = keys(Counts::of_end(StartMode::Detached, Cause::Stop, &clean()));
        let expected = [("ended/detached/stop/verified", 1), ("seconds/1", 1), ("seconds/sum_us", 2_000)];
        assert_eq!(ended, expected.map(|(key, number)| (key.to_owned(), number)));
    }

    #[test]
    fn a_release_that_failed_several_times_counts_once() {
        let steps = vec![
            step("release directory `/a`", Some("busy")),
            step("release directory `/a`", Some("gone mad")),
            step("release directory `/b`", Some("busy")),
            step("release record /r", None),
            step("kill", Some("no")),
        ];
        let counts = keys(Counts::of_exec(&Findings { steps, ..clean() }));
        assert_eq!(counts, [("release-failed/directory".to_owned(), 2)]);
        assert_eq!(Counts::of_exec(&clean()), None);
    }
}
