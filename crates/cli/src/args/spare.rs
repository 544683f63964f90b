//! The flags for members that the end leaves alone: `run --spare` and `guard --ignore`.

use clap::Args;
use penfold_request::SandboxSpec;
use penfold_teardown::SpareRule;
use penfold_teardown::spare::{RuleError, absolute};

use crate::failure::{Failure, FailureKind};

/// The rules of `run`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for the end")]
pub(crate) struct SpareArgs {
    #[arg(
        long,
        value_name = "RULE",
        value_parser = rule,
        help = "Leave daemons alone at the end, and name them: NAME or PATH of the executable file, NAME:WORD with a word of the \
            command line (java:org.gradle.launcher.daemon.bootstrap.GradleDaemon); may be repeated"
    )]
    pub(crate) spare: Vec<SpareRule>,
    /// Let CMD start sandboxes that outlive this one (`penfold run -d --outside`), and hand processes over (`penfold keep`).
    #[arg(long)]
    pub(crate) allow_outside: bool,
}

/// Refuses rules and sandboxes outside where the kernel ends every process.
///
/// # Errors
/// When there are some.
pub(crate) fn refuse_namespace(spec: &SandboxSpec, means: &str) -> Result<(), Failure> {
    let flags = [(!spec.spare.is_empty(), "--spare"), (spec.allow_outside, "--allow-outside")];
    let Some((_, flag)) = flags.into_iter().find(|(given, _)| *given) else { return Ok(()) };
    let sentence = format!(
        "`{flag}` cannot be used together with `{means}`: the kernel ends every process of a pid namespace"
    );
    Err(Failure::new(FailureKind::NotStarted, sentence))
}

/// Parses a rule. A relative path begins at the working directory.
pub(crate) fn rule(given: &str) -> Result<SpareRule, RuleError> {
    match std::env::current_dir() {
        Ok(here) => absolute(given, &here).parse(),
        Err(_) => given.parse(),
    }
}
