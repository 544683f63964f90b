//! Who may reach this machine. Before `POST /init` has set an access token, that is whoever reaches the server: over a Unix socket, with a
//! token of the server's file, or without one if the server asks for none. After it, whoever has the access token, or a token of the
//! file.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use penfold_server::{Peer, Tokens, refuse_web_pages};

use super::{HEALTH, INIT};
use crate::access::{self, HEADER};
use crate::api::{Api, ApiState};
use crate::error::{ApiError, refuse};
use crate::guest::{Guest, Place};
use crate::machine::find_sandbox;
use crate::settings::Settings;
use crate::signed;
use crate::templates::USUAL_USER;
use crate::user::User;

/// Why a request is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground {
    /// It has a token.
    Token,
    /// No token is needed.
    Open,
}

/// Decides whether a request is served, and as whom.
pub(super) async fn admit(State(api): State<ApiState>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let (path, is_read) = (parts.uri.path().to_owned(), parts.method == Method::GET);
    if path == HEALTH && is_read {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let needs_commands = path.starts_with("/process.Process/");
    let found = api.call(move |api| {
        let settings = Settings::read(api.app.engine.scope().root());
        guest(api, settings.map_err(|error| ApiError::internal(&error))?, needs_commands)
    });
    let mut guest = match found.await {
        Ok(guest) => guest,
        Err(error) => return error.into_response(),
    };
    let ground = ground(&parts, guest.token.as_deref());
    guest.is_admitted = ground.is_some();
    let decides_itself = match path.as_str() {
        INIT => true,
        // A signature is made with the access token.
        signed::FILES => guest.token.is_some(),
        _ => false,
    };
    if !guest.is_admitted && !decides_itself {
        return ApiError::new(StatusCode::UNAUTHORIZED, "an access token is needed").into_response();
    }
    let is_tcp = matches!(parts.extensions.get::<Peer>(), Some(Peer::Tcp(_)));
    if is_tcp
        && ground == Some(Ground::Open)
        && let Err(refusal) = refuse_web_pages(&parts)
    {
        return refuse(&refusal);
    }
    parts.extensions.insert(guest);
    next.run(Request::from_parts(parts, body)).await
}

/// Returns why a request is admitted, if it is. `expected` is the access token.
fn ground(parts: &Parts, expected: Option<&str>) -> Option<Ground> {
    let given = parts.headers.get(HEADER).and_then(|given| given.to_str().ok());
    let tokens = parts.extensions.get::<Arc<Tokens>>();
    let is_token = |given: &str| {
        tokens.is_some_and(|tokens| tokens.has_whole(given.as_bytes()))
            || expected.is_some_and(|expected| access::is_same(given, expected))
    };
    if given.is_some_and(is_token) {
        return Some(Ground::Token);
    }
    let is_unix = matches!(parts.extensions.get::<Peer>(), Some(Peer::Unix));
    // A port is open without tokens only if the server was told so.
    let is_open = expected.is_none() && (is_unix || tokens.is_some_and(|tokens| tokens.is_empty()));
    is_open.then_some(Ground::Open)
}

/// This machine, as the usual user reaches it.
fn guest(api: &Api, settings: Settings, needs_commands: bool) -> Result<Guest, ApiError> {
    let user = match &settings.default_user {
        None => User::first_of_machine(&[USUAL_USER]),
        Some(name) => User::of_machine(name).unwrap_or_else(|_| User::unknown(name)),
    };
    let commands = if needs_commands { find_sandbox(api) } else { Ok(None) };
    let commands =
        commands.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.message))?;
    let token = settings.access_token.clone();
    let place = Place::Machine { commands, settings: Arc::new(settings) };
    Ok(Guest { place, user, token, is_admitted: false })
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue, Request};

    use super::*;

    const OWN: &str = "own-0123456789abcdef";
    const BOB: &str = "bob-0123456789abcdef";
    const EYES: &str = "eye-0123456789abcdef";

    fn of(tokens: &str, peer: Peer, expected: Option<&str>, given: Option<&'static str>) -> Option<Ground> {
        let tokens =
            if tokens.is_empty() { Tokens::default() } else { Tokens::parse(tokens.as_bytes()).unwrap() };
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.extensions.insert(Arc::new(tokens));
        parts.extensions.insert(peer);
        let header = |given| (HeaderName::from_static(HEADER), HeaderValue::from_static(given));
        parts.headers.extend(given.map(header));
        ground(&parts, expected)
    }

    /// spec: 36.11
    #[test]
    fn a_machine_is_open_only_where_no_token_is_set() {
        let tcp = Peer::Tcp(([127, 0, 0, 1], 1).into());
        let file = format!("own {OWN} admin\nbob {BOB}\nown {EYES} admin read-only");
        // Before `/init`.
        assert_eq!(of("", tcp, None, None), Some(Ground::Open));
        assert_eq!(of(&file, Peer::Unix, None, None), Some(Ground::Open));
        assert_eq!(of(&file, tcp, None, Some(OWN)), Some(Ground::Token));
        for given in [None, Some(BOB), Some(EYES), Some(""), Some("x")] {
            assert_eq!(of(&file, tcp, None, given), None, "{given:?}");
        }
        // After it.
        for (tokens, peer) in [("", tcp), (&file, tcp), ("", Peer::Unix), (&file, Peer::Unix)] {
            assert_eq!(of(tokens, peer, Some("secret"), Some("secret")), Some(Ground::Token));
            for given in [None, Some(""), Some("secre"), Some("secrett")] {
                assert_eq!(of(tokens, peer, Some("secret"), given), None, "{given:?}");
            }
        }
        assert_eq!(of(&file, tcp, Some("secret"), Some(OWN)), Some(Ground::Token));
        // The only token, without a name.
        assert_eq!(of(OWN, tcp, None, Some(OWN)), Some(Ground::Token));
    }
}
