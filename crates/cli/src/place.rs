//! Where verbs act, if not on this host: on a server, or on a host that ssh reaches.

mod ssh_host;

use std::fmt;
use std::str::FromStr;

use penfold_client::ServerAddress;

pub(crate) use self::ssh_host::SshHost;

/// A place other than this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
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

impl FromStr for Place {
    type Err = InvalidPlace;

    fn from_str(text: &str) -> Result<Place, InvalidPlace> {
        let place = if text.starts_with("ssh://") {
            text.parse().ok().map(Place::Ssh)
        } else {
            text.parse().ok().map(Place::Server)
        };
        place.ok_or_else(|| InvalidPlace(text.to_owned()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Server(host) => host.fmt(f),
            Place::Ssh(host) => host.fmt(f),
        }
    }
}
