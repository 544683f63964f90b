//! Files as entries of directories: list, stat, mkdir, move, remove.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;

use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penfold_process::path_text::path_text;
use penfold_server::AppState;
use penfold_server::files::{Entry, EntryPage, Workspace};
use rustix::fs::{FileType, Mode};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::mode;
use crate::extract::{Json, Path, Query};
use crate::problem::Problem;
use crate::routes::{Routes, routes};

pub(super) fn routes() -> Routes {
    Routes::new()
        .routes(routes!(remove))
        .routes(routes!(stat))
        .routes(routes!(list))
        .routes(routes!(make_directory))
        .routes(routes!(move_file))
}

/// A file, a directory, or another entry.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FileEntry {
    /// The name. Each byte that is no part of a UTF-8 character is written as U+FFFD and two hexadecimal digits; a path of a request is read in the
    /// same way.
    name: String,
    /// `file`, `directory`, `link`, `fifo`, `socket`, `device` or `unknown`.
    r#type: &'static str,
    /// The size in bytes.
    size: u64,
    /// The permissions in octal.
    mode: String,
    /// The time of the last change of the content, in milliseconds since 1970.
    modified_at_ms: i64,
    /// The target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl From<Entry> for FileEntry {
    fn from(entry: Entry) -> FileEntry {
        let Entry { name, stat, target } = entry;
        FileEntry {
            name: text(&name),
            r#type: type_word(FileType::from_raw_mode(stat.st_mode)),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: format!("{:04o}", stat.st_mode & 0o7777),
            modified_at_ms: i64::try_from(
                i128::from(stat.st_mtime) * 1000 + i128::from(stat.st_mtime_nsec) / 1_000_000,
            )
            .unwrap_or(0),
            target: target.as_deref().map(text),
        }
    }
}

fn text(name: &CStr) -> String {
    path_text(std::path::Path::new(OsStr::from_bytes(name.to_bytes())))
}

/// The word for a type of file.
fn type_word(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "link",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Unknown => "unknown",
    }
}

/// A path.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PathQuery {
    /// The path, relative to the workspace; empty for the workspace.
    #[serde(default)]
    path: String,
}

/// Describes a file. A link is not followed.
#[utoipa::path(
    get, path = "/sandboxes/{id}/files/stat", tag = "files", operation_id = "statFile",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), PathQuery),
    responses(
        (status = 200, description = "the file", body = FileEntry),
        Problem,
    )
)]
async fn stat(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(PathQuery { path }): Query<PathQuery>,
) -> Result<axum::Json<FileEntry>, Problem> {
    let entry = app.engine.call(move |scope| Workspace::open(scope, &id)?.entry(&path)).await??;
    Ok(axum::Json(entry.into()))
}

/// A directory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListFilesQuery {
    /// The path, relative to the workspace; empty for the workspace.
    #[serde(default)]
    path: String,
    /// The most entries, 1 to 10000; default 1000.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<usize>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

/// Entries of a directory.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FilePage {
    /// The entries, by name.
    entries: Vec<FileEntry>,
    /// The `cursor` of the next page; null on the last page.
    next_cursor: Option<String>,
}

const USUAL_PAGE: usize = 1000;
const LARGEST_PAGE: usize = 10_000;

/// Lists a directory.
#[utoipa::path(
    get, path = "/sandboxes/{id}/files/list", tag = "files", operation_id = "listFiles",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), ListFilesQuery),
    responses(
        (status = 200, description = "a page", body = FilePage),
        Problem,
    )
)]
async fn list(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<ListFilesQuery>,
) -> Result<axum::Json<FilePage>, Problem> {
    let limit = query.limit.unwrap_or(USUAL_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        return Err(Problem::field("limit", "not a number from 1 to 10000"));
    }
    let page = app.engine.call(move |scope| {
        let workspace = Workspace::open(scope, &id)?;
        let after = query.cursor.as_deref().map(parse_cursor).transpose();
        // A directory that cannot be read is the first problem.
        let known = after.as_ref().ok().and_then(Option::as_deref);
        let page = workspace.entries(&query.path, known, limit)?;
        after.map(|_| FilePage::from(page))
    });
    Ok(axum::Json(page.await??))
}

