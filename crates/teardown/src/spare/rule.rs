//! The rules that name processes to spare: their grammar, and how a process is compared with a rule.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use penfold_process::{Executable, FileId, ProcFs, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The longest rule, in bytes.
const LONGEST: usize = 4096;
/// The kernel cuts the name of a process to this many bytes.
const COMM_BYTES: usize = 15;

/// A rule: `NAME`, `PATH`, `NAME:WORD` or `PATH:WORD`.
///
/// - `NAME` is the file name of the executable file.
/// - `PATH` begins with `/`. It means the file that it led to when the rule was made, the file that it leads to now, and a
///   file that was deleted there, as after an upgrade.
/// - `WORD` is a word of the command line, or the file name at the end of a word. It names the program of an interpreter.
///
/// The process must have the user of the caller in all of its user ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpareRule {
    /// The text of the rule.
    rule: String,
    /// The file to which `PATH` led.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<FileId>,
}

/// A text that is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// There is no executable, or a part is empty.
    #[error("a rule is the name or path of an executable file, or `EXECUTABLE:WORD`")]
    Empty,
    /// The path is relative.
    #[error("the path of an executable file must begin with `/`")]
    Relative,
    /// A rule has a control character.
    #[error("a rule has no control characters")]
    Control,
    /// The rule is too long.
    #[error("a rule has at most {LONGEST} bytes")]
    Long,
}

/// How a process compares with a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The process matches.
    Match,
    /// The process does not match.
    Other,
    /// The process may match, but the kernel hides its executable file from this user.
    Hidden,
}

impl FromStr for SpareRule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<SpareRule, RuleError> {
        if text.len() > LONGEST {
            return Err(RuleError::Long);
        }
        if text.chars().any(char::is_control) {
            return Err(RuleError::Control);
        }
        let (executable, word) = parts(text);
        if matches!(executable, "" | "." | "..") || word == Some("") || executable.ends_with('/') {
            return Err(RuleError::Empty);
        }
        if executable.contains('/') && !executable.starts_with('/') {
            return Err(RuleError::Relative);
        }
        let file = if executable.starts_with('/') { file(Path::new(executable)) } else { None };
        Ok(SpareRule { rule: text.to_owned(), file })
    }
}

impl SpareRule {
    /// Returns the text of the rule.
    pub fn text(&self) -> &str {
        &self.rule
    }

    /// Compares a process with the rule.
    pub(crate) fn compare(&self, proc: &mut ProcFs, stat: &Stat) -> Verdict {
        let (executable, word) = parts(&self.rule);
        let words = proc.words(stat.pid);
        if word.is_some_and(|word| !has_word(&words, word)) {
            return Verdict::Other;
        }
        let matches = match proc.executable(stat.pid) {
            Ok(found) if executable.starts_with('/') => self.is_file(Path::new(executable), &found),
            Ok(found) => found.path.file_name() == Some(OsStr::new(executable)),
            // The process hides itself. Name and command line are weaker evidence: enough for a name, which any file can have.
            Err(Errno::ACCESS | Errno::PERM) if executable.starts_with('/') => {
                let name = executable.rsplit('/').next().unwrap_or_default();
                return if is_named(stat, &words, name) { Verdict::Hidden } else { Verdict::Other };
            }
            Err(Errno::ACCESS | Errno::PERM) => is_named(stat, &words, executable),
            Err(_) => false,
        };
        let own = rustix::process::geteuid().as_raw();
        let status = proc.status(stat.pid).ok().flatten();
        // A process in a pid namespace of its own dies with the init of that namespace.
        let is_own = status.is_some_and(|status| {
            status.uids.iter().all(|uid| *uid == own) && status.namespace_pids.len() <= 1
        });
        if matches && is_own { Verdict::Match } else { Verdict::Other }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the path is only compared with the kernel's text of a file that is gone"
    )]
    fn is_file(&self, path: &Path, found: &Executable) -> bool {
        let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        self.file == Some(found.file)
            || file(path) == Some(found.file)
            || found.is_deleted && (found.path == real || found.path == path)
    }
}

