//! What a message of the client asks for: a call, a part of a stream, an answer.

use std::collections::HashMap;

use super::methods::FindMethod;
use super::outcome::{Pending, Promise};
use super::pipe::{Chunk, PipeReader, PipeWriter, Sent};
use super::wire::{Id, Value};

/// A call of the client.
#[derive(Debug)]
pub(crate) struct Call {
    /// The path of the method, as `commands.execute`.
    pub(crate) method: String,
    pub(crate) of: MethodOf,
    pub(crate) arguments: Arguments,
    pub(crate) promise: Promise,
}

/// Whose method is called.
#[derive(Debug, Clone)]
pub(crate) enum MethodOf {
    /// The server's, found by this function.
    Server(FindMethod),
    /// That of a subscription.
    Subscription(Pending),
}

/// The arguments of a call, with what they refer to.
#[derive(Debug, Default)]
pub(crate) struct Arguments {
    pub(crate) values: Vec<Value>,
    /// The results that are among the arguments, by their entry.
    pub(crate) results: HashMap<Id, (Pending, Vec<String>)>,
    /// The stream that is among the arguments.
    pub(crate) stream: Option<PipeReader>,
    /// What of the client's is among the arguments; it is released after the call.
    pub(crate) callbacks: Vec<Id>,
}

/// What the client waits for.
#[derive(Debug)]
pub(crate) struct Wait {
    pub(crate) id: Id,
    pub(crate) answer: Answer,
}

#[derive(Debug)]
pub(crate) enum Answer {
    /// What a result has at this path.
    Result(Pending, Vec<String>),
    /// This entry, which can be called.
    Callable(Id),
    /// This entry, if the result is a subscription. Otherwise it is to be forgotten.
    Subscription(Pending, Id),
}

/// What a message asks for.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) call: Option<Call>,
    pub(crate) part: Option<PartOf>,
    pub(crate) wait: Option<Wait>,
    /// A stream of the server got an answer to one of its parts.
    pub(crate) settled: Option<(Id, bool)>,
}

/// A part of a stream of the client, and where it goes.
#[derive(Debug)]
pub(crate) struct PartOf {
    pub(crate) writer: PipeWriter,
    pub(crate) sent: Sent,
    pub(crate) promise: Promise,
}

impl PartOf {
    /// Hands the part to its reader. `room`: what it holds until it was read.
    pub(crate) fn hand_over(self, room: Option<tokio::sync::OwnedSemaphorePermit>) {
        let PartOf { writer, sent, promise } = self;
        writer.send(Chunk::new(sent, promise, room));
    }
}
