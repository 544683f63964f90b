//! The stop command: what asks the members to end before the polite signal does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use penfold_request::StopChannel;

use crate::error::LaunchError;

/// The verb that sends the request of a stop command to a virtual machine monitor.
pub const ASK_VMM: &str = "ask-vmm";

/// Returns the words of the stop command; none without one. `sockets` is the directory of sockets.
pub fn stop_words(
    stop: Option<&StopChannel>,
    sockets: Option<&Path>,
    program: &Path,
) -> Result<Vec<OsString>, LaunchError> {
    let own = |words: Vec<OsString>| [program.into(), ASK_VMM.into()].into_iter().chain(words).collect();
    let refused = |sentence: &str| LaunchError::new(sentence);
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
fn path(socket: &str, sockets: Option<&Path>) -> Result<PathBuf, LaunchError> {
    let given = Path::new(socket);
    if given.is_absolute() {
        return Ok(given.to_owned());
    }
    let sockets = sockets.ok_or_else(|| {
        let sentence = format!(
            "the socket `{socket}` of `stop` is relative, and the sandbox has no directory of sockets"
        );
        LaunchError::new(sentence).hint("add `--sockets`, or give an absolute path")
    })?;
    Ok(sockets.join(given))
}
