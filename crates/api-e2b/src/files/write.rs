//! Writes the files of a request, as a form or as bytes.

use std::io;

use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use penfold_server::files::{FileError, FilePlace, NewFile, write_body};
use penfold_server::sent_body;
use serde::Serialize;

use super::metadata::{Metadata, attributes, metadata_of};
use super::multipart::Multipart;
use super::source::{BadBody, Received, Source};
use super::{admit, file_error, upload_error};
use crate::access::FileRight;
use crate::api::ApiState;
use crate::error::ApiError;
use crate::guest::Guest;
use crate::inside::{Inside, name_of};
use crate::signed::FileQuery;

/// The field of a form that has a file.
const FIELD: &str = "file";

/// A file that was written.
#[derive(Debug, Serialize)]
pub(super) struct Written {
    path: String,
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: Metadata,
}

impl Written {
    pub(super) fn new(path: &str, metadata: Metadata) -> Written {
        Written { path: path.to_owned(), name: name_of(path).to_owned(), kind: "file", metadata }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }
}

/// Where the bytes of a file come from.
enum Content {
    /// All of the body.
    Whole(Source),
    /// A part of a form.
    Part(Multipart),
}

impl Content {
    async fn next(&mut self) -> Result<Option<axum::body::Bytes>, BadBody> {
        match self {
            Content::Whole(source) => source.next().await,
            Content::Part(form) => form.next_bytes().await,
        }
    }
}

impl From<BadBody> for ApiError {
    fn from(error: BadBody) -> ApiError {
        ApiError::bad(error.to_string())
    }
}

/// Writes the files of a request. Each appears whole; those before one that fails stay.
pub(super) async fn write(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let received = Received::new(body);
    let written = write_received(api, guest, query, &parts, received.clone()).await;
    if written.is_err() {
        received.skip().await;
    }
    Ok(Json(written?).into_response())
}

async fn write_received(
    api: ApiState,
    guest: Guest,
    query: FileQuery,
    parts: &Parts,
    received: Received,
) -> Result<Vec<Written>, ApiError> {
    let guest = admit(&api, &query, guest, FileRight::Write).await?;
    let metadata = metadata_of(&parts.headers)?;
    let media_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = media_type.unwrap_or_default();
    let kind = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let source = Source::new(&parts.headers, received)?;
    let mut writer = Writer { api, guest, metadata, written: Vec::new() };
    match kind.as_str() {
        "application/octet-stream" => {
            let path = query.path.filter(|path| !path.is_empty());
            let path = path.ok_or_else(|| ApiError::bad("the query needs a `path`"))?;
            writer.write(&path, &mut Content::Whole(source)).await?;
        }
        "multipart/form-data" => {
            let form = Multipart::new(media_type, source)?;
            writer.write_form(query.path.filter(|path| !path.is_empty()), form).await?;
        }
        _ => return Err(ApiError::bad("a body is `multipart/form-data` or `application/octet-stream`")),
    }
    Ok(writer.written)
}

/// Writes the files of one request.
struct Writer {
    api: ApiState,
    guest: Guest,
    metadata: Metadata,
    written: Vec<Written>,
}

impl Writer {
    async fn write_form(&mut self, path: Option<String>, mut form: Multipart) -> Result<(), ApiError> {
        loop {
            let Some(head) = form.next_part().await? else { return Ok(()) };
            if head.name != FIELD {
                continue;
            }
            let path = path.clone().or(head.filename).filter(|path| !path.is_empty());
            let path = path.ok_or_else(|| {
                ApiError::bad("a part of the form has no `filename`, and the query no `path`")
            })?;
            let mut content = Content::Part(form);
            self.write(&path, &mut content).await?;
            let Content::Part(rest) = content else { return Ok(()) };
            form = rest;
        }
    }

    /// Writes one file.
    async fn write(&mut self, text: &str, content: &mut Content) -> Result<(), ApiError> {
        let (path, place) = place(&self.api, &self.guest, text).await?;
        if self.written.iter().any(|written| written.path == path) {
            let message = format!("only the first of the files with the path '{path}' was written");
            return Err(ApiError::bad(message));
        }
        let new = NewFile { mode: None, attributes: attributes(&self.metadata), is_announced: true };
        let (sender, body) = sent_body::queued_body();
        let feeding = async move {
            let end = loop {
                let bytes = match content.next().await {
                    Ok(Some(bytes)) => Ok(bytes),
                    Ok(None) => break Ok(()),
                    Err(error) => Err(error),
                };
                let (sent, end) = match bytes {
                    Ok(bytes) => (Ok(bytes), None),
                    Err(error) => (Err(io::Error::other(error.to_string())), Some(error)),
                };
                let is_gone = sender.send(sent).await.is_err();
                match end {
                    Some(error) => break Err(error),
                    None if is_gone => break Ok(()),
                    None => {}
                }
            };
            drop(sender);
            end
        };
        let writing = write_body(&self.api.app.engine, place, new, body);
        let (written, fed) = tokio::join!(writing, feeding);
        fed?;
        written.map_err(|error| upload_error(&path, error))?;
        self.written.push(Written::new(&path, self.metadata.clone()));
        Ok(())
    }
}

/// Finds the place of a file that is written, and makes the directories above it.
pub(super) async fn place(
    api: &ApiState,
    guest: &Guest,
    text: &str,
) -> Result<(String, FilePlace), ApiError> {
    let (guest, text) = (guest.clone(), text.to_owned());
    let found = api.call(move |_| {
        let failed = |error: FileError| file_error(&text, &error);
        let inside = Inside::of(&guest).map_err(failed)?;
        let path = inside.path(&text).map_err(failed)?;
        let failed = |error: FileError| file_error(&path, &error);
        inside.make_parents(&path).map_err(failed)?;
        let place = inside.workspace.place_behind_links(&path).map_err(failed)?;
        Ok::<_, ApiError>((path, place))
    });
    found.await
}

/// Writes a body to a file without metadata.
pub(super) async fn write_file(
    api: &ApiState,
    guest: &Guest,
    text: &str,
    body: Body,
) -> Result<Written, ApiError> {
    let (path, place) = place(api, guest, text).await?;
    let new = NewFile { is_announced: true, ..NewFile::default() };
    let written = write_body(&api.app.engine, place, new, body).await;
    written.map_err(|error| upload_error(&path, error))?;
    Ok(Written::new(&path, Metadata::new()))
}
