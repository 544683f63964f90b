//! The table of a session: what the client can refer to by a number. It does no I/O: it says what is to do.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::methods::{FindMethod, Method};
use super::methods_next::{ACTIVATION, find_next_method};
use super::outcome::{Outcome, Pending};
use super::pipe::{self, PipeReader, PipeWriter, Sent};
use super::step::{Answer, Arguments, Call, MethodOf, PartOf, Step, Wait};
use super::wire::{Failure, Id, Malformed, Message, Reference, Unsupported, Value};

/// The entries at one time. A client drops an entry as soon as it has the result.
const MOST_ENTRIES: usize = 4096;
/// The bytes of a stream that no call reads yet.
const MOST_UNREAD: usize = 1 << 20;

/// Why a session cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("there is no entry {0}")]
    NoEntry(Id),
    #[error("entry {0} has fewer references than are released")]
    TooManyReleased(Id),
    #[error("more than {MOST_ENTRIES} results and streams are not released")]
    TooManyEntries,
    #[error("more than {MOST_UNREAD} bytes came for a stream that no call reads")]
    Unread,
    #[error("entry {0} is no stream whose end can be read")]
    NoStream(Id),
    #[error("messages are text")]
    Binary,
    /// The client said so.
    #[error("the client ended the session")]
    Aborted,
}

/// The table.
#[derive(Debug)]
pub(crate) struct Session {
    entries: HashMap<Id, Entry>,
    /// The number of the next entry that the client makes.
    next: Id,
    /// The number of the next entry that the server makes.
    next_own: Id,
    /// Finds the methods that the client can call.
    find: FindMethod,
}

#[derive(Debug)]
struct Entry {
    kind: Kind,
    references: u32,
    is_pulled: bool,
}

#[derive(Debug)]
enum Kind {
    /// A method, or a group of methods.
    Place(Vec<String>),
    /// What a result has at a path.
    Result(Pending, Vec<String>),
    /// A subscription, which can be called. It ends when no entry has it any more.
    Subscription(Pending),
    /// A stream of the client; the reader until a call takes it.
    Stream { writer: PipeWriter, reader: Option<PipeReader>, unread: usize },
}

/// A new entry, and what is to do for it.
type Made = (Kind, Step);

impl Session {
    /// A session whose client can call the methods.
    pub(crate) fn new() -> Session {
        let main = Entry { kind: Kind::Place(Vec::new()), references: 1, is_pulled: false };
        Session { entries: HashMap::from([(0, main)]), next: 1, next_own: -1, find: Method::find }
    }

    /// Forgets an entry that the server made, and the client has not got.
    pub(crate) fn forget(&mut self, id: Id) {
        self.entries.remove(&id);
    }

    /// Takes a message of the client.
    ///
    /// # Errors
    /// When the session cannot go on.
    pub(crate) fn take(&mut self, message: Message) -> Result<Step, Broken> {
        match message {
            Message::Push(value) => {
                let (kind, step) = self.evaluate(value)?;
                self.push(kind)?;
                Ok(step)
            }
            Message::Stream(value) => {
                let (kind, mut step) = self.evaluate(value)?;
                let id = self.take_number();
                // The entry is released with its answer, so it is never in the table.
                step.wait = Some(Wait { id, answer: answer_at_once(kind) });
                Ok(step)
            }
            Message::Pipe => {
                let (writer, reader) = pipe::open_pipe();
                self.push(Kind::Stream { writer, reader: Some(reader), unread: 0 })?;
                Ok(Step::default())
            }
            Message::Pull(id) => self.pull(id),
            Message::Settled(id, is_good) => Ok(Step { settled: Some((id, is_good)), ..Step::default() }),
            Message::Release(id, count) => self.release(id, count).map(|()| Step::default()),
            Message::Abort => Err(Broken::Aborted),
        }
    }

    fn take_number(&mut self) -> Id {
        let id = self.next;
        self.next += 1;
        id
    }

    fn push(&mut self, kind: Kind) -> Result<(), Broken> {
        let id = self.take_number();
        self.insert(id, kind)
    }

    fn insert(&mut self, id: Id, kind: Kind) -> Result<(), Broken> {
        if self.entries.len() >= MOST_ENTRIES {
            return Err(Broken::TooManyEntries);
        }
        self.entries.insert(id, Entry { kind, references: 1, is_pulled: false });
        Ok(())
    }

