//! A watched directory of a sandbox, and its events.

use std::os::fd::OwnedFd;

use penfold_server::files::{FileError, is_draft};
use penfold_server::watched::{Change, ChangeKind, Filter, MOST_CHANGES, Place, Tree, TreeRequest, WatchEnd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::connect::{Code, RpcError};
use crate::guest::Guest;
use crate::inside::{EntryInfo, Inside, Seen, name_of};

/// The message that begins a watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct WatchMessage {
    path: String,
    recursive: bool,
    include_entry: bool,
}

/// An event, `filesystem.FilesystemEvent`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Event {
    /// The path below the watched directory.
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

/// A watched directory.
#[derive(Debug)]
pub(crate) struct Watch {
    tree: Tree,
    seen: Seen,
    /// The path of the directory, with a slash at its end.
    top: String,
    has_entries: bool,
    /// The events that no client has got.
    events: Vec<Event>,
}

impl Watch {
    /// Watches a directory. Returns the watch, and a pidfd that is readable once the guest is gone.
    ///
    /// # Errors
    /// When there is no such directory, or it cannot be watched.
    pub(crate) fn open(guest: &Guest, message: &WatchMessage) -> Result<(Watch, OwnedFd), RpcError> {
        let (seen, first) = Seen::of(guest)?;
        Ok((Watch::open_in(seen, message)?, first))
    }

    fn open_in(seen: Seen, message: &WatchMessage) -> Result<Watch, RpcError> {
        let inside = seen.enter()?;
        let path = inside.path(&message.path)?;
        let found = inside.workspace.at(&path, OFlags::PATH, Mode::empty())?;
        let is_directory = rustix::fs::fstat(&found)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        if !is_directory {
            return Err(RpcError::invalid(format!("path is not a directory: {path}")));
        }
        let request = TreeRequest {
            place: Place::Below(seen.root.clone()),
            top: path.as_str().into(),
            is_recursive: message.recursive,
            filter: Filter::Exclude(Vec::new()),
            kinds: vec![
                ChangeKind::Create,
                ChangeKind::Modify,
                ChangeKind::Delete,
                ChangeKind::MoveFrom,
                ChangeKind::MoveTo,
                ChangeKind::Attributes,
            ],
        };
        let tree = Tree::open(request).map_err(|end| watch_error(&path, &end))?;
        let top = format!("{}/", path.trim_end_matches('/'));
        Ok(Watch { tree, seen, top, has_entries: message.include_entry, events: Vec::new() })
    }

    /// Duplicates the descriptor that is readable when there are changes.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        self.tree.descriptor()
    }

    /// Reads all changes so far.
    ///
    /// # Errors
    /// When no more can be known.
    pub(crate) fn drain(&mut self) -> Result<(), WatchEnd> {
        let inside = self.seen.enter().map_err(|_| WatchEnd::Gone)?;
        loop {
            let (events, top, has_entries) = (&mut self.events, &self.top, self.has_entries);
            let more = self.tree.drain(&mut |change| push_events(events, top, &change, has_entries, &inside));
            if self.events.len() > MOST_CHANGES {
                return Err(WatchEnd::Overflow);
            }
            if !more? {
                return Ok(());
            }
        }
    }

    /// Takes the events.
    pub(crate) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }
}

/// Adds the events of a change.
fn push_events(events: &mut Vec<Event>, top: &str, change: &Change, has_entries: bool, inside: &Inside) {
    let Some(name) = change.path.strip_prefix(top) else { return };
    if is_draft(name_of(name)) || is_nameless(change, inside) || events.len() > MOST_CHANGES {
        return;
    }
    let mut push = |kind| {
        let entry = has_entries.then(|| inside.entry(&change.path).ok()).flatten();
        events.push(Event { name: name.to_owned(), kind, entry });
    };
    match change.kind {
        ChangeKind::Create | ChangeKind::MoveTo => push("EVENT_TYPE_CREATE"),
        ChangeKind::Modify => push("EVENT_TYPE_WRITE"),
        ChangeKind::Delete => push("EVENT_TYPE_REMOVE"),
        ChangeKind::MoveFrom => push("EVENT_TYPE_RENAME"),
        ChangeKind::Attributes => push("EVENT_TYPE_CHMOD"),
    }
    // A file in a new directory may have been written before the directory was watched.
    if change.is_listed && !change.is_directory {
        push("EVENT_TYPE_WRITE");
    }
}

