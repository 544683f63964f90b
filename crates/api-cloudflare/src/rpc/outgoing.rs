//! What the server sends: results, and streams of which the client acknowledges each part.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Guarded, MutexGuard, PoisonError};

use axum::body::{Body, Bytes};
use http_body_util::BodyExt as _;
use penfold_server::sockets::{Closed, Message, SocketSender};
use serde_json::Value as Json;
use tokio::sync::{Mutex, mpsc};

use super::outcome::{Good, Outcome};
use super::source::{Form, Source};
use super::wire::{self, Failure, Id, Part};
use crate::event_reader::EventReader;

/// The bytes of a stream that may be on their way.
const WINDOW: usize = 256 << 10;
/// The bytes of a part.
const LONGEST_PART: usize = 64 << 10;

/// Sends to the client; a clone is another handle.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing(Arc<Link>);

#[derive(Debug)]
struct Link {
    /// The number that the next stream or part gets. Held while a message is sent, since the client counts, too.
    next: Mutex<Id>,
    sender: SocketSender,
    /// Where the answer to a part goes, with the part's length. `None` once no answers come.
    waiting: Guarded<Option<HashMap<Id, Waiting>>>,
}

type Waiting = (mpsc::UnboundedSender<Settled>, usize);

/// The client has got a part, or takes no more.
#[derive(Debug)]
struct Settled {
    length: usize,
    is_good: bool,
}

impl Outgoing {
    pub(crate) fn new(sender: SocketSender) -> Outgoing {
        Outgoing(Arc::new(Link { next: Mutex::new(1), sender, waiting: Guarded::new(Some(HashMap::new())) }))
    }

    /// Sends a message that makes no entry.
    ///
    /// # Errors
    /// When the client is gone.
    pub(crate) async fn send(&self, message: String) -> Result<(), Closed> {
        let _next = self.0.next.lock().await;
        self.0.sender.send(Message::Text(message)).await
    }

    /// Sends what a result has at this path; returns the stream that must be sent after it.
    ///
    /// # Errors
    /// When the client is gone.
    pub(crate) async fn send_result(
        &self,
        id: Id,
        outcome: &Outcome,
        path: &[String],
    ) -> Result<Option<(Id, Source)>, Closed> {
        let mut next = self.0.next.lock().await;
        let is_whole = path.is_empty();
        let stream = outcome.take_stream().filter(|(_, fields)| match fields {
            None => is_whole,
            Some((_, name)) => is_whole || path == [*name],
        });
        if let Some((source, fields)) = stream {
            let pipe = *next;
            *next += 1;
            self.0.sender.send(Message::Text(wire::pipe())).await?;
            let value = match fields.filter(|_| is_whole) {
                None => wire::readable(pipe),
                Some((fields, name)) => {
                    let mut value = wire::escape(Json::Object(fields));
                    if let Some(value) = value.as_object_mut() {
                        value.insert(name.to_owned(), wire::readable(pipe));
                    }
                    value
                }
            };
            self.0.sender.send(Message::Text(wire::resolve(id, &value))).await?;
            return Ok(Some((pipe, source)));
        }
        let message = match outcome.at(path) {
            Err(failure) => wire::reject(id, &failure),
            Ok(Some(value)) => wire::resolve(id, &wire::escape_dated(value.clone(), outcome.dates)),
            Ok(None) if matches!(outcome.result, Ok(Good::Stream(..))) && is_whole => {
                wire::reject(id, &Failure::new("the stream was sent already"))
            }
            Ok(None) => wire::resolve(id, &wire::undefined()),
        };
        self.0.sender.send(Message::Text(message)).await?;
        Ok(None)
    }

    /// Takes the answer of the client to a part of a stream.
    pub(crate) fn settle(&self, id: Id, is_good: bool) {
        if let Some(part) = self.waiting().as_mut().and_then(|waiting| waiting.remove(&id)) {
            settle_part(part, is_good);
        }
    }

    /// Goes on without answers: no further message of the client is read.
    pub(crate) fn expect_no_answers(&self) {
        let waiting = self.waiting().take().unwrap_or_default();
        for part in waiting.into_values() {
            settle_part(part, true);
        }
    }

