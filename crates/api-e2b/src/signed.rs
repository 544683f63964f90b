//! Signed addresses of files. A signature is valid for one sandbox only, so an address that names no sandbox leads to that one.

use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::request::Parts;
use penfold_state::record::Registry;
use serde::Deserialize;

use crate::access::{self, BadSignature, FileRight, Signature};
use crate::address::{Address, GUEST_PORT};
use crate::api::Api;
use crate::error::ApiError;

/// The path of files.
pub(crate) const FILES: &str = "/files";

/// The query of a request for a file.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct FileQuery {
    pub(crate) path: Option<String>,
    pub(crate) username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

impl FileQuery {
    /// The query of a request for a file of this user.
    pub(crate) fn of_user(username: Option<String>) -> FileQuery {
        FileQuery { username, ..FileQuery::default() }
    }

    /// Returns the signature.
    ///
    /// # Errors
    /// When there is none, or the end of its time is no number.
    pub(crate) fn signature(&self) -> Result<Signature, ApiError> {
        let given = self.signature.as_deref().filter(|given| !given.is_empty());
        Ok(Signature {
            path: self.path.clone().unwrap_or_default(),
            username: self.username.clone().unwrap_or_default(),
            given: given.ok_or_else(|| refused("missing signature query parameter"))?.to_owned(),
            expiration: self.expiration()?,
        })
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

/// The answer to a client that may not do this.
pub(crate) fn refused(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// Tells whether a request is for a signed address of a file.
pub(crate) fn is_signed(parts: &Parts) -> bool {
    let query = parts.uri.query().unwrap_or_default();
    parts.uri.path() == FILES && query.split('&').any(|pair| pair.starts_with("signature="))
}

/// Finds the sandbox for which the address of a request is signed, also if the time of the signature is over.
///
/// # Errors
/// When there is none, or the ids cannot be read.
pub(crate) fn find_signed(api: &Api, query: &FileQuery, right: FileRight) -> Result<Address, ApiError> {
    let signature = query.signature()?;
    let secret = api.secret().map_err(|error| ApiError::internal(&error))?;
    // No record is read: the id alone makes the token.
    let registry = Registry::open_existing(api.app.engine.scope().root());
    let registry = registry.map_err(|error| ApiError::internal(&error))?;
    let ids = registry.map_or(Ok(Vec::new()), |registry| registry.names());
    let ids = ids.map_err(|error| ApiError::internal(&error))?;
    let is_signer = |id: &String| {
        let token = access::access_token(&secret, id);
        signature.check(right, &token) != Err(BadSignature::Wrong)
    };
    let id = ids.into_iter().find(is_signer).ok_or_else(|| refused("invalid signature"))?;
    Ok(Address { id, port: GUEST_PORT })
}

/// Reads the query of a request for a signed address, and what the request wants.
///
/// # Errors
/// When the query is none.
pub(crate) fn query_of(parts: &Parts) -> Result<(FileQuery, FileRight), ApiError> {
    let query = Query::try_from_uri(&parts.uri).map_err(|error| ApiError::bad(error.body_text()))?;
    let right = if parts.method.is_safe() { FileRight::Read } else { FileRight::Write };
    Ok((query.0, right))
}
