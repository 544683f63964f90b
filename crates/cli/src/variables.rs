//! The environment variables of this process.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The value of an environment variable.
#[expect(clippy::disallowed_methods, reason = "the binary reads the environment, the libraries do not")]
pub(crate) fn get(key: &OsStr) -> Option<OsString> {
    std::env::var_os(key)
}

/// The whole environment.
pub(crate) fn all() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os()
}

/// The home directory of this user, as `HOME` names it.
pub(crate) fn user_home() -> Option<PathBuf> {
    get(OsStr::new("HOME")).filter(|home| !home.is_empty()).map(PathBuf::from)
}
