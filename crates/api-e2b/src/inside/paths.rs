//! The paths of requests: absolute, or relative to the home directory.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use penfold_process::path_text::path_text;
use penfold_server::files::FileError;

/// Returns the absolute path of a request's path, without `.`, `..` and double slashes. The empty path is the home directory.
///
/// # Errors
/// When it has a NUL.
pub(crate) fn normal_path(home: &str, text: &str) -> Result<String, FileError> {
    if text.contains('\0') {
        return Err(FileError::Path("contains a NUL"));
    }
    let base = if text.starts_with('/') { "" } else { home };
    let mut parts: Vec<&str> = Vec::new();
    for part in base.split('/').chain(text.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    Ok(format!("/{}", parts.join("/")))
}

/// The path of the directory above an absolute, normal path.
pub(crate) fn parent_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some((parent, _)) if !parent.is_empty() => parent,
        _ => "/",
    }
}

/// The name of a file; `/` for the root directory.
pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit_once('/').map(|(_, name)| name).filter(|name| !name.is_empty()).unwrap_or(path)
}

/// The path of an entry of a directory.
pub(super) fn joined(directory: &str, name: &str) -> String {
    format!("{}/{name}", directory.trim_end_matches('/'))
}

/// The text of a name.
pub(super) fn text_of(name: &CStr) -> String {
    path_text(Path::new(OsStr::from_bytes(name.to_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_home_directory_and_are_normal() {
        for (text, path) in [
            ("", "/home/user"),
            ("a", "/home/user/a"),
            ("./a//b/", "/home/user/a/b"),
            ("../x", "/home/x"),
            ("../../../../x", "/x"),
            ("/", "/"),
            ("//etc/./passwd", "/etc/passwd"),
            ("/a/../..", "/"),
            ("~", "/home/user/~"),
        ] {
            assert_eq!(normal_path("/home/user", text).unwrap(), path, "{text}");
        }
        assert!(normal_path("/home/user", "a\0b").is_err());
    }

    #[test]
    fn a_path_has_a_parent_and_a_name() {
        for (path, parent, name) in [("/a/b", "/a", "b"), ("/a", "/", "a"), ("/", "/", "/")] {
            assert_eq!((parent_of(path), name_of(path)), (parent, name), "{path}");
        }
        assert_eq!([joined("/", "a"), joined("/b", "a")], ["/a", "/b/a"]);
    }
}
