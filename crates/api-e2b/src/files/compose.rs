//! Joins files to one.

use std::fs::File;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::{Extension, Json};
use penfold_server::files::{FileError, send_range};
use penfold_server::sent_body;
use serde::Deserialize;

use super::write::write_file;
use super::{admit, file_error};
use crate::access::FileRight;
use crate::api::ApiState;
use crate::connect::Message;
use crate::error::ApiError;
use crate::guest::Guest;
use crate::inside::Inside;
use crate::signed::FileQuery;

/// The most files that are joined.
const MOST: usize = 1000;

#[derive(Debug, Deserialize)]
pub(super) struct ComposeMessage {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

/// Joins files to one in their order, and removes them. The new file appears whole.
pub(super) async fn compose(
    State(api): State<ApiState>,
    Extension(guest): Extension<Guest>,
    Message(request): Message<ComposeMessage>,
) -> Result<Response, ApiError> {
    let query = FileQuery::of_user(request.username);
    let guest = admit(&api, &query, guest, FileRight::Write).await?;
    let (sources, destination) = (request.source_paths, request.destination);
    if sources.is_empty() || sources.len() > MOST || destination.is_empty() {
        let message = format!("`source_paths` has 1 to {MOST} paths, and `destination` is one");
        return Err(ApiError::bad(message));
    }
    let own = guest.clone();
    let opened = api.call(move |_| open(&own, &sources)).await?;
    let (paths, files): (Vec<String>, Vec<(File, u64)>) = opened.into_iter().unzip();
    let body = sent_body::written_body(move |sink| {
        files.iter().try_for_each(|(file, size)| send_range(file, 0, *size, sink))
    });
    let body = body.map_err(|error| ApiError::too_many(error.to_string()))?;
    let written = write_file(&api, &guest, &destination, body).await?;
    let target = written.path().to_owned();
    let removed = api.call(move |_| remove(&guest, &paths, &target));
    removed.await?;
    Ok(Json(written).into_response())
}

/// The path of a file, the file, and its size.
type Source = (String, (File, u64));

/// Opens files.
fn open(guest: &Guest, texts: &[String]) -> Result<Vec<Source>, ApiError> {
    let failed = |error: FileError| file_error("/", &error);
    let inside = Inside::of(guest).map_err(failed)?;
    let open = |text: &String| {
        let path = inside.path(text).map_err(failed)?;
        let opened = inside.workspace.open_plain(&path).map_err(|error| file_error(&path, &error))?;
        Ok((path, opened))
    };
    texts.iter().map(open).collect()
}

/// Removes the files that were joined.
fn remove(guest: &Guest, paths: &[String], target: &str) -> Result<(), ApiError> {
    let inside = Inside::of(guest).map_err(|error| file_error("/", &error))?;
    for path in paths.iter().filter(|path| *path != target) {
        inside.remove(path).map_err(|error| file_error(path, &error))?;
    }
    Ok(())
}
