//! Why a sandbox ended, in words.

use penfold_teardown::Cause;

/// Returns the cause in one word, as JSON has it.
pub fn cause_word(cause: Cause) -> String {
    let word = serde_json::to_value(cause).ok();
    word.as_ref().and_then(|word| word.as_str()).unwrap_or("?").to_owned()
}

/// Returns the reason of an end that nobody has requested, as the clause after "because"; `None` if the command ended by itself, or
/// somebody has requested the end.
pub fn cause_clause(cause: Cause) -> Option<&'static str> {
    match cause {
        Cause::Exit | Cause::Signal | Cause::Stop | Cause::Kill => None,
        Cause::StartFailed => Some("its command could not be run"),
        Cause::Timeout => Some("its time limit was over"),
        Cause::Ttl => Some("its lease ran out"),
        Cause::Idle => Some("it was idle"),
        Cause::Memory | Cause::Oom => Some("it ran out of memory"),
        Cause::Owner => Some("its owner is gone"),
        Cause::Stdin => Some("its standard input hung up"),
        Cause::Supervisor | Cause::Lost => Some("a process of penfold was killed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_has_the_word_of_json() {
        assert_eq!(cause_word(Cause::StartFailed), "start-failed");
        assert_eq!(cause_word(Cause::Exit), "exit");
    }

    #[test]
    fn an_end_that_nobody_has_requested_has_a_reason() {
        let without = [Cause::Exit, Cause::Signal, Cause::Stop, Cause::Kill];
        assert!(without.into_iter().all(|cause| cause_clause(cause).is_none()));
        assert_eq!(cause_clause(Cause::Oom), cause_clause(Cause::Memory));
        assert_eq!(cause_clause(Cause::Lost), Some("a process of penfold was killed"));
    }
}
