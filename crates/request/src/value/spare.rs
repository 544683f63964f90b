//! Rules of daemons that the end leaves alone: `ssh-agent`, `./daemon`, `java:WORD`.

use penfold_teardown::SpareRule;
use penfold_teardown::spare::{RuleError, absolute_rule};

/// Parses a rule. A relative path begins at the working directory.
///
/// # Errors
/// When the text is no rule.
pub fn spare_rule(given: &str) -> Result<SpareRule, RuleError> {
    match std::env::current_dir() {
        Ok(here) => absolute_rule(given, &here).parse(),
        Err(_) => given.parse(),
    }
}
