//! Where verbs act, if not on this host: on a server, or on a host that ssh reaches.

mod ssh_host;

use std::fmt;
use std::str::FromStr;

use penfold_client::ServerAddress;

pub(crate) use self::ssh_host::SshHost;

/// A place other than this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RemotePlace {
    /// A server.
    Server(ServerAddress),
    /// Another host, reached by ssh.
    Ssh(SshHost),
}

/// The text is no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is neither a host nor a server; accepted: `ssh://[USER@]HOST[:PORT][/PATH]`, PATH being that of penfold there; `unix:PATH` \
     with an absolute path; `http://HOST:PORT`"
)]
pub(crate) struct InvalidPlace(String);

impl FromStr for RemotePlace {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<RemotePlace, InvalidPlace> {
        let place = if text.starts_with("ssh://") {
            text.parse().ok().map(RemotePlace::Ssh)
        } else {
            text.parse().ok().map(RemotePlace::Server)
        };
        place.ok_or_else(|| InvalidPlace(text.to_owned()))
    }
}

impl fmt::Display for RemotePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemotePlace::Server(host) => host.fmt(f),
            RemotePlace::Ssh(host) => host.fmt(f),
        }
    }
}
