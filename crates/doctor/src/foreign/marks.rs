//! Finds the session in which a process was started, from its environment.

use std::collections::HashMap;

use penfold_process::{Pid, Stat};
use serde::Serialize;

/// A variable that names a session of some tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// The name of the variable.
    pub key: String,
    /// The value, shortened.
    pub value: String,
    /// The owner of the session, if the variable holds its pid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_pid: Option<i32>,
    /// Whether the owner lives.
    pub owner: OwnerState,
}

/// Whether the owner of a session lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerState {
    /// The owner lives.
    Alive,
    /// No process has the pid of the owner, or only a process that is younger than the one with the mark.
    Dead,
    /// The variable does not name the owner.
    Unknown,
}

/// Prefixes of the variables of tools that start programs for people: agents, editors, terminals, builds.
const PREFIXES: [&str; 11] = [
    "CLAUDE",
    "CURSOR_",
    "CODEX_",
    "VSCODE_",
    "WINDSURF_",
    "AIDER_",
    "GEMINI_CLI",
    "RUNNER_TRACKING_ID",
    "BUILD_ID",
    "JENKINS_",
    "TERM_SESSION_ID",
];
/// Variables with a pid as one of their fields: the name, the separator, the index of the field.
const WITH_PID: [(&str, char, usize); 3] = [("TMUX", ',', 1), ("STY", '.', 0), ("KITTY_PID", ',', 0)];
/// Variables with these parts in their names are shown without a value.
const SECRET: [&str; 5] = ["TOKEN", "KEY", "SECRET", "PASSWORD", "AUTH"];
/// The most bytes of a value that are shown.
const SHOWN: usize = 60;

/// Returns the value of a variable.
pub(super) fn variable_value<'a>(environment: &'a [u8], key: &str) -> Option<&'a [u8]> {
    environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
}

/// Returns the marks that a process carries.
pub(super) fn marks_of_process(environment: &[u8], stat: &Stat, all: &HashMap<Pid, Stat>) -> Vec<Mark> {
    let entries = environment.split(|&byte| byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok());
    let mut marks: Vec<Mark> = entries
        .filter_map(|entry| entry.split_once('='))
        .filter_map(|(key, value)| {
            let pid = owner(key, value);
            let named = PREFIXES.iter().any(|prefix| key.starts_with(prefix));
            if !(named || pid.is_some()) || SECRET.iter().any(|word| key.contains(word)) {
                return None;
            }
            let owner = match pid {
                None => OwnerState::Unknown,
                Some(pid) => match all.get(&pid) {
                    Some(owner) if owner.id() <= stat.id() => OwnerState::Alive,
                    _ => OwnerState::Dead,
                },
            };
            let value = value.chars().take(SHOWN).collect();
            Some(Mark { key: key.to_owned(), value, owner_pid: pid.map(Pid::as_raw_pid), owner })
        })
        .collect();
    // Marks with a known owner come first.
    marks.sort_by_key(|mark| mark.owner == OwnerState::Unknown);
    marks
}

/// Returns the pid of the owner of a session, if the variable holds it.
fn owner(key: &str, value: &str) -> Option<Pid> {
    let text = match WITH_PID.iter().find(|(name, ..)| *name == key) {
        Some((_, separator, field)) => value.split(*separator).nth(*field)?,
        None if key.ends_with("_PID") && PREFIXES.iter().any(|prefix| key.starts_with(prefix)) => value,
        None => return None,
    };
    text.parse().ok().and_then(penfold_process::pid_from_raw)
}

impl Mark {
    /// Describes the session, if the mark is evidence of the session's end.
    pub(super) fn says(&self) -> Option<String> {
        let pid = self.owner_pid?;
        (self.owner == OwnerState::Dead).then(|| format!("{} names process {pid}, which is dead", self.key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_are_read_where_a_variable_has_one() {
        let pid = |key: &str, value: &str| owner(key, value).map(Pid::as_raw_pid);
        assert_eq!(pid("VSCODE_PID", "812"), Some(812));
        assert_eq!(pid("TMUX", "/tmp/tmux-0/default,4711,0"), Some(4711));
        assert_eq!(pid("STY", "99.pts-0.host"), Some(99));
        for (key, value) in
            [("TMUX", "x"), ("VSCODE_PID", "-1"), ("VSCODE_PID", "0"), ("MY_PID", "1"), ("BUILD_ID", "5")]
        {
            assert_eq!(pid(key, value), None, "{key}={value}");
        }
    }

    #[test]
    fn only_the_whole_name_of_a_variable_counts() {
        assert_eq!(variable_value(b"XA=1\0A=2\0", "A"), Some(&b"2"[..]));
        assert_eq!(variable_value(b"AB=1\0", "A"), None);
    }
}
