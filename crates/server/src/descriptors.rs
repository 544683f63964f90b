//! What the process has descriptors for, by `RLIMIT_NOFILE` (getrlimit(2)), and what their lack must not be taken for.

use axum::http::StatusCode;
use axum::response::Response;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::refusal::Refusal;

/// What a stream takes besides its connection: the record, the log, a watch, a pipe.
const OF_STREAM: usize = 8;
/// What the end of something takes besides its connection: the record, the supervisor, a process.
const OF_END: usize = 4;
/// What a command of a shell takes besides its connection, as long as it runs: the record, its session, its log.
const OF_COMMAND: usize = 6;
/// What short work takes at one time: directories, a file of a record, the ends of pipes.
const OF_CALL: usize = 8;
/// What the server itself has open: listening sockets, the log, the runtime, the watch of the state root.
const OWN: usize = 24;

/// How the descriptors of the process are shared, so that no work of a request lacks one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The connections at one time.
    pub connections: usize,
    /// The connections beyond these, of each kind of listener, that are only for requests that end something.
    pub reserved: usize,
    /// The streams and waits at one time.
    pub streams: usize,
    /// The requests at one time that end something.
    pub ends: usize,
    /// The commands at one time whose end a request waits for.
    pub commands: usize,
    /// The short work at one time; more waits.
    pub calls: usize,
}

impl Shares {
    /// The shares of this process.
    pub(crate) fn of_process() -> Shares {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        Shares::of(limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    fn of(limit: usize) -> Shares {
        let spare = (limit / 4).clamp(16, 768);
        let streams = ((limit / 2).saturating_sub(spare) / OF_STREAM).clamp(1, 512);
        let ends = (limit / (8 * OF_END)).clamp(1, 1024);
        let commands = (limit / (8 * OF_COMMAND)).clamp(1, 512);
        let reserved = (spare / 8).min(16);
        let taken = spare + streams * OF_STREAM + ends * OF_END + commands * OF_COMMAND;
        let for_calls = spare.saturating_sub(OWN + 2 * reserved);
        Shares {
            connections: limit.saturating_sub(taken).max(1),
            reserved,
            streams,
            ends,
            commands,
            calls: (for_calls / OF_CALL).max(1),
        }
    }
}

/// Returns an answer, unless it is an error and there is no descriptor left: whatever the error says of a sandbox may be wrong,
/// since it could not be looked at.
///
/// # Errors
/// The refusal to answer with instead.
pub fn or_no_descriptors(response: Response) -> Result<Response, Refusal> {
    const FACTS: [StatusCode; 6] = [
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::GONE,
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::INTERNAL_SERVER_ERROR,
    ];
    if !FACTS.contains(&response.status()) || has_descriptors() {
        return Ok(response);
    }
    let sentence =
        "this server has no descriptors left to look at the sandbox; ask again when fewer streams are open";
    Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many", sentence))
}

/// Tells whether the process can have one more descriptor.
pub fn has_descriptors() -> bool {
    let opened = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    !matches!(opened, Err(Errno::MFILE | Errno::NFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 15.15
    #[test]
    fn no_share_takes_the_descriptors_of_another() {
        for limit in [64, 100, 256, 1000, 1024, 4096, 20_000, 524_288, usize::MAX] {
            let Shares { connections, reserved, streams, ends, commands, calls } = Shares::of(limit);
            let work = streams * OF_STREAM + ends * OF_END + commands * OF_COMMAND;
            let all = connections + 2 * reserved + work;
            assert!(all <= limit, "{limit}");
            let own = OWN.min(limit / 4);
            assert!(limit < 256 || all + calls * OF_CALL + own <= limit, "{limit}: {calls} calls");
            assert!(connections >= (limit / 4).min(1024) && reserved > 0, "{limit}: {connections}");
        }
        // What a server has by default on most hosts.
        let usual = Shares {
            connections: usize::MAX,
            reserved: 16,
            streams: 512,
            ends: 1024,
            commands: 512,
            calls: 89,
        };
        let large = Shares::of(1 << 20);
        assert_eq!(Shares { connections: usize::MAX, ..large }, usual);
    }
}
