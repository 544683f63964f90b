//! `/v1/sandboxes/{id}/files`: files in the workspace of a sandbox, the directory in which its command started.
//!
//! Paths are in the query or in the body, because clients and proxies rewrite `..` in the path of an address.

mod content;
mod tree;

use penfold_server::files::{FileError, UploadError};
use rustix::fs::Mode;
use rustix::io::Errno;

use super::log_answer::too_many;
use super::problem::{Kind, Problem};

use crate::routes::Routes;

pub(super) fn routes() -> Routes {
    Routes::new().merge(content::routes()).merge(tree::routes())
}

impl From<FileError> for Problem {
    fn from(error: FileError) -> Problem {
        let detail = error.to_string();
        match error {
            FileError::Resolve(error) => error.into(),
            FileError::NoWorkspace { .. } | FileError::NoJail(_) => Problem::new(Kind::NotFound, detail),
            FileError::Path(flaw) => Problem::field("path", flaw),
            FileError::NotPlain { .. } => Problem::new(Kind::FileConflict, detail),
            FileError::System { errno, .. } => Problem::new(kind(errno), detail),
        }
    }
}

impl From<UploadError> for Problem {
    fn from(error: UploadError) -> Problem {
        let detail = error.to_string();
        match error {
            UploadError::TooMany => too_many(),
            UploadError::Engine(error) => error.into(),
            UploadError::File(error) => error.into(),
            UploadError::Body(_) | UploadError::Abandoned => Problem::new(Kind::BadRequest, detail),
        }
    }
}

/// The kind of problem that an error of a system call about a path is.
fn kind(errno: Errno) -> Kind {
    match errno {
        Errno::NOENT => Kind::NotFound,
        Errno::XDEV => Kind::OutsideWorkspace,
        // A magic link, or too many links.
        Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL => Kind::InvalidField,
        Errno::NOTDIR | Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY | Errno::BUSY | Errno::TXTBSY => {
            Kind::FileConflict
        }
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Kind::NotPermitted,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Kind::NoSpace,
        _ => Kind::Internal,
    }
}

/// Parses permissions in octal.
fn mode(text: &str) -> Result<Mode, Problem> {
    let is_octal = (3..=5).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
    let number = u32::from_str_radix(text, 8).ok().filter(|number| is_octal && *number <= 0o7777);
    number
        .map(Mode::from_raw_mode)
        .ok_or_else(|| Problem::field("mode", "not permissions in octal, such as `0644`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_plain_is_a_conflict() {
        let path = "a".to_owned();
        for error in
            [FileError::NotPlain { path: path.clone() }, FileError::System { path, errno: Errno::ISDIR }]
        {
            let document = Problem::from(error).document();
            assert_eq!(serde_json::to_value(document).unwrap()["status"], 409);
        }
    }
}