    fn pull(&mut self, id: Id) -> Result<Step, Broken> {
        let entry = self.entries.get_mut(&id).ok_or(Broken::NoEntry(id))?;
        if std::mem::replace(&mut entry.is_pulled, true) {
            return Ok(Step::default());
        }
        let answer = match &entry.kind {
            Kind::Result(pending, path) => Answer::Result(pending.clone(), path.clone()),
            Kind::Place(path) => {
                let path = path.clone();
                Answer::Callable(self.push_own(Kind::Place(path))?)
            }
            Kind::Subscription(pending) => {
                let pending = pending.clone();
                let own = self.push_own(Kind::Subscription(pending.clone()))?;
                Answer::Subscription(pending, own)
            }
            Kind::Stream { .. } => return Err(Broken::NoStream(id)),
        };
        Ok(Step { wait: Some(Wait { id, answer }), ..Step::default() })
    }

    fn push_own(&mut self, kind: Kind) -> Result<Id, Broken> {
        let own = self.next_own;
        self.next_own -= 1;
        self.insert(own, kind).map(|()| own)
    }

    fn release(&mut self, id: Id, count: u32) -> Result<(), Broken> {
        let entry = self.entries.get_mut(&id).ok_or(Broken::NoEntry(id))?;
        entry.references = entry.references.checked_sub(count).ok_or(Broken::TooManyReleased(id))?;
        if entry.references == 0 {
            self.entries.remove(&id);
        }
        Ok(())
    }

    fn evaluate(&mut self, value: Result<Value, Unsupported>) -> Result<Made, Broken> {
        match value {
            Ok(Value::Entry(reference)) => self.refer(reference),
            Ok(_) => Ok(refused(Failure::new("a value by itself is nothing to do"))),
            Err(unsupported) => Ok(refused(Failure::new(&unsupported))),
        }
    }

    fn refer(&mut self, reference: Reference) -> Result<Made, Broken> {
        let Reference { id, path, arguments } = reference;
        let entry = self.entries.get(&id).ok_or(Broken::NoEntry(id))?;
        match (&entry.kind, arguments) {
            (Kind::Place(above), None) => Ok((Kind::Place(below(above, &path)?), Step::default())),
            (Kind::Place(above), Some(values)) => {
                let method = below(above, &path)?.join(".");
                if method == ACTIVATION {
                    self.find = find_next_method;
                }
                self.call(method, MethodOf::Server(self.find), values)
            }
            (Kind::Result(pending, above), None) => {
                let kind = Kind::Result(pending.clone(), below(above, &path)?);
                Ok((kind, Step::default()))
            }
            (Kind::Subscription(pending), None) if path.is_empty() => {
                Ok((Kind::Subscription(pending.clone()), Step::default()))
            }
            (Kind::Subscription(pending), Some(values)) => {
                let of = MethodOf::Subscription(pending.clone());
                self.call(path.join("."), of, values)
            }
            (Kind::Result(..), Some(_)) | (Kind::Subscription(_), None) => {
                let name = path.last().map_or("the result", String::as_str);
                Ok(refused(Failure::new(&format!("'{name}' is not a function."))))
            }
            (Kind::Stream { .. }, arguments) => self.write(id, &path, arguments),
        }
    }

    fn call(&mut self, method: String, of: MethodOf, values: Vec<Value>) -> Result<Made, Broken> {
        let mut arguments = Arguments::default();
        for value in &values {
            if let Err(failure) = self.collect(value, &mut arguments)? {
                return Ok(refused(failure));
            }
        }
        arguments.values = values;
        let (promise, pending) = watch::channel(None);
        let is_subscription = match of {
            MethodOf::Server(find) => find(&method, &[]).is_ok_and(Method::is_subscription),
            MethodOf::Subscription(_) => false,
        };
        let call = Some(Call { method, of, arguments, promise });
        let kind =
            if is_subscription { Kind::Subscription(pending) } else { Kind::Result(pending, Vec::new()) };
        Ok((kind, Step { call, ..Step::default() }))
    }

