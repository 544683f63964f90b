//! The messages of Cap'n Web, as JSON text: what a client sends is read here, and what it gets is written here.
//!
//! <https://github.com/cloudflare/capnweb> describes the protocol. An array in a value is written as an array in an array; an
//! array whose first element is a word is a special value.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::{Map, Value as Json, json};

use crate::time;

/// The values in one message: they bound the memory that a short text can take.
const MOST_VALUES: usize = 1 << 18;
/// The bytes of a path, all keys together.
const LONGEST_PATH: usize = 1024;

/// Base64 without padding, as the protocol has it. Padding is accepted.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// The number of an entry in a table of the session.
pub(crate) type Id = i64;

/// A message of the client.
#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    /// Evaluate this; the client gives the result the next number.
    Push(Result<Value, Unsupported>),
    /// The same for a part of a stream. It is pulled and released without further messages.
    Stream(Result<Value, Unsupported>),
    /// The client opens a stream, and gives it the next number.
    Pipe,
    /// The client waits for this result.
    Pull(Id),
    /// The client has evaluated what it got; with `false` that failed.
    Settled(Id, bool),
    /// The client drops so many references to this entry.
    Release(Id, u32),
    /// The client ends the session.
    Abort,
}

/// A value of the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Undefined,
    /// Null, a boolean, a number or text.
    Plain(Json),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
    Bytes(Vec<u8>),
    /// What an entry of the server's table has at a path, or a call of it.
    Entry(Reference),
    /// The readable end of a stream that the client opened.
    Readable(Id),
    /// Something of the client that can be called.
    Callback(Id),
}

/// An entry of the server's table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reference {
    pub(crate) id: Id,
    pub(crate) path: Vec<String>,
    /// The arguments of a call.
    pub(crate) arguments: Option<Vec<Value>>,
}

/// A kind of value that no client of this server sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this server takes no value of the kind `{0}` here")]
pub(crate) struct Unsupported(pub(crate) String);

/// A text that is no message. It ends the session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("the message is no JSON: {0}")]
    Json(String),
    #[error("the message has more than {MOST_VALUES} values")]
    TooMany,
    #[error("this is no message of Cap'n Web: {0}")]
    Message(&'static str),
}

/// Reads a message.
///
/// # Errors
/// When the text is none. A value of a kind that is not served is no error of the message.
pub(crate) fn parse_message(text: &str) -> Result<Message, Malformed> {
    if count_values(text) > MOST_VALUES {
        return Err(Malformed::TooMany);
    }
    // The parser limits the depth to 128.
    let message: Json = serde_json::from_str(text).map_err(|error| Malformed::Json(error.to_string()))?;
    let Json::Array(mut parts) = message else { return Err(Malformed::Message("it is no array")) };
    parts.resize(parts.len().max(3), Json::Null);
    let [kind, first, second, ..] = parts.as_mut_slice() else {
        return Err(Malformed::Message("it is empty"));
    };
    let id = first.as_i64().ok_or(Malformed::Message("it has no number of an entry"));
    Ok(match kind.as_str() {
        Some("push") => Message::Push(supported(first.take())?),
        Some("stream") => Message::Stream(supported(first.take())?),
        Some("pipe") => Message::Pipe,
        Some("pull") => Message::Pull(id?),
        Some("resolve") => Message::Settled(id?, true),
        Some("reject") => Message::Settled(id?, false),
        Some("release") => {
            let count = second.as_u64().and_then(|count| u32::try_from(count).ok());
            let count = count.filter(|&count| count > 0);
            Message::Release(id?, count.ok_or(Malformed::Message("it releases no number of references"))?)
        }
        Some("abort") => Message::Abort,
        _ => return Err(Malformed::Message("its first word is unknown")),
    })
}

/// Counts the values of a JSON text without reading them; of a text that is no JSON, the number means nothing.
fn count_values(text: &str) -> usize {
    let (mut count, mut is_quoted, mut is_escaped) = (0, false, false);
    for byte in text.bytes() {
        if is_escaped {
            is_escaped = false;
        } else if is_quoted {
            is_escaped = byte == b'\\';
            is_quoted = byte != b'"';
        } else {
            is_quoted = byte == b'"';
            count += usize::from(matches!(byte, b',' | b'[' | b'{'));
        }
    }
    count
}

/// Why a value cannot be had.
enum Refused {
    Unsupported(Unsupported),
    Malformed(Malformed),
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Refused {
        Refused::Malformed(malformed)
    }
}

