//! Signed addresses of files. A signature is valid for one sandbox only, so an address that names no sandbox leads to that one.

use axum::extract::Query;
use axum::http::StatusCode;
use axum::http::request::Parts;
use penfold_server::records::choose_records;
use serde::Deserialize;

use crate::access::{self, BadSignature, FileRight, Signature};
use crate::address::{Address, GUEST_PORT};
use crate::api::Api;
use crate::error::ApiError;
use crate::templates::SECURE;

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
            signature: given.ok_or_else(|| refused("missing signature query parameter"))?.to_owned(),
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
/// When there is none, or the records cannot be read.
pub(crate) fn find_signed(api: &Api, query: &FileQuery, right: FileRight) -> Result<Address, ApiError> {
    let signature = query.signature()?;
    let secret = api.secret().map_err(|error| ApiError::internal(&error))?;
    let is_secure = |labels: &std::collections::BTreeMap<String, String>| labels.contains_key(SECURE);
    let records = choose_records(api.app.engine.scope(), |intent| is_secure(&intent.labels).then_some(()));
    let records = records.map_err(|error| ApiError::internal(&error))?;
    let found = records.into_iter().map(|((), files)| files).find(|files| {
        let token = access::access_token(&secret, files.name());
        !files.has_ended() && signature.check(right, &token) != Err(BadSignature::Wrong)
    });
    let files = found.ok_or_else(|| refused("invalid signature"))?;
    Ok(Address { id: files.name().to_owned(), port: GUEST_PORT })
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
