//! The flags of `run` and `exec`: environment, working directory, time limit and stop.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use penfold_launch::env_file::read_env_files;

use crate::failure::{Failure, FailureKind};
use crate::value::{self, EnvSetting, Signal};

/// The flags that `run` and `exec` share.
#[derive(Args, Clone, Debug)]
pub(crate) struct Bounds {
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        help = "End the command after this time; 0 means no limit"
    )]
    pub(crate) timeout: Option<Duration>,
    /// Time between the polite signal and KILL.
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = value::duration,
        allow_hyphen_values = true,
        default_value = "10s"
    )]
    pub(crate) grace: Duration,
    /// The polite signal [default: TERM; for `exec` the sandbox's polite signal].
    #[arg(short = 's', long, value_name = "SIGNAL", value_parser = value::signal, allow_hyphen_values = true)]
    pub(crate) signal: Option<Signal>,
    /// Exit with the command's code even if a time limit ended the command; not with --detach.
    #[arg(long)]
    pub(crate) preserve_status: bool,
    #[arg(
        short,
        long,
        value_name = "KEY[=VALUE]",
        value_parser = OsStringValueParser::new().try_map(|text| value::env_setting(&text)),
        help = "Set an environment variable; without a value, copy the caller's; may be repeated"
    )]
    pub(crate) env: Vec<EnvSetting>,
    #[arg(
        long,
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
        help = "Set the variables of this file: a line `KEY=VALUE`, or `KEY` to copy the caller's; # begins a comment line; \
            -e takes precedence; may be repeated"
    )]
    pub(crate) env_file: Vec<PathBuf>,
    /// Working directory of the command.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<PathBuf>,
}

impl Bounds {
    /// The time limit. Zero means no limit, as in timeout(1).
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout.filter(|limit| !limit.is_zero())
    }

    /// The number of the polite signal.
    pub(crate) fn signal(&self) -> i32 {
        self.signal.map_or(rustix::process::Signal::TERM.as_raw(), Signal::number)
    }

    /// The settings of environment variables: those of the files, then those of -e; the last of a variable counts.
    ///
    /// # Errors
    /// When a file cannot be read, or has a line that sets no variable.
    pub(crate) fn env(&self) -> Result<Vec<EnvSetting>, Failure> {
        let mut settings = read_env_files(&self.env_file)?;
        settings.extend(self.env.iter().cloned());
        Ok(settings)
    }

    /// Whether the command line leaves the polite signal to the sandbox.
    pub(crate) fn leaves_signal(&self) -> bool {
        self.signal.is_none()
    }
}

/// Refuses flags about the exit code with `--detach`: penfold returns before the command ends, so they have no effect.
pub(crate) fn refuse_code_flags(preserve: bool, fail_on_leak: bool) -> Result<(), Failure> {
    let flags = [(preserve, "--preserve-status"), (fail_on_leak, "--fail-on-leak")];
    let Some((_, flag)) = flags.into_iter().find(|(given, _)| *given) else { return Ok(()) };
    let sentence =
        format!("`{flag}` cannot be used together with `--detach`, which does not wait for the end");
    Err(Failure::new(FailureKind::NotStarted, sentence)
        .hint("leave out one of the two; `penfold report ID` shows how a detached sandbox ended"))
}
