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
use serde::Deserialize;

use crate::access::{BadSignature, FileRight, Signature};
use crate::api::ApiState;
use crate::error::ApiError;
use crate::guest::{self, FILES, Guest};

/// The routes.
pub(crate) fn routes() -> Router<ApiState> {
    Router::new()
        .route(FILES, get(read::read).post(write::write))
        .route("/files/compose", post(compose::compose))
}

/// The query of a request for a file.
#[derive(Debug, Default, Deserialize)]
struct FileQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

impl FileQuery {
    /// Checks that the client may do this, and the name of the user.
    ///
    /// # Errors
    /// When it has neither the access token nor a valid signature, or the user is another one.
    fn check(&self, guest: &Guest, right: FileRight) -> Result<(), ApiError> {
        let refused = |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, message);
        if !guest.is_admitted
            && let Some(token) = &guest.token
        {
            let given = self.signature.as_deref().filter(|given| !given.is_empty());
            let signature = Signature {
                path: self.path.clone().unwrap_or_default(),
                username: self.username.clone().unwrap_or_default(),
                signature: given.ok_or_else(|| refused("missing signature query parameter"))?.to_owned(),
                expiration: self.expiration()?,
            };
            signature.check(right, token).map_err(|bad| match bad {
                BadSignature::Wrong => refused("invalid signature"),
                BadSignature::Expired => refused("signature is already expired"),
            })?;
        }
        let name = self.username.as_deref().unwrap_or_default();
        guest::check_user_name(guest, name).map_err(|message| refused(&message))
    }

    fn expiration(&self) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.signature_expiration.as_deref().filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.map(Some).ok_or_else(|| ApiError::bad("`signature_expiration` is not a number of seconds"))
    }
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
        Errno::NOTDIR | Errno::EXIST | Errno::LOOP | Errno::INVAL | Errno::NAMETOOLONG => {
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
