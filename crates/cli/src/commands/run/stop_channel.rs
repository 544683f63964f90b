//! The stop command: what asks the members to end before the polite signal does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_request::{Containment, SandboxSpec, StopChannel};

use crate::commands::ask_vmm;
use crate::failure::{Failure, FailureKind};

/// The flags about the stop command.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options for the end")]
pub(crate) struct StopArgs {
    #[arg(
        long,
        value_name = "LINE",
        help = "Shell command that asks the members to end, instead of the polite signal for the first half of the grace"
    )]
    stop_command: Option<String>,
}

impl StopArgs {
    /// Returns the request that the user gave.
    pub(super) fn request(&self) -> Option<StopChannel> {
        let StopArgs { stop_command } = self;
        let line = stop_command.as_ref()?;
        Some(StopChannel::Command(["sh", "-c", line].map(str::to_owned).into()))
    }
}

/// Refuses a command where it would run outside of the pid namespace: the pids that members have written somewhere would mean other
/// processes.
pub(super) fn check(spec: &SandboxSpec) -> Result<(), Failure> {
    if spec.contain == Some(Containment::Pidns) && matches!(spec.stop, Some(StopChannel::Command(_))) {
        let sentence = "`--stop-command` cannot be used together with `--contain pidns`: the command would run \
            outside of the pid namespace";
        return Err(Failure::new(FailureKind::NotStarted, sentence).hint("`stop.qmp` and `stop.http` can"));
    }
    Ok(())
}

/// Returns the words of the stop command; none without one. `sockets` is the directory of sockets.
pub(super) fn words(
    stop: Option<&StopChannel>,
    sockets: Option<&Path>,
    program: &Path,
) -> Result<Vec<OsString>, Failure> {
    let own =
        |words: Vec<OsString>| [program.into(), ask_vmm::VERB.name.into()].into_iter().chain(words).collect();
    let refused = |sentence: &str| Failure::new(FailureKind::NotStarted, sentence);
    match stop {
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
            if !request.path.starts_with('/') || request.path.contains(|c: char| c <= ' ' || !c.is_ascii()) {
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
