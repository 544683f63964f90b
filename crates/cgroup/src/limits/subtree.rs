//! The controllers of a cgroup: which it has, and which it gives to the cgroups below.

use std::io;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

use super::controller::Controller;
use super::error::LimitError;

const ENABLED: &str = "cgroup.subtree_control";

/// Checks that cgroups below `dir` have these controllers or can get them. Returns those that must be enabled; changes nothing.
pub(super) fn controllers_to_enable(
    dir: &Path,
    wanted: impl Iterator<Item = Controller>,
) -> Result<Vec<Controller>, LimitError> {
    let available = read_control_file(&dir.join("cgroup.controllers"))?;
    let enabled = read_control_file(&dir.join(ENABLED))?;
    let mut missing = Vec::new();
    for controller in wanted {
        if !controller.is_in(&available) {
            return Err(LimitError::Unavailable { controller, path: dir.to_owned() });
        }
        if !controller.is_in(&enabled) {
            missing.push(controller);
        }
    }
    if let Some(&controller) = missing.first() {
        // A cgroup with processes that enables `pids` or `cpu` becomes threaded: no leaf below it could take a process.
        if !is_root(dir)? && !read_control_file(&dir.join("cgroup.procs"))?.is_empty() {
            return Err(LimitError::Occupied { controller, path: dir.to_owned() });
        }
        rustix::fs::accessat(CWD, dir.join(ENABLED).as_path(), Access::WRITE_OK, AtFlags::EACCESS)
            .map_err(|errno| LimitError::Enable { controller, path: dir.to_owned(), source: errno.into() })?;
    }
    Ok(missing)
}

/// Enables controllers for the cgroups below `dir`, and verifies it.
pub(super) fn enable_controllers(dir: &Path, missing: &[Controller]) -> Result<(), LimitError> {
    let Some(&first) = missing.first() else { return Ok(()) };
    let words: Vec<String> = missing.iter().map(|controller| format!("+{controller}")).collect();
    let refused = |controller, source| LimitError::Enable { controller, path: dir.to_owned(), source };
    std::fs::OpenOptions::new()
        .write(true)
        .open(dir.join(ENABLED))
        .and_then(|mut file| io::Write::write_all(&mut file, words.join(" ").as_bytes()))
        .map_err(|source| refused(first, source))?;
    let enabled = read_control_file(&dir.join(ENABLED))?;
    match missing.iter().find(|controller| !controller.is_in(&enabled)) {
        None => Ok(()),
        Some(&controller) => Err(refused(controller, io::Error::other("the kernel did not enable it"))),
    }
}

/// Tells whether this is the root of the hierarchy, which may have processes and enabled controllers.
fn is_root(dir: &Path) -> Result<bool, LimitError> {
    let path = dir.join("cgroup.events");
    match rustix::fs::stat(&path) {
        Ok(_) => Ok(false),
        Err(Errno::NOENT) => Ok(true),
        Err(errno) => Err(LimitError::Read { path, source: errno.into() }),
    }
}

pub(super) fn read_control_file(path: &Path) -> Result<String, LimitError> {
    std::fs::read_to_string(path).map_err(|source| LimitError::Read { path: path.to_owned(), source })
}