fn supported(value: Json) -> Result<Result<Value, Unsupported>, Malformed> {
    match parse_value(value) {
        Ok(value) => Ok(Ok(value)),
        Err(Refused::Unsupported(unsupported)) => Ok(Err(unsupported)),
        Err(Refused::Malformed(malformed)) => Err(malformed),
    }
}

fn parse_value(value: Json) -> Result<Value, Refused> {
    match value {
        Json::Array(parts) => parse_array(parts),
        Json::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| Ok((name, parse_value(value)?)));
            Ok(Value::Object(fields.collect::<Result<_, Refused>>()?))
        }
        plain => Ok(Value::Plain(plain)),
    }
}

fn parse_values(values: Vec<Json>) -> Result<Vec<Value>, Refused> {
    values.into_iter().map(parse_value).collect()
}

fn parse_array(mut parts: Vec<Json>) -> Result<Value, Refused> {
    if let [Json::Array(_)] = parts.as_slice() {
        let Some(Json::Array(values)) = parts.pop() else { return Ok(Value::Undefined) };
        return Ok(Value::Array(parse_values(values)?));
    }
    let bad = |why| Refused::Malformed(Malformed::Message(why));
    let kind = parts.first().and_then(Json::as_str).ok_or(bad("an array is not escaped"))?.to_owned();
    let text = || parts.get(1).and_then(Json::as_str).ok_or(bad("a special value has no text"));
    let number = || parts.get(1).and_then(Json::as_i64).ok_or(bad("a special value has no number"));
    Ok(match kind.as_str() {
        "undefined" => Value::Undefined,
        // As `JSON.stringify` writes them.
        "inf" | "-inf" | "nan" => Value::Plain(Json::Null),
        "bigint" => Value::Plain(parse_bigint(text()?)),
        "date" => Value::Plain(parts.get(1).and_then(parse_date).unwrap_or(Json::Null)),
        "url" => Value::Plain(text()?.into()),
        "bytes" => Value::Bytes(BASE64.decode(text()?).map_err(|_| bad("bytes are no base64"))?),
        "error" => {
            let message = parts.get(2).and_then(Json::as_str).unwrap_or_default();
            Value::Object(vec![
                ("name".to_owned(), Value::Plain(text()?.into())),
                ("message".to_owned(), Value::Plain(message.into())),
            ])
        }
        "import" | "pipeline" => Value::Entry(parse_reference(number()?, parts)?),
        "readable" => Value::Readable(number()?),
        "export" | "promise" | "writable" => Value::Callback(number()?),
        "remap" | "headers" | "request" | "response" | "blob" => {
            return Err(Refused::Unsupported(Unsupported(kind)));
        }
        _ => return Err(bad("a special value has an unknown kind")),
    })
}

/// A number if it is one of JSON without loss, else the digits.
fn parse_bigint(digits: &str) -> Json {
    digits.parse::<i64>().map_or_else(|_| digits.into(), Json::from)
}

/// As `JSON.stringify` writes a date.
fn parse_date(ms: &Json) -> Option<Json> {
    let ms = ms.as_i64().or_else(|| format!("{:.0}", ms.as_f64()?).parse().ok())?;
    Some(time::iso_time(u64::try_from(ms).ok()?).into())
}

fn parse_reference(id: Id, mut parts: Vec<Json>) -> Result<Reference, Refused> {
    let bad = |why| Refused::Malformed(Malformed::Message(why));
    let mut rest = parts.drain(2..);
    let path = match rest.next() {
        None => Vec::new(),
        Some(Json::Array(keys)) => keys
            .into_iter()
            .map(|key| match key {
                Json::String(key) => Ok(key),
                Json::Number(key) => Ok(key.to_string()),
                _ => Err(bad("a path has a key that is neither text nor a number")),
            })
            .collect::<Result<Vec<_>, _>>()?,
        Some(_) => return Err(bad("a path is no array")),
    };
    if path.iter().map(|key| key.len() + 1).sum::<usize>() > LONGEST_PATH {
        return Err(bad("a path is too long"));
    }
    let arguments = match rest.next() {
        None => None,
        Some(Json::Array(values)) => Some(parse_values(values)?),
        Some(_) => return Err(bad("arguments are no array")),
    };
    Ok(Reference { id, path, arguments })
}

/// An error, as the client gets it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// Own properties of the error, as `code`.
    pub(crate) properties: Map<String, Json>,
}

