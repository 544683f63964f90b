//! The ports of a sandbox: a request is passed on to what listens there, and so are WebSockets and other upgrades.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use penfold_server::files::{FileError, Jail};
use penfold_server::sockets::RawUpgrade;
use penfold_server::{DialError, Tokens, dial_jail};
use tokio::net::TcpStream;

use crate::access;
use crate::address::Address;
use crate::api::ApiState;
use crate::error::ApiError;
use crate::guest::{Guest, Place};

/// Headers that are between two ends of one connection, and those for this server.
const NOT_PASSED: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    access::HEADER,
    "x-penfold-token",
];

/// The header in which the SDKs send a token of the server. The application may have a key of its own in it.
const KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Passes a request on to a port, and its answer back.
pub(crate) async fn pass(
    api: &ApiState,
    guest: &Guest,
    address: &Address,
    mut parts: Parts,
    body: Body,
) -> Response {
    if came_by(&api.via, &parts.headers) {
        let message = "the request came from a sandbox's port already";
        return ApiError::new(StatusCode::LOOP_DETECTED, message).into_response();
    }
    let socket = match connect(api, guest, address.port).await {
        Ok(socket) => socket,
        Err(Unreached::NotOpen) => return not_open(address),
        Err(Unreached::Failed(error)) => return error.into_response(),
    };
    let upgrade = RawUpgrade::take(&mut parts);
    let asked = upgrade.is_some().then(|| parts.headers.get(header::UPGRADE).cloned()).flatten();
    let (mut sender, connection) = match http1::handshake(TokioIo::new(socket)).await {
        Ok(made) => made,
        Err(error) => return failed(address.port, &error),
    };
    // Ends with the answer, or with the upgraded connection.
    tokio::spawn(connection.with_upgrades());
    remove_hops(&mut parts.headers);
    if let Some(tokens) = parts.extensions.get::<Arc<Tokens>>() {
        remove_tokens(tokens, &mut parts.headers);
    }
    parts.headers.append(header::VIA, api.via.clone());
    if let Some(protocol) = asked {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
    }
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = Uri::try_from(path).unwrap_or_default();
    parts.extensions.clear();
    let mut response = match sender.send_request(Request::from_parts(parts, body)).await {
        Ok(response) => response,
        Err(error) => return failed(address.port, &error),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let theirs: Option<OnUpgrade> = response.extensions_mut().remove();
        if let (Some(ours), Some(theirs)) = (upgrade, theirs) {
            ours.join_with(theirs);
        }
        let protocol = response.headers().get(header::UPGRADE).cloned();
        remove_hops(response.headers_mut());
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.extend(protocol.map(|protocol| (header::UPGRADE, protocol)));
    } else {
        remove_hops(response.headers_mut());
    }
    response.map(Body::new).into_response()
}

/// Why a port was not reached.
enum Unreached {
    NotOpen,
    Failed(ApiError),
}

async fn connect(api: &ApiState, guest: &Guest, port: u16) -> Result<TcpStream, Unreached> {
    let Place::Sandbox(files) = guest.place.clone() else { return Err(Unreached::NotOpen) };
    let program = api.app.config.program.clone();
    let dialled = api.app.engine.call(move |_| {
        let jail = Jail::open(&files)?;
        Ok::<_, FileError>(dial_jail(&program, &jail, port))
    });
    let unreached = |error: &dyn std::error::Error| Unreached::Failed(ApiError::internal(error));
    let socket = dialled.await.map_err(|error| unreached(&error))?.map_err(|error| unreached(&error))?;
    let socket = socket.map_err(|error| match error {
        DialError::NotOpen(_) => Unreached::NotOpen,
        error @ DialError::Io { .. } => unreached(&error),
    })?;
    let to_tokio = || -> io::Result<TcpStream> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        TcpStream::from_std(socket)
    };
    to_tokio().map_err(|error| unreached(&error))
}

fn remove_hops(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed {
        headers.remove(name);
    }
    for name in NOT_PASSED {
        headers.remove(name);
    }
}

/// Removes what would let a command of the sandbox speak to this server as the client.
fn remove_tokens(tokens: &Tokens, headers: &mut HeaderMap) {
    for name in [KEY, header::AUTHORIZATION] {
        let is_token = |value: &HeaderValue| {
            let value = value.as_bytes().trim_ascii();
            let last = value.rsplit(|&byte| byte == b' ').next().unwrap_or_default();
            tokens.find(last).is_some()
        };
        if headers.get_all(&name).iter().any(is_token) {
            headers.remove(name);
        }
    }
}

/// Tells whether this server has passed the request on before: the port leads to the server itself.
fn came_by(own: &HeaderValue, headers: &HeaderMap) -> bool {
    let mut listed =
        headers.get_all(header::VIA).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
    listed.any(|via| via.trim_ascii() == own.as_bytes())
}

/// What the proxy of the reference says of a port on which nothing listens.
fn not_open(address: &Address) -> Response {
    let status = StatusCode::BAD_GATEWAY;
    let body = serde_json::json!({
        "sandboxId": address.id, "message": "The sandbox is running but port is not open",
        "port": address.port, "code": status.as_u16(),
    });
    (status, axum::Json(body)).into_response()
}

fn failed(port: u16, error: &hyper::Error) -> Response {
    ApiError::new(StatusCode::BAD_GATEWAY, format!("port {port} gave no answer: {error}")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_one_connection_and_tokens_stay_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, x-own"),
            ("x-own", "1"),
            ("transfer-encoding", "chunked"),
            ("x-access-token", "secret"),
            ("x-penfold-token", "secret"),
            ("host", "a"),
            ("cookie", "b"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        remove_hops(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["cookie", "host"]);
    }

    #[test]
    fn only_keys_of_this_server_stay_here() {
        let tokens = Tokens::parse(b"0123456789abcdef0123456789abcdef\n").unwrap();
        let left = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            remove_tokens(&tokens, &mut headers);
            headers.len()
        };
        assert_eq!(left("x-api-key", "0123456789abcdef0123456789abcdef"), 0);
        assert_eq!(left("authorization", "Bearer  0123456789abcdef0123456789abcdef "), 0);
        assert_eq!(left("x-api-key", "the application's"), 1);
        assert_eq!(left("authorization", "Bearer the application's"), 1);
    }

    #[test]
    fn a_request_that_was_here_is_known() {
        let own = HeaderValue::from_static("1.1 penfold-a");
        let came = |via: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::VIA, HeaderValue::from_static(via));
            came_by(&own, &headers)
        };
        assert!(came("1.1 penfold-a") && came("1.1 other, 1.1 penfold-a"));
        assert!(!came("1.1 penfold-b") && !came_by(&own, &HeaderMap::new()));
    }
}
