//! The results for leaks.

use std::path::Path;
use std::time::Duration;

use penfold_doctor::Member;
use penfold_doctor::leaks::{self, Leak, Survey};
use penfold_state::error_chain;
use penfold_teardown::Findings;
use serde::Serialize;

use crate::exit_codes;
use crate::failure::FailureKind;

/// A leak with its result.
#[derive(Serialize)]
pub(super) struct Collected {
    #[serde(flatten)]
    pub(super) leak: Leak,
    #[serde(flatten)]
    pub(super) outcome: Outcome,
}

/// The result for a leak; `--json` prints its name as `outcome`.
#[derive(Serialize)]
#[serde(tag = "outcome")]
pub(super) enum Outcome {
    /// The leak is verified gone.
    #[serde(rename = "removed")]
    Removed { findings: Findings },
    /// Dry run: the leak would be removed.
    #[serde(rename = "would remove")]
    WouldRemove,
    /// gc kept the leak.
    #[serde(rename = "kept")]
    Kept { reason: String },
    /// gc tried to end the leak, but part of it is still there.
    #[serde(rename = "failed")]
    Survived {
        findings: Findings,
        /// The processes that hold the leak, as far as /proc shows them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        holders: Vec<Member>,
    },
    /// The attempt to end the leak failed.
    #[serde(rename = "failed")]
    Failed {
        reason: String,
        /// The processes that hold the leak, as far as /proc shows them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        holders: Vec<Member>,
        /// The kind of the error, for the exit code.
        #[serde(skip)]
        kind: FailureKind,
    },
}

impl Outcome {
    /// The name of the result in events and `--json`.
    fn word(&self) -> &'static str {
        match self {
            Outcome::Removed { .. } => "removed",
            Outcome::WouldRemove => "would remove",
            Outcome::Kept { .. } => "kept",
            Outcome::Survived { .. } | Outcome::Failed { .. } => "failed",
        }
    }
}

impl Collected {
    /// Ends and removes a leak.
    pub(super) fn collect(leak: Leak, root: &Path, named: bool, patience: Duration) -> Collected {
        let collected = leaks::collect_leak(&leak, root, named, patience);
        let holders = || leak.thing.path().map(leaks::path_holders).unwrap_or_default();
        let outcome = match collected {
            Ok(findings) if findings.verified => Outcome::Removed { findings },
            Ok(findings) => Outcome::Survived { findings, holders: holders() },
            Err(error) => Outcome::Failed {
                reason: error_chain(&error),
                holders: holders(),
                kind: FailureKind::from(&error),
            },
        };
        Collected { leak, outcome }
    }

    /// Whether gc kept the leak.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.outcome, Outcome::Kept { .. })
    }

    /// The reasons why the leak is not gone, and the processes that hold it.
    pub(super) fn why(&self) -> String {
        let survivors = |findings: &Findings| -> Vec<String> {
            findings.survivors.iter().map(ToString::to_string).collect()
        };
        let (mut reasons, holders): (_, &[Member]) = match &self.outcome {
            Outcome::WouldRemove => (Vec::new(), &[]),
            Outcome::Removed { findings } => (survivors(findings), &[]),
            Outcome::Kept { reason } => (vec![reason.clone()], &[]),
            Outcome::Survived { findings, holders } => (survivors(findings), holders),
            Outcome::Failed { reason, holders, .. } => (vec![reason.clone()], holders),
        };
        reasons.extend(
            holders
                .iter()
                .map(|holder| format!("process {} ({}) holds it", holder.id.pid.as_raw_pid(), holder.name)),
        );
        if reasons.is_empty() { String::new() } else { format!(": {}", reasons.join("; ")) }
    }

    /// Writes the event of a removed leak.
    pub(super) fn write_event(&self, root: &Path) {
        let reason = self.why().strip_prefix(": ").map(str::to_owned);
        leaks::publish_removal(&self.leak, root, self.outcome.word(), reason);
    }
}

/// The exit code for all results.
pub(super) fn exit_code(survey: &Survey, collected: &[Collected]) -> u8 {
    let failed = |one: &Collected| match one.outcome {
        Outcome::Survived { .. } => Some(FailureKind::StillThere),
        Outcome::Failed { kind, .. } => Some(kind),
        _ => None,
    };
    let failed: Vec<FailureKind> = collected.iter().filter_map(failed).collect();
    let unjudged =
        !survey.unjudged.is_empty() || !survey.complete && collected.iter().any(Collected::is_kept);
    if !failed.is_empty() && failed.iter().all(|kind| *kind == FailureKind::NotPermitted) {
        exit_codes::NOT_PERMITTED
    } else if !failed.is_empty() || unjudged {
        exit_codes::STILL_THERE
    } else {
        exit_codes::SUCCESS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_printed_as_the_word_that_events_have() {
        let (findings, reason, holders) = (Findings::default, String::new, Vec::new);
        for outcome in [
            Outcome::Removed { findings: findings() },
            Outcome::WouldRemove,
            Outcome::Kept { reason: reason() },
            Outcome::Survived { findings: findings(), holders: holders() },
            Outcome::Failed { reason: reason(), holders: holders(), kind: FailureKind::Other },
        ] {
            assert_eq!(serde_json::to_value(&outcome).unwrap()["outcome"], outcome.word());
        }
    }
}
