//! The routes that change files: write, delete, rename, move, mkdir; and exists.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use penfold_process::path_text::path_text;
use rustix::fs::OFlags;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{RouteResult, success_answer};
use crate::api::ApiState;
use crate::error::{ApiError, Code};
use crate::request::{Large, Parsed};

use super::error::file_error;
use super::path::{Place, resolve};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WriteRequest {
    path: Option<String>,
    session_id: Option<String>,
    content: Option<String>,
    encoding: Option<String>,
}

/// Writes a file, and makes the directories above it.
pub(crate) async fn write(State(api): State<ApiState>, body: Large<WriteRequest>) -> RouteResult {
    let Large { request, place } = body;
    let Some(content) = request.content else {
        return Err(ApiError::new(Code::ValidationFailed, "content is missing").with("field", "content"));
    };
    let is_base64 = match request.encoding.as_deref() {
        None | Some("utf-8" | "utf8") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding `{other}` is neither `utf-8` nor `base64`");
            return Err(ApiError::new(Code::ValidationFailed, message).with("field", "encoding"));
        }
    };
    let path = resolve(&api, "path", request.path.as_deref(), request.session_id.as_deref()).await?;
    let written = api.call(move |_| {
        let _place = place;
        let bytes = if is_base64 { decode(content)? } else { content.into_bytes() };
        write_file(&path, &bytes).map_err(|error| file_error("file.write", &path, &error))?;
        Ok(path_text(&path))
    });
    Ok(success_answer(json!({ "path": written.await? })))
}

fn decode(content: String) -> Result<Vec<u8>, ApiError> {
    let mut compact = content.into_bytes();
    compact.retain(|byte| !byte.is_ascii_whitespace());
    STANDARD.decode(compact).map_err(|error| {
        ApiError::new(Code::ValidationFailed, format!("content is no base64: {error}"))
            .with("field", "content")
    })
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    open_to_write(path)?.write_all(bytes)
}

/// Opens a file to write all of it, and makes the directories above it.
///
/// # Errors
/// Those of mkdir(2) and open(2).
pub(crate) fn open_to_write(path: &Path) -> io::Result<File> {
    if let Some(above) = path.parent() {
        fs::create_dir_all(above).map_err(|error| match error.kind() {
            // A file is where a directory must be.
            io::ErrorKind::AlreadyExists => rustix::io::Errno::NOTDIR.into(),
            _ => error,
        })?;
    }
    // A FIFO without a reader would wait.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
    OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
}

/// Deletes a file.
pub(crate) async fn delete(State(api): State<ApiState>, Parsed(request): Parsed<Place>) -> RouteResult {
    let path = request.resolve(&api).await?;
    let shown = path_text(&path);
    let removed = on_disk(&api, "file.delete", path, |path| {
        // unlink(2) of a directory may fail with EPERM.
        if fs::symlink_metadata(path)?.is_dir() {
            return Err(rustix::io::Errno::ISDIR.into());
        }
        fs::remove_file(path)
    });
    let removed = removed.await.map_err(|error| {
        if error.code() != Code::IsDirectory {
            return error;
        }
        let why = format!(
            "Cannot delete directory with deleteFile() at '{shown}'; the command `rm -r` deletes one"
        );
        ApiError::new(Code::IsDirectory, why).with("path", shown).operation("file.delete")
    });
    Ok(success_answer(json!({ "path": removed? })))
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RenameRequest {
    old_path: Option<String>,
    new_path: Option<String>,
    session_id: Option<String>,
}

/// Renames a file.
pub(crate) async fn rename(
    State(api): State<ApiState>,
    Parsed(request): Parsed<RenameRequest>,
) -> RouteResult {
    let session = request.session_id.as_deref();
    let old = resolve(&api, "oldPath", request.old_path.as_deref(), session).await?;
    let new = resolve(&api, "newPath", request.new_path.as_deref(), session).await?;
    relocate(&api, "file.rename", old, new).await
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MoveRequest {
    source_path: Option<String>,
    destination_path: Option<String>,
    session_id: Option<String>,
}

/// Moves a file, also into a directory, and also to another file system.
pub(crate) async fn relocate_to(
    State(api): State<ApiState>,
    Parsed(request): Parsed<MoveRequest>,
) -> RouteResult {
    let session = request.session_id.as_deref();
    let old = resolve(&api, "sourcePath", request.source_path.as_deref(), session).await?;
    let new = resolve(&api, "destinationPath", request.destination_path.as_deref(), session).await?;
    relocate(&api, "file.move", old, new).await
}

async fn relocate(api: &ApiState, operation: &'static str, old: PathBuf, new: PathBuf) -> RouteResult {
    let target = path_text(&new);
    let old = on_disk(api, operation, old, move |old| {
        let into = if new.is_dir() && !fs::symlink_metadata(old)?.is_dir() {
            new.join(old.file_name().unwrap_or_default())
        } else {
            new
        };
        match fs::rename(old, &into) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => copy(old, &into),
            other => other,
        }
    });
    Ok(success_answer(json!({ "path": old.await?, "newPath": target })))
}

/// Copies a regular file to another file system and removes the old one.
fn copy(old: &Path, new: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(old)?.is_file() {
        return Err(rustix::io::Errno::XDEV.into());
    }
    fs::copy(old, new)?;
    fs::remove_file(old)
}

#[derive(Debug, Deserialize)]
pub(crate) struct MkdirRequest {
    #[serde(flatten)]
    place: Place,
    recursive: Option<bool>,
}

/// Makes a directory.
pub(crate) async fn mkdir(State(api): State<ApiState>, Parsed(request): Parsed<MkdirRequest>) -> RouteResult {
    let recursive = request.recursive.unwrap_or(false);
    let path = request.place.resolve(&api).await?;
    let made = on_disk(&api, "directory.create", path, move |path| {
        let made = DirBuilder::new().recursive(recursive).create(path);
        // As for mkdir(1), a file in the way is an error of its own.
        made.map_err(|error| if error.kind() == io::ErrorKind::AlreadyExists { exists() } else { error })
    });
    match made.await {
        Ok(path) => Ok(success_answer(json!({ "path": path, "recursive": recursive }))),
        Err(error) => Err(error.with("options", json!({ "recursive": recursive })).with("exitCode", 1)),
    }
}

/// An error that has no code of its own.
fn exists() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "File exists")
}

/// Tells whether a path exists; a link to nothing does not.
pub(crate) async fn exists_at(State(api): State<ApiState>, Parsed(request): Parsed<Place>) -> RouteResult {
    let path = request.resolve(&api).await?;
    let shown = path_text(&path);
    let exists = api.app.engine.call(move |_| fs::metadata(path).is_ok()).await;
    let exists = exists.map_err(|error| ApiError::internal(&error))?;
    Ok(success_answer(json!({ "path": shown, "exists": exists })))
}

/// Does an operation beside the runtime, and returns the path for the answer.
async fn on_disk(
    api: &ApiState,
    operation: &'static str,
    path: PathBuf,
    act: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
) -> Result<String, ApiError> {
    let called = api.app.engine.call(move |_| {
        act(&path).map_err(|error| file_error(operation, &path, &error))?;
        Ok(path_text(&path))
    });
    called.await.map_err(|error| ApiError::internal(&error))?
}
