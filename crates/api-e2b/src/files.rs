//! `/files`: the content of files, also for those who have a signed URL and no access token.
//!
//! - `read` — answers with a file. `write` — writes the files of a request. `compose` — joins files.
//! - `multipart` — the parts of a form. `source` — the bytes of a request. `metadata` — what a request says of its files.

mod compose;
mod metadata;
mod multipart;
mod read;
mod source;
mod write;

use std::io;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use penfold_server::files::{FileError, UploadError};
use penfold_state::error_chain;
use rustix::io::Errno;

use crate::access::{BadSignature, FileRight};
use crate::api::ApiState;
use crate::error::ApiError;
use crate::guest::Guest;
use crate::signed::{FILES, FileQuery, refused};

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route(FILES, get(read::read).post(write::write))
        .route("/files/compose", post(compose::compose))
}

/// The parts of a form, for the targets of `fuzz/`: names, file names and bytes.
#[cfg(fuzzing)]
pub(crate) async fn parts_of_form(
    media_type: &str,
    body: axum::body::Body,
) -> Option<Vec<(String, Option<String>, Vec<u8>)>> {
    let source = source::Source::new(&axum::http::HeaderMap::new(), source::Received::new(body)).ok()?;
    let mut form = multipart::Multipart::new(media_type, source).ok()?;
    let mut found = Vec::new();
    while let Some(head) = form.next_part().await.ok()? {
        let mut all = Vec::new();
        while let Some(bytes) = form.next_bytes().await.ok()? {
            all.extend_from_slice(&bytes);
        }
        found.push((head.name, head.filename, all));
    }
    Some(found)
}

/// Checks that a client may do this, and takes the user that it names.
///
/// # Errors
/// When it has neither the access token nor a valid signature, or it cannot be that user.
async fn admit(api: &ApiState, query: &FileQuery, guest: Guest, right: FileRight) -> Result<Guest, ApiError> {
    if !guest.is_admitted
        && let Some(token) = &guest.token
    {
        query.signature()?.check(right, token).map_err(|bad| match bad {
            BadSignature::Wrong => refused("invalid signature"),
            BadSignature::Expired => refused("signature is already expired"),
        })?;
    }
    let name = query.username.as_deref().unwrap_or_default();
    guest.of_user(&api.app.engine, name).await.map_err(|message| refused(&message))
}

/// The error of a request whose file cannot be read or written.
fn file_error(path: &str, error: &FileError) -> ApiError {
    let FileError::System { errno, .. } = error else {
        let status = match error {
            FileError::NoJail(_) => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        return ApiError::new(status, error_chain(error));
    };
    let message = |errno: Errno| format!("error opening file '{path}': {}", io::Error::from(errno));
    match *errno {
        Errno::NOENT => ApiError::new(StatusCode::NOT_FOUND, format!("path '{path}' does not exist")),
        Errno::ISDIR => ApiError::bad(format!("path '{path}' is a directory")),
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "not enough disk space available")
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => ApiError::new(StatusCode::FORBIDDEN, message(*errno)),
        Errno::NOTDIR | Errno::EXIST | Errno::BUSY | Errno::LOOP | Errno::INVAL | Errno::NAMETOOLONG => {
            ApiError::bad(message(*errno))
        }
        errno => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message(errno)),
    }
}

fn upload_error(path: &str, error: UploadError) -> ApiError {
    match error {
        UploadError::TooMany => ApiError::too_many(error.to_string()),
        UploadError::Engine(error) => error.into(),
        UploadError::File(error) => file_error(path, &error),
        UploadError::Body(_) | UploadError::Abandoned => ApiError::bad(error_chain(&error)),
    }
}
