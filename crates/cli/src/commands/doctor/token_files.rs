//! Files with tokens that other users can read: the one that is named here, and those of servers that run.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use penfold_doctor::host_checks::{self, Ability};
use penfold_process::{Pid, ProcFs};

use crate::args::verb::Global;
use crate::surroundings::{self, TOKEN_FILE};
use crate::variables;

/// Returns a warning for each file that others can read or write.
pub(super) fn open_to_others(global: &Global, root: &Path) -> Vec<Ability> {
    let variable = variables::get(OsStr::new(TOKEN_FILE)).filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut paths = BTreeSet::from_iter(global.token_file.clone());
    paths.extend(variable);
    paths.extend(global.config.token_file.clone());
    let usual = surroundings::root(&Global { root: None, ..global.clone() });
    paths.extend(of_servers(root, &usual));
    let is_open = |path: &PathBuf| penfold_state::is_open_to_others(path).unwrap_or(false);
    paths.into_iter().filter(is_open).map(|path| host_checks::open_token_file(&path)).collect()
}

/// Returns the files of the servers of this state root that this user may look at.
fn of_servers(root: &Path, usual: &Path) -> Vec<PathBuf> {
    let Ok(mut proc) = ProcFs::open() else { return Vec::new() };
    let mut pids = Vec::new();
    let _ = proc.processes(&mut pids);
    pids.into_iter().filter_map(|pid| of_server(pid, root, usual)).collect()
}

fn of_server(pid: Pid, root: &Path, usual: &Path) -> Option<PathBuf> {
    let of_process = |name: &str| PathBuf::from(format!("/proc/{}/{name}", pid.as_raw_pid()));
    let line = std::fs::read(of_process("cmdline")).ok()?;
    let words: Vec<&[u8]> = line.split(|&byte| byte == 0).collect();
    let program = Path::new(OsStr::from_bytes(words.first()?)).file_name()?;
    if program != "penfold" || !words.contains(&&b"serve"[..]) {
        return None;
    }
    let base = std::fs::read_link(of_process("cwd")).ok()?;
    let of_server = option(&words, "--root").map_or_else(|| usual.to_owned(), |given| base.join(given));
    let file_of = |path: &Path| std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    let is_same = file_of(&of_server)? == file_of(root)?;
    is_same.then(|| option(&words, "--token-file")).flatten().map(|path| base.join(path))
}

/// Returns the value of an option: the next word, or what follows `=`.
fn option(words: &[&[u8]], name: &str) -> Option<PathBuf> {
    let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
    words.iter().enumerate().find_map(|(index, word)| match word.strip_prefix(name.as_bytes())? {
        [] => words.get(index + 1).map(|value| path(value)),
        [b'=', value @ ..] => Some(path(value)),
        _ => None,
    })
}
