//! The exit codes of each verb and their meanings, for people. The numbers are in `penfold_state::exit_codes`.

pub(crate) use penfold_state::exit_codes::*;

/// A group of verbs that share their codes.
pub(crate) struct Group {
    /// The names of the verbs: the heading of the group.
    pub(crate) verbs: &'static str,
    /// Each code and its meaning.
    pub(crate) codes: &'static [(Code, &'static str)],
}

impl Group {
    /// Whether these are the codes of this verb.
    pub(crate) fn is_of(&self, verb: &str) -> bool {
        // `guard-each` is `guard` for one test.
        let name = if verb == "guard-each" { "guard" } else { verb };
        let has = |group: &Group| group.verbs.split(' ').any(|word| word == name);
        has(self) || self.verbs == OTHERS && !TABLE.iter().any(has)
    }
}

/// The group of all verbs that no other group names.
const OTHERS: &str = "other commands";

/// The exit code in a line of [`TABLE`].
pub(crate) enum Code {
    /// Exactly this code.
    Is(u8),
    /// The command's own code, usually below 120.
    Commands,
    /// This number plus the number of a signal.
    Plus(u8),
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Code::Is(code) => code.to_string(),
            Code::Commands => format!("0-{}", UNVERIFIED - 1),
            Code::Plus(base) => format!("{base}+N"),
        };
        f.pad(&text)
    }
}

/// The text of `penfold help exit-codes`.
pub(crate) const TABLE: &[Group] = &[
    Group {
        verbs: "run guard sh exec wait attach",
        codes: &[
            (Code::Commands, "the command's own; others too if the command chose them"),
            (Code::Is(UNVERIFIED), "the command is over but the end of all it started could not be verified"),
            (Code::Is(LEAKED), "--fail-on-leak, guard: the command was 0 but left strays (they were ended)"),
            (Code::Is(TIMED_OUT), "a time limit fired (--preserve-status: the command's own)"),
            (
                Code::Is(NOT_STARTED),
                "penfold failed before the start: wrong command line, no such id or an ambiguous one, and the like; run --ready: not ready",
            ),
            (Code::Is(NOT_EXECUTABLE), "the command is not executable"),
            (Code::Is(NOT_FOUND), "the command was not found"),
            (Code::Plus(SIGNALLED), "the command was ended by signal N"),
        ],
    },
    Group {
        verbs: "kill stop rm gc reap slurm",
        codes: &[
            (Code::Is(SUCCESS), "done and observed gone; already gone counts"),
            (Code::Is(FAILURE), "other failure"),
            (Code::Is(USAGE), "wrong command line, or refused without -f"),
            (Code::Is(NO_SUCH_ID), "no such id"),
            (Code::Is(AMBIGUOUS), "the prefix of an id is ambiguous"),
            (Code::Is(STILL_THERE), "some target is still there, details per target"),
            (Code::Is(NOT_PERMITTED), "not permitted"),
        ],
    },
    Group {
        verbs: "doctor",
        codes: &[
            (Code::Is(DOCTOR_CLEAN), "no leaks; warnings count only with --strict"),
            (Code::Is(DOCTOR_FOUND), "leaks, or penfold does not work here (with --strict warnings, too)"),
            (Code::Is(DOCTOR_CHECKS_FAILED), "could not check, or wrong command line"),
        ],
    },
    Group {
        verbs: OTHERS,
        codes: &[
            (Code::Is(SUCCESS), "done"),
            (Code::Is(FAILURE), "other failure"),
            (Code::Is(USAGE), "wrong command line; `penfold` without a command counts as one"),
            (Code::Is(NO_SUCH_ID), "no such id"),
            (Code::Is(AMBIGUOUS), "the prefix of an id is ambiguous"),
            (Code::Is(NOT_PERMITTED), "not permitted"),
        ],
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_verb_has_the_codes_of_one_group() {
        for (verb, first) in
            [("run", "run guard"), ("guard-each", "run guard"), ("gc", "kill"), ("ps", "other")]
        {
            let groups: Vec<&str> =
                TABLE.iter().filter(|group| group.is_of(verb)).map(|group| group.verbs).collect();
            assert!(matches!(groups.as_slice(), [one] if one.starts_with(first)), "{verb}: {groups:?}");
        }
    }

    #[test]
    fn a_group_names_each_code_once() {
        for group in TABLE {
            let mut seen: Vec<String> = group.codes.iter().map(|(code, _)| code.to_string()).collect();
            let all = seen.len();
            seen.sort();
            seen.dedup();
            assert_eq!(seen.len(), all, "{}", group.verbs);
        }
    }
}
