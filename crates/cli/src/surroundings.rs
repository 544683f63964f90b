//! Reads the environment of this process: variables, the state root, the enclosing sandboxes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use penfold_launch::surroundings::Surroundings;
use penfold_state::evidence::fingerprints::is_same_root;
use penfold_teardown::MARKER;
use penfold_unit::Buses;
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat};
use rustix::io::Errno;

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::variables;

/// What a launch needs to know.
pub(crate) fn for_launch(global: &Global) -> Surroundings {
    Surroundings {
        state_root: root(global),
        temporary: temporary(),
        program: program(),
        variables: variables::all().collect(),
        buses: buses(),
    }
}

/// The name of a state root below a runtime directory.
const ROOT: &str = "penfold";

/// The directory of root's state root, unless an image has no such directory or it is read-only.
const RUN: &str = "/run/penfold";

/// The state root: `--root`, else `/run/penfold` for root, else `penfold` below the runtime directory, else
/// `/tmp/penfold-UID`. Where the image of a container has no `/run`, root's is `/dev/shm/penfold-0`, else `/tmp/penfold-0`.
///
/// The runtime directory is `$XDG_RUNTIME_DIR`, else `/run/user/UID` if it belongs to this user. A service has no variable
/// but the same directory as the user's login sessions.
pub(crate) fn root(global: &Global) -> PathBuf {
    if let Some(root) = &global.root {
        return root.clone();
    }
    if rustix::process::geteuid().is_root() {
        return root_of_root();
    }
    if let Some(dir) = runtime_variable().or_else(own_runtime_directory) {
        return dir.join(ROOT);
    }
    let root = makeshift_roots().into_iter().next().unwrap_or_default();
    if !make_private(&root)
        && let Some(other) = usable_makeshift_root(&["/tmp", "/dev/shm"])
    {
        return other;
    }
    root
}

/// Root's state root. No process may begin elsewhere than those before it: `/run/penfold` is used where it exists.
fn root_of_root() -> PathBuf {
    let is_usable = |path: &str| accessat(CWD, path, Access::WRITE_OK, AtFlags::empty()).is_ok();
    if is_usable(RUN) || is_usable("/run") || Path::new(RUN).is_dir() {
        return PathBuf::from(RUN);
    }
    usable_makeshift_root(&["/dev/shm", "/tmp"]).unwrap_or_else(|| PathBuf::from(RUN))
}

/// The first of these directories in which this user has, or can make, a state root.
fn usable_makeshift_root(places: &[&str]) -> Option<PathBuf> {
    let root = places.iter().find_map(|place| {
        let is_usable = accessat(CWD, *place, Access::WRITE_OK | Access::EXEC_OK, AtFlags::empty()).is_ok();
        let root = makeshift_root(place);
        let is_ours = || is_own_directory(&root) || rustix::fs::lstat(&root).err() == Some(Errno::NOENT);
        (is_usable && is_ours()).then_some(root)
    })?;
    make_private(&root);
    Some(root)
}

/// The other directories that are this user's state root in other surroundings, and that exist; none with `--root`.
pub(crate) fn other_roots(global: &Global) -> Vec<PathBuf> {
    if global.root.is_some() {
        return Vec::new();
    }
    let mut known = vec![root(global)];
    let runtime = runtime_variable().into_iter().chain(own_runtime_directory()).map(|dir| dir.join(ROOT));
    for other in runtime.chain(makeshift_roots()) {
        if !known.iter().any(|root| is_same_root(root, &other)) && is_own_directory(&other) {
            known.push(other);
        }
    }
    known.split_off(1)
}

/// The value of `XDG_RUNTIME_DIR`.
fn runtime_variable() -> Option<PathBuf> {
    variables::get(OsStr::new("XDG_RUNTIME_DIR")).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// `/run/user/UID`, if it belongs to this user and no other user may write to it.
fn own_runtime_directory() -> Option<PathBuf> {
    let dir = PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
    is_own_directory(&dir).then_some(dir)
}

fn makeshift_roots() -> [PathBuf; 2] {
    ["/tmp", "/dev/shm"].map(makeshift_root)
}

/// This user's state root in a directory that all users share.
fn makeshift_root(place: &str) -> PathBuf {
    PathBuf::from(format!("{place}/penfold-{}", rustix::process::geteuid().as_raw()))
}

/// Tells whether a path is a directory of this user, and no link, to which no other user may write.
fn is_own_directory(path: &Path) -> bool {
    rustix::fs::lstat(path).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::Directory
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && !Mode::from_raw_mode(stat.st_mode).intersects(Mode::WGRP | Mode::WOTH)
    })
}

