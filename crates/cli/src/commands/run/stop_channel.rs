//! The stop command: what asks the members to end before the polite signal does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_api::StopChannel;

use super::Contain;
use crate::commands::ask_vmm;
use crate::failure::{Failure, FailureKind};

/// The flags about the stop command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for the end")]
pub(crate) struct StopArgs {
    #[arg(
        long,
        value_name = "LINE",
        conflicts_with = "stop",
        help = "Shell command that asks the members to end, instead of the polite signal for the first half of the grace"
    )]
    stop_command: Option<String>,
    /// The same from a file or a server, as JSON.
    #[arg(long, value_name = "JSON", hide = true, value_parser = parse)]
    stop: Option<StopChannel>,
}

fn parse(text: &str) -> Result<StopChannel, serde_json::Error> {
    serde_json::from_str(text)
}

impl StopArgs {
    /// Sets the request that applies if the user gave none.
    pub(super) fn default_to(&mut self, request: StopChannel) {
        if !self.is_given() {
            self.stop = Some(request);
        }
    }

    /// Returns the request that the user gave, or the profile.
    pub(crate) fn request(&self) -> Option<StopChannel> {
        let line = |line: &String| StopChannel::Command(["sh", "-c", line].map(str::to_owned).into());
        let StopArgs { stop_command, stop } = self;
        stop_command.as_ref().map(line).or_else(|| stop.clone())
    }

    /// Whether the user gave a request.
    pub(super) fn is_given(&self) -> bool {
        self.stop_command.is_some() || self.stop.is_some()
    }

    /// Refuses a command where it would run outside of the pid namespace: the pids that members have written somewhere would
    /// mean other processes.
    pub(super) fn check(&self, contain: Contain) -> Result<(), Failure> {
        if contain == Contain::Pidns && matches!(self.request(), Some(StopChannel::Command(_))) {
            let sentence = "`--stop-command` cannot be used together with `--contain pidns`: the command would run \
                outside of the pid namespace";
            return Err(
                Failure::new(FailureKind::NotStarted, sentence).hint("`stop.qmp` and `stop.http` can")
            );
        }
        Ok(())
    }

    /// Returns the words of the stop command; none without one. `sockets` is the directory of sockets.
    pub(super) fn words(&self, sockets: Option<&Path>, program: &Path) -> Result<Vec<OsString>, Failure> {
        let own = |words: Vec<OsString>| {
            [program.into(), ask_vmm::VERB.name.into()].into_iter().chain(words).collect()
        };
        let refused = |sentence: &str| Failure::new(FailureKind::NotStarted, sentence);
        match &self.request() {
            None => Ok(Vec::new()),
            Some(StopChannel::Command(words)) if words.is_empty() => {
                Err(refused("the list `command` of `stop` is empty"))
            }
            Some(StopChannel::Command(words)) => Ok(words.iter().map(OsString::from).collect()),
            Some(StopChannel::Qmp(request)) => {
                let socket = path(&request.socket, sockets)?;
                Ok(own(vec![option("qmp", socket), option("execute", request.execute.clone())]))
            }
            Some(StopChannel::Http(request)) => {
                let token = |byte: u8| byte.is_ascii_uppercase();
                if request.method.is_empty() || !request.method.bytes().all(token) {
                    return Err(refused("the `method` of `stop` is no method of HTTP, such as `PUT`"));
                }
                if !request.path.starts_with('/')
                    || request.path.contains(|c: char| c <= ' ' || !c.is_ascii())
                {
                    return Err(refused("the `path` of `stop` begins with `/` and has no spaces"));
                }
                let mut words = vec![
                    option("http", path(&request.socket, sockets)?),
                    option("request", format!("{} {}", request.method, request.path)),
                ];
                words.extend(request.body.clone().map(|body| option("body", body)));
                Ok(own(words))
            }
        }
    }
}

fn option(flag: &str, value: impl Into<OsString>) -> OsString {
    let mut word = OsString::from(format!("--{flag}="));
    word.push(value.into());
    word
}

/// Returns the absolute path of a socket.
fn path(socket: &str, sockets: Option<&Path>) -> Result<PathBuf, Failure> {
    let given = Path::new(socket);
    if given.is_absolute() {
        return Ok(given.to_owned());
    }
    let sockets = sockets.ok_or_else(|| {
        let sentence = format!(
            "the socket `{socket}` of `stop` is relative, and the sandbox has no directory of sockets"
        );
        Failure::new(FailureKind::NotStarted, sentence).hint("add `--sockets`, or give an absolute path")
    })?;
    Ok(sockets.join(given))
}
