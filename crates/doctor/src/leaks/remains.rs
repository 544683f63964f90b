//! Finds remains of ended sandboxes, and supervisors that no client can reach.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType};
use rustix::io::Errno;

use super::search::{LeakSearch, YOUNG};
use super::unfinished::unfinished_files;
use super::{Leak, Thing, age};
use penfold_process::quote_words;
use penfold_state::Files;
use penfold_state::clear::list_entries;
use penfold_state::error_chain;
use penfold_state::evidence::fingerprints;
use penfold_state::intent::Intent;
use penfold_state::names::{self, NAMES, free_name};
use penfold_state::record::{Record, StateError, open_private};

/// The file name of a control socket.
const SOCKET: &str = "control.sock";
/// The longest path that fits a `sockaddr_un`, unix(7). Supervisors bind a longer path under another name.
const LONGEST: usize = 107;

impl LeakSearch {
    /// Adds a record that is kept for its log and exit code.
    pub(super) fn ended(&mut self, record: &Record, intent: Option<Intent>, path: PathBuf) {
        let id = record.name().to_owned();
        let command = intent.as_ref().map(|intent| quote_words(&intent.command)).unwrap_or_default();
        let name = intent.and_then(|intent| intent.held_name());
        for file in unfinished_files(record.files()).unwrap_or_default() {
            let thing = Thing::File { path: path.join(file) };
            self.survey.leaks.push(leak(&id, name.clone(), thing));
        }
        self.survey.kept.push(leak(&id, name, Thing::Ended { path, command }));
    }

    /// Adds a record with a supervisor, if its control socket is missing.
    pub(super) fn unreachable(&mut self, files: &Files, intent: Option<Intent>, path: PathBuf) {
        let socket = rustix::fs::statat(files.dir(), SOCKET, AtFlags::SYMLINK_NOFOLLOW);
        let missing = match socket {
            Ok(socket) => FileType::from_raw_mode(socket.st_mode) != FileType::Socket,
            Err(errno) => errno == Errno::NOENT,
        };
        if !missing || age(&path) < YOUNG {
            return;
        }
        // A foreground supervisor has no socket, and an exiting supervisor has already closed it.
        let Some(intent) = intent.filter(|intent| intent.detached.is_some()) else { return };
        if !files.has_ended() && files.lock().is_held() {
            self.survey.leaks.push(leak(files.name(), intent.held_name(), Thing::Unreachable { path }));
        }
    }

    /// Adds sockets of living supervisors whose records are gone, and records whose sockets have no listener.
    pub(super) fn sockets(&mut self, root: &Path) {
        let sockets = match fingerprints::find_sockets().complete() {
            Ok(sockets) => sockets,
            Err(unread) => return self.survey.unread.push(unread.to_string()),
        };
        for (id, below) in sockets.iter().filter(|(id, _)| !self.survived.contains(*id)) {
            let record = root.join("sandboxes").join(id);
            let here = fingerprints::is_same_root(below, root);
            if here && rustix::fs::statat(CWD, &record, AtFlags::SYMLINK_NOFOLLOW).err() == Some(Errno::NOENT)
            {
                self.living.insert(id.clone());
                if self.homes.is_elsewhere(id) {
                    self.elsewhere.insert(id.clone());
                    continue;
                }
                let thing = Thing::Socket { path: record.join(SOCKET) };
                self.survey.leaks.push(leak(id, None, thing));
            }
        }
        let here = self.living.difference(&self.elsewhere);
        let silent: Vec<String> =
            here.filter(|id| !sockets.contains_key(*id) && !self.survived.contains(*id)).cloned().collect();
        for id in silent {
            let record = root.join("sandboxes").join(&id);
            if record.join(SOCKET).as_os_str().len() <= LONGEST
                && age(&record) >= YOUNG
                && is_deaf(&record.join(SOCKET))
            {
                self.survey.leaks.push(leak(&id, None, Thing::Unreachable { path: record }));
            }
        }
    }

    /// Tells whether a sandbox may be alive, with or without a record, or something could not be read.
    fn may_live(&self, id: &str) -> bool {
        let found = || self.survey.leaks.iter().any(|leak| leak.id == id);
        !self.survey.complete
            || self.survey.unjudged.iter().any(|other| other == id)
            || self.living.contains(id)
            || self.orphaned.contains(id)
            || found()
    }

    /// Adds names without a holder. The names of orphans go with the orphans.
    pub(super) fn names(&mut self, root: &Path) {
        let path = root.join(NAMES);
        let dir = match open_private(CWD, &path) {
            Ok(dir) => dir,
            Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.survey.unread.push(error_chain(&error)),
        };
        let listed = match list_entries(dir.as_fd()) {
            Ok(listed) => listed,
            Err(error) => {
                return self.survey.unread.push(format!("cannot read `{}`: {error}", path.display()));
            }
        };
        // A sandbox of the server's has many: none of them hides the others.
        let mut leaks = Vec::new();
        for (name, _) in listed {
            let Some(name) = name.to_str().ok().filter(|name| names::is_held_name(name)) else { continue };
            let file = path.join(name);
            let Some(id) = free_name(&dir, name) else { continue };
            if !self.may_live(&id) && age(&file) >= YOUNG {
                leaks.push(leak(&id, Some(name.to_owned()), Thing::Name { path: file }));
            }
        }
        self.survey.leaks.append(&mut leaks);
    }
}

fn leak(id: &str, name: Option<String>, thing: Thing) -> Leak {
    let age_s = thing.path().map_or(0, age);
    Leak { id: id.to_owned(), name, thing, processes: Vec::new(), age_s, claimed: true }
}

/// Tells whether an existing socket has no listener. A socket that cannot be tried counts as having one.
fn is_deaf(path: &Path) -> bool {
    let flags = rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK;
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let Ok(socket) = rustix::net::socket_with(family, kind, flags, None) else { return false };
    let Ok(address) = rustix::net::SocketAddrUnix::new(path) else { return false };
    rustix::net::connect(&socket, &address) == Err(Errno::CONNREFUSED)
}
