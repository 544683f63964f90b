//! What happens to every request before and after its route.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::body::{Body, HttpBody as _};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use axum::response::Response;
use hyper::body::Incoming;
use tower_service::Service as _;

use crate::app::AppState;
use crate::auth;
use crate::caller::{Peer, RequestId, Room};
use crate::descriptors;
use crate::dialect::{Dialect, Dialects};
use crate::metrics::RequestLabels;
use crate::refusal::Refusal;
use crate::tenants::{Served, Tenants};
use crate::timed_body::TimedBody;
use crate::tokens::Token;

/// The header with the id of a request.
static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest id that is taken from a caller.
const LONGEST_ID: usize = 128;

/// The routes of a server, with all that happens before and after each.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    dialects: Dialects,
    pub(crate) tenants: Tenants,
}

impl Front {
    pub(crate) fn new(app: &AppState, dialects: Vec<Dialect>) -> Front {
        let dialects = Dialects::new(dialects);
        let tenants = Tenants::new(app, &dialects);
        Front { dialects, tenants }
    }
}

/// How a request came.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) peer: Peer,
    pub(crate) room: Room,
    /// Whether it had a length and a transfer coding when it was sent.
    pub(crate) has_two_lengths: bool,
}

/// Serves one request.
pub(crate) async fn serve(front: Front, arrival: Arrival, request: Request<Incoming>) -> Response {
    let Front { dialects, tenants } = front;
    let Arrival { peer, room, has_two_lengths } = arrival;
    let begun = Instant::now();
    let (mut parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    let is_chunked = parts.headers.contains_key(header::TRANSFER_ENCODING);
    let declared = body.size_hint().lower();
    let length = parts.uri.path_and_query().map_or(0, |path| path.as_str().len());
    let token = auth::take_from_path(&mut parts.uri);
    let (dialect, is_claimed) = dialects.of(&parts);
    let limits = tenants.whole().app.config.limits;
    let admitted =
        one_length(has_two_lengths).and_then(|()| check(&parts, length, limits.head)).and_then(|()| {
            if is_claimed {
                has_room(dialect, room, &parts)?;
                parts.extensions.insert(tenants.tokens());
                return Ok(tenants.whole().clone());
            }
            tenants.admit(|tokens| {
                let place = &dialect.token_place;
                let token = auth::authorize_request(tokens, peer, token.as_deref(), &mut parts, place)?;
                may_change(dialect, token, &parts)?;
                has_room(dialect, room, &parts)?;
                Ok(token)
            })
        });
    let method = parts.method.clone();
    let path = parts.uri.path().to_owned();
    let app = AppState::clone(&admitted.as_ref().unwrap_or(tenants.whole()).app);
    let mut response = match admitted {
        Ok(served) => {
            parts.extensions.insert(RequestId(id.clone()));
            parts.extensions.insert(peer);
            let body = Body::new(TimedBody::new(body, limits.body_times()));
            answer(dialect, served, Request::from_parts(parts, body)).await
        }
        Err(refusal) => dialect.refuse(refusal),
    };
    penfold_sys::crash_point!("serve-answering");
    // A body of unknown length is where servers disagree about its end: nothing may follow on the connection.
    let has_more_than_body = declared > u64::try_from(limits.body).unwrap_or(u64::MAX);
    // What is reserved is given back at once.
    if is_chunked || has_more_than_body || room == Room::Reserved {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if room == Room::Reserved && response.status() == StatusCode::TOO_MANY_REQUESTS {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(&REQUEST_ID, id);
    }
    let (status, time) = (response.status(), begun.elapsed());
    app.count(|metrics| {
        metrics.requests.get_or_create(&RequestLabels::new(dialect.name, &method, status)).inc();
        metrics.request_seconds.observe(time.as_secs_f64());
    });
    let ms = time.as_secs_f64() * 1000.0;
    let path = tenants.without_tokens(&path);
    tracing::info!(%method, path, status = status.as_u16(), ms, %peer, id, "request");
    response
}

/// Answers a request that was admitted.
async fn answer(dialect: &Dialect, served: Served, request: Request<Body>) -> Response {
    let app = AppState::clone(&served.app);
    let mut router = served.router_of(dialect);
    penfold_sys::crash_point!("serve-admitted");
    // A router is always ready, and cannot fail. A handler whose caller is revoked is dropped, as if the caller went away.
    let answered = tokio::select! {
        answered = router.call(request) => answered.map(Some),
        () = app.revoked.begun() => Ok(None),
    };
    match answered {
        Ok(Some(response)) => {
            descriptors::or_no_descriptors(response).unwrap_or_else(|refusal| dialect.refuse(refusal))
        }
        Ok(None) => dialect.refuse(auth::unauthorized()),
        Err(never) => match never {},
    }
}

/// Refuses a request that may change something, if the token is good for looking only.
fn may_change(dialect: &Dialect, token: Option<&Token>, parts: &Parts) -> Result<(), Refusal> {
    if token.is_none_or(|token| !token.is_read_only) || (dialect.reads)(&parts.method, parts.uri.path()) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", "this token is read-only"))
}

/// Refuses a request on a connection beyond the limit, unless it ends something.
fn has_room(dialect: &Dialect, room: Room, parts: &Parts) -> Result<(), Refusal> {
    if room == Room::Usual || (dialect.ends)(&parts.method, parts.uri.path()) {
        return Ok(());
    }
    let sentence = "this server has as many connections as it can have: further ones may only end something; close some, or try again later";
    Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many", sentence))
}

/// The id that the caller gave, if it can be a header and a word of a log line, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let given = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let is_word = |id: &&str| {
        (1..=LONGEST_ID).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte))
    };
    given.filter(is_word).map_or_else(
        || {
            let pid = rustix::process::getpid().as_raw_pid();
            let ms = penfold_state::time::now_ms();
            format!("{ms:x}-{pid:x}-{:x}", NEXT.fetch_add(1, Ordering::Relaxed))
        },
        str::to_owned,
    )
}

/// Refuses a body with a length and a transfer coding: two servers could see its end in two places.
fn one_length(two_lengths: bool) -> Result<(), Refusal> {
    let sentence = "`Content-Length` and `Transfer-Encoding` exclude each other";
    if two_lengths { Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", sentence)) } else { Ok(()) }
}

/// Refuses requests that two servers could read in two ways. `length` is that of the path as it was sent.
fn check(parts: &Parts, length: usize, most: usize) -> Result<(), Refusal> {
    let bad = |sentence| Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", sentence));
    let headers = &parts.headers;
    // hyper's own limit is on its buffer, which one large read may exceed.
    let sizes = headers.iter().map(|(name, value)| name.as_str().len() + value.len());
    if length + sizes.sum::<usize>() > most {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return Err(Refusal::new(status, "head_too_large", "the head of the request is too large"));
    }
    let count = |name: &HeaderName| headers.get_all(name).iter().count();
    let unique = [
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::HOST,
        header::AUTHORIZATION,
        auth::HEADER,
    ];
    if unique.iter().any(|name| count(name) > 1) {
        return bad("a header that must be unique was sent twice");
    }
    if headers
        .get(header::TRANSFER_ENCODING)
        .is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return bad("the only transfer coding is `chunked`");
    }
    if parts.uri.path().as_bytes().windows(3).any(|window| window == b"%00") {
        return bad("the path has a NUL");
    }
    Ok(())
}
