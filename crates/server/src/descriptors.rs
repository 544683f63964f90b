//! What the process has descriptors for, by `RLIMIT_NOFILE` (getrlimit(2)), and what their lack must not be taken for.

use axum::http::StatusCode;
use axum::response::Response;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::refusal::Refusal;

/// The descriptors that connections and streams leave to the work of requests, if the process has at least twice as many.
const SPARE: usize = 64;
/// What a stream takes besides its connection: the record, the log, a watch, a pipe.
const OF_STREAM: usize = 8;

/// The connections that the process has descriptors for.
pub(crate) fn most_connections() -> usize {
    let limit = limit();
    let streams = most_streams().saturating_mul(OF_STREAM);
    limit.saturating_sub(SPARE).saturating_sub(streams).max(limit / 2).max(1)
}

/// The streams that the process has descriptors for, beside its connections.
pub(crate) fn most_streams() -> usize {
    ((limit() / 2).saturating_sub(SPARE) / OF_STREAM).max(1)
}

fn limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Returns an answer, unless it is an error and there is no descriptor left: whatever the error says of a sandbox may be wrong,
/// since it could not be looked at.
///
/// # Errors
/// The refusal to answer with instead.
pub(crate) fn or_no_descriptors(response: Response) -> Result<Response, Refusal> {
    const FACTS: [StatusCode; 5] = [
        StatusCode::FORBIDDEN,
        StatusCode::NOT_FOUND,
        StatusCode::CONFLICT,
        StatusCode::UNPROCESSABLE_ENTITY,
        StatusCode::INTERNAL_SERVER_ERROR,
    ];
    if !FACTS.contains(&response.status()) || !is_exhausted() {
        return Ok(response);
    }
    let sentence =
        "this server has no descriptors left to look at the sandbox; ask again when fewer streams are open";
    Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many", sentence))
}

fn is_exhausted() -> bool {
    let opened = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    matches!(opened, Err(Errno::MFILE | Errno::NFILE))
}
