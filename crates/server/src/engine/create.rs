//! Starts a detached sandbox by executing `penfold run -d`.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use penfold_api::{SandboxSpec, USUAL_VARIABLES};
use rustix::io::Errno;

use super::EngineError;

/// The exit codes of `penfold run` that mean that the command does not run.
const UNVERIFIED: i32 = 120;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;
/// The prefix of penfold's own variables. A command gets the marker of the enclosing sandboxes.
const OWN: &str = "PENFOLD_";

/// A sandbox to be started.
#[derive(Debug, Clone, Default)]
pub struct NewSandbox {
    /// What is asked for.
    pub spec: SandboxSpec,
    /// The place of the caller's token, which has a limit of sandboxes.
    pub token: Option<usize>,
}

impl NewSandbox {
    /// Makes a sandbox for this command.
    pub fn new(command: Vec<String>) -> NewSandbox {
        NewSandbox { spec: SandboxSpec { command, ..SandboxSpec::default() }, token: None }
    }

    /// The words that follow `penfold run -d`.
    fn words(&self) -> Vec<OsString> {
        let mut words = self.spec.flags();
        words.push("--".into());
        words.extend(self.spec.command.iter().map(Into::into));
        words
    }

    fn inherits_environment(&self) -> bool {
        self.spec.inherit_env.unwrap_or(false)
    }

    /// A text that differs for different sandboxes, and is the same in every version of the server.
    pub(crate) fn fingerprint(&self) -> String {
        format!("{:?}{:?}{}", self.words(), self.spec.env, self.inherits_environment())
    }

    /// The environment of `penfold run`, made from the server's.
    fn environment(&self, server: &[(OsString, OsString)]) -> Vec<(OsString, OsString)> {
        let wanted = |key: &OsString| {
            self.inherits_environment()
                || key
                    .to_str()
                    .is_some_and(|key| USUAL_VARIABLES.contains(&key) || key == penfold_teardown::MARKER)
        };
        let mut environment: Vec<(OsString, OsString)> =
            server.iter().filter(|(key, _)| wanted(key)).cloned().collect();
        // penfold makes the scratch directory below its own TMPDIR, and then sets the command's.
        let given = self.spec.env.iter().filter(|(key, _)| !(self.spec.scratch && *key == "TMPDIR"));
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
        sandbox.spec.dir = Some("-x".into());
        sandbox.spec.grace_ms = Some(1500);
        assert_eq!(sandbox.words(), ["--workdir=-x", "--grace=1500ms", "--contain=auto", "--", "--help"]);
        let spec = &mut sandbox.spec;
        (spec.memory_bytes, spec.pids, spec.cpus) = (Some(1 << 20), Some(7), Some(1.5));
        let limits = ["--memory=1048576", "--pids=7", "--cpus=1.5"];
        assert_eq!(sandbox.words().get(3..6).unwrap(), limits);
    }

    #[test]
    fn a_command_gets_few_variables_of_the_server() {
        let server: Vec<(OsString, OsString)> =
            [("PATH", "/bin"), ("SECRET", "x"), ("PENFOLD_SANDBOX", "a"), ("PENFOLD_TOKEN", "y")]
                .map(|(key, value)| (key.into(), value.into()))
                .to_vec();
        let mut sandbox = NewSandbox::default();
        sandbox.spec.env.insert("PATH".to_owned(), "/x".to_owned());
        let environment = sandbox.environment(&server);
        let expected =
            [("PENFOLD_SANDBOX", "a"), ("PATH", "/x")].map(|(key, value)| (key.into(), value.into()));
        assert_eq!(environment, expected);
        assert!(
            !is_settable("PENFOLD_SANDBOX") && !is_settable("") && !is_settable("A=B") && is_settable("A")
        );
    }
}
