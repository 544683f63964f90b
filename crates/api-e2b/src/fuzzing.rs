//! The bytes of clients, for the targets of `fuzz/`.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use serde_json::Value;

use crate::address::Address;
use crate::connect::Messages;
use crate::files::parts_of_form;
use crate::protobuf::{call, read, write};

/// Reads the messages of a stream that comes in these pieces; `None` if it is not valid.
///
/// # Panics
/// When no runtime can be made.
pub fn read_stream(pieces: &[&[u8]]) -> Option<Vec<Value>> {
    let pieces: Vec<Bytes> = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
    run(async move {
        let request = Request::post("/").header(header::CONTENT_TYPE, "application/connect+json");
        let mut messages = Messages::of(request.body(body_of(pieces)).ok()?)?;
        let mut all = Vec::new();
        while let Some(message) = messages.next().await.ok()? {
            all.push(message);
        }
        Some(all)
    })
}

/// Reads these bytes as the protobuf of a call's request, and writes what was read as its answer.
pub fn read_protobuf(path: &str, bytes: &[u8]) -> Option<Vec<u8>> {
    let (request, answer) = call(path)?;
    let message = read(request, bytes)?;
    Some(write(answer, &message.into()))
}

/// Reads the parts of a form that comes in these pieces; `None` if it is not valid.
///
/// # Panics
/// When no runtime can be made.
pub fn read_form(boundary: &str, pieces: &[&[u8]]) -> Option<Vec<(String, Option<String>, Vec<u8>)>> {
    let pieces: Vec<Bytes> = pieces.iter().map(|piece| Bytes::copy_from_slice(piece)).collect();
    let media_type = format!("multipart/form-data; boundary={boundary}");
    run(async move { parts_of_form(&media_type, body_of(pieces)).await })
}

/// Reads the sandbox and the port of a request with this host and these headers.
pub fn read_address(host: &[u8], id: Option<&[u8]>) -> Option<(String, u16)> {
    let mut headers = HeaderMap::new();
    headers.insert(header::HOST, HeaderValue::from_bytes(host).ok()?);
    if let Some(id) = id {
        headers.insert("e2b-sandbox-id", HeaderValue::from_bytes(id).ok()?);
    }
    Address::of(&headers).map(|address| (address.id, address.port))
}

fn body_of(pieces: Vec<Bytes>) -> Body {
    let (sender, body) = penfold_server::sent_body::queued_body();
    tokio::spawn(async move {
        for piece in pieces {
            let _ = sender.send(Ok(piece)).await;
        }
    });
    body
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(work)
}
