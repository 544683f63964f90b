//! `/ws` and `/api/ws`: all routes over one WebSocket, for the transport `websocket` of the clients.
//!
//! Each message is a request, and is answered by the routes for HTTP. A stream is sent event by event. The answers to several
//! requests come in the order in which they are ready.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http_body_util::{BodyExt as _, Limited};
use penfold_client::{EventParser, Received};
use penfold_server::sockets::{Message, NoUpgrade, Socket, SocketSender, Upgrade};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::task::{AbortHandle, JoinSet};
use tower_service::Service as _;

use crate::api::ApiState;
use crate::error::{ApiError, Code};

/// The paths of the sockets.
pub(crate) const PATHS: [&str; 2] = ["/ws", "/api/ws"];
/// The requests of one socket that are worked on at one time.
const MOST: usize = 128;
/// What a message has besides the body of its request.
const ENVELOPE: usize = 64 << 10;
/// The largest answer that is no stream.
const LARGEST_ANSWER: usize = 256 << 20;

/// The routes for sockets; `routes` answers what comes over them.
pub(crate) fn routes(routes: &Router) -> Router<ApiState> {
    let open = |routes: Router| {
        async |State(api): State<ApiState>, upgrade: Result<Upgrade, NoUpgrade>| open(&api, upgrade, routes)
    };
    Router::new().route("/ws", get(open(routes.clone()))).route("/api/ws", get(open(routes.clone())))
}

fn open(api: &ApiState, upgrade: Result<Upgrade, NoUpgrade>, routes: Router) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(why) => return no_upgrade(why).into_response(),
    };
    let largest = api.app.config.limits.body.saturating_add(ENVELOPE);
    upgrade.accept(&api.app, largest, move |socket| serve(socket, routes))
}

/// The answer to a request that is none for a socket.
pub(crate) fn no_upgrade(why: NoUpgrade) -> ApiError {
    ApiError::new(Code::UnknownError, why.to_string()).status(why.status())
}

