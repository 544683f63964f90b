//! Starts a detached sandbox by executing `penfold run -d`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::io::Errno;

use super::EngineError;

/// The exit codes of `penfold run` that mean that the command does not run.
const UNVERIFIED: i32 = 120;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// The variables that a command gets from the server, unless it gets all.
const USUAL: [&str; 11] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
];
/// The prefix of penfold's own variables. A command gets the marker of the enclosing sandboxes.
const OWN: &str = "PENFOLD_";

/// A sandbox to be started. The defaults are those of `penfold run -d`.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "flags of `penfold run`")]
pub struct NewSandbox {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The name.
    pub name: Option<String>,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// Variables of the command.
    pub environment: BTreeMap<String, String>,
    /// Whether the command gets all variables of the server, instead of a few such as `PATH` and `HOME`.
    pub inherits_environment: bool,
    /// The directory in which the command starts, if not the server's.
    pub directory: Option<PathBuf>,
    /// The time limit.
    pub timeout: Option<Duration>,
    /// The length of the lease.
    pub ttl: Option<Duration>,
    /// The time that the sandbox may be without output and exec.
    pub idle: Option<Duration>,
    /// The time between the polite signal and SIGKILL.
    pub grace: Option<Duration>,
    /// The time that a kill may take until the survivors are reported.
    pub patience: Option<Duration>,
    /// The number of the polite signal.
    pub signal: Option<i32>,
    /// The containment, as `penfold run --contain` names it.
    pub contain: Option<&'static str>,
    /// The size of the log, in bytes.
    pub log_limit: Option<u64>,
    /// Whether the record is removed when the sandbox ends.
    pub remove: bool,
    /// Whether the sandbox gets an empty directory, which is removed at the end.
    pub scratch: bool,
    /// Whether the sandbox goes on when its supervisor is killed.
    pub keep: bool,
    /// Whether the command gets a terminal.
    pub terminal: bool,
    /// The place of the caller's token, which has a limit of sandboxes.
    pub token: Option<usize>,
}

impl NewSandbox {
    /// Makes a sandbox for this command.
    pub fn new(command: Vec<String>) -> NewSandbox {
        NewSandbox { command, ..NewSandbox::default() }
    }

    /// The words that follow `penfold run -d`.
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = Vec::new();
        let mut option = |flag: &str, value: Option<OsString>| {
            if let Some(value) = value {
                // In one word, so that a value with a leading hyphen is no flag.
                let mut word = OsString::from(format!("{flag}="));
                word.push(value);
                words.push(word);
            }
        };
        let ms = |time: Option<Duration>| time.map(|time| format!("{}ms", time.as_millis()).into());
        option("--name", self.name.as_ref().map(Into::into));
        for (key, value) in &self.labels {
            option("--label", Some(format!("{key}={value}").into()));
        }
        option("--workdir", self.directory.as_ref().map(Into::into));
        option("--timeout", ms(self.timeout));
        option("--ttl", ms(self.ttl));
        option("--idle-timeout", ms(self.idle));
        option("--grace", ms(self.grace));
        option("--patience", ms(self.patience));
        option("--signal", self.signal.map(|signal| signal.to_string().into()));
        option("--contain", self.contain.map(Into::into));
        option("--log-size", self.log_limit.map(|size| size.to_string().into()));
        option("--on-supervisor-exit", self.keep.then(|| "keep".into()));
        let flags = [(self.remove, "--rm"), (self.scratch, "--scratch"), (self.terminal, "--tty")];
        words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.into()));
        words.push("--".into());
        words.extend(self.command.iter().map(Into::into));
        words
    }

    /// A text that differs for different sandboxes, and is the same in every version of the server.
    pub(crate) fn fingerprint(&self) -> String {
        format!("{:?}{:?}{}", self.words(), self.environment, self.inherits_environment)
    }

    /// The environment of `penfold run`, made from the server's.
    fn environment(&self, server: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
        let wanted = |key: &OsString| {
            self.inherits_environment
                || key.to_str().is_some_and(|key| USUAL.contains(&key) || key == penfold_teardown::MARKER)
        };
        let mut environment: Vec<(OsString, OsString)> =
            server.iter().filter(|(key, _)| wanted(key)).cloned().collect();
        // penfold makes the scratch directory below its own TMPDIR, and then sets the command's.
        let given = self.environment.iter().filter(|(key, _)| !(self.scratch && *key == "TMPDIR"));
        for (key, value) in given {
            environment.retain(|(other, _)| other != key.as_str());
            environment.push((key.into(), value.into()));
        }
        environment
    }
}