impl Failure {
    pub(crate) fn new(message: &(impl ToString + ?Sized)) -> Failure {
        Failure { message: message.to_string(), properties: Map::new() }
    }

    fn expression(&self) -> Json {
        let mut error = vec![json!("error"), json!("Error"), json!(self.message)];
        if !self.properties.is_empty() {
            // The stack is absent.
            error.push(Json::Null);
            error.push(escape(Json::Object(self.properties.clone())));
        }
        Json::Array(error)
    }
}

/// Writes JSON as a value: arrays are escaped.
pub(crate) fn escape(value: Json) -> Json {
    escape_dated(value, &[])
}

/// Writes JSON as a value in which fields of these names are dates, in milliseconds.
pub(crate) fn escape_dated(value: Json, dates: &[&str]) -> Json {
    match value {
        Json::Array(values) => {
            json!([values.into_iter().map(|value| escape_dated(value, dates)).collect::<Vec<_>>()])
        }
        Json::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| {
                let is_date = value.is_number() && dates.contains(&name.as_str());
                let value = if is_date { json!(["date", value]) } else { escape_dated(value, dates) };
                (name, value)
            })
            .collect(),
        plain => plain,
    }
}

/// Writes an event as a value. Its field `data` is bytes, as base64.
pub(crate) fn event(event: Json) -> Json {
    let mut value = escape(event);
    if let Some(data) = value.get_mut("data") {
        *data = json!(["bytes", data.take()]);
    }
    value
}