    /// Collects what a value refers to.
    fn collect(&mut self, value: &Value, into: &mut Arguments) -> Result<Result<(), Failure>, Broken> {
        let unsupported = |kind: &str| Ok(Err(Failure::new(&Unsupported(kind.to_owned()))));
        match value {
            Value::Array(values) => {
                for value in values {
                    if let Err(failure) = self.collect(value, into)? {
                        return Ok(Err(failure));
                    }
                }
            }
            Value::Object(fields) => {
                for (_, value) in fields {
                    if let Err(failure) = self.collect(value, into)? {
                        return Ok(Err(failure));
                    }
                }
            }
            Value::Callback(id) => into.callbacks.push(*id),
            Value::Readable(id) => {
                if into.stream.replace(self.take_reader(*id)?).is_some() {
                    return unsupported("readable");
                }
            }
            Value::Entry(reference) => {
                let entry = self.entries.get(&reference.id).ok_or(Broken::NoEntry(reference.id))?;
                match (&entry.kind, &reference.arguments) {
                    (Kind::Result(pending, path), None) => {
                        into.results.insert(reference.id, (pending.clone(), path.clone()));
                    }
                    _ => return unsupported("import"),
                }
            }
            Value::Undefined | Value::Plain(_) | Value::Bytes(_) => {}
        }
        Ok(Ok(()))
    }

    fn take_reader(&mut self, id: Id) -> Result<PipeReader, Broken> {
        match self.entries.get_mut(&id).ok_or(Broken::NoEntry(id))? {
            Entry { kind: Kind::Stream { reader, .. }, .. } => reader.take().ok_or(Broken::NoStream(id)),
            Entry { .. } => Err(Broken::NoStream(id)),
        }
    }

    fn write(&mut self, id: Id, path: &[String], arguments: Option<Vec<Value>>) -> Result<Made, Broken> {
        let first = arguments.and_then(|values| values.into_iter().next()).unwrap_or(Value::Undefined);
        let sent = match path.first().map(String::as_str) {
            Some("write") => match first {
                Value::Bytes(bytes) => Sent::Bytes(bytes.into()),
                Value::Plain(serde_json::Value::String(text)) => Sent::Bytes(text.into()),
                _ => return Ok(refused(Failure::new("a part of a stream is bytes"))),
            },
            Some("close") => Sent::Close,
            Some("abort") => Sent::Abort,
            _ => return Ok(refused(Failure::new("a stream has `write`, `close` and `abort`"))),
        };
        let Some(Entry { kind: Kind::Stream { writer, reader, unread }, .. }) = self.entries.get_mut(&id)
        else {
            return Err(Broken::NoStream(id));
        };
        if let (Sent::Bytes(bytes), Some(_)) = (&sent, reader) {
            *unread += bytes.len();
            if *unread > MOST_UNREAD {
                return Err(Broken::Unread);
            }
        }
        let (promise, pending) = watch::channel(None);
        let part = Some(PartOf { writer: writer.clone(), sent, promise });
        Ok((Kind::Result(pending, Vec::new()), Step { part, ..Step::default() }))
    }
}

/// A path below another. Each is short, and so is the whole: only a hostile client goes deeper and deeper.
fn below(above: &[String], path: &[String]) -> Result<Vec<String>, Broken> {
    let whole = [above, path].concat();
    let length: usize = whole.iter().map(|key| key.len() + 1).sum();
    if length > 4096 { Err(Malformed::Message("a path is too long").into()) } else { Ok(whole) }
}

/// A result that is a failure from the beginning.
fn refused(failure: Failure) -> Made {
    (Kind::Result(failed(failure), Vec::new()), Step::default())
}

fn failed(failure: Failure) -> Pending {
    let (_, pending) = watch::channel(Some(Arc::new(Outcome::failed(failure))));
    pending
}

