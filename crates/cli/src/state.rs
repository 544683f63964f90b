//! Where this user's records are.

use std::path::PathBuf;

use crate::args::Global;

/// `--root`, else `/run/penfold` for root, else below the user's runtime directory, else below `/tmp`.
#[expect(clippy::disallowed_methods, reason = "the binary is who reads the environment")]
pub(crate) fn root(global: &Global) -> PathBuf {
    if let Some(root) = &global.root {
        return root.clone();
    }
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/penfold");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("penfold"),
        None => PathBuf::from(format!("/tmp/penfold-{}", user.as_raw())),
    }
}
