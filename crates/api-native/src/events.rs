//! `/v1/events`: the events of all sandboxes, as server-sent events.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::Scope;
use penfold_server::AppState;
use penfold_server::sent_body::{self, Sink};
use penfold_state::events::{Event, EventEntry, EventPosition, EventReader, EventWaitEnd, KINDS};
use penfold_state::{error_chain, names};
use serde::Deserialize;
use serde_json::json;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::Query;
use super::log_answer::too_many;
use super::problem::{Kind, Problem};
use crate::sse;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(events))
}

/// The events that are wanted.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// Where to begin: `start`, at the oldest event that is kept, or `end`, after the newest one.
    #[serde(default)]
    #[param(inline)]
    from: EventStart,
    /// Whether to go on with new events; default true.
    follow: Option<bool>,
    /// Only events of this sandbox: its id or its name.
    sandbox: Option<String>,
    /// Only events of these kinds, separated by commas.
    kind: Option<String>,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum EventStart {
    /// At the oldest event that is kept.
    Start,
    /// After the newest event.
    #[default]
    End,
}

/// A server-sent event of the feed.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "describes the events")]
pub(super) struct EventMessage {
    /// The kind of the event; `end` after the last one, `error` if the stream breaks off.
    event: String,
    /// For `Last-Event-ID`.
    #[schema(nullable = false)]
    id: Option<String>,
    /// JSON: the event as `penfold events --json` prints it, or a `Problem`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// A comment is sent after this time without an event.
const SILENCE: Duration = Duration::from_secs(15);

/// Streams events: the name of a server-sent event is the kind, its data the event as `penfold events --json` prints it.
/// Events are news, never evidence.
#[utoipa::path(
    get, path = "/events", tag = "events", operation_id = "getEvents",
    params(
        EventQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "the id of the last event that was received"),
    ),
    responses(
        (status = 200, description = "the events; the schema is that of each", content((EventMessage = "text/event-stream"))),
        Problem,
    )
)]
async fn events(
    State(app): State<AppState>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Result<Response, Problem> {
    let kinds = query.kind.iter().flat_map(|text| text.split(','));
    if let Some(kind) = kinds.into_iter().find(|kind| !KINDS.contains(kind)) {
        return Err(Problem::field("kind", format!("`{kind}` is not one of {}", KINDS.join(", "))));
    }
    let after = sse::last_event_id(&headers)
        .map_err(|why| Problem::field("Last-Event-ID", why))?
        .map(parse_id)
        .transpose()?;
    let from = if after.is_some() || query.from == EventStart::Start {
        EventPosition::Start
    } else {
        EventPosition::End
    };
    let reader = app.engine.call(move |scope: &Scope| EventReader::open(scope.root(), from)).await?;
    let reader = reader.map_err(|error| Problem::new(Kind::Internal, error_chain(&error)))?;
    let permit = app.engine.follower().ok_or_else(too_many)?;
    let writer_app = Arc::clone(&app);
    let (body, _) = sent_body::woken_body(move |sink| {
        let _permit = permit;
        let scope = writer_app.engine.scope().clone();
        Feed { reader, scope, query, after, seen: BTreeMap::new() }.run(&writer_app, sink)
    })
    .map_err(|_| too_many())?;
    Ok(sse::event_response(body))
}

/// The id of an event: its time, and its number among the events of that time.
type EventId = (u64, u32);

fn parse_id(text: &str) -> Result<EventId, Problem> {
    let parsed =
        text.split_once('-').and_then(|(time, number)| Some((time.parse().ok()?, number.parse().ok()?)));
    parsed.ok_or_else(|| Problem::field("Last-Event-ID", "not the id of an event"))
}

/// A stream of events to one reader.
struct Feed {
    reader: EventReader,
    /// The sandboxes that the reader is told of.
    scope: Scope,
    query: EventQuery,
    /// Events up to this one were received before.
    after: Option<EventId>,
    /// The events of the newest times, by time. Processes write in turns, so times may be a little out of order.
    seen: BTreeMap<u64, u32>,
}

/// The times that are counted.
const TIMES: usize = 4096;

impl Feed {
    fn run(mut self, app: &AppState, sink: &mut Sink) -> io::Result<()> {
        let follows = self.query.follow.unwrap_or(true);
        let mut due = Instant::now() + SILENCE;
        loop {
            while let Some(entry) = self.reader.next_entry().map_err(io::Error::other)? {
                if let EventEntry::Event(event) = entry {
                    self.send(sink, &event)?;
                }
                due = Instant::now() + SILENCE;
            }
            sink.flush()?;
            if !follows {
                return sse::send_event(sink, "end", None, &json!({}));
            }
            if app.drain.has_begun() {
                return sse::send_event(sink, "error", None, &Problem::draining().document());
            }
            if Instant::now() >= due {
                sse::send_beat(sink)?;
                due = Instant::now() + SILENCE;
            }
            let peer = sink.wake.as_ref().map(|wake| wake.as_fd());
            if self.reader.wait(peer).map_err(io::Error::other)? == EventWaitEnd::HungUp {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }

    fn send(&mut self, sink: &mut Sink, event: &Event) -> io::Result<()> {
        let number = self.seen.entry(event.time_ns).and_modify(|number| *number += 1).or_insert(0);
        let id = (event.time_ns, *number);
        if self.seen.len() > TIMES {
            self.seen.pop_first();
        }
        if self.after.is_some_and(|after| id <= after) || !self.is_wanted(event) {
            return Ok(());
        }
        let text = format!("{}-{}", id.0, id.1);
        sse::send_event(sink, event.what.kind(), Some(&text), event)
    }

    fn is_wanted(&self, event: &Event) -> bool {
        let kind = event.what.kind();
        let is_kind = |kinds: &String| kinds.split(',').any(|wanted| wanted == kind);
        let is_sandbox = |word: &String| {
            event.about.id == *word || self.scope.means(word, event.about.held_name().as_deref())
        };
        self.scope.has_tenant(names::tenant_of(&event.about.labels))
            && self.query.kind.as_ref().is_none_or(is_kind)
            && self.query.sandbox.as_ref().is_none_or(is_sandbox)
    }
}
