//! The command line of an OCI runtime, as far as penfold acts on it.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;

/// The global flags of runc and crun that take a value.
const GLOBAL_WITH_VALUE: [&str; 6] = ["root", "log", "log-format", "criu", "rootless", "cgroup-manager"];
/// The other global flags.
const GLOBAL: [&str; 2] = ["debug", "systemd-cgroup"];
/// The flags of `exec` that take a value.
const EXEC_WITH_VALUE: [&str; 16] = [
    "console-socket",
    "cwd",
    "env",
    "e",
    "user",
    "u",
    "additional-gids",
    "g",
    "process",
    "p",
    "pid-file",
    "process-label",
    "apparmor",
    "cap",
    "c",
    "preserve-fds",
];

/// The words of `create`, `start`, `run`, `exec`, `kill` or `delete`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandWords {
    /// The engine's state directory, `--root`.
    pub root: Option<PathBuf>,
    /// The file for messages, `--log`.
    pub log: Option<PathBuf>,
    /// Whether the delegate asks systemd for cgroups.
    pub systemd: bool,
    /// `create`, `start`, `run`, `exec`, `kill` or `delete`.
    pub verb: String,
    /// The number of words before those of the verb.
    pub before: usize,
    /// The container.
    pub id: String,
    /// The directory with `config.json`.
    pub bundle: PathBuf,
    /// `delete --force`.
    pub force: bool,
    /// The signal of `kill`.
    pub signal: Option<String>,
    /// Whether `run` or `exec` returns before the command has ended.
    pub detach: bool,
    /// The file for the pid of the command.
    pub pid_file: Option<PathBuf>,
    /// The words that name this file.
    pub pid_file_words: Range<usize>,
}

impl CommandWords {
    /// Reads the words after the program's name; `None` if they are for the delegate alone: another verb, or a flag that is not known.
    pub fn parse(words: &[OsString]) -> Option<CommandWords> {
        let mut found = CommandWords { bundle: PathBuf::from("."), ..CommandWords::default() };
        let count = words.len();
        let mut words = words.iter();
        found.verb = loop {
            let word = words.next()?;
            let Some((name, value)) = flag(word.to_str()?) else { break word.to_str()?.to_owned() };
            if GLOBAL.contains(&name) {
                found.systemd |= name == "systemd-cgroup" && value != Some("false");
                continue;
            }
            if !GLOBAL_WITH_VALUE.contains(&name) {
                return None;
            }
            let value = value.map(OsString::from).or_else(|| words.next().cloned())?;
            match name {
                "root" => found.root = Some(value.into()),
                "log" => found.log = Some(value.into()),
                "cgroup-manager" => found.systemd |= value == "systemd",
                _ => (),
            }
        };
        found.before = count - words.len();
        let (with_value, alone) = flags_of(&found.verb)?;
        let mut others = Vec::new();
        let mut are_flags = true;
        while let Some(word) = words.next() {
            let at = count - words.len() - 1;
            if are_flags && word == "--" {
                are_flags = false;
                continue;
            }
            let Some((name, value)) = Some(word.to_str()?).filter(|_| are_flags).and_then(flag) else {
                others.push(word.to_str()?.to_owned());
                if found.verb == "exec" {
                    // The words of the command follow.
                    break;
                }
                continue;
            };
            if alone.contains(&name) {
                found.force |= matches!(name, "force" | "f") && value != Some("false");
                found.detach |= matches!(name, "detach" | "d") && value != Some("false");
            } else if with_value.contains(&name) {
                let value = value.map(OsString::from).or_else(|| words.next().cloned())?;
                match name {
                    "bundle" | "b" => found.bundle = value.into(),
                    "pid-file" => {
                        found.pid_file = Some(value.into()).filter(|file| *file != PathBuf::new());
                        found.pid_file_words = at..count - words.len();
                    }
                    _ => (),
                }
            } else {
                return None;
            }
        }
        let most = if found.verb == "kill" { 2 } else { 1 };
        let mut others = others.into_iter();
        found.id = others.next().filter(|id| is_id(id))?;
        found.signal = others.next();
        (others.next().is_none() && (found.signal.is_none() || most == 2)).then_some(found)
    }

    /// Tells whether `kill` sends SIGKILL.
    pub fn is_sigkill(&self) -> bool {
        matches!(self.signal.as_deref(), Some("KILL" | "SIGKILL" | "9" | "kill" | "sigkill"))
    }
}

/// The flags of a verb: those with a value, and the others; `None` for verbs of the delegate alone.
fn flags_of(verb: &str) -> Option<(&'static [&'static str], &'static [&'static str])> {
    Some(match verb {
        "create" | "run" => (
            &["bundle", "b", "console-socket", "pid-file", "preserve-fds", "config", "f"],
            &["no-pivot", "no-new-keyring", "detach", "d", "keep", "no-subreaper"],
        ),
        "exec" => (&EXEC_WITH_VALUE[..], &["tty", "t", "detach", "d", "no-new-privs", "ignore-paused"]),
        "kill" => (&[], &["all", "a"]),
        "start" => (&[], &[]),
        "delete" => (&[], &["force", "f"]),
        _ => return None,
    })
}

/// A flag with its value, in the syntax of Go: `-name`, `--name`, `--name=value`.
fn flag(word: &str) -> Option<(&str, Option<&str>)> {
    let rest = word.strip_prefix('-')?;
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    Some(rest.split_once('=').map_or((rest, None), |(name, value)| (name, Some(value))))
}

/// What both delegates take for an id. Such an id is one component of a path.
fn is_id(id: &str) -> bool {
    !matches!(id, "" | "." | "..") && !id.contains('/')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<CommandWords> {
        CommandWords::parse(&text.split(' ').map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn command_lines_of_engines_are_understood() {
        let create = parse(
            "--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json --systemd-cgroup create --bundle /b \
             --pid-file /b/init.pid c1",
        )
        .unwrap();
        assert_eq!(create.root.unwrap(), PathBuf::from("/run/containerd/runc/k8s.io"));
        assert_eq!((create.verb.as_str(), create.id.as_str(), create.systemd), ("create", "c1", true));
        assert_eq!(create.bundle, PathBuf::from("/b"));
        let kill = parse("--root=/r kill --all c1 9").unwrap();
        assert!(kill.is_sigkill());
        assert!(parse("delete --force a+b_c.d-e").unwrap().force);
        let exec = parse("--root /r exec --process /tmp/p --detach --pid-file /b/x.pid c1").unwrap();
        assert_eq!((exec.id.as_str(), exec.before, exec.detach), ("c1", 3, true));
        assert_eq!((exec.pid_file.unwrap(), exec.pid_file_words), (PathBuf::from("/b/x.pid"), 6..8));
        assert_eq!(parse("exec -d --pid-file=/x c1").unwrap().pid_file_words, 2..3);
        assert!(!parse("exec -t c1 sh --detach -c true").unwrap().detach);
        assert_eq!(
            parse("exec --pid-file= -- c1 sh").unwrap(),
            CommandWords { pid_file_words: 1..2, ..parse("exec c1 sh").unwrap() }
        );
        assert!(parse("delete --force -- c1").unwrap().force);
        assert!(!parse("delete x").unwrap().force);
    }

    #[test]
    fn other_words_are_for_the_delegate() {
        for text in [
            "--version",
            "state x",
            "--what create x",
            "delete --what x",
            "delete x y",
            "delete ..",
            "delete a/b",
            "kill",
            "delete --regex x",
            "kill a 9 c",
            "exec --cgroup x c1 sh",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