impl From<EntryPage> for FilePage {
    fn from(page: EntryPage) -> FilePage {
        let next_cursor = page.next.map(|name| URL_SAFE_NO_PAD.encode(name.as_bytes()));
        FilePage { entries: page.entries.into_iter().map(FileEntry::from).collect(), next_cursor }
    }
}

/// Returns the bytes of the last name of a page: two names that are not UTF-8 may look the same.
fn parse_cursor(text: &str) -> Result<Vec<u8>, Problem> {
    let name = URL_SAFE_NO_PAD.decode(text);
    name.map_err(|_| Problem::field("cursor", "not the `next_cursor` of a page"))
}

/// A directory to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MakeDirectory {
    /// The path, relative to the workspace.
    path: String,
    /// Whether missing directories above it are made, and a directory that is there already is no error.
    #[serde(default)]
    parents: bool,
    /// The permissions in octal; default `0755`.
    mode: Option<String>,
}

/// Makes a directory.
#[utoipa::path(
    post, path = "/sandboxes/{id}/files/mkdir", tag = "files", operation_id = "makeDirectory",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    request_body = MakeDirectory,
    responses(
        (status = 204, description = "the directory is there"),
        Problem,
    )
)]
async fn make_directory(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Json(request): Json<MakeDirectory>,
) -> Result<StatusCode, Problem> {
    let mode = request.mode.as_deref().map_or(Ok(Mode::from_raw_mode(0o755)), mode)?;
    app.engine
        .call(move |scope| {
            let workspace = Workspace::open(scope, &id)?;
            if request.parents {
                workspace.make_directories(&request.path, mode)
            } else {
                workspace.make_directory(&request.path, mode)
            }
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// A file to be moved.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MoveFile {
    /// The path, relative to the workspace.
    from: String,
    /// The new path, relative to the workspace.
    to: String,
    /// Whether a file at the new path is replaced.
    #[serde(default)]
    replace: bool,
}

/// Moves a file or a directory.
#[utoipa::path(
    post, path = "/sandboxes/{id}/files/move", tag = "files", operation_id = "moveFile",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name")),
    request_body = MoveFile,
    responses(
        (status = 204, description = "the file has its new path"),
        Problem,
    )
)]
async fn move_file(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Json(request): Json<MoveFile>,
) -> Result<StatusCode, Problem> {
    app.engine
        .call(move |scope| {
            Workspace::open(scope, &id)?.move_entry(&request.from, &request.to, request.replace)
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

/// A file to be removed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RemoveQuery {
    /// The path, relative to the workspace.
    path: String,
    /// Whether a directory is removed with all that is in it.
    #[serde(default)]
    recursive: bool,
}

/// Removes a file, or a directory. A link is removed, and not its target.
#[utoipa::path(
    delete, path = "/sandboxes/{id}/files", tag = "files", operation_id = "removeFile",
    params(("id" = String, Path, description = "the id, a unique prefix of the id, or the name"), RemoveQuery),
    responses(
        (status = 204, description = "the file is gone"),
        Problem,
    )
)]
async fn remove(
    State(app): State<AppState>,
    Path(id): Path<String>,
    Query(query): Query<RemoveQuery>,
) -> Result<StatusCode, Problem> {
    app.engine
        .call(move |scope| Workspace::open(scope, &id)?.remove_entry(&query.path, query.recursive))
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_the_bytes_of_a_name() {
        let page = EntryPage { entries: Vec::new(), next: Some(c"\xff\xfe".to_owned()) };
        let cursor = FilePage::from(page).next_cursor.unwrap();
        assert_eq!(parse_cursor(&cursor).unwrap(), b"\xff\xfe");
        assert!(parse_cursor("\u{1f600}").is_err());
    }
}