/// What a client sends.
#[derive(Debug, Deserialize)]
struct Incoming {
    #[serde(rename = "type")]
    kind: String,
    id: Option<String>,
    #[serde(default)]
    method: String,
    #[serde(default)]
    path: String,
    body: Option<Box<RawValue>>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

/// A request that is worked on.
struct Running {
    id: String,
    work: AbortHandle,
}

/// Answers the requests of one socket until it ends. What is worked on then is dropped, as if an HTTP client had gone away; if the
/// server ends, it is finished.
async fn serve(socket: Socket, routes: Router) {
    let (mut receiver, sender) = socket.split();
    let mut works = JoinSet::new();
    let mut running: HashMap<tokio::task::Id, Running> = HashMap::new();
    loop {
        let message = tokio::select! {
            message = receiver.receive() => message,
            Some(ended) = works.join_next_with_id() => {
                running.remove(&ended.map_or_else(|error| error.id(), |(id, ())| id));
                continue;
            }
        };
        let Some(message) = message else { break };
        let answer = match read(message) {
            Err(error) => Some(error),
            Ok(Incoming { kind, id: Some(id), .. }) if kind == "cancel" => {
                running.values().filter(|running| running.id == id).for_each(|running| running.work.abort());
                None
            }
            Ok(Incoming { kind, id: Some(id), .. }) if kind == "request" && running.len() >= MOST => {
                let message = format!("more than {MOST} requests at one time on one socket");
                Some(error(Some(&id), "INTERNAL_ERROR", &message, StatusCode::TOO_MANY_REQUESTS))
            }
            Ok(request @ Incoming { .. }) if request.kind == "request" && request.id.is_some() => {
                let id = request.id.clone().unwrap_or_default();
                let work = works.spawn(answer(request, routes.clone(), sender.clone()));
                running.insert(work.id(), Running { id, work });
                None
            }
            Ok(_) => Some(error(
                None,
                "INVALID_REQUEST",
                "Message must be a valid WSRequest",
                StatusCode::BAD_REQUEST,
            )),
        };
        if let Some(answer) = answer
            && sender.send(Message::Text(answer)).await.is_err()
        {
            break;
        }
    }
    tokio::select! {
        _ = works.join_all() => {}
        () = sender.closed() => {}
    }
}

/// Reads a message.
///
/// # Errors
/// The message to answer with.
fn read(message: Message) -> Result<Incoming, String> {
    let text = match message {
        Message::Text(text) => text,
        Message::Binary(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    serde_json::from_str(&text).map_err(|why| {
        let is_json =
            !matches!(why.classify(), serde_json::error::Category::Syntax | serde_json::error::Category::Eof);
        let (code, message) = if is_json {
            ("INVALID_REQUEST", "Message must be a valid WSRequest")
        } else {
            ("PARSE_ERROR", "Invalid JSON message")
        };
        error(None, code, message, StatusCode::BAD_REQUEST)
    })
}

/// A message about a request that has no answer.
fn error(id: Option<&str>, code: &str, message: &str, status: StatusCode) -> String {
    let mut fields = json!({ "type": "error", "code": code, "message": message, "status": status.as_u16() });
    if let (Some(fields), Some(id)) = (fields.as_object_mut(), id) {
        fields.insert("id".to_owned(), id.into());
    }
    fields.to_string()
}

/// Lets the routes answer a request, and sends what they answer.
async fn answer(request: Incoming, mut routes: Router, sender: SocketSender) {
    let id = request.id.clone().unwrap_or_default();
    let Some(request) = http_request(request) else {
        let why =
            error(Some(&id), "INVALID_REQUEST", "Message must be a valid WSRequest", StatusCode::BAD_REQUEST);
        let _ = sender.send(Message::Text(why)).await;
        return;
    };
    let Ok(response): Result<_, Infallible> = routes.call(request).await;
    let is_stream = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
    let last =
        if is_stream { stream(&id, response, &sender).await } else { Some(whole(&id, response).await) };
    if let Some(last) = last {
        let _ = sender.send(Message::Text(last)).await;
    }
}

/// The request as HTTP has it; `None` if HTTP cannot have it.
fn http_request(request: Incoming) -> Option<Request<Body>> {
    let Incoming { method, path, body, headers, .. } = request;
    let method: Method = method.parse().ok()?;
    let takes_body = matches!(method, Method::POST | Method::PUT);
    let mut built = Request::builder().method(method).uri(path.starts_with('/').then_some(path)?);
    let fields = built.headers_mut()?;
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in headers {
        fields.insert(name.parse::<HeaderName>().ok()?, value.parse().ok()?);
    }
    let body = body
        .filter(|_| takes_body)
        .map_or_else(Body::empty, |body| Body::from(String::from(Box::<str>::from(body))));
    built.body(body).ok()
}

/// The message with a whole answer.
async fn whole(id: &str, response: Response) -> String {
    let status = response.status();
    let body = match Limited::new(response.into_body(), LARGEST_ANSWER).collect().await {
        Ok(body) => body.to_bytes(),
        Err(why) => {
            let why = format!("the answer broke off: {why}");
            return error(Some(id), "INTERNAL_ERROR", &why, StatusCode::INTERNAL_SERVER_ERROR);
        }
    };
    response_text(id, status, &body)
}

/// The last message of a request. A body that is no JSON is left out, as the reference does.
fn response_text(id: &str, status: StatusCode, body: &Bytes) -> String {
    let (id, status) = (Value::from(id), status.as_u16());
    let body = serde_json::from_slice::<&RawValue>(body)
        .map(|body| format!(r#","body":{body}"#))
        .unwrap_or_default();
    format!(r#"{{"type":"response","id":{id},"status":{status}{body},"done":true}}"#)
}

/// Sends the events of a stream. Returns the last message; `None` if the peer is gone.
async fn stream(id: &str, response: Response, sender: &SocketSender) -> Option<String> {
    let status = response.status();
    let mut body = response.into_body();
    let mut events = EventParser::default();
    let id_text = Value::from(id);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Some(error(
                Some(id),
                "STREAM_ERROR",
                "the stream broke off",
                StatusCode::INTERNAL_SERVER_ERROR,
            ));
        };
        events.feed(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        while let Some(received) = events.take() {
            let Received::Event(event) = received else { continue };
            let event = format!(r#"{{"type":"stream","id":{id_text},"data":{}}}"#, Value::from(event.data));
            sender.send(Message::Text(event)).await.ok()?;
        }
    }
    Some(response_text(id, status, &Bytes::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_no_json_is_left_out() {
        let text = |body: &'static str| response_text("a\"b", StatusCode::OK, &Bytes::from(body));
        assert_eq!(
            text("{\"x\": 1}"),
            r#"{"type":"response","id":"a\"b","status":200,"body":{"x": 1},"done":true}"#
        );
        assert_eq!(text("hello"), r#"{"type":"response","id":"a\"b","status":200,"done":true}"#);
    }

    #[test]
    fn a_message_that_is_no_request_is_answered() {
        for (text, code) in [
            ("{", "PARSE_ERROR"),
            ("", "PARSE_ERROR"),
            ("[]", "INVALID_REQUEST"),
            (r#"{"type":1}"#, "INVALID_REQUEST"),
        ] {
            let answer: Value =
                serde_json::from_str(&read(Message::Text(text.to_owned())).unwrap_err()).unwrap();
            assert_eq!(answer["code"], code, "{text}");
        }
    }

    #[test]
    fn only_what_http_can_have_becomes_a_request() {
        let request = |method: &str, path: &str| {
            let text =
                json!({ "type": "request", "id": "1", "method": method, "path": path, "body": { "a": 1 } });
            http_request(read(Message::Text(text.to_string())).unwrap())
        };
        assert_eq!(request("POST", "/api/x?y=z").unwrap().uri().path(), "/api/x");
        for (method, path) in
            [("PO ST", "/x"), ("GET", "x"), ("GET", "/a b"), ("GET", "http://x/y"), ("GET", "")]
        {
            assert!(request(method, path).is_none(), "{method} {path}");
        }
    }
}
