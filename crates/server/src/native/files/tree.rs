//! Files as entries of directories: list, stat, mkdir, move, remove.

use std::os::fd::{AsFd as _, OwnedFd};

use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use penfold_state::clear::{clear, entries};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::workspace::{FilePlace, Workspace, is_there, problem, readable, type_word};
use crate::app::AppState;
use crate::native::extract::{Json, Path, Query};
use crate::native::problem::Problem;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(remove))
        .routes(routes!(stat))
        .routes(routes!(list))
        .routes(routes!(make_directory))
        .routes(routes!(move_file))
}

/// A file, a directory, or another entry.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FileEntry {
    /// The name.
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

impl FileEntry {
    fn of(name: String, stat: &Stat, target: Option<String>) -> FileEntry {
        FileEntry {
            name,
            r#type: type_word(FileType::from_raw_mode(stat.st_mode)),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mode: format!("{:04o}", stat.st_mode & 0o7777),
            modified_at_ms: i64::try_from(
                i128::from(stat.st_mtime) * 1000 + i128::from(stat.st_mtime_nsec) / 1_000_000,
            )
            .unwrap_or(0),
            target,
        }
    }

    fn at(dir: &OwnedFd, name: &str) -> Result<FileEntry, Errno> {
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        let target = is_link.then(|| rustix::fs::readlinkat(dir, name, Vec::new()).ok()).flatten();
        let target = target.map(|target| target.to_string_lossy().into_owned());
        Ok(FileEntry::of(name.to_owned(), &stat, target))
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
    let entry = app.engine.call(move |root| {
        let workspace = Workspace::open(root, &id)?;
        if matches!(path.as_str(), "" | "." | "./") {
            let dir = workspace.at("", OFlags::PATH, Mode::empty())?;
            let stat = rustix::fs::fstat(&dir).map_err(|errno| problem(&path, errno))?;
            return Ok(FileEntry::of(".".to_owned(), &stat, None));
        }
        let place = workspace.place(&path)?;
        FileEntry::at(&place.dir, &place.name).map_err(|errno| problem(&path, errno))
    });
    Ok(axum::Json(entry.await??))
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
    /// The entries, by name. A name that is not UTF-8 has replacement characters.
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
    let page = app.engine.call(move |root| {
        let workspace = Workspace::open(root, &id)?;
        let dir = workspace.at(&query.path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        page(&dir, &query, limit)
    });
    Ok(axum::Json(page.await??))
}

fn page(dir: &OwnedFd, query: &ListFilesQuery, limit: usize) -> Result<FilePage, Problem> {
    let failed =
        |error: &std::io::Error| problem(&query.path, Errno::from_io_error(error).unwrap_or(Errno::IO));
    let mut names: Vec<_> = entries(dir.as_fd()).map_err(|error| failed(&error))?;
    names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let shown = |name: &std::ffi::CString| name.to_string_lossy().into_owned();
    if let Some(cursor) = &query.cursor {
        // The bytes of the last name: two names that are not UTF-8 may look the same.
        let last = URL_SAFE_NO_PAD.decode(cursor);
        let last = last.map_err(|_| Problem::field("cursor", "not the `next_cursor` of a page"))?;
        names.retain(|(name, _)| name.as_bytes() > last.as_slice());
    }
    let has_more = names.len() > limit;
    names.truncate(limit);
    let next_cursor =
        names.last().filter(|_| has_more).map(|(name, _)| URL_SAFE_NO_PAD.encode(name.as_bytes()));
    let mut found = Vec::with_capacity(names.len());
    for (name, _) in &names {
        let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // It was removed meanwhile.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(problem(&query.path, errno)),
        };
        let target = rustix::fs::readlinkat(dir, name, Vec::new()).ok();
        let target = target.map(|target| target.to_string_lossy().into_owned());
        found.push(FileEntry::of(shown(name), &stat, target));
    }
    Ok(FilePage { entries: found, next_cursor })
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
        .call(move |root| {
            let workspace = Workspace::open(root, &id)?;
            if request.parents {
                return workspace.make_directories(&request.path, mode);
            }
            let place = workspace.place(&request.path)?;
            rustix::fs::mkdirat(&place.dir, &place.name, mode).map_err(|errno| problem(&request.path, errno))
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
        .call(move |root| {
            let workspace = Workspace::open(root, &id)?;
            let from = workspace.place(&request.from)?;
            let to = workspace.place(&request.to)?;
            let flags = if request.replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
            let moved = rustix::fs::renameat_with(&from.dir, &from.name, &to.dir, &to.name, flags);
            moved.map_err(|errno| {
                let path =
                    if errno == Errno::NOENT && !is_there(&from) { &request.from } else { &request.to };
                problem(path, errno)
            })
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
        .call(move |root| {
            let workspace = Workspace::open(root, &id)?;
            let place = workspace.place(&query.path)?;
            remove_at(&place, query.recursive).map_err(|errno| problem(&query.path, errno))
        })
        .await??;
    Ok(StatusCode::NO_CONTENT)
}

fn remove_at(place: &FilePlace, recursive: bool) -> Result<(), Errno> {
    match rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::empty()) {
        Err(Errno::ISDIR | Errno::PERM) => {}
        other => return other,
    }
    let empty = rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR);
    if !recursive || empty != Err(Errno::NOTEMPTY) {
        return empty;
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let dir = rustix::fs::openat2(&place.dir, &place.name, flags, Mode::empty(), resolve)?;
    clear(readable(&dir)?.as_fd(), &[])
        .map_err(|error| Errno::from_io_error(&error.source).unwrap_or(Errno::IO))?;
    rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR)
}

/// Parses permissions in octal.
pub(super) fn mode(text: &str) -> Result<Mode, Problem> {
    let is_octal = (3..=5).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let number = u32::from_str_radix(text, 8).ok().filter(|number| is_octal && *number <= 0o7777);
    number
        .map(Mode::from_raw_mode)
        .ok_or_else(|| Problem::field("mode", "not permissions in octal, such as `0644`"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn pages_have_every_name_once() {
        let top = tempfile::tempdir().unwrap();
        // In the order of their bytes: the replacement of a byte that is not UTF-8 sorts before the last but one.
        let names: [&[u8]; 6] = [b"a", b"b", "\u{1f600}".as_bytes(), b"\xfd", b"\xfe", b"\xff"];
        for name in names {
            std::fs::write(top.path().join(OsStr::from_bytes(name)), "").unwrap();
        }
        let dir: OwnedFd = std::fs::File::open(top.path()).unwrap().into();
        let mut query = ListFilesQuery { path: String::new(), limit: None, cursor: None };
        let mut listed = Vec::new();
        loop {
            let FilePage { entries, next_cursor } = page(&dir, &query, 1).unwrap();
            listed.extend(entries.into_iter().map(|entry| entry.name));
            query.cursor = next_cursor;
            if query.cursor.is_none() {
                break;
            }
        }
        assert_eq!(listed, names.map(|name| String::from_utf8_lossy(name).into_owned()));
        query.cursor = Some("\u{1f600}".to_owned());
        assert!(page(&dir, &query, 1).is_err());
    }
}