    /// Notes where the answer to a part goes.
    fn expect(&self, id: Id, part: Waiting) {
        match self.waiting().as_mut() {
            Some(waiting) => drop(waiting.insert(id, part)),
            None => settle_part(part, true),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<Id, Waiting>>> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a stream, as fast as the client reads it. Its body is dropped once the client takes no more.
    ///
    /// # Errors
    /// When the client is gone.
    pub(crate) async fn send_stream(&self, pipe: Id, source: Source) -> Result<(), Closed> {
        let (body, form, mut cancel) = source.split();
        let mut body = match form {
            Form::Bytes => Parts::Bytes(body),
            Form::Events => Parts::Events(EventReader::new(body)),
        };
        let (answers, mut settled) = mpsc::unbounded_channel();
        let mut on_the_way = 0;
        loop {
            let parts = tokio::select! {
                Some(Settled { length, is_good }) = settled.recv() => {
                    on_the_way -= length;
                    if is_good {
                        continue;
                    }
                    break;
                }
                () = cancel.wait() => Ok(None),
                parts = body.next(), if on_the_way < WINDOW => parts,
            };
            match parts {
                Ok(None) => {
                    self.send_last(pipe, &Part::Close).await?;
                    break;
                }
                Err(failure) => {
                    self.send_last(pipe, &Part::Abort(&failure)).await?;
                    break;
                }
                Ok(Some(parts)) => {
                    for (message, length) in parts.written(pipe) {
                        on_the_way += length;
                        self.send_part(message, (answers.clone(), length)).await?;
                    }
                }
            }
        }
        drop(body);
        self.send(wire::release(pipe, 1)).await
    }

    async fn send_part(&self, message: String, part: Waiting) -> Result<(), Closed> {
        let mut next = self.0.next.lock().await;
        self.expect(*next, part);
        *next += 1;
        self.0.sender.send(Message::Text(message)).await
    }

    /// Sends the end of a stream, and waits until the client has it.
    async fn send_last(&self, pipe: Id, part: &Part<'_>) -> Result<(), Closed> {
        let (answers, mut settled) = mpsc::unbounded_channel();
        {
            let mut next = self.0.next.lock().await;
            self.expect(*next, (answers, 0));
            *next += 1;
            self.0.sender.send(Message::Text(wire::stream(pipe, part))).await?;
        }
        settled.recv().await;
        Ok(())
    }

    /// Calls a function of the client, and waits until it has returned; `false` if it failed.
    ///
    /// # Errors
    /// When the client is gone.
    pub(crate) async fn call(&self, function: Id, argument: Json) -> Result<bool, Closed> {
        let (answers, mut settled) = mpsc::unbounded_channel();
        {
            let mut next = self.0.next.lock().await;
            self.expect(*next, (answers, 0));
            *next += 1;
            self.0.sender.send(Message::Text(wire::call(function, &wire::escape(argument)))).await?;
        }
        Ok(settled.recv().await.is_some_and(|settled| settled.is_good))
    }

    /// Ends the session.
    pub(crate) async fn abort(&self, failure: &Failure) {
        // The client may be gone.
        let _ = self.send(wire::abort(failure)).await;
        self.0.sender.close(1002, &failure.message).await;
    }

    /// Waits until nothing can be sent any more.
    pub(crate) async fn closed(&self) {
        self.0.sender.closed().await;
    }
}

/// The parts of a body that is sent.
enum Parts {
    Bytes(Body),
    Events(EventReader),
}

/// What a body has next.
enum Next {
    Bytes(Bytes),
    /// An object, and the length of its text.
    Event(Json, usize),
}

impl Parts {
    /// Returns what comes next; `None` at the end.
    async fn next(&mut self) -> Result<Option<Next>, Failure> {
        match self {
            Parts::Bytes(body) => match body.frame().await {
                None => Ok(None),
                Some(Ok(frame)) => Ok(Some(Next::Bytes(frame.into_data().unwrap_or_default()))),
                Some(Err(error)) => Err(Failure::new(&format!("the stream broke off: {error}"))),
            },
            Parts::Events(events) => {
                let event = events.next().await.map_err(|why| Failure::new(&why))?;
                Ok(event.map(|(event, length)| Next::Event(event, length)))
            }
        }
    }
}

impl Next {
    /// Returns the messages, each with the length that counts.
    fn written(self, pipe: Id) -> Vec<(String, usize)> {
        match self {
            Next::Bytes(mut data) => {
                let mut messages = Vec::new();
                while !data.is_empty() {
                    let part = data.split_to(data.len().min(LONGEST_PART));
                    messages.push((wire::stream(pipe, &Part::Bytes(&part)), part.len()));
                }
                messages
            }
            Next::Event(event, length) => {
                vec![(wire::stream(pipe, &Part::Value(wire::event(event))), length)]
            }
        }
    }
}

fn settle_part((answers, length): Waiting, is_good: bool) {
    // The stream may have ended.
    let _ = answers.send(Settled { length, is_good });
}
