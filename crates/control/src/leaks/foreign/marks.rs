//! What an environment says of the session that a process was started in.

use std::collections::HashMap;

use penfold_process::{Pid, Stat};
use serde::Serialize;

/// A variable that names a session of some tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// Its name.
    pub key: String,
    /// Its value, shortened.
    pub value: String,
    /// The owner of the session, where the variable names it by its pid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_pid: Option<i32>,
    /// What became of the owner.
    pub owner: OwnerState,
}

/// What became of the owner of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerState {
    /// It lives.
    Alive,
    /// There is none of that number, or only one that is younger than who carries the mark.
    Dead,
    /// The variable does not say who it is.
    Unknown,
}

/// Variables of tools that start programs for people: agents, editors, terminals, builds.
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
/// Variables of which one field is a pid: the name, what separates the fields, which field.
const WITH_PID: [(&str, char, usize); 3] = [("TMUX", ',', 1), ("STY", '.', 0), ("KITTY_PID", ',', 0)];
/// Of which no value is shown.
const SECRET: [&str; 5] = ["TOKEN", "KEY", "SECRET", "PASSWORD", "AUTH"];
/// How much of a value is shown.
const SHOWN: usize = 60;

/// The value of a variable.
pub(super) fn value<'a>(environment: &'a [u8], key: &str) -> Option<&'a [u8]> {
    environment
        .split(|&byte| byte == 0)
        .find_map(|entry| entry.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
}

/// The marks that a process carries.
pub(super) fn of(environment: &[u8], stat: &Stat, all: &HashMap<Pid, Stat>) -> Vec<Mark> {
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
    // Who the owner was says most.
    marks.sort_by_key(|mark| mark.owner == OwnerState::Unknown);
    marks
}

/// The pid of the owner of a session, where a variable says it.
fn owner(key: &str, value: &str) -> Option<Pid> {
    let text = match WITH_PID.iter().find(|(name, ..)| *name == key) {
        Some((_, separator, field)) => value.split(*separator).nth(*field)?,
        None if key.ends_with("_PID") && PREFIXES.iter().any(|prefix| key.starts_with(prefix)) => value,
        None => return None,
    };
    text.parse().ok().and_then(penfold_process::pid_from_raw)
}

impl Mark {
    /// What it says of the session, if that is evidence of its end.
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
        assert_eq!(value(b"XA=1\0A=2\0", "A"), Some(&b"2"[..]));
        assert_eq!(value(b"AB=1\0", "A"), None);
    }
}
