//! The result of a call.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value as Json};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::source::{Source, Subscription};
use super::wire::Failure;

/// A result that may not be there yet.
pub(crate) type Pending = watch::Receiver<Option<Arc<Outcome>>>;
/// Where a result is put.
pub(crate) type Promise = watch::Sender<Option<Arc<Outcome>>>;

/// The result of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<Good, Failure>,
    /// The fields of the result that are dates, in milliseconds.
    pub(crate) dates: &'static [&'static str],
    /// What the result takes of the room for results.
    _room: Option<OwnedSemaphorePermit>,
}

/// The object that a stream belongs to: its other fields, and the name of the stream's.
pub(crate) type Around = (Map<String, Json>, &'static str);

/// A result that is no failure.
#[derive(Debug)]
pub(crate) enum Good {
    Undefined,
    Json(Json),
    /// A stream, by itself or in a field of an object. It can be sent once.
    Stream(Mutex<Option<Source>>, Option<Around>),
    /// A stream that the client asks for later.
    Subscription(Subscription),
}

impl Good {
    pub(crate) fn stream(source: Source, around: Option<Around>) -> Good {
        Good::Stream(Mutex::new(Some(source)), around)
    }
}

impl Outcome {
    pub(crate) fn new(result: Result<Good, Failure>, room: Option<OwnedSemaphorePermit>) -> Outcome {
        Outcome { result, dates: &[], _room: room }
    }

    /// The same with fields that are dates.
    pub(crate) fn with_dates(mut self, dates: &'static [&'static str]) -> Outcome {
        self.dates = dates;
        self
    }

    pub(crate) fn failed(failure: Failure) -> Outcome {
        Outcome::new(Err(failure), None)
    }

    pub(crate) fn undefined() -> Outcome {
        Outcome::new(Ok(Good::Undefined), None)
    }

    /// Returns what the result has at this path. `None` if it has nothing there, as for a property of a JavaScript object.
    ///
    /// # Errors
    /// That of the call.
    pub(crate) fn at(&self, path: &[String]) -> Result<Option<&Json>, Failure> {
        match &self.result {
            Err(failure) => Err(failure.clone()),
            Ok(Good::Json(value)) => {
                let mut found = Some(value);
                for key in path {
                    found = match found {
                        Some(Json::Array(values)) => key.parse().ok().and_then(|at: usize| values.get(at)),
                        Some(value) => value.get(key),
                        None => None,
                    };
                }
                Ok(found)
            }
            Ok(Good::Stream(_, Some((fields, _)))) => Ok(path.first().and_then(|key| fields.get(key))),
            Ok(Good::Undefined | Good::Stream(..) | Good::Subscription(_)) => Ok(None),
        }
    }

    /// Takes the stream, with the object that it belongs to.
    pub(crate) fn take_stream(&self) -> Option<(Source, Option<Around>)> {
        let Ok(Good::Stream(source, fields)) = &self.result else { return None };
        let source = source.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some((source, fields.clone()))
    }

    /// Does a call of a method of the result: only a subscription has methods.
    ///
    /// # Errors
    /// When there is no such method, or its stream was taken before.
    pub(crate) fn call(&self, method: &str) -> Result<Good, Failure> {
        match &self.result {
            Err(failure) => Err(failure.clone()),
            Ok(Good::Subscription(subscription)) if method == "stream" => match subscription.take() {
                Some(source) => Ok(Good::stream(source, None)),
                None => Err(Failure::new("the stream was taken or cancelled before")),
            },
            Ok(Good::Subscription(subscription)) if method == "cancel" => {
                subscription.cancel();
                Ok(Good::Undefined)
            }
            Ok(_) => Err(Failure::new(&format!("'{method}' is not a function."))),
        }
    }
}

/// Waits for a result.
pub(crate) async fn await_result(mut pending: Pending) -> Arc<Outcome> {
    let found = pending.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
    // Whatever should have made the result is gone.
    found.unwrap_or_else(|| Arc::new(Outcome::failed(Failure::new("it was dropped before its end"))))
}
