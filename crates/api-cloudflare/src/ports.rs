//! `/api/port-watch`: waits until a port answers, or the process that should open it has ended. No port gets a public address.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{delete, get, post};
use penfold_client::{Client, ServerAddress};
use penfold_server::sent_body::{self, Sink};
use rustix::event::{PollFd, PollFlags, Timespec};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{RouteResult, success_answer};
use crate::api::{Api, ApiState};
use crate::error::{ApiError, Code};
use crate::processes::{Watched, watched_process};
use crate::request::Parsed;
use crate::sse;

/// The time for one connection, and for the answer to one request.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause between two looks, as in the reference: what is usual, and the bounds.
const USUAL_PAUSE: u64 = 500;
const PAUSES: (u64, u64) = (100, 10_000);

/// The routes for ports.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route("/api/port-watch", post(watch))
        .route("/api/expose-port", post(expose))
        .route("/api/exposed-ports", get(list_exposed))
        .route("/api/exposed-ports/{port}", delete(unexpose))
}

/// Waits for a port, as clients from 0.13 on ask for it. Only calls over `/rpc` reach this route.
pub(crate) const OPEN_WATCH: &str = "/rpc/port-watch";

/// The route of [`OPEN_WATCH`].
pub(crate) fn call_routes() -> Router<ApiState> {
    Router::new().route("/rpc/port-watch", post(open_watch))
}

/// Refuses to give a port a public address: clients before 0.12 ask for one.
async fn expose(_read: Bytes) -> ApiError {
    let message =
        "penfold gives ports no public addresses; the port is reachable on the host's loopback addresses";
    ApiError::new(Code::PortOperationError, message).status(StatusCode::NOT_IMPLEMENTED)
}

async fn list_exposed() -> Response {
    success_answer(json!({ "ports": [], "count": 0 }))
}

async fn unexpose(Path(port): Path<String>) -> ApiError {
    ApiError::new(Code::PortNotExposed, format!("Port {port} has no public address")).with("port", port)
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WatchRequest {
    port: u16,
    mode: Option<String>,
    path: Option<String>,
    status_min: Option<u16>,
    status_max: Option<u16>,
    process_id: Option<String>,
    interval: Option<u64>,
    /// The statuses that count, as clients from 0.13 on say it.
    status: Option<Statuses>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Statuses {
    One(u16),
    Range { min: u16, max: u16 },
}

/// What is waited for.
#[derive(Debug)]
struct PortWatch {
    port: u16,
    /// The path and the statuses that count; `None` if a connection does.
    http: Option<(String, std::ops::RangeInclusive<u16>)>,
    process: Option<String>,
    pause: Duration,
}

impl WatchRequest {
    fn check(self) -> Result<PortWatch, ApiError> {
        let invalid = |field: &str, why: &str| {
            Err(ApiError::new(Code::ValidationFailed, format!("{field} {why}")).with("field", field))
        };
        if self.port == 0 {
            return invalid("port", "is 0");
        }
        let path = self.path.unwrap_or_default();
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return invalid("path", "has a character that a URL cannot have");
        }
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        let statuses = self.status_min.unwrap_or(200)..=self.status_max.unwrap_or(399);
        if statuses.is_empty() {
            return invalid("statusMax", "is less than statusMin");
        }
        let http = match self.mode.as_deref() {
            Some("tcp") => None,
            None | Some("http") => Some((path, statuses)),
            Some(_) => return invalid("mode", "is neither `tcp` nor `http`"),
        };
        let pause = self.interval.unwrap_or(USUAL_PAUSE).clamp(PAUSES.0, PAUSES.1);
        let process = self.process_id.filter(|id| !id.is_empty());
        Ok(PortWatch { port: self.port, http, process, pause: Duration::from_millis(pause) })
    }
}

async fn watch(State(api): State<ApiState>, Parsed(request): Parsed<WatchRequest>) -> RouteResult {
    answer_watch(&api, request.check()?)
}

async fn open_watch(State(api): State<ApiState>, Parsed(mut request): Parsed<WatchRequest>) -> RouteResult {
    request.mode.get_or_insert_with(|| "tcp".to_owned());
    if let Some(statuses) = request.status {
        let (min, max) = match statuses {
            Statuses::One(status) => (status, status),
            Statuses::Range { min, max } => (min, max),
        };
        (request.status_min, request.status_max) = (Some(min), Some(max));
    }
    answer_watch(&api, request.check()?)
}

fn answer_watch(api: &ApiState, watch: PortWatch) -> RouteResult {
    let place = api.app.engine.follower().ok_or_else(ApiError::too_many_streams)?;
    let theirs = Arc::clone(api);
    let made = sent_body::woken_body(move |sink| {
        let _place = place;
        watch.write(sink, &theirs)
    });
    let (body, _) = made.map_err(|error| ApiError::full(&error))?;
    Ok(sse::event_stream(body))
}

impl PortWatch {
    fn write(&self, sink: &mut Sink, api: &Api) -> io::Result<()> {
        self.tell(sink, "watching", json!({}))?;
        loop {
            if let Some(id) = &self.process {
                match watched_process(api, id) {
                    Ok(Watched::Runs) => {}
                    Ok(Watched::Ended(code)) => {
                        return self.tell(sink, "process_exited", json!({ "exitCode": code }));
                    }
                    Err(error) if error.code() == Code::ProcessNotFound => {
                        return self.tell(sink, "error", json!({ "error": "Process not found" }));
                    }
                    Err(error) => return self.tell(sink, "error", json!({ "error": error.message() })),
                }
            }
            if let Some(fields) = self.ready() {
                return self.tell(sink, "ready", fields);
            }
            if api.app.drain.has_begun() {
                return self.tell(
                    sink,
                    "error",
                    json!({ "error": "the server is ending; the process goes on" }),
                );
            }
            self.rest(sink)?;
        }
    }

    /// Looks at the port once; the fields of the event if it is ready.
    fn ready(&self) -> Option<Value> {
        let hosts =
            [SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)), (Ipv6Addr::LOCALHOST, self.port).into()];
        let Some((path, statuses)) = &self.http else {
            let connects = |host: &SocketAddr| TcpStream::connect_timeout(host, LIMIT).is_ok();
            return hosts.iter().any(connects).then(|| json!({}));
        };
        hosts.iter().find_map(|host| {
            let host: ServerAddress = format!("http://{host}").parse().ok()?;
            let status = Client::new(host, None).ok()?.status(path, LIMIT).ok()?;
            statuses.contains(&status).then(|| json!({ "statusCode": status }))
        })
    }

    /// Waits until the next look.
    ///
    /// # Errors
    /// When the reader is gone.
    fn rest(&self, sink: &mut Sink) -> io::Result<()> {
        let pause = Timespec::try_from(self.pause).map_err(io::Error::other)?;
        if let Some(wake) = &sink.wake {
            let mut woken = [PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::empty())];
            let _ = rustix::event::poll(&mut woken, Some(&pause));
        }
        sink.flush()
    }

    fn tell(&self, sink: &mut Sink, kind: &str, mut fields: Value) -> io::Result<()> {
        if let Some(fields) = fields.as_object_mut() {
            fields.insert("port".to_owned(), json!(self.port));
        }
        sse::send_event(sink, kind, fields)
    }
}
