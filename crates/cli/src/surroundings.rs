//! What this process finds around itself: environment, state root, the sandboxes that it runs in.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use penfold_state::Id;
use penfold_teardown::MARKER;
use rustix::fs::{Mode, OFlags};

use crate::args::verb::Global;

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
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        return PathBuf::from(dir).join("penfold");
    }
    let root = PathBuf::from(format!("/tmp/penfold-{}", user.as_raw()));
    close(&root);
    root
}

/// Takes from others what they may do in a directory of ours that is nobody else's by its name. One that is not ours, or a
/// link, is refused by who opens it.
fn close(root: &Path) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(root, flags, Mode::empty()) else { return };
    let ours = rustix::process::geteuid().as_raw();
    if rustix::fs::fstat(&dir)
        .is_ok_and(|stat| stat.st_uid == ours && Mode::from_raw_mode(stat.st_mode) != Mode::RWXU)
    {
        // Where that is refused, what others have put there is not ours and refused later.
        let _ = rustix::fs::fchmod(&dir, Mode::RWXU);
    }
}

/// The sandboxes that this process runs in, from the outermost, by its marker.
#[expect(clippy::disallowed_methods, reason = "the binary is who reads the environment")]
pub(crate) fn outer_sandboxes() -> Vec<String> {
    let marker = std::env::var_os(MARKER).unwrap_or_default();
    let marker = marker.to_string_lossy();
    marker.split(':').filter(|id| Id::is_short(id)).map(str::to_owned).collect()
}

/// Where scratch directories are made.
pub(crate) fn temporary() -> PathBuf {
    std::env::temp_dir()
}

/// The value of a variable.
#[expect(clippy::disallowed_methods, reason = "the binary is who reads the environment")]
pub(crate) fn variable(key: &OsStr) -> Option<OsString> {
    std::env::var_os(key)
}
