//! `/api/read` and `/api/read/stream`: the content is never whole in memory.

use std::io;
use std::path::{Path, PathBuf};

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_process::path_text::path_text;
use penfold_server::sent_body::{self, Sink};
use serde::Deserialize;
use serde_json::json;

use crate::answer::RouteResult;
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::json_body::{JsonString, Utf8, json_body};
use crate::request::Parsed;
use crate::{sse, time};

use super::content::Content;
use super::error::{coded_error, file_error};
use super::path::Place;

const OPERATION: &str = "file.read";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadRequest {
    #[serde(flatten)]
    place: Place,
    encoding: Option<String>,
}

/// Answers with the content of a file.
pub(crate) async fn read(State(api): State<ApiState>, Parsed(request): Parsed<ReadRequest>) -> RouteResult {
    let wanted = match request.encoding.as_deref() {
        Some("base64") => Some(true),
        Some("utf-8" | "utf8") => Some(false),
        None => None,
        Some(other) => {
            let message = format!("encoding `{other}` is neither `utf-8` nor `base64`");
            return Err(ApiError::new(Code::ValidationFailed, message));
        }
    };
    let path = request.place.resolve(&api).await?;
    let (opened, path) = open_content(&api, path).await?;
    let content = opened.map_err(|error| open_error(&path, &error))?;
    let body = sent_body::written_body(move |sink| write(sink, content, &path, wanted));
    let body = body.map_err(|error| ApiError::internal(&error))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// Opens a file beside the runtime, and returns its path with it.
pub(crate) async fn open_content(
    api: &ApiState,
    path: PathBuf,
) -> Result<(io::Result<Content>, PathBuf), ApiError> {
    let opened = api.app.engine.call(move |_| (Content::open(&path), path)).await;
    opened.map_err(|error| ApiError::internal(&error))
}

/// A directory has no content, so as a file it does not exist.
pub(crate) fn open_error(path: &Path, error: &io::Error) -> ApiError {
    match error.kind() {
        io::ErrorKind::IsADirectory => coded_error(Code::FileNotFound, OPERATION, path, "it is a directory"),
        io::ErrorKind::InvalidInput => {
            coded_error(Code::FilesystemError, OPERATION, path, "it is no regular file")
        }
        _ => file_error(OPERATION, path, error),
    }
}

/// Writes the answer. `wanted`: whether the client asks for base64, or for text.
fn write(sink: &mut Sink, mut content: Content, path: &Path, wanted: Option<bool>) -> io::Result<()> {
    let is_base64 = wanted.unwrap_or(content.is_binary);
    sink.write("{\"success\":true,\"content\":\"")?;
    let size = if is_base64 {
        content.read(|part| sink.write(STANDARD.encode(part)))?
    } else {
        let mut text = JsonString::default();
        let size = content.read(|part| sink.write(text.part(part)))?;
        sink.write(text.end())?;
        size
    };
    let rest = json!({
        "path": path_text(path),
        "encoding": if is_base64 { "base64" } else { "utf-8" },
        "isBinary": is_base64,
        "mimeType": content.mime,
        "size": size,
        "timestamp": time::current_time(),
    });
    let rest = json_body(&rest)?;
    sink.write("\",")?;
    sink.write(rest.strip_prefix('{').unwrap_or_default())
}

/// Answers with the content of a file as events. An error is an event too.
pub(crate) async fn stream(State(api): State<ApiState>, Parsed(request): Parsed<ReadRequest>) -> RouteResult {
    let path = request.place.resolve(&api).await?;
    let (opened, path) = open_content(&api, path).await?;
    let body = sent_body::written_body(move |sink| match opened {
        Ok(content) => write_events(sink, content),
        Err(error) => {
            let message = open_error(&path, &error).message().to_owned();
            sse::send_event(sink, "error", json!({ "error": message }))
        }
    });
    body.map(sse::event_stream).map_err(|error| ApiError::internal(&error))
}

fn write_events(sink: &mut Sink, mut content: Content) -> io::Result<()> {
    let is_base64 = content.is_binary;
    let metadata = json!({
        "mimeType": content.mime,
        "size": content.size,
        "isBinary": is_base64,
        "encoding": if is_base64 { "base64" } else { "utf-8" },
    });
    sse::send_event(sink, "metadata", metadata)?;
    let mut decoder = Utf8::default();
    let mut sent = Ok(());
    let read = content.read(|part| {
        let data = if is_base64 {
            STANDARD.encode(part)
        } else {
            let mut text = String::new();
            decoder.decode(part, &mut text);
            text
        };
        sent = sse::send_event(sink, "chunk", json!({ "data": data }));
        sent.as_ref().map_or_else(|error| Err(error.kind().into()), |()| Ok(()))
    });
    sent?;
    match read {
        Ok(bytes) => sse::send_event(sink, "complete", json!({ "bytesRead": bytes })),
        Err(error) => sse::send_event(sink, "error", json!({ "error": error.to_string() })),
    }
}
