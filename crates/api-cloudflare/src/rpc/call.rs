//! A call, as a request to the routes.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value as Json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service as _;

use super::methods::{FindMethod, Method, ResultOf};
use super::outcome::{Good, Outcome, await_result};
use super::source::{Source, Subscription};
use super::step::Arguments;
use super::wire::{Failure, Id, Value, text_of_bytes};
use crate::files::SIZE;
use crate::time;

/// The bytes of a result: clients refuse longer messages.
const LONGEST_RESULT: usize = 30 << 20;
/// A permit of the room for results is this many bytes.
pub(crate) const UNIT: usize = 1024;

/// What calls need.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    router: Router,
    /// The room for results that the client has not released.
    room: Arc<Semaphore>,
    /// The calls that may read a stream of the client.
    streams: Arc<Semaphore>,
}

impl Routes {
    /// `room`: the bytes of all results together; `streams`: the calls at one time that read a stream of the client.
    pub(crate) fn new(router: Router, room: usize, streams: usize) -> Routes {
        let room = Arc::new(Semaphore::new(room / UNIT));
        Routes { router, room, streams: Arc::new(Semaphore::new(streams)) }
    }

    /// Does a call.
    pub(crate) async fn call(&self, find: FindMethod, method: &str, arguments: Arguments) -> Outcome {
        self.try_call(find, method, arguments).await.unwrap_or_else(Outcome::failed)
    }

    async fn try_call(&self, find: FindMethod, name: &str, arguments: Arguments) -> Result<Outcome, Failure> {
        let Arguments { values, results, stream, .. } = arguments;
        let mut found = HashMap::new();
        for (id, (pending, path)) in results {
            found.insert(id, (await_result(pending).await, path));
        }
        let by_name = find(name, &[]);
        let takes_bytes = |at| by_name.as_ref().is_ok_and(|method| method.takes_bytes(at));
        let values = values.into_iter().enumerate().map(|(at, value)| match value {
            Value::Bytes(bytes) if takes_bytes(at) => Ok(text_of_bytes(&bytes).into()),
            value => Ok(to_json(value, &found)?.unwrap_or_default()),
        });
        let values = values.collect::<Result<Vec<_>, Failure>>()?;
        drop(found);
        let method = find(name, &values)?;
        let _place = if method.reads_stream() {
            let place = Arc::clone(&self.streams).try_acquire_owned();
            Some(place.map_err(|_| overload("too many streams are written at one time"))?)
        } else {
            None
        };
        let request = method.request(&values, stream)?;
        // A router is always ready, and cannot fail.
        let response = match self.router.clone().call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        self.result(method, &values, response).await
    }

    /// Makes the result of an answer.
    async fn result(
        &self,
        method: &Method,
        arguments: &[Json],
        response: Response<Body>,
    ) -> Result<Outcome, Failure> {
        let (parts, body) = response.into_parts();
        let is_good = parts.status.is_success();
        let stream = |body, fields| Ok(Outcome::new(Ok(Good::stream(Source::bytes(body), fields)), None));
        match method.result {
            ResultOf::Stream if is_good => return stream(body, None),
            ResultOf::Subscription(form) if is_good => {
                return Ok(Outcome::new(Ok(Good::Subscription(Subscription::new(body, form))), None));
            }
            ResultOf::File if is_good => {
                return stream(body, Some((file_fields(arguments, &parts.headers), "content")));
            }
            _ => {}
        }
        let (bytes, room) = self.collect(body).await?;
        let answer = serde_json::from_slice(&bytes);
        drop(bytes);
        let Ok(Json::Object(mut fields)) = answer else {
            return Err(Failure::new(&format!("the route answered {} without an object", parts.status)));
        };
        if !is_good {
            return Err(failure_of(fields, parts.status));
        }
        let good = match method.result {
            ResultOf::Changed(change) => {
                change(&mut fields, arguments);
                Good::Json(Json::Object(fields))
            }
            ResultOf::FieldOf(name) => Good::Json(fields.remove(name).unwrap_or_default()),
            ResultOf::Made(make) => Good::Json(make(&mut fields)),
            ResultOf::Constant(make) => Good::Json(make()),
            ResultOf::Nothing => Good::Undefined,
            ResultOf::Answer | ResultOf::Stream | ResultOf::File | ResultOf::Subscription(_) => {
                Good::Json(Json::Object(fields))
            }
        };
        Ok(Outcome::new(Ok(good), room).with_dates(method.dates()))
    }

