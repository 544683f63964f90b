//! Messages as protobuf. The handlers know their JSON; here the one is written as the other, by the shapes of the messages.
//!
//! `shapes` — the calls, and the fields of their messages.

mod shapes;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_state::time::parse_rfc3339;
use serde_json::{Map, Value};

pub(crate) use self::shapes::call;

/// The fields of a message.
pub(crate) type Shape = [Field];

/// A field: its number, its name in JSON, and what it holds.
#[derive(Debug)]
pub(crate) struct Field(u32, &'static str, Kind);

/// What a field holds.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Texts,
    /// Base64 in JSON.
    Bytes,
    Flag,
    /// `uint32`.
    Number,
    /// `int64`, a text in JSON.
    Long,
    /// `sint32`.
    Signed,
    /// One of these words, by its place.
    Word(&'static [&'static str]),
    Message(&'static Shape),
    Messages(&'static Shape),
    /// Texts by text.
    Map,
    /// A time of RFC 3339 in JSON.
    Time,
}

/// What the bytes of a field hold, with the type of the wire.
enum Payload<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed number of bytes, which no field here has.
    Fixed,
}

const NUMBER: u64 = 0;
const LENGTH: u64 = 2;
/// The entries of a map.
const ENTRY: &Shape = &[Field(1, "key", Kind::Text), Field(2, "value", Kind::Text)];
const TIME: &Shape = &[Field(1, "seconds", Kind::Long), Field(2, "nanos", Kind::Number)];

/// Reads a message of a request. Unknown fields are passed over, and of a field that comes twice the last one counts. `None` if it is
/// none.
pub(crate) fn read(shape: &Shape, mut bytes: &[u8]) -> Option<Map<String, Value>> {
    let mut message = Map::new();
    while !bytes.is_empty() {
        let key = take_number(&mut bytes)?;
        let payload = take_payload(key & 7, &mut bytes)?;
        let Some(Field(_, name, kind)) = shape.iter().find(|field| u64::from(field.0) == key >> 3) else {
            continue;
        };
        let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(Value::from);
        let value = match (kind, payload) {
            (Kind::Text, Payload::Bytes(bytes)) => text(bytes)?,
            (Kind::Texts, Payload::Bytes(bytes)) => {
                let list = message.entry(*name).or_insert_with(|| Value::Array(Vec::new()));
                list.as_array_mut()?.push(text(bytes)?);
                continue;
            }
            (Kind::Map, Payload::Bytes(bytes)) => {
                let mut entry = read(ENTRY, bytes)?;
                let mut part = |name| entry.remove(name).unwrap_or_else(|| Value::from(""));
                let map = message.entry(*name).or_insert_with(|| Value::Object(Map::new()));
                map.as_object_mut()?.insert(part("key").as_str()?.to_owned(), part("value"));
                continue;
            }
            (Kind::Bytes, Payload::Bytes(bytes)) => STANDARD.encode(bytes).into(),
            (Kind::Message(shape), Payload::Bytes(bytes)) => read(shape, bytes)?.into(),
            (Kind::Flag, Payload::Number(number)) => (number != 0).into(),
            (Kind::Number, Payload::Number(number)) => number.into(),
            // Of another type than the field has: as one that is unknown.
            _ => continue,
        };
        message.insert((*name).to_owned(), value);
    }
    Some(message)
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take_payload<'a>(wire: u64, bytes: &mut &'a [u8]) -> Option<Payload<'a>> {
    let length = match wire {
        NUMBER => return take_number(bytes).map(Payload::Number),
        LENGTH => usize::try_from(take_number(bytes)?).ok()?,
        1 => 8,
        5 => 4,
        _ => return None,
    };
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(if wire == LENGTH { Payload::Bytes(taken) } else { Payload::Fixed })
}

/// Writes a message of an answer. Fields that are missing or null are left out.
pub(crate) fn write(shape: &Shape, message: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    for Field(number, name, kind) in shape {
        if let Some(value) = message.get(name).filter(|value| !value.is_null()) {
            write_field(&mut out, *number, *kind, value);
        }
    }
    out
}

fn write_field(out: &mut Vec<u8>, number: u32, kind: Kind, value: &Value) {
    let each = value.as_array().map_or(&[][..], Vec::as_slice);
    match kind {
        Kind::Text => put_bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        Kind::Texts => each.iter().for_each(|text| write_field(out, number, Kind::Text, text)),
        Kind::Bytes => {
            put_bytes(out, number, &STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default());
        }
        Kind::Flag => put_number(out, number, value.as_bool().unwrap_or_default().into()),
        Kind::Number => put_number(out, number, value.as_u64().unwrap_or_default()),
        Kind::Long => {
            let parsed = value.as_str().and_then(|text| text.parse().ok());
            put_number(out, number, parsed.or(value.as_u64()).unwrap_or_default());
        }
        Kind::Signed => {
            let given = value.as_i64().unwrap_or_default();
            put_number(out, number, ((given << 1) ^ (given >> 63)).cast_unsigned());
        }
        Kind::Word(words) => {
            let place = words.iter().position(|word| value == word).unwrap_or_default();
            put_number(out, number, u64::try_from(place).unwrap_or_default());
        }
        Kind::Message(shape) => put_bytes(out, number, &write(shape, value)),
        Kind::Messages(shape) => {
            for message in each {
                put_bytes(out, number, &write(shape, message));
            }
        }
        Kind::Map => {
            for (key, value) in value.as_object().into_iter().flatten() {
                put_bytes(out, number, &write(ENTRY, &serde_json::json!({ "key": key, "value": value })));
            }
        }
        Kind::Time => {
            let time = value.as_str().and_then(parse_rfc3339).unwrap_or_default();
            let (seconds, nanos) = (time / 1_000_000_000, time % 1_000_000_000);
            put_bytes(out, number, &write(TIME, &serde_json::json!({ "seconds": seconds, "nanos": nanos })));
        }
    }
}

fn put_number(out: &mut Vec<u8>, field: u32, number: u64) {
    put_varint(out, u64::from(field) << 3 | NUMBER);
    put_varint(out, number);
}

fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field) << 3 | LENGTH);
    put_varint(out, u64::try_from(bytes.len()).unwrap_or_default());
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            return out.push(low & 0x7f);
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests;
