//! Decides whether a request is served.

use std::net::IpAddr;

use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderName, HeaderValue, StatusCode, Uri, header};

use crate::caller::Peer;
use crate::dialect::TokenPlace;
use crate::refusal::Refusal;
use crate::tokens::{Token, Tokens};

/// The header with the token, for clients that use `Authorization` for something else.
pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-penfold-token");
/// The beginning of a path with the token in it.
const PREFIX: &str = "/t/";

/// The header in which a browser says whose page sends a request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Answered without a token: monitors need it, and it says nothing.
const OPEN: [&str; 2] = ["/healthz", "/readyz"];

/// Decides whether a request is served, and removes the token from its headers. Returns the token. `by_path` is what
/// [`take_from_path`] took; `place` is that of the path's dialect.
///
/// # Errors
/// 401 without a valid token, 403 for a request from a web page of another site, or from any without a token.
pub(crate) fn authorize_request<'a>(
    tokens: &'a Tokens,
    peer: Peer,
    by_path: Option<&str>,
    parts: &mut Parts,
    place: &TokenPlace,
) -> Result<Option<&'a Token>, Refusal> {
    let by_header = parts.headers.remove(HEADER);
    let by_place = match place {
        TokenPlace::Bearer => parts.headers.remove(header::AUTHORIZATION),
        TokenPlace::Header(name) => parts.headers.remove(name),
        TokenPlace::Nowhere => None,
    };
    let placed = by_place.as_ref().map(HeaderValue::as_bytes);
    let placed = if matches!(place, TokenPlace::Bearer) { placed.and_then(bearer) } else { placed };
    let given = by_path.map(str::as_bytes).or(by_header.as_ref().map(HeaderValue::as_bytes)).or(placed);
    let token = match given {
        // A token that is wrong is refused even where none is needed: the caller believes that it counts.
        Some(given) if !tokens.is_empty() => Some(tokens.find(given).ok_or_else(unauthorized)?),
        _ => None,
    };
    let is_open = OPEN.contains(&parts.uri.path());
    if !is_open {
        refuse_other_sites(parts)?;
    }
    match peer {
        Peer::Tcp(_) if token.is_none() && !tokens.is_empty() && !is_open => return Err(unauthorized()),
        Peer::Tcp(_) if token.is_none() && !is_open => refuse_web_pages(parts)?,
        _ => {}
    }
    Ok(token)
}

/// Refuses what the page of another site sends.
fn refuse_other_sites(parts: &Parts) -> Result<(), Refusal> {
    if parts.headers.get(FETCH_SITE).is_none_or(|site| site.as_bytes() != b"cross-site") {
        return Ok(());
    }
    let sentence = "this is a request of another site's page";
    Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", sentence))
}

/// What a caller without a valid token is told.
pub(crate) fn unauthorized() -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "a valid token is needed")
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// Takes `/t/TOKEN` from the beginning of a path, before anything looks at the path or logs it.
pub(crate) fn take_from_path(uri: &mut Uri) -> Option<String> {
    let rest = uri.path().strip_prefix(PREFIX)?;
    let token = rest.split('/').next().unwrap_or_default().to_owned();
    let rest = rest.strip_prefix(&token).unwrap_or_default();
    let rest = if rest.is_empty() { "/" } else { rest };
    let text = uri.query().map_or_else(|| rest.to_owned(), |query| format!("{rest}?{query}"));
    let mut parts = uri.clone().into_parts();
    // A part of a valid path that begins with `/` is a valid path.
    parts.path_and_query = PathAndQuery::try_from(text).ok().or(Some(PathAndQuery::from_static("/")));
    *uri = Uri::from_parts(parts).unwrap_or_default();
    Some(token)
}

/// Without a token, any web page that this user visits could send requests to a loopback port: with its own origin, or with
/// a name that it points at the loopback address.
///
/// # Errors
/// For a request with an origin, or to such a name.
pub fn refuse_web_pages(parts: &Parts) -> Result<(), Refusal> {
    let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).or(parts.uri.host());
    let is_local = host.is_none_or(|host| {
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok())
            .map_or(host, |(name, _)| name);
        let name = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    });
    if is_local && !parts.headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", "requests of web pages need a token"))
}
