//! Errors of operations on files.

use penfold_process::path_text::path_text;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use crate::error::{ApiError, Code};

/// Converts an error of an operation on a path.
pub(crate) fn file_error(operation: &'static str, path: &Path, error: &io::Error) -> ApiError {
    let code = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => Code::FileNotFound,
        Some(Errno::NOTDIR) => Code::NotDirectory,
        Some(Errno::ISDIR) => Code::IsDirectory,
        Some(Errno::ACCESS | Errno::PERM) => Code::PermissionDenied,
        Some(Errno::ROFS) => Code::ReadOnly,
        Some(Errno::NAMETOOLONG) => Code::NameTooLong,
        Some(Errno::EXIST | Errno::NOTEMPTY) => Code::FileExists,
        Some(Errno::NOSPC | Errno::DQUOT) => Code::NoSpace,
        Some(Errno::FBIG) => Code::FileTooLarge,
        _ => Code::FilesystemError,
    };
    coded_error(code, operation, path, &error.to_string())
}

/// Makes an error with this code.
pub(crate) fn coded_error(code: Code, operation: &'static str, path: &Path, why: &str) -> ApiError {
    let path = path_text(path);
    ApiError::new(code, format!("Failed to {} '{path}': {why}", words(operation)))
        .with("path", path)
        .with("operation", operation)
        .with("stderr", why)
        .operation(operation)
}

/// `file.read` as words.
fn words(operation: &str) -> String {
    match operation.split_once('.') {
        Some(("directory", verb)) => format!("{verb} directory"),
        Some((_, verb)) => format!("{verb} file"),
        None => operation.to_owned(),
    }
}