/// Tells whether a change is one of a file without a name, as uploads are before they are whole. The kernel reports it with a hash sign
/// and the inode as its name.
fn is_nameless(change: &Change, inside: &Inside) -> bool {
    let digits = name_of(&change.path).strip_prefix('#').unwrap_or_default();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let is_later = matches!(change.kind, ChangeKind::Modify | ChangeKind::Attributes);
    is_number && is_later && inside.workspace.entry(&change.path).is_err()
}

/// The error of a call whose directory cannot be watched, or not any longer.
pub(crate) fn watch_error(path: &str, end: &WatchEnd) -> RpcError {
    match end {
        WatchEnd::Failed(error) => match Errno::from_io_error(error) {
            Some(errno) => FileError::System { path: path.to_owned(), errno }.into(),
            None => RpcError::internal(end),
        },
        WatchEnd::Gone => RpcError::new(Code::NotFound, end.to_string()),
        WatchEnd::Overflow | WatchEnd::TooManyDirectories | WatchEnd::NoWatches | WatchEnd::NoInstances => {
            RpcError::new(Code::ResourceExhausted, end.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::of_test;

    fn watch(top: &std::path::Path, message: &WatchMessage) -> Watch {
        Watch::open_in(of_test(top), message).unwrap()
    }

    fn drained(watch: &mut Watch) -> Vec<(String, &'static str)> {
        watch.drain().unwrap();
        watch.take().into_iter().map(|event| (event.name, event.kind)).collect()
    }

    #[test]
    fn changes_below_a_link_to_a_directory_are_events() {
        let top = tempfile::tempdir().unwrap();
        let home = top.path().join("home/user");
        std::fs::create_dir_all(home.join("dir")).unwrap();
        std::os::unix::fs::symlink("/home/user/dir", home.join("link")).unwrap();
        let message = WatchMessage { path: "link".to_owned(), recursive: true, include_entry: false };
        let mut watch = watch(top.path(), &message);
        std::fs::write(home.join("dir/file"), "x").unwrap();
        std::fs::rename(home.join("dir/file"), home.join("dir/new")).unwrap();
        std::fs::remove_file(home.join("dir/new")).unwrap();
        let kinds = [
            ("file", "EVENT_TYPE_CREATE"),
            ("file", "EVENT_TYPE_WRITE"),
            ("file", "EVENT_TYPE_RENAME"),
            ("new", "EVENT_TYPE_CREATE"),
            ("new", "EVENT_TYPE_REMOVE"),
        ];
        assert_eq!(drained(&mut watch), kinds.map(|(name, kind)| (name.to_owned(), kind)));
        // A file in a directory that is not watched yet.
        std::fs::create_dir(home.join("dir/sub")).unwrap();
        std::fs::write(home.join("dir/sub/file"), "x").unwrap();
        let kinds = [
            ("sub", "EVENT_TYPE_CREATE"),
            ("sub/file", "EVENT_TYPE_CREATE"),
            ("sub/file", "EVENT_TYPE_WRITE"),
        ];
        assert_eq!(drained(&mut watch), kinds.map(|(name, kind)| (name.to_owned(), kind)));
        std::fs::remove_file(home.join("dir/sub/file")).unwrap();
        std::fs::remove_dir(home.join("dir/sub")).unwrap();
        std::fs::remove_dir(home.join("dir")).unwrap();
        assert!(matches!(watch.drain(), Err(WatchEnd::Gone)));
    }

    #[test]
    fn files_without_a_name_are_no_events() {
        let top = tempfile::tempdir().unwrap();
        let home = top.path().join("home/user");
        std::fs::create_dir_all(&home).unwrap();
        let mut watch = watch(top.path(), &WatchMessage { include_entry: true, ..WatchMessage::default() });
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        let Ok(file) = rustix::fs::open(&home, flags, Mode::RUSR | Mode::WUSR) else { return };
        rustix::io::write(&file, b"x").unwrap();
        std::fs::write(home.join("#1"), "x").unwrap();
        watch.drain().unwrap();
        let events = watch.take();
        assert!(events.iter().all(|event| event.name == "#1" && event.entry.is_some()), "{events:?}");
        assert_eq!(events.len(), 2);
    }

    #[test]
    fn only_directories_are_watched() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("home/user")).unwrap();
        std::fs::write(top.path().join("home/user/file"), "").unwrap();
        for (path, code) in [("file", Code::InvalidArgument), ("none", Code::NotFound)] {
            let message = WatchMessage { path: path.to_owned(), ..WatchMessage::default() };
            let error = Watch::open_in(of_test(top.path()), &message).unwrap_err();
            assert_eq!(error.code, code, "{path}");
        }
    }
}
