//! `/api/list-files`.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse as _;
use penfold_process::path_text::path_text;
use penfold_server::sent_body::{self, Sink};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::RouteResult;
use crate::api::ApiState;
use crate::error::ApiError;
use crate::json_body::json_body;
use crate::request::Parsed;
use crate::time;

use super::error::file_error;
use super::path::Place;

const OPERATION: &str = "directory.list";
/// Deeper directories are not entered.
const DEEPEST: usize = 256;

#[derive(Debug, Deserialize)]
pub(crate) struct ListRequest {
    #[serde(flatten)]
    place: Place,
    options: Option<Options>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Options {
    recursive: Option<bool>,
    include_hidden: Option<bool>,
}

/// Lists a directory.
pub(crate) async fn list(State(api): State<ApiState>, Parsed(request): Parsed<ListRequest>) -> RouteResult {
    let options = request.options.unwrap_or_default();
    let path = request.place.resolve(&api).await?;
    let opened = api.app.engine.call(move |_| (names(&path), path)).await;
    let (opened, path) = opened.map_err(|error| ApiError::internal(&error))?;
    let first = opened.map_err(|error| file_error(OPERATION, &path, &error))?;
    let body = sent_body::written_body(move |sink| {
        let mut listing = Listing {
            top: &path,
            recursive: options.recursive.unwrap_or(false),
            hidden: options.include_hidden.unwrap_or(false),
            count: 0,
        };
        sink.write("{\"success\":true,\"files\":[")?;
        listing.directory(sink, &path, first, 0)?;
        let rest =
            json!({ "path": path_text(&path), "count": listing.count, "timestamp": time::current_time() });
        sink.write("],")?;
        sink.write(json_body(&rest)?.strip_prefix('{').unwrap_or_default())
    });
    let body = body.map_err(|error| ApiError::internal(&error))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The sorted names in a directory.
fn names(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

struct Listing<'a> {
    top: &'a Path,
    recursive: bool,
    hidden: bool,
    count: u64,
}

impl Listing<'_> {
    fn directory(
        &mut self,
        sink: &mut Sink,
        path: &Path,
        names: Vec<PathBuf>,
        depth: usize,
    ) -> io::Result<()> {
        debug_assert!(names.iter().all(|name| name.starts_with(path)), "names of another directory");
        for entry in names {
            let is_hidden = entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if is_hidden && !self.hidden {
                continue;
            }
            // The entry may be gone by now.
            let Ok(metadata) = fs::symlink_metadata(&entry) else { continue };
            if self.count > 0 {
                sink.write(",")?;
            }
            self.count += 1;
            sink.write(json_body(&self.describe(&entry, &metadata))?)?;
            if self.recursive && metadata.is_dir() && depth < DEEPEST {
                // A directory that cannot be read has no entries here.
                let inner = self::names(&entry).unwrap_or_default();
                self.directory(sink, &entry, inner, depth + 1)?;
            }
        }
        Ok(())
    }

    fn describe(&self, entry: &Path, metadata: &Metadata) -> Value {
        let kind = metadata.file_type();
        let kind = match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
            (true, ..) => "file",
            (_, true, _) => "directory",
            (.., true) => "symlink",
            _ => "other",
        };
        let mode = metadata.permissions().mode();
        let seconds = u64::try_from(metadata.mtime()).unwrap_or(0);
        let ms = u64::try_from(metadata.mtime_nsec()).unwrap_or(0) / 1_000_000;
        json!({
            "name": path_text(Path::new(entry.file_name().unwrap_or_default())),
            "absolutePath": path_text(entry),
            "relativePath": path_text(entry.strip_prefix(self.top).unwrap_or(entry)),
            "type": kind,
            "size": metadata.len(),
            "modifiedAt": time::iso_time(seconds * 1000 + ms),
            "mode": mode_text(mode),
            "permissions": {
                "readable": mode & 0o400 != 0,
                "writable": mode & 0o200 != 0,
                "executable": mode & 0o100 != 0,
            },
        })
    }
}

/// The permissions as ls(1) shows them, without the type.
fn mode_text(mode: u32) -> String {
    let bits = [
        (0o400, 'r'),
        (0o200, 'w'),
        (0o100, 'x'),
        (0o40, 'r'),
        (0o20, 'w'),
        (0o10, 'x'),
        (4, 'r'),
        (2, 'w'),
        (1, 'x'),
    ];
    bits.iter().map(|&(bit, letter)| if mode & bit == 0 { '-' } else { letter }).collect()
}
