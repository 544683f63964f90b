//! `/v1/events`: the events of all sandboxes, as server-sent events.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use penfold_control::Scope;
use penfold_server::AppState;
use penfold_server::log_stream::StreamEnd;
use penfold_server::shared_stream::{PART, SharedStreams, Source};
use penfold_state::events::{Event, EventEntry, EventPlace, EventPosition, EventReader, KINDS};
use penfold_state::{error_chain, names};
use serde::Deserialize;
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use super::extract::Query;
use super::log_answer::too_many;
use super::problem::{Kind, Problem};
use crate::routes::{Routes, routes};
use crate::sse;

pub(super) fn routes() -> Routes {
    Routes::new().routes(routes!(events))
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

/// The most entries that are read at one time for one follower.
const ENTRIES: usize = 128;

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
    Extension(feeds): Extension<EventFeeds>,
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
    let filter = FeedFilter::of(query, app.engine.scope().clone());
    let place = FeedPlace { place: reader.place(), after, seen: Arc::default() };
    let feed = EventFeed { reader, last: place.clone() };
    let body = feeds.follow(&app, (), feed, (place, filter)).ok_or_else(too_many)?;
    Ok(sse::event_response(body))
}

/// The id of an event: its time, and its number among the events of that time.
type EventId = (u64, u32);

fn parse_id(text: &str) -> Result<EventId, Problem> {
    let parsed =
        text.split_once('-').and_then(|(time, number)| Some((time.parse().ok()?, number.parse().ok()?)));
    parsed.ok_or_else(|| Problem::field("Last-Event-ID", "not the id of an event"))
}

/// The events that all followers share.
pub(super) struct EventFeed {
    reader: EventReader,
    /// The place of the follower that was the last to have everything.
    last: FeedPlace,
}

/// The streams of events of a server: one.
pub(super) type EventFeeds = SharedStreams<(), EventFeed>;

/// The place of a follower.
#[derive(Debug, Clone)]
pub(super) struct FeedPlace {
    place: EventPlace,
    /// Events up to this one were received before.
    after: Option<EventId>,
    /// The events of the newest times before the place, by time. Processes write in turns, so times may be a little out of order.
    seen: Arc<BTreeMap<u64, u32>>,
}

impl PartialEq for FeedPlace {
    /// A follower gets the numbers of another one only if both have counted the newest time alike. What they have seen before that
    /// differs only by how long ago they began.
    fn eq(&self, other: &FeedPlace) -> bool {
        let newest = |place: &FeedPlace| place.seen.last_key_value().map(|(time, number)| (*time, *number));
        (&self.place, self.after, newest(self)) == (&other.place, other.after, newest(other))
    }
}

/// What a follower wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FeedFilter {
    /// The sandboxes that the follower is told of.
    scope: Scope,
    sandbox: Option<String>,
    kind: Option<String>,
    follows: bool,
}

/// The times that are counted.
const TIMES: usize = 4096;

impl FeedFilter {
    fn of(EventQuery { from: _, follow, sandbox, kind }: EventQuery, scope: Scope) -> FeedFilter {
        FeedFilter { scope, sandbox, kind, follows: follow.unwrap_or(true) }
    }

    fn wants(&self, event: &Event) -> bool {
        let kind = event.what.kind();
        let is_kind = |kinds: &String| kinds.split(',').any(|wanted| wanted == kind);
        let is_sandbox = |word: &String| {
            event.about.id == *word || self.scope.means(word, event.about.held_name().as_deref())
        };
        self.scope.has_tenant(names::tenant_of(&event.about.labels))
            && self.kind.as_ref().is_none_or(is_kind)
            && self.sandbox.as_ref().is_none_or(is_sandbox)
    }
}

impl FeedPlace {
    /// Counts an event, and returns its id, unless it was received before.
    fn count(&mut self, event: &Event) -> Option<EventId> {
        let seen = Arc::make_mut(&mut self.seen);
        let number = *seen.entry(event.time_ns).and_modify(|number| *number += 1).or_insert(0);
        if seen.len() > TIMES {
            seen.pop_first();
        }
        let id = (event.time_ns, number);
        if self.after.is_some_and(|after| id <= after) { None } else { Some(id) }
    }
}

impl Source for EventFeed {
    type Place = FeedPlace;
    type Form = FeedFilter;

    fn begin_look(&mut self) -> bool {
        false
    }

    fn read(&mut self, place: &mut FeedPlace, filter: &FeedFilter, part: &mut Vec<u8>) -> io::Result<bool> {
        self.reader.go_to_place(place.place.clone());
        // Many events that are not wanted are a part, too.
        let mut entries = 0;
        while part.len() < PART && entries < ENTRIES {
            let Some(entry) = self.reader.next_entry().map_err(io::Error::other)? else {
                place.place = self.reader.place();
                // Whatever comes from here on was not received before.
                place.after = None;
                if self.last == *place {
                    // Followers at the end share one memory.
                    place.clone_from(&self.last);
                } else {
                    self.last = place.clone();
                }
                return Ok(false);
            };
            entries += 1;
            let EventEntry::Event(event) = entry else { continue };
            if let Some((time, number)) = place.count(&event)
                && filter.wants(&event)
            {
                let text = format!("{time}-{number}");
                sse::send_event(part, event.what.kind(), Some(&text), &event)?;
            }
        }
        place.place = self.reader.place();
        Ok(true)
    }

    fn last(&mut self, _: &FeedPlace, _: &FeedFilter, end: StreamEnd) -> io::Result<Vec<u8>> {
        let mut part = Vec::new();
        match end {
            StreamEnd::Complete => sse::send_event(&mut part, "end", None, &json!({})),
            StreamEnd::Draining => sse::send_event(&mut part, "error", None, &Problem::draining().document()),
        }?;
        Ok(part)
    }

    fn ends_here(filter: &FeedFilter) -> bool {
        !filter.follows
    }

    fn beat(_: &FeedFilter) -> &'static [u8] {
        sse::BEAT
    }

    fn wait(&mut self, wake: BorrowedFd<'_>, longest: Duration) -> io::Result<()> {
        self.reader.await_change(wake, longest).map_err(io::Error::other)
    }
}
