//! What one process of penfold hands to another that starts a sandbox, and what it answers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::SandboxSpec;

/// A request for a detached sandbox, as `penfold start-request` reads it from its standard input. The launch file of a restart has the same.
///
/// The environment and the working directory of that process are those of the command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// What is asked for.
    pub spec: SandboxSpec,
    /// What happens when the owner dies; default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_owner_exit: Option<OwnerAction>,
    /// The process that must be the parent of the one that starts the sandbox; else nothing is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<i32>,
    /// The file for the report.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "penfold_process::path_text")]
    pub report: Option<PathBuf>,
}

/// What happens when the owner of a sandbox dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum OwnerAction {
    /// Kill the sandbox.
    Kill,
    /// Stop the sandbox: polite signal, grace, kill.
    Stop,
    /// Keep the sandbox running.
    Keep,
}

/// The answer to a [`StartRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartAnswer {
    /// The command runs.
    Started {
        /// The id of the sandbox.
        id: String,
    },
    /// The command does not run.
    Refused(Refusal),
}

/// Why a command does not run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The kind.
    pub kind: RefusalKind,
    /// One sentence for a person.
    pub sentence: String,
    /// The living sandbox that has the name, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// The exit code that `penfold run` has in this case.
    pub exit_code: u8,
}

/// The kind of a [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// Another living sandbox has the name.
    NameTaken,
    /// The command does not exist.
    CommandNotFound,
    /// The command cannot be executed.
    CommandNotExecutable,
    /// Command and environment are larger than the kernel permits.
    TooLarge,
    /// The command was not started, for another reason.
    NotStarted,
    /// The command was not started, and something of the sandbox may be left.
    Unverified,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_only_what_is_asked_for() {
        let spec = SandboxSpec { command: vec!["true".to_owned()], ..SandboxSpec::default() };
        let request = StartRequest { spec, ..StartRequest::default() };
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(text, r#"{"spec":{"command":["true"]}}"#);
        assert_eq!(serde_json::from_str::<StartRequest>(&text).unwrap(), request);
        assert!(serde_json::from_str::<StartRequest>(r#"{"spec":{},"words":[]}"#).is_err());
    }
}
