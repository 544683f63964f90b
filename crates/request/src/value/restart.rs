//! Policies of restarts: `on-failure`, `on-failure:3`.

use penfold_state::OnFailure;

/// Parses a policy.
///
/// # Errors
/// When the text is none.
pub fn restart_policy(text: &str) -> Result<OnFailure, String> {
    let wrong = || "it is neither `on-failure` nor `on-failure:N`".to_owned();
    match text.strip_prefix("on-failure").ok_or_else(wrong)? {
        "" => Ok(OnFailure { most: None }),
        most => {
            let most = most.strip_prefix(':').and_then(|most| most.parse().ok()).filter(|most| *most > 0);
            most.map(|most| OnFailure { most: Some(most) }).ok_or_else(wrong)
        }
    }
}

/// The text of a policy, as [`restart_policy`] reads it.
#[must_use]
pub fn policy_text(policy: OnFailure) -> String {
    match policy.most {
        None => "on-failure".to_owned(),
        Some(most) => format!("on-failure:{most}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_shown_reads_back() {
        for text in ["on-failure", "on-failure:1", "on-failure:4294967295"] {
            assert_eq!(restart_policy(text).map(policy_text).as_deref(), Ok(text));
        }
        for wrong in ["", "always", "on-failure:", "on-failure:0", "on-failure:-1", "on-failure3"] {
            assert!(restart_policy(wrong).is_err(), "{wrong}");
        }
    }
}