    /// Reads an answer, within the room for results.
    async fn collect(&self, mut body: Body) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Failure> {
        let mut bytes = Vec::new();
        let mut held: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::new(&format!("the answer broke off: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            bytes.extend_from_slice(&data);
            if bytes.len() > LONGEST_RESULT {
                return Err(too_large());
            }
            let units =
                bytes.len().div_ceil(UNIT) - held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
            let units = u32::try_from(units).unwrap_or(u32::MAX);
            let more = Arc::clone(&self.room).try_acquire_many_owned(units);
            let more = more.map_err(|_| overload("the results that are not released are too large"))?;
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
        }
        Ok((bytes, held))
    }
}

/// The error of an error answer: as the reference, with `code`, and the context as `details`.
fn failure_of(mut fields: Map<String, Json>, status: StatusCode) -> Failure {
    let message = fields.get("message").and_then(Json::as_str);
    let mut failure = Failure::new(&message.map_or_else(|| status.to_string(), str::to_owned));
    for (from, to) in [("code", "code"), ("context", "details")] {
        if let Some(value) = fields.remove(from) {
            failure.properties.insert(to.to_owned(), value);
        }
    }
    failure
}

fn coded(code: &str, message: &str) -> Failure {
    let mut failure = Failure::new(message);
    failure.properties.insert("code".to_owned(), code.into());
    failure.properties.insert("details".to_owned(), Json::Object(Map::new()));
    failure
}

fn overload(message: &str) -> Failure {
    coded("INTERNAL_ERROR", message)
}

fn too_large() -> Failure {
    let message = "the result is too large for one message; a stream has no limit";
    coded("FILE_TOO_LARGE", message)
}

/// The fields of a file beside its content.
fn file_fields(arguments: &[Json], headers: &HeaderMap) -> Map<String, Json> {
    let text = |name: HeaderName| headers.get(&name).and_then(|value| value.to_str().ok());
    let size = text(SIZE).and_then(|size| size.parse::<u64>().ok());
    Map::from_iter([
        ("success".to_owned(), true.into()),
        ("path".to_owned(), arguments.first().cloned().unwrap_or_default()),
        ("size".to_owned(), size.into()),
        ("mimeType".to_owned(), text(header::CONTENT_TYPE).into()),
        ("timestamp".to_owned(), time::current_time().into()),
    ])
}

type Found = HashMap<Id, (Arc<Outcome>, Vec<String>)>;

/// Makes an argument JSON; `None` for `undefined` and for what has no JSON.
fn to_json(value: Value, found: &Found) -> Result<Option<Json>, Failure> {
    Ok(match value {
        Value::Undefined | Value::Readable(_) | Value::Callback(_) => None,
        Value::Plain(value) => Some(value),
        Value::Array(values) => {
            let values = values.into_iter().map(|value| Ok(to_json(value, found)?.unwrap_or_default()));
            Some(Json::Array(values.collect::<Result<_, Failure>>()?))
        }
        Value::Object(fields) => {
            let mut made = Map::new();
            for (name, value) in fields {
                if let Some(value) = to_json(value, found)? {
                    made.insert(name, value);
                }
            }
            Some(Json::Object(made))
        }
        Value::Bytes(_) => return Err(Failure::new("this method takes bytes as a stream only")),
        Value::Entry(reference) => match found.get(&reference.id) {
            Some((outcome, above)) => outcome.at(&[above.as_slice(), &reference.path].concat())?.cloned(),
            None => None,
        },
    })
}
