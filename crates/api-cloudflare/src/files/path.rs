//! The path of a request.

use penfold_process::path_text::path_of_text;
use std::path::PathBuf;

use serde::Deserialize;

use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::sessions;

/// A path, and the session that it is relative to.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Place {
    path: Option<String>,
    session_id: Option<String>,
}

impl Place {
    /// Returns the absolute path.
    ///
    /// # Errors
    /// When the path or the session's id is not valid.
    pub(crate) async fn resolve(&self, api: &ApiState) -> Result<PathBuf, ApiError> {
        resolve(api, "path", self.path.as_deref(), self.session_id.as_deref()).await
    }
}

/// Returns the absolute path of a field. A relative path begins in the directory of the session's shell.
///
/// # Errors
/// When the path or the session's id is not valid.
pub(crate) async fn resolve(
    api: &ApiState,
    field: &'static str,
    path: Option<&str>,
    session: Option<&str>,
) -> Result<PathBuf, ApiError> {
    let invalid =
        |why: &str| Err(ApiError::new(Code::ValidationFailed, format!("{field} {why}")).with("field", field));
    let is_named = session.is_some();
    let session = SessionId::new(session)?;
    let path = match path {
        None | Some("") => return invalid("is missing"),
        Some(path) => path_of_text(path),
    };
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return invalid("contains a NUL");
    }
    if path.is_absolute() {
        if is_named {
            api.call(move |api| Ok(sessions::begin_use(api, Some(session.as_str())))).await?;
        }
        return Ok(path);
    }
    Ok(sessions::directory(api, &session).await?.join(path))
}