/// The answer to an entry that is pulled at once.
fn answer_at_once(kind: Kind) -> Answer {
    match kind {
        Kind::Result(pending, path) => Answer::Result(pending, path),
        Kind::Place(_) | Kind::Stream { .. } | Kind::Subscription(_) => {
            Answer::Result(failed(Failure::new("a part of a stream is a call")), Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use serde_json::json;

    use super::*;
    use crate::rpc::outcome::Good;
    use crate::rpc::source::{Cancel, Form, Subscription};
    use crate::rpc::wire::parse_message;

    fn take(session: &mut Session, text: &str) -> Result<Step, Broken> {
        session.take(parse_message(text)?)
    }

    fn step(session: &mut Session, text: &str) -> Step {
        take(session, text).unwrap_or_else(|broken| panic!("{text}: {broken}"))
    }

    /// The message with which a result that is there already is refused.
    fn refusal(session: &mut Session, id: Id) -> String {
        let wait = step(session, &format!("[\"pull\",{id}]")).wait.unwrap();
        let Answer::Result(pending, path) = wait.answer else { panic!() };
        let outcome = pending.borrow().clone().expect("the result is there");
        outcome.at(&path).unwrap_err().message
    }

    #[test]
    fn a_method_can_be_called_in_one_message_or_in_several() {
        let session = &mut Session::new();
        let call = step(session, "[\"push\",[\"pipeline\",0,[\"files\",\"exists\"],[\"/a\"]]]").call.unwrap();
        assert_eq!((call.method.as_str(), call.arguments.values.len()), ("files.exists", 1));
        assert!(step(session, "[\"push\",[\"pipeline\",0,[\"files\"]]]").call.is_none());
        assert!(step(session, "[\"push\",[\"import\",2,[\"exists\"]]]").call.is_none());
        for text in ["[\"push\",[\"pipeline\",2,[\"exists\"],[]]]", "[\"push\",[\"pipeline\",3,[],[]]]"] {
            assert_eq!(step(session, text).call.unwrap().method, "files.exists", "{text}");
        }
        let Some(Wait { id: 2, answer: Answer::Callable(own) }) = step(session, "[\"pull\",2]").wait else {
            panic!()
        };
        let text = format!("[\"push\",[\"pipeline\",{own},[\"mkdir\"],[]]]");
        assert_eq!(step(session, &text).call.unwrap().method, "files.mkdir");
        assert!(step(session, "[\"pull\",2]").wait.is_none(), "an entry is pulled once");
    }

    #[test]
    fn a_client_that_activates_its_session_has_the_methods_of_0_13() {
        let session = &mut Session::new();
        let watch = "[\"push\",[\"pipeline\",0,[\"watch\",\"watch\"],[{}]]]";
        let find = |step: Step| match step.call.unwrap().of {
            MethodOf::Server(find) => find,
            MethodOf::Subscription(_) => panic!(),
        };
        assert!(find(step(session, watch))("commands.execute", &[]).is_ok());
        let activation = "[\"push\",[\"pipeline\",0,[\"utils\",\"activateControlSession\"],[\"x\"]]]";
        assert!(find(step(session, activation))("commands.execute", &[]).is_err());
        let Answer::Result(..) = step(session, "[\"pull\",1]").wait.unwrap().answer else { panic!() };
        step(session, watch);
        let Answer::Subscription(..) = step(session, "[\"pull\",3]").wait.unwrap().answer else { panic!() };
    }

    #[test]
    fn a_subscription_lives_as_long_as_an_entry_has_it() {
        let session = &mut Session::new();
        step(session, "[\"push\",[\"pipeline\",0,[\"utils\",\"activateControlSession\"],[\"x\"]]]");
        let call = step(session, "[\"push\",[\"pipeline\",0,[\"watch\",\"watch\"],[{}]]]").call.unwrap();
        let subscription = Subscription::new(axum::body::Body::empty(), Form::Bytes);
        let (.., mut cancel) = subscription.take().unwrap().split();
        let made = Outcome::new(Ok(Good::Subscription(subscription)), None);
        call.promise.send_replace(Some(Arc::new(made)));
        drop(call);
        let Some(Wait { answer: Answer::Subscription(pending, own), .. }) =
            step(session, "[\"pull\",2]").wait
        else {
            panic!()
        };
        drop(pending);
        step(session, "[\"release\",2,1]");
        let stream = step(session, &format!("[\"push\",[\"pipeline\",{own},[\"stream\"],[]]]")).call.unwrap();
        assert!(matches!(stream.of, MethodOf::Subscription(_)) && stream.method == "stream");
        drop(stream);
        let waits = |cancel: &mut Cancel| {
            let context = &mut Context::from_waker(Waker::noop());
            std::pin::pin!(cancel.wait()).poll(context).is_pending()
        };
        assert!(waits(&mut cancel));
        step(session, &format!("[\"release\",{own},1]"));
        assert!(!waits(&mut cancel));
        assert_eq!(session.entries.len(), 3);
    }

    #[test]
    fn a_result_that_is_not_there_yet_can_be_used() {
        let session = &mut Session::new();
        let first = step(session, "[\"push\",[\"pipeline\",0,[\"a\",\"b\"],[]]]").call.unwrap();
        step(session, "[\"push\",[\"pipeline\",1,[\"out\"]]]");
        let text = "[\"push\",[\"pipeline\",0,[\"c\",\"d\"],[[[[\"pipeline\",2,[0]]]]]]]";
        let second = step(session, text).call.unwrap();
        step(session, "[\"release\",1,1]");
        step(session, "[\"release\",2,1]");
        let good = Good::Json(json!({ "out": [7] }));
        first.promise.send_replace(Some(Arc::new(Outcome::new(Ok(good), None))));
        let (pending, path) = &second.arguments.results[&2];
        let outcome = pending.borrow().clone().unwrap();
        assert_eq!(outcome.at(path).unwrap(), Some(&json!([7])));
    }

    #[test]
    fn what_is_not_served_fails_alone() {
        let session = &mut Session::new();
        for (id, expression, part) in [
            (1, "[\"remap\",0,[],[],[]]", "`remap`"),
            (2, "7", "nothing to do"),
            (3, "[\"pipeline\",0,[\"a\"],[[\"blob\",\"\",1]]]", "`blob`"),
            (4, "[\"pipeline\",0,[\"a\"],[[\"import\",0]]]", "`import`"),
            (5, "[\"pipeline\",1,[\"x\"],[]]", "'x' is not a function"),
        ] {
            assert!(step(session, &format!("[\"push\",{expression}]")).call.is_none());
            let refusal = refusal(session, id);
            assert!(refusal.contains(part), "{expression}: {refusal}");
        }
    }

    #[test]
    fn a_client_that_breaks_the_protocol_is_found() {
        for (texts, broken) in [
            (&["[\"pull\",1]"][..], Broken::NoEntry(1)),
            (&["[\"release\",5,1]"], Broken::NoEntry(5)),
            (&["[\"push\",[\"pipeline\",9,[],[]]]"], Broken::NoEntry(9)),
            (&["[\"push\",[\"pipeline\",0,[],[[\"pipeline\",9]]]]"], Broken::NoEntry(9)),
            (&["[\"pipe\"]", "[\"release\",1,2]"], Broken::TooManyReleased(1)),
            (&["[\"pipe\"]", "[\"release\",1,1]", "[\"release\",1,1]"], Broken::NoEntry(1)),
            (&["[\"pipe\"]", "[\"pull\",1]"], Broken::NoStream(1)),
            (&["[\"push\",[\"pipeline\",0,[],[[\"readable\",0]]]]"], Broken::NoStream(0)),
            (
                &["[\"pipe\"]", "[\"push\",[\"pipeline\",0,[],[[[[\"readable\",1]]],[\"readable\",1]]]]"],
                Broken::NoStream(1),
            ),
            (&["[\"abort\",1]"], Broken::Aborted),
        ] {
            let session = &mut Session::new();
            let (last, first) = texts.split_last().unwrap();
            for text in first {
                step(session, text);
            }
            assert_eq!(take(session, last).unwrap_err(), broken, "{texts:?}");
        }
    }

    #[test]
    fn entries_are_bounded() {
        let session = &mut Session::new();
        let message = "[\"push\",[\"pipeline\",0,[\"files\"]]]";
        let broken = (0..=MOST_ENTRIES).find_map(|_| take(session, message).err());
        assert_eq!(broken, Some(Broken::TooManyEntries));
        let session = &mut Session::new();
        for id in 1..10_000 {
            step(session, message);
            step(session, &format!("[\"release\",{id},1]"));
        }
        assert_eq!(session.entries.len(), 1);
    }

    #[test]
    fn the_parts_of_a_stream_reach_the_call_that_reads_it() {
        let session = &mut Session::new();
        step(session, "[\"pipe\"]");
        let write = "[\"stream\",[\"pipeline\",1,[\"write\"],[[\"bytes\",\"AAAA\"]]]]";
        let early = step(session, write);
        assert_eq!(early.part.unwrap().sent, Sent::Bytes(vec![0; 3].into()));
        assert_eq!(early.wait.unwrap().id, 2);
        let call =
            "[\"push\",[\"pipeline\",0,[\"files\",\"writeFileStream\"],[\"/a\",[\"readable\",1],\"s\"]]]";
        assert!(step(session, call).call.unwrap().arguments.stream.is_some());
        let close = step(session, "[\"stream\",[\"pipeline\",1,[\"close\"],[]]]");
        assert_eq!(close.part.unwrap().sent, Sent::Close);
    }

    #[test]
    fn a_stream_that_no_call_reads_is_bounded() {
        let session = &mut Session::new();
        step(session, "[\"pipe\"]");
        let bytes = "A".repeat(400_000);
        let write = format!("[\"stream\",[\"pipeline\",1,[\"write\"],[[\"bytes\",\"{bytes}\"]]]]");
        let broken = (0..5).find_map(|_| take(session, &write).err());
        assert_eq!(broken, Some(Broken::Unread));
    }
}
