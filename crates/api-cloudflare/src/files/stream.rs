//! Files as streams of bytes. Only calls over `/rpc` reach these routes: over HTTP, the reference has none.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::PathBuf;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderName, Uri, header};
use axum::response::IntoResponse as _;
use axum::routing::post;
use http_body_util::BodyExt as _;
use penfold_process::path_text::path_text;
use penfold_server::sent_body;
use serde_json::json;

use crate::answer::{RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::query_value;
use crate::request::Parsed;

use super::change::open_to_write;
use super::error::file_error;
use super::path::{Place, resolve};
use super::read::{open_content, open_error};

/// Reads a file; the body of the answer is its content.
pub(crate) const READ_RAW: &str = "/rpc/read";
/// Writes the body of the request to a file.
pub(crate) const WRITE_STREAM: &str = "/rpc/write-stream";
/// The header with the size of a file.
pub(crate) const SIZE: HeaderName = HeaderName::from_static("x-size");

const OPERATION: &str = "file.write";

/// The routes for streams of bytes.
pub(crate) fn stream_routes() -> Router<ApiState> {
    Router::new().route("/rpc/read", post(read)).route("/rpc/write-stream", post(write))
}

async fn read(State(api): State<ApiState>, Parsed(request): Parsed<Place>) -> RouteResult {
    let path = request.resolve(&api).await?;
    let (opened, path) = open_content(&api, path).await?;
    let mut content = opened.map_err(|error| open_error(&path, &error))?;
    let headers = [(header::CONTENT_TYPE, content.mime.to_owned()), (SIZE, content.size.to_string())];
    let body = sent_body::written_body(move |sink| content.read(|part| sink.write(part)));
    let body = body.map_err(|error| ApiError::full(&error))?;
    Ok((headers, body).into_response())
}

async fn write(State(api): State<ApiState>, uri: Uri, mut body: Body) -> RouteResult {
    let value = |name| query_value(uri.query().unwrap_or_default(), name);
    let path = resolve(&api, "path", value("path").as_deref(), value("sessionId").as_deref()).await?;
    let shown = path_text(&path);
    let mut file = on_disk(&api, path.clone(), open_to_write).await?;
    let mut written: u64 = 0;
    while let Some(frame) = body.frame().await {
        let broken = |error| ApiError::new(Code::ValidationFailed, format!("the content broke off: {error}"));
        let Ok(part) = frame.map_err(broken)?.into_data() else { continue };
        written += u64::try_from(part.len()).unwrap_or(0);
        file = on_disk(&api, path.clone(), move |_| {
            file.write_all(&part)?;
            Ok(file)
        })
        .await?;
    }
    Ok(success_answer(json!({ "path": shown, "bytesWritten": written })))
}

/// Does an operation beside the runtime.
async fn on_disk(
    api: &ApiState,
    path: PathBuf,
    act: impl FnOnce(&std::path::Path) -> io::Result<File> + Send + 'static,
) -> Result<File, ApiError> {
    let called =
        api.app.engine.call(move |_| act(&path).map_err(|error| file_error(OPERATION, &path, &error)));
    called.await.map_err(|error| ApiError::internal(&error))?
}
