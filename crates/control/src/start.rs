//! Starts a detached sandbox by executing `penfold run -d`, for processes with threads: these must not fork a supervisor.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::io::Errno;

/// The exit codes of `penfold run` that mean that the command does not run.
const UNVERIFIED: i32 = 120;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Why a detached sandbox was not started. Nothing of it is left, unless the error is [`StartError::Unverified`].
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// `penfold run` cannot be executed.
    #[error("cannot execute `{}`", program.display())]
    Execute {
        /// The path of the program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another living sandbox has the name.
    #[error("{sentence}")]
    NameTaken {
        /// The id of that sandbox; empty if it could not be read.
        holder: String,
        /// The sentence of `penfold run`.
        sentence: String,
    },
    /// The command does not exist.
    #[error("{sentence}")]
    CommandNotFound {
        /// The sentence of `penfold run`.
        sentence: String,
    },
    /// The command cannot be executed.
    #[error("{sentence}")]
    CommandNotExecutable {
        /// The sentence of `penfold run`.
        sentence: String,
    },
    /// Command and environment are larger than the kernel permits.
    #[error("the command and its environment are too large for execve(2)")]
    TooLarge,
    /// The command was not started, for another reason.
    #[error("{sentence}")]
    NotStarted {
        /// The exit code of `penfold run`.
        code: Option<i32>,
        /// The sentence of `penfold run`.
        sentence: String,
    },
    /// The command was not started, and something of the sandbox may be left.
    #[error("{sentence}")]
    Unverified {
        /// The sentence of `penfold run`.
        sentence: String,
    },
}

/// Runs `penfold run -d`, without a configuration, with these words and this environment, and returns the id once the command runs.
///
/// `program` is the path of penfold.
///
/// # Errors
/// When the command does not run.
pub fn start_detached(
    program: &Path,
    root: &Path,
    words: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<String, StartError> {
    let mut command = Command::new(program);
    command.arg0("penfold").arg("--root").arg(root).args(["run", "-d", "--without-config"]).args(words);
    command.env_clear().envs(environment.iter().map(|(key, value)| (key, value))).stdin(Stdio::null());
    // A thread of a runtime may have signals blocked. The command would inherit that, and no polite signal would end it.
    let _ = penfold_sys::signal::set_mask(&penfold_sys::signal::SignalSet::empty());
    match command.output() {
        Ok(output) => answer(&output),
        Err(error) if error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) => Err(StartError::TooLarge),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(StartError::NotStarted {
            code: None,
            sentence: "the command or its environment contains a NUL".to_owned(),
        }),
        Err(source) => Err(StartError::Execute { program: program.to_owned(), source }),
    }
}

fn answer(output: &Output) -> Result<String, StartError> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.starts_with("penfold: ")).unwrap_or_else(|| said.trim());
    let sentence = first.trim_start_matches("penfold: ").to_owned();
    let code = output.status.code();
    Err(match code {
        Some(UNVERIFIED) => StartError::Unverified { sentence },
        Some(NOT_EXECUTABLE) => StartError::CommandNotExecutable { sentence },
        Some(NOT_FOUND) => StartError::CommandNotFound { sentence },
        _ => match holder(&sentence) {
            Some(holder) => StartError::NameTaken { holder: holder.to_owned(), sentence: sentence.clone() },
            None => StartError::NotStarted { code, sentence },
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
}