/// Splits a rule into the executable and the word. The first colon separates them: a word may have more of them.
fn parts(rule: &str) -> (&str, Option<&str>) {
    match rule.split_once(':') {
        Some((executable, word)) => (executable, Some(word)),
        None => (rule, None),
    }
}

fn file(path: &Path) -> Option<FileId> {
    let meta = std::fs::metadata(path).ok()?;
    Some(FileId { device: meta.dev(), inode: meta.ino() })
}

/// Tells whether a command line has a word, or a path that ends with it. The first word is the name by which the program was
/// called.
fn has_word(words: &[Vec<u8>], wanted: &str) -> bool {
    words.iter().skip(1).any(|word| word == wanted.as_bytes() || file_name(word) == wanted.as_bytes())
}

/// Tells whether both names that a process gives itself are this one.
fn is_named(stat: &Stat, words: &[Vec<u8>], name: &str) -> bool {
    let short = name.as_bytes().get(..COMM_BYTES).unwrap_or(name.as_bytes());
    stat.comm.as_bytes() == short && words.first().is_some_and(|word| file_name(word) == name.as_bytes())
}

fn file_name(word: &[u8]) -> &[u8] {
    word.rsplit(|&byte| byte == b'/').next().unwrap_or(word)
}

/// Makes a rule with a relative path absolute, against the directory `base`.
#[must_use]
pub fn absolute_rule(rule: &str, base: &Path) -> String {
    let (executable, word) = parts(rule);
    if !executable.contains('/') || executable.starts_with('/') {
        return rule.to_owned();
    }
    let path: PathBuf = base.join(OsStr::from_bytes(executable.as_bytes()));
    let path = path.to_string_lossy();
    word.map_or_else(|| path.to_string(), |word| format!("{path}:{word}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 23.1
    #[test]
    fn only_names_and_absolute_paths_with_words_are_rules() {
        for good in ["ssh-agent", "/usr/bin/tmux", "java:GradleDaemon", "node:/app/a:b.js", "my agent"] {
            assert_eq!(good.parse::<SpareRule>().unwrap().text(), good);
        }
        for (bad, error) in [
            ("", RuleError::Empty),
            (":word", RuleError::Empty),
            ("java:", RuleError::Empty),
            ("/usr/bin/", RuleError::Empty),
            ("..", RuleError::Empty),
            ("./agent", RuleError::Relative),
            ("a\nb", RuleError::Control),
        ] {
            assert_eq!(bad.parse::<SpareRule>().unwrap_err(), error, "{bad:?}");
        }
        assert_eq!("a".repeat(LONGEST + 1).parse::<SpareRule>().unwrap_err(), RuleError::Long);
    }

    /// spec: 23.1
    #[test]
    fn word_is_whole_or_the_end_of_a_path_and_never_the_first() {
        let words: Vec<Vec<u8>> = ["java", "-jar", "/cache/A-server.jar", "x.GradleDaemon"]
            .map(|word| word.as_bytes().to_vec())
            .into();
        for (word, has) in [
            ("A-server.jar", true),
            ("/cache/A-server.jar", true),
            ("x.GradleDaemon", true),
            ("GradleDaemon", false),
            ("server.jar", false),
            ("java", false),
        ] {
            assert_eq!(has_word(&words, word), has, "{word}");
        }
    }

    #[test]
    fn relative_paths_begin_at_the_directory_of_the_caller() {
        let base = Path::new("/work");
        assert_eq!(absolute_rule("bin/agent:a/b", base), "/work/bin/agent:a/b");
        for rule in ["agent", "/bin/agent", "java:./x"] {
            assert_eq!(absolute_rule(rule, base), rule);
        }
    }
}
