//! A watched directory of a sandbox, and its events.

use std::os::fd::OwnedFd;

use penfold_server::files::{FileError, Jail, is_draft};
use penfold_server::watched::{Change, ChangeKind, Filter, MOST_CHANGES, Place, Tree, TreeRequest, WatchEnd};
use penfold_state::Files;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::connect::{Code, RpcError};
use crate::inside::{EntryInfo, Inside, Seen, name_of};
use crate::templates::User;

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
    /// Watches a directory. Returns the watch, and a pidfd that is readable once the sandbox is gone.
    ///
    /// # Errors
    /// When there is no such directory, or it cannot be watched.
    pub(crate) fn open(
        files: &Files,
        user: &User,
        message: &WatchMessage,
    ) -> Result<(Watch, OwnedFd), RpcError> {
        let jail = Jail::open(files)?;
        let watch = Watch::open_in(Seen::new(&jail, user.clone()), message)?;
        Ok((watch, jail.first))
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
    if is_draft(name_of(name)) || events.len() > MOST_CHANGES {
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