/// Writes bytes as a route takes them in a field: base64.
pub(crate) fn text_of_bytes(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Writes a call of a function of the client. It is released with its result.
pub(crate) fn call(function: Id, argument: &Json) -> String {
    json!(["stream", ["pipeline", function, [], [argument]]]).to_string()
}

/// Writes that this result is there. `value` is escaped already.
pub(crate) fn resolve(id: Id, value: &Json) -> String {
    json!(["resolve", id, value]).to_string()
}

/// Writes that there is no result.
pub(crate) fn reject(id: Id, failure: &Failure) -> String {
    json!(["reject", id, failure.expression()]).to_string()
}

/// Writes the last message of a session.
pub(crate) fn abort(failure: &Failure) -> String {
    json!(["abort", failure.expression()]).to_string()
}

/// Writes that references to something of the client are dropped.
pub(crate) fn release(id: Id, count: u32) -> String {
    json!(["release", id, count]).to_string()
}

/// Writes that the server opens a stream.
pub(crate) fn pipe() -> String {
    json!(["pipe"]).to_string()
}

/// What happens to a stream that the server opened.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    Bytes(&'a [u8]),
    /// A value that is escaped already.
    Value(Json),
    Close,
    Abort(&'a Failure),
}

/// Writes a part of a stream.
pub(crate) fn stream(pipe: Id, part: &Part<'_>) -> String {
    let (method, arguments) = match part {
        Part::Bytes(bytes) => ("write", json!([["bytes", BASE64.encode(bytes)]])),
        Part::Value(value) => ("write", json!([value])),
        Part::Close => ("close", json!([])),
        Part::Abort(failure) => ("abort", json!([failure.expression()])),
    };
    json!(["stream", ["pipeline", pipe, [method], arguments]]).to_string()
}

/// The value of a stream that the server opened.
pub(crate) fn readable(pipe: Id) -> Json {
    json!(["readable", pipe])
}

/// The value of something of the server that can be called.
pub(crate) fn callable(id: Id) -> Json {
    json!(["export", id])
}

/// The value of nothing.
pub(crate) fn undefined() -> Json {
    json!(["undefined"])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Value {
        match parse_message(&format!("[\"push\",{text}]")) {
            Ok(Message::Push(Ok(value))) => value,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn messages_are_read() {
        for (text, message) in [
            ("[\"pipe\"]", Message::Pipe),
            ("[\"pull\",7]", Message::Pull(7)),
            ("[\"resolve\",3,[\"undefined\"]]", Message::Settled(3, true)),
            ("[\"reject\",3,[\"error\",\"Error\",\"x\"]]", Message::Settled(3, false)),
            ("[\"release\",-2,1]", Message::Release(-2, 1)),
            ("[\"abort\",[\"error\",\"Error\",\"x\"]]", Message::Abort),
            (
                "[\"push\",[\"blob\",\"\",[\"readable\",1]]]",
                Message::Push(Err(Unsupported("blob".to_owned()))),
            ),
            ("[\"stream\",1]", Message::Stream(Ok(Value::Plain(json!(1))))),
        ] {
            assert_eq!(parse_message(text), Ok(message), "{text}");
        }
    }

    #[test]
    fn values_are_read() {
        let plain = |value: Json| Value::Plain(value);
        for (text, expected) in [
            ("null", plain(Json::Null)),
            ("[[]]", Value::Array(vec![])),
            ("[[1,[[2]]]]", Value::Array(vec![plain(json!(1)), Value::Array(vec![plain(json!(2))])])),
            ("[\"undefined\"]", Value::Undefined),
            ("[\"-inf\"]", plain(Json::Null)),
            ("[\"bigint\",\"12\"]", plain(json!(12))),
            ("[\"bigint\",\"99999999999999999999\"]", plain(json!("99999999999999999999"))),
            ("[\"date\",0]", plain(json!("1970-01-01T00:00:00.000Z"))),
            ("[\"date\",null]", plain(Json::Null)),
            ("[\"bytes\",\"AP8\"]", Value::Bytes(vec![0, 255])),
            ("[\"bytes\",\"AP8=\"]", Value::Bytes(vec![0, 255])),
            ("[\"readable\",4]", Value::Readable(4)),
            ("[\"export\",-4]", Value::Callback(-4)),
            ("{\"a\":[\"undefined\"]}", Value::Object(vec![("a".to_owned(), Value::Undefined)])),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        let Value::Entry(reference) = value("[\"pipeline\",5,[\"a\",0],[[[1]]]]") else { panic!() };
        assert_eq!((reference.id, reference.path), (5, vec!["a".to_owned(), "0".to_owned()]));
        assert_eq!(reference.arguments, Some(vec![Value::Array(vec![plain(json!(1))])]));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let deep = format!("[\"push\",{}{}]", "[".repeat(100_000), "]".repeat(100_000));
        let wide = format!("[\"push\",[[{}0]]]", "0,".repeat(300_000));
        let long = format!("[\"push\",[\"pipeline\",0,[\"{}\"]]]", "x".repeat(2000));
        for text in [
            "",
            "{}",
            "[]",
            "null",
            "[\"pull\"]",
            "[\"pull\",1.5]",
            "[\"release\",1]",
            "[\"release\",1,0]",
            "[\"release\",1,-1]",
            "[\"nothing\"]",
            "[\"push\",[]]",
            "[\"push\",[1]]",
            "[\"push\",[\"unknown\"]]",
            "[\"push\",[\"bytes\",\"%\"]]",
            "[\"push\",[\"pipeline\",\"0\"]]",
            "[\"push\",[\"pipeline\",0,1]]",
            "[\"push\",[\"pipeline\",0,[{}]]]",
            "[\"push\",[\"pipeline\",0,[],1]]",
            &deep,
            &wide,
            &long,
        ] {
            assert!(parse_message(text).is_err(), "{}", text.get(..40).unwrap_or(text));
        }
    }

    #[test]
    fn commas_in_text_are_no_values() {
        assert_eq!(count_values("[\"push\",\"a,\\\",[b\",{}]"), 4);
    }

    #[test]
    fn answers_are_written() {
        let mut failure = Failure::new("it failed");
        assert_eq!(reject(2, &failure), "[\"reject\",2,[\"error\",\"Error\",\"it failed\"]]");
        failure.properties.insert("code".to_owned(), json!("A"));
        assert_eq!(abort(&failure), "[\"abort\",[\"error\",\"Error\",\"it failed\",null,{\"code\":\"A\"}]]");
        assert_eq!(resolve(1, &escape(json!({ "a": [[1]] }))), "[\"resolve\",1,{\"a\":[[[[1]]]]}]");
        let part = stream(9, &Part::Value(event(json!({ "type": "a", "data": "AP8" }))));
        assert!(part.ends_with("[\"write\"],[{\"data\":[\"bytes\",\"AP8\"],\"type\":\"a\"}]]]"), "{part}");
        let part = stream(9, &Part::Bytes(&[0, 255]));
        assert_eq!(part, "[\"stream\",[\"pipeline\",9,[\"write\"],[[\"bytes\",\"AP8\"]]]]");
        assert_eq!(stream(9, &Part::Close), "[\"stream\",[\"pipeline\",9,[\"close\"],[]]]");
    }
}
