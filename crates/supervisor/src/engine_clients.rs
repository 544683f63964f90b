//! The clients of container engines among the members.
//!
//! A container is started by its engine, and is no member: neither a leaf nor a subreaper holds it. So the report says which client ran.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use penfold_process::Stat;
use penfold_teardown::Findings;
use rustix::fs::inotify;

/// The programs.
const CLIENTS: [&str; 7] = ["docker", "docker-compose", "podman", "nerdctl", "kubectl", "ctr", "crictl"];

/// Returns the client that a name means.
fn client(name: &str) -> Option<&'static str> {
    CLIENTS.into_iter().find(|client| *client == name)
}

/// Returns the clients: the command itself, members that were ended, and those that were `seen`.
pub(crate) fn find_engine_clients(
    command: &[OsString],
    findings: &Findings,
    seen: Option<&BTreeSet<&'static str>>,
) -> Vec<String> {
    let leader = command.first().and_then(|word| Path::new(word).file_name()).and_then(OsStr::to_str);
    let ended = findings.ended.iter().flat_map(|ended| {
        let program = ended.command.as_deref().and_then(|line| line.split(' ').next());
        [Some(ended.name.as_str()), program.and_then(|program| program.rsplit('/').next())]
    });
    let named = std::iter::once(leader).chain(ended).flatten().filter_map(client);
    let all: BTreeSet<&str> = named.chain(seen.into_iter().flatten().copied()).collect();
    all.into_iter().map(str::to_owned).collect()
}

/// Adds the clients among these members.
pub(crate) fn note_engine_clients(members: &[Stat], seen: &mut BTreeSet<&'static str>) {
    seen.extend(members.iter().filter_map(|stat| client(&stat.comm)));
}

/// Tells when a process on this host executes a client, so that one that lives for a moment only is seen.
#[derive(Debug)]
pub(crate) struct Executions {
    inotify: OwnedFd,
}

impl Executions {
    /// Watches the clients that are in the directories of this PATH; `None` if there are none.
    ///
    /// The kernel takes some 10 ms to close a descriptor of inotify(7), so none is opened for nothing.
    pub(crate) fn watch(path: &OsStr) -> Option<Executions> {
        let files: Vec<PathBuf> = std::env::split_paths(path)
            .filter(|directory| directory.is_absolute())
            .flat_map(|directory| CLIENTS.map(|client| directory.join(client)))
            .filter(|file| rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok())
            .collect();
        if files.is_empty() {
            return None;
        }
        let flags = inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC;
        let inotify = inotify::init(flags).ok()?;
        for file in files {
            // One that cannot be read is not watched.
            let _ = inotify::add_watch(&inotify, file, inotify::WatchFlags::OPEN);
        }
        Some(Executions { inotify })
    }

    /// Tells whether one was executed, or opened, since the last call.
    pub(crate) fn take(&self) -> bool {
        let mut buffer = [0; 4096];
        let mut is_any = false;
        while matches!(rustix::io::read(&self.inotify, &mut buffer), Ok(1..)) {
            is_any = true;
        }
        is_any
    }

    /// The descriptor, readable when there is something to take.
    pub(crate) fn source(&self) -> &OwnedFd {
        &self.inotify
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_by_the_name_of_its_program() {
        let none = Findings::default();
        let command = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        assert_eq!(find_engine_clients(&command(&["/usr/bin/docker", "ps"]), &none, None), ["docker"]);
        assert_eq!(find_engine_clients(&command(&["echo", "docker"]), &none, None), Vec::<String>::new());
        let seen = BTreeSet::from(["podman"]);
        assert_eq!(find_engine_clients(&command(&["docker"]), &none, Some(&seen)), ["docker", "podman"]);
    }
}
