//! The content of files: read and write.

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use penfold_server::AppState;
use penfold_server::files::{NewFile, Workspace, byte_range, send_range, write_body};
use penfold_server::sent_body;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::extract::{Path, Query};
use crate::problem::{Kind, Problem};
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    // The body of a write goes to the disk as it comes.
    Routes::new().routes(routes!(read, write)).layer(DefaultBodyLimit::disable())
}

/// A file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ReadQuery {
    /// The path, relative to the workspace.
    path: String,
}

/// Reads a file, or the part that `Range` names.
#[utoipa::path(
    get, path = "/sandboxes/{id}/files", tag = "files", operation_id = "readFile",
    params(
        ("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), ReadQuery,
        ("Range" = Option<String>, Header, description = "one range of bytes, such as `bytes=0-99`, `bytes=100-` or `bytes=-10`"),
    ),
    responses(
        (status = 200, description = "the file", content((Vec<u8> = "application/octet-stream"))),
        (status = 206, description = "the range of the file", content((Vec<u8> = "application/octet-stream"))),
        Problem,
    )
)]
async fn read(
    State(app): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Query(query): Query<ReadQuery>,
) -> Result<Response, Problem> {
    let (file, size) =
        app.engine.call(move |scope| Workspace::open(scope, &id)?.open_plain(&query.path)).await??;
    let range = wanted_range(&headers, size)?;
    let permit = app.engine.follower().ok_or_else(crate::log_answer::too_many)?;
    let (begin, end) = range.unwrap_or((0, size));
    let body = sent_body::written_body(move |sink| {
        let _permit = permit;
        send_range(&file, begin, end, sink)
    });
    let body = body.map_err(|_| crate::log_answer::too_many())?;
    let mut response = body.into_response();
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    answer.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    answer.insert(header::CONTENT_LENGTH, HeaderValue::from(end - begin));
    if range.is_some() {
        let text = format!("bytes {begin}-{}/{size}", end.saturating_sub(1));
        answer.extend(HeaderValue::from_str(&text).ok().map(|value| (header::CONTENT_RANGE, value)));
    }
    Ok(response)
}

/// Reads the header `Range`: the first offset and the one after the last. A unit other than bytes is ignored, as RFC 9110
/// asks for.
fn wanted_range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, Problem> {
    let mut given = headers.get_all(header::RANGE).iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Problem::new(Kind::BadRange, "`Range` was sent twice"));
    }
    let unit = value.as_bytes().split(|&byte| byte == b'=').next().unwrap_or_default();
    if !unit.eq_ignore_ascii_case(b"bytes") {
        return Ok(None);
    }
    let range = value.to_str().ok().and_then(|text| byte_range(text, size));
    let bad = || Problem::new(Kind::BadRange, format!("not one range of bytes in a file of {size} bytes"));
    range.map(Some).ok_or_else(bad)
}

/// How to write a file.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct WriteQuery {
    /// The path, relative to the workspace.
    path: String,
    /// The permissions in octal, such as `0644`; default: those of the file that is replaced, or 0644.
    mode: Option<String>,
    /// Whether missing directories are made.
    #[serde(default)]
    parents: bool,
}

/// A file that was written.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Written {
    /// The path, relative to the workspace.
    path: String,
    /// The size in bytes.
    size: u64,
}

/// Writes a file: the old content or the new is there at every moment. A body that breaks off changes nothing.
#[utoipa::path(
    put, path = "/sandboxes/{id}/files", tag = "files", operation_id = "writeFile",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), WriteQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "the file has its new content", body = Written),
        Problem,
    )
)]
async fn write(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<WriteQuery>,
    body: Body,
) -> Result<axum::Json<Written>, Problem> {
    let mode = query.mode.as_deref().map(super::mode).transpose()?;
    let WriteQuery { path, parents, .. } = query;
    let target = path.clone();
    let place = app.engine.call(move |scope| {
        let workspace = Workspace::open(scope, &id)?;
        if parents { workspace.place_with_parents(&path) } else { workspace.place(&path) }
    });
    let new = NewFile { mode, ..NewFile::default() };
    let size = write_body(&app.engine, place.await??, new, body).await?;
    Ok(axum::Json(Written { path: target, size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_comes_once_and_in_bytes() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::RANGE, HeaderValue::from_static(value));
            }
            wanted_range(&headers, 10).ok()
        };
        assert_eq!(of(&[]), Some(None));
        assert_eq!(of(&["lines=1-2"]), Some(None));
        assert_eq!(of(&["BYTES=0-1"]), Some(Some((0, 2))));
        assert_eq!(of(&["bytes"]), None);
        assert_eq!(of(&["bytes=0-1", "bytes=4-5"]), None);
    }
}