/// Tells whether a caller may set this variable: the name can be a variable's, and is none of penfold's own.
pub fn is_settable(key: &str) -> bool {
    !key.is_empty() && !key.contains(['=', '\0']) && !key.starts_with(OWN)
}

/// Runs `penfold run -d`, and returns the id once the command runs.
pub(super) fn create(
    program: &Path,
    root: &Path,
    server: &[(OsString, OsString)],
    wanted: &NewSandbox,
) -> Result<String, EngineError> {
    let mut command = Command::new(program);
    command.arg0("penfold").arg("--root").arg(root).args(["run", "-d"]).args(wanted.words());
    command.env_clear().envs(wanted.environment(server)).stdin(Stdio::null());
    // A thread of the runtime may have signals blocked. The command would inherit that, and no polite signal would end it.
    let _ = penfold_sys::signal::set_mask(&penfold_sys::signal::SignalSet::empty());
    match command.output() {
        Ok(output) => answer(&output),
        Err(error) if error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) => {
            Err(EngineError::TooLarge)
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(EngineError::NotStarted {
            code: None,
            sentence: "the command or its environment contains a NUL".to_owned(),
        }),
        Err(source) => Err(EngineError::Execute { program: program.to_owned(), source }),
    }
}

fn answer(output: &Output) -> Result<String, EngineError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.starts_with("penfold: ")).unwrap_or_else(|| said.trim());
    let sentence = first.trim_start_matches("penfold: ").to_owned();
    let code = output.status.code();
    Err(match code {
        Some(UNVERIFIED) => EngineError::Unverified { sentence },
        Some(NOT_EXECUTABLE) => EngineError::CommandNotExecutable { sentence },
        Some(NOT_FOUND) => EngineError::CommandNotFound { sentence },
        _ => match holder(&sentence) {
            Some(holder) => EngineError::NameTaken { holder: holder.to_owned(), sentence: sentence.clone() },
            None => EngineError::NotStarted { code, sentence },
        },
    })
}

/// The sandbox that has the name, if that is why `penfold run` failed. The caller's own words in a sentence about
/// something else are followed by its cause.
fn holder(sentence: &str) -> Option<&str> {
    let (_, holder) = sentence.rsplit_once("` is taken by sandbox ")?;
    // The holder's id could not be read.
    if holder == "?" {
        return Some("");
    }
    (!holder.is_empty() && holder.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sentence_about_a_name_has_a_holder() {
        assert_eq!(
            holder("cannot run `sleep`: the name `a` is taken by sandbox 8a51fc14a0cf"),
            Some("8a51fc14a0cf")
        );
        let dir = "cannot enter the working directory `the name `a` is taken by sandbox 8a`: No such file or directory";
        assert_eq!(holder(dir), None);
        assert_eq!(holder("cannot run `sleep`: the name `a` is taken by sandbox ?"), Some(""));
        assert_eq!(holder("cannot run `x` is taken by sandbox "), None);
    }

    #[test]
    fn a_value_is_never_read_as_a_flag() {
        let mut sandbox = NewSandbox::new(vec!["--help".to_owned()]);
        sandbox.directory = Some("-x".into());
        sandbox.grace = Some(Duration::from_millis(1500));
        assert_eq!(sandbox.words(), ["--workdir=-x", "--grace=1500ms", "--", "--help"]);
    }

    #[test]
    fn a_command_gets_few_variables_of_the_server() {
        let server: Vec<(OsString, OsString)> =
            [("PATH", "/bin"), ("SECRET", "x"), ("PENFOLD_SANDBOX", "a"), ("PENFOLD_TOKEN", "y")]
                .map(|(key, value)| (key.into(), value.into()))
                .to_vec();
        let mut sandbox = NewSandbox::default();
        sandbox.environment.insert("PATH".to_owned(), "/x".to_owned());
        let environment = sandbox.environment(&server);
        let expected =
            [("PENFOLD_SANDBOX", "a"), ("PATH", "/x")].map(|(key, value)| (key.into(), value.into()));
        assert_eq!(environment, expected);
        assert!(
            !is_settable("PENFOLD_SANDBOX") && !is_settable("") && !is_settable("A=B") && is_settable("A")
        );
    }
}
