//! Failures of operations on files as errors of calls.

use penfold_server::files::FileError;
use penfold_state::error_chain;
use rustix::io::Errno;

use crate::connect::{Code, RpcError};

impl From<FileError> for RpcError {
    fn from(error: FileError) -> RpcError {
        let code = match &error {
            FileError::System { errno, .. } => code(*errno),
            FileError::Path(_) | FileError::NotPlain { .. } => Code::InvalidArgument,
            FileError::Resolve(_) | FileError::NoWorkspace { .. } => Code::NotFound,
            FileError::NoJail(_) => Code::Unavailable,
        };
        RpcError::new(code, error_chain(&error))
    }
}

fn code(errno: Errno) -> Code {
    match errno {
        Errno::NOENT => Code::NotFound,
        Errno::EXIST | Errno::NOTEMPTY => Code::AlreadyExists,
        Errno::NOTDIR | Errno::ISDIR | Errno::INVAL | Errno::NAMETOOLONG => Code::InvalidArgument,
        Errno::LOOP | Errno::BUSY => Code::FailedPrecondition,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::OVERFLOW => Code::ResourceExhausted,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_system_calls_have_codes() {
        for (errno, code) in [
            (Errno::NOENT, Code::NotFound),
            (Errno::EXIST, Code::AlreadyExists),
            (Errno::NOTDIR, Code::InvalidArgument),
            (Errno::LOOP, Code::FailedPrecondition),
            (Errno::NOSPC, Code::ResourceExhausted),
            (Errno::ACCESS, Code::PermissionDenied),
            (Errno::XDEV, Code::Internal),
        ] {
            let error = RpcError::from(FileError::System { path: "/a".to_owned(), errno });
            assert_eq!(error.code, code);
            assert!(error.message.starts_with("`/a`: "), "{}", error.message);
        }
        assert_eq!(RpcError::from(FileError::Path("contains a NUL")).code, Code::InvalidArgument);
    }
}
