//! The files that a process uses, as /proc names them.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use penfold_process::{Pid, SchedulerState, Stat};
use penfold_state::Id;

/// What the kernel adds to the name of a file without a name.
const DELETED: &[u8] = b" (deleted)";

/// Returns the directory of a process in /proc. If its main thread has exited, those of its threads: the main thread then shows
/// no files.
pub(super) fn process_directories(stat: &Stat) -> Vec<PathBuf> {
    let own = PathBuf::from(format!("/proc/{}", stat.pid.as_raw_pid()));
    if stat.state != SchedulerState::Zombie {
        return vec![own];
    }
    let threads = std::fs::read_dir(own.join("task")).into_iter().flatten();
    threads.filter_map(Result::ok).map(|entry| entry.path()).collect()
}

/// Tells whether a name of the kernel is this path or below it.
pub(super) fn is_below(name: &[u8], path: &Path) -> bool {
    let Some(rest) = name.strip_prefix(path.as_os_str().as_bytes()) else { return false };
    rest.is_empty() || rest.starts_with(b"/") || rest == DELETED
}

/// Tells whether a link of /proc leads to this path or below it.
pub(super) fn leads_below(link: &Path, path: &Path) -> bool {
    std::fs::read_link(link).is_ok_and(|target| is_below(target.as_os_str().as_bytes(), path))
}

/// Tells whether an open file of a process is this path or below it.
pub(super) fn holds_below(place: &Path, path: &Path) -> bool {
    std::fs::read_dir(place.join("fd"))
        .is_ok_and(|files| files.filter_map(Result::ok).any(|file| leads_below(&file.path(), path)))
}

/// Tells whether a process has mapped a file below this path.
pub(super) fn maps_below(place: &Path, path: &Path) -> bool {
    let text = std::fs::read(place.join("maps")).unwrap_or_default();
    // The name is the sixth word, proc_pid_maps(5); only it has slashes at its beginning.
    text.split(|&byte| byte == b'\n').any(|line| {
        let name = line.iter().position(|&byte| byte == b'/').and_then(|at| line.get(at..));
        name.is_some_and(|name| is_below(name, path))
    })
}

/// Returns the records that a penfold process holds open.
///
/// # Errors
/// When the files of the process cannot be read.
pub(super) fn open_records(pid: Pid) -> io::Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid()))?;
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let undeleted = |link: PathBuf| {
        let name = link.into_os_string().into_vec();
        PathBuf::from(OsStr::from_bytes(name.strip_suffix(DELETED).unwrap_or(&name)))
    };
    Ok(links.map(undeleted).filter(|path| is_record(path)).collect())
}

fn is_record(path: &Path) -> bool {
    let name = |path: &Path| path.file_name().and_then(OsStr::to_str).map(str::to_owned);
    path.parent().and_then(name).as_deref() == Some("sandboxes")
        && name(path).is_some_and(|id| Id::is_short(&id))
}

/// Tells whether an argument names this path or a path below it.
pub(super) fn names_path(argument: &[u8], path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte >= 0x80 || b"_-.~+/".contains(&byte);
    let is_option = |before: &[u8]| {
        before.strip_prefix(b"-").is_some_and(|letters| letters.iter().all(u8::is_ascii_alphabetic))
    };
    argument.windows(path.len()).enumerate().filter(|(_, part)| *part == path).any(|(at, _)| {
        let (before, rest) = argument.split_at(at);
        let after = rest.get(path.len());
        let begins = before.last().is_none_or(|&byte| !is_part(byte)) || is_option(before);
        begins && after.is_none_or(|&byte| byte == b'/' || !is_part(byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 3.5
    #[test]
    fn only_the_path_itself_and_paths_below_are_named() {
        let home = Path::new("/tmp/home");
        for argument in [
            "/tmp/home",
            "/tmp/home/x",
            "--dir=/tmp/home",
            "a:/tmp/home:b",
            "cd '/tmp/home' && x",
            "-I/tmp/home",
        ] {
            assert!(names_path(argument.as_bytes(), home), "{argument}");
        }
        for argument in
            ["/tmp/home2", "/tmp/home-x", "/tmp/home.bak", "/x/tmp/home", "x/tmp/home", "/tmp/hom", ""]
        {
            assert!(!names_path(argument.as_bytes(), home), "{argument}");
        }
        assert!(is_below(b"/tmp/home (deleted)", home) && is_below(b"/tmp/home/x (deleted)", home));
        assert!(!is_below(b"/tmp/home2", home) && !is_below(b"/tmp/home (deletedx", home));
    }

    #[test]
    fn a_record_is_a_directory_with_an_id() {
        assert!(is_record(Path::new("/x/sandboxes/0123456789ab")));
        for path in ["/x/sandboxes", "/x/sandboxes/y", "/x/0123456789ab", "/x/sandboxes/0123456789ab/log"] {
            assert!(!is_record(Path::new(path)), "{path}");
        }
    }
}