/// Returns [`root`] as an absolute path, for programs that are started in other directories.
pub(crate) fn absolute_root(global: &Global) -> PathBuf {
    let root = root(global);
    std::path::absolute(&root).unwrap_or(root)
}

/// The default Unix socket of `penfold serve`: beside the default state root.
pub(crate) fn socket(global: &Global) -> PathBuf {
    root(&Global { root: None, ..global.clone() }).join("api.sock")
}

/// This program, as it can be executed even if another version has taken its place.
pub(crate) fn program() -> PathBuf {
    PathBuf::from("/proc/self/exe")
}

/// The path of this program, for settings that start it later.
pub(crate) fn executable() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::new(FailureKind::Other, "cannot find the path of penfold").because(error))
}

/// Sets mode 0700 on this user's `/tmp/penfold-UID`; false if there is no such directory.
///
/// A directory of another user, or a symbolic link, stays as it is: opening the state root refuses it later.
fn make_private(root: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(dir) = rustix::fs::open(root, flags, Mode::empty()) else { return false };
    let ours = rustix::process::geteuid().as_raw();
    if rustix::fs::fstat(&dir)
        .is_ok_and(|stat| stat.st_uid == ours && Mode::from_raw_mode(stat.st_mode) != Mode::RWXU)
    {
        // If fchmod(2) fails, other users may have put files there; the owner check of each file refuses them later.
        let _ = rustix::fs::fchmod(&dir, Mode::RWXU);
    }
    true
}

/// The ids of the enclosing sandboxes, outermost first, from the marker of this process.
#[expect(clippy::disallowed_methods, reason = "the binary reads the environment, the libraries do not")]
pub(crate) fn outer_sandboxes() -> Vec<String> {
    penfold_launch::surroundings::outer_sandboxes(&std::env::var_os(MARKER).unwrap_or_default())
}

/// The parent of scratch directories, as an absolute path: commands have other working directories. As for mktemp(1), an empty
/// TMPDIR is none.
pub(crate) fn temporary() -> PathBuf {
    let named = std::env::temp_dir();
    let named = if named.as_os_str().is_empty() { PathBuf::from("/tmp") } else { named };
    std::path::absolute(&named).unwrap_or(named)
}

/// The directories that never belong to a foreign process alone: those of this user and of penfold.
pub(crate) fn protected(global: &Global) -> Vec<PathBuf> {
    let here = std::env::current_dir().ok();
    let named: Vec<PathBuf> = [absolute_root(global), temporary()]
        .into_iter()
        .chain(variables::user_home())
        .chain(here)
        .chain(runtime_variable())
        .collect();
    // The kernel names the directories of processes without links.
    let real: Vec<PathBuf> = named.iter().filter_map(|path| path.canonicalize().ok()).collect();
    [named, real].concat()
}

/// The variables with the address of a server, and with the file of its token.
pub(crate) const HOST: &str = "PENFOLD_HOST";
pub(crate) const TOKEN_FILE: &str = "PENFOLD_TOKEN_FILE";

/// Whether a variable makes penfold act on the sandboxes of a server. A server must not: it would call itself.
pub(crate) fn names_a_server(key: &OsStr) -> bool {
    key == HOST || key == TOKEN_FILE
}

/// The buses of the service managers: those of the variables, and those at the usual sockets.
pub(crate) fn buses() -> Buses {
    let named = |key| variables::get(OsStr::new(key)).and_then(|value| value.into_string().ok());
    let listed = |value: Option<String>| {
        let value = value.unwrap_or_default();
        value.split(';').filter(|address| !address.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let mut buses = Buses {
        user: listed(named("DBUS_SESSION_BUS_ADDRESS")),
        system: listed(named("DBUS_SYSTEM_BUS_ADDRESS")),
    };
    let runtime = runtime_variable().into_iter().chain(own_runtime_directory());
    buses.user.extend(runtime.map(|dir| Buses::at_socket(&dir.join("bus"))));
    buses.system.push(Buses::at_socket(Path::new("/run/dbus/system_bus_socket")));
    buses.user.dedup();
    buses
}
