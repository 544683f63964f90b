//! One directory tree that is watched with inotify(7).
//!
//! Invariants:
//! - A new directory is watched first and listed then: what is made in it meanwhile is reported once.
//! - Symbolic links below the top are not followed.
//! - What is not known any more ends the watch: lost events, too many directories, a top that was moved or removed.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use penfold_process::path_text::path_text;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;

use super::filter::Filter;
use super::place::Place;
use crate::descriptors::has_descriptors;

/// The most directories of one tree.
const MOST_DIRECTORIES: usize = 8192;
/// The most changes that are known and not yet reported.
pub const MOST_CHANGES: usize = 16_384;
/// The most events that are read at one time.
const BATCH: usize = 4096;
/// The kernel reports both ends of a move one after the other; the second comes in this time.
const MOVE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// What a client wants to watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TreeRequest {
    /// Where paths are.
    pub place: Place,
    /// An absolute path.
    pub top: PathBuf,
    /// Whether directories below are watched too.
    pub is_recursive: bool,
    /// The paths that are reported.
    pub filter: Filter,
    /// The kinds that are reported, sorted.
    pub kinds: Vec<ChangeKind>,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It was made.
    Create,
    /// Its content was written.
    Modify,
    /// It was removed.
    Delete,
    /// It was moved to another path.
    MoveFrom,
    /// It was moved to this path.
    MoveTo,
    /// Its permissions, times or other attributes changed.
    Attributes,
}

/// A change of a file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kind.
    pub kind: ChangeKind,
    /// The path, as [`path_text`] writes it.
    pub path: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether the change was found in a list of a new directory: later changes may have been missed.
    pub is_listed: bool,
}

/// The reason why a tree cannot be watched, or not any longer.
#[derive(Debug, thiserror::Error)]
pub enum WatchEnd {
    /// The kernel dropped events.
    #[error("changes were lost because too many came at once; list the directory and watch again")]
    Overflow,
    /// There are more than can be watched.
    #[error("the directory has more than {MOST_DIRECTORIES} directories; watch fewer, or exclude some")]
    TooManyDirectories,
    /// A limit of the kernel for the user.
    #[error("the server's user can watch no more directories (fs.inotify.max_user_watches)")]
    NoWatches,
    /// A limit of the kernel for the user.
    #[error("the server's user can have no more watches (fs.inotify.max_user_instances)")]
    NoInstances,
    /// The path leads elsewhere now.
    #[error("the watched path was removed, moved or replaced")]
    Gone,
    /// A system call failed.
    #[error("cannot watch the path: {0}")]
    Failed(#[from] io::Error),
}

/// A watched tree.
#[derive(Debug)]
pub struct Tree {
    inotify: Arc<OwnedFd>,
    request: TreeRequest,
    /// The descriptor of the watch of the top.
    top: i32,
    /// The watched paths, by the descriptors of their watches.
    watched: HashMap<i32, PathBuf>,
    /// Reported from a list although their events may still come.
    listed: HashSet<PathBuf>,
    /// Directories that were moved away, with the cookies of their events; the new paths are not known yet.
    moved: Vec<(u32, PathBuf)>,
    /// Device and inode of the top.
    identity: (u64, u64),
    /// The descriptor of the watch of the directory above the top.
    above: Option<i32>,
}

/// Makes an inotify instance. The kernel has one error for a user with too many instances and a process without descriptors.
fn make_instance() -> Result<OwnedFd, WatchEnd> {
    let init = || inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
    let instance = match init() {
        // There may be a descriptor since a moment only.
        Err(Errno::MFILE) if has_descriptors() => init(),
        other => other,
    };
    instance.map_err(|errno| match errno {
        Errno::MFILE if has_descriptors() => WatchEnd::NoInstances,
        other => WatchEnd::Failed(other.into()),
    })
}

/// An event of the kernel.
struct Event {
    watch: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<PathBuf>,
}

impl Tree {
    /// Watches a tree. Directories that cannot be read are left out.
    ///
    /// # Errors
    /// When the top cannot be watched, or there are too many directories.
    pub fn open(request: TreeRequest) -> Result<Tree, WatchEnd> {
        let found = request.place.look(&request.top)?;
        let inotify = make_instance()?;
        let flags = Tree::flags(&request);
        let top = request.place.watch(&inotify, &request.top, flags).map_err(watch_error)?;
        let mut tree = Tree {
            inotify: Arc::new(inotify),
            watched: HashMap::from([(top, request.top.clone())]),
            top,
            listed: HashSet::new(),
            moved: Vec::new(),
            identity: found.identity,
            above: None,
            request,
        };
        if tree.request.is_recursive && found.is_directory {
            let inner = tree.list(&tree.request.top.clone(), None)?;
            tree.add_all(inner, None)?;
        }
        Ok(tree)
    }

    /// Has the kernel report the end of the top also while a process has it as its working directory, if the directory above can be read.
    pub fn watch_above(&mut self) {
        let flags = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::ONLYDIR;
        let above = self.request.top.parent();
        self.above = above.and_then(|path| self.request.place.watch(&self.inotify, path, flags).ok());
    }

    /// Duplicates the descriptor, which is readable when there are changes.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.inotify.try_clone()
    }

    /// Checks that the path of the top still leads to what is watched. The kernel does not report that a directory above was moved.
    ///
    /// # Errors
    /// [`WatchEnd::Gone`] if not.
    pub fn check_path(&self) -> Result<(), WatchEnd> {
        let found = self.request.place.look(&self.request.top);
        let is_same = found.is_ok_and(|found| found.identity == self.identity);
        if is_same { Ok(()) } else { Err(WatchEnd::Gone) }
    }

    /// Calls `each` with the changes so far. Returns whether there may be more already.
    ///
    /// # Errors
    /// When changes are lost, or the tree cannot be watched any longer.
    pub fn drain(&mut self, each: &mut dyn FnMut(Change)) -> Result<bool, WatchEnd> {
        let inotify = Arc::clone(&self.inotify);
        let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
        let mut reader = Reader::new(&*inotify, &mut buffer);
        let mut has_waited = false;
        let mut count = 0;
        loop {
            match next_event(&mut reader) {
                Ok(event) => {
                    self.take(event, each)?;
                    count += 1;
                    if count >= BATCH && reader.is_buffer_empty() {
                        return Ok(true);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if !self.moved.is_empty() && !has_waited => {
                    has_waited = true;
                    let mut fds = [PollFd::new(&*inotify, PollFlags::IN)];
                    let _ = rustix::event::poll(&mut fds, Some(&MOVE));
                }
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(WatchEnd::Failed(errno.into())),
            }
        }
        // Every event from before the lists was read.
        self.listed.clear();
        for (_, path) in std::mem::take(&mut self.moved) {
            self.forget(&path);
        }
        Ok(false)
    }

    fn take(&mut self, event: Event, each: &mut dyn FnMut(Change)) -> Result<(), WatchEnd> {
        let Event { watch, flags, cookie, name } = event;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            return Err(WatchEnd::Overflow);
        }
        if self.above == Some(watch) {
            return if name.as_deref() == self.request.top.file_name().map(Path::new) {
                self.check_path()
            } else {
                Ok(())
            };
        }
        // A watch that was forgotten may have events in the queue.
        let Some(watched) = self.watched.get(&watch) else { return Ok(()) };
        if flags.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT) {
            self.watched.remove(&watch);
            return if watch == self.top { Err(WatchEnd::Gone) } else { Ok(()) };
        }
        if flags.contains(ReadFlags::MOVE_SELF) {
            return if watch == self.top { Err(WatchEnd::Gone) } else { Ok(()) };
        }
        let is_directory = flags.contains(ReadFlags::ISDIR);
        let path = match name {
            Some(name) => watched.join(name),
            // A directory's own attributes are reported by the directory above.
            None if is_directory => return Ok(()),
            None => watched.clone(),
        };
        let Some(kind) = kind_of(flags) else { return Ok(()) };
        let was_listed = self.listed.remove(&path);
        if was_listed && matches!(kind, ChangeKind::Create | ChangeKind::MoveTo) {
            return Ok(());
        }
        self.report((kind, false), &path, is_directory, each);
        if !is_directory || !self.request.is_recursive {
            return Ok(());
        }
        match kind {
            ChangeKind::Create => self.add_all(vec![path], Some(each)),
            ChangeKind::MoveFrom => {
                self.moved.push((cookie, path));
                Ok(())
            }
            ChangeKind::MoveTo => self.moved_to(cookie, path, each),
            _ => Ok(()),
        }
    }

    fn report(
        &self,
        (kind, is_listed): (ChangeKind, bool),
        path: &Path,
        is_directory: bool,
        each: &mut dyn FnMut(Change),
    ) {
        let path = path_text(path);
        if self.request.kinds.contains(&kind) && self.request.filter.passes(&path) {
            each(Change { kind, path, is_directory, is_listed });
        }
    }

    /// Gives a directory that was moved its new path. What is in a directory that was not watched is reported.
    fn moved_to(&mut self, cookie: u32, path: PathBuf, each: &mut dyn FnMut(Change)) -> Result<(), WatchEnd> {
        let place = self.moved.iter().position(|(other, _)| *other == cookie);
        let old = place.map(|place| self.moved.swap_remove(place).1);
        // A directory may be moved before it can be watched.
        let Some(old) = old.filter(|old| self.watched.values().any(|watched| watched == old)) else {
            return self.add_all(vec![path], Some(each));
        };
        if self.request.filter.excludes_below(&path.to_string_lossy()) {
            self.forget(&old);
            return Ok(());
        }
        for watched in self.watched.values_mut() {
            if let Some(moved) = moved_path(watched, &old, &path) {
                *watched = moved;
            }
        }
        let listed = std::mem::take(&mut self.listed);
        self.listed = listed.into_iter().map(|one| moved_path(&one, &old, &path).unwrap_or(one)).collect();
        Ok(())
    }

    /// Ends the watches of a directory and of those below.
    fn forget(&mut self, path: &Path) {
        for (watch, _) in self.watched.extract_if(|_, watched| watched.starts_with(path)) {
            // The kernel may have removed the watch already.
            let _ = inotify::remove_watch(&*self.inotify, watch);
        }
    }

    /// Watches directories and those below. With `each`, what is in them is reported as created.
    fn add_all(
        &mut self,
        mut waiting: Vec<PathBuf>,
        mut each: Option<&mut dyn FnMut(Change)>,
    ) -> Result<(), WatchEnd> {
        let flags = Tree::flags(&self.request) | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
        while let Some(path) = waiting.pop() {
            if self.request.filter.excludes_below(&path.to_string_lossy()) {
                continue;
            }
            if self.watched.len() >= MOST_DIRECTORIES {
                return Err(WatchEnd::TooManyDirectories);
            }
            match self.request.place.watch(&self.inotify, &path, flags) {
                Ok(watch) => self.watched.insert(watch, path.clone()),
                Err(Errno::NOSPC) => return Err(WatchEnd::NoWatches),
                // The directory is gone by now, or cannot be read.
                Err(_) => continue,
            };
            let each: Option<&mut dyn FnMut(Change)> = match &mut each {
                Some(each) => Some(&mut **each),
                None => None,
            };
            waiting.extend(self.list(&path, each)?);
            if self.watched.len() + waiting.len() > MOST_DIRECTORIES {
                return Err(WatchEnd::TooManyDirectories);
            }
        }
        Ok(())
    }

    /// Returns the directories in a directory that are to be watched. With `each`, everything in it is reported as created.
    fn list(
        &mut self,
        path: &Path,
        mut each: Option<&mut dyn FnMut(Change)>,
    ) -> Result<Vec<PathBuf>, WatchEnd> {
        let mut inner = Vec::new();
        for (name, is_directory) in self.request.place.list(path) {
            let path = path.join(name);
            if let Some(each) = &mut each {
                self.report((ChangeKind::Create, true), &path, is_directory, *each);
                self.listed.insert(path.clone());
                if self.listed.len() > MOST_CHANGES {
                    return Err(WatchEnd::Overflow);
                }
            }
            if is_directory && !self.request.filter.excludes_below(&path.to_string_lossy()) {
                inner.push(path);
                if inner.len() > MOST_DIRECTORIES {
                    return Err(WatchEnd::TooManyDirectories);
                }
            }
        }
        Ok(inner)
    }

    /// What the kernel reports: also what shows that directories come and go.
    fn flags(request: &TreeRequest) -> WatchFlags {
        let mut flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF;
        for kind in &request.kinds {
            match kind {
                ChangeKind::Modify => flags |= WatchFlags::MODIFY,
                ChangeKind::Attributes => flags |= WatchFlags::ATTRIB,
                _ => {}
            }
        }
        flags
    }
}

fn next_event(reader: &mut Reader<'_, &OwnedFd>) -> Result<Event, Errno> {
    let event = reader.next()?;
    let name = event.file_name().map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())));
    Ok(Event { watch: event.wd(), flags: event.events(), cookie: event.cookie(), name })
}

/// Returns the new path of what was at or below `old`.
fn moved_path(path: &Path, old: &Path, new: &Path) -> Option<PathBuf> {
    let rest = path.strip_prefix(old).ok()?;
    // An empty rest would add a slash.
    Some(if rest.as_os_str().is_empty() { new.to_owned() } else { new.join(rest) })
}

fn kind_of(flags: ReadFlags) -> Option<ChangeKind> {
    let kinds = [
        (ReadFlags::CREATE, ChangeKind::Create),
        (ReadFlags::MODIFY, ChangeKind::Modify),
        (ReadFlags::DELETE, ChangeKind::Delete),
        (ReadFlags::MOVED_FROM, ChangeKind::MoveFrom),
        (ReadFlags::MOVED_TO, ChangeKind::MoveTo),
        (ReadFlags::ATTRIB, ChangeKind::Attributes),
    ];
    kinds.iter().find(|(flag, _)| flags.contains(*flag)).map(|(_, kind)| *kind)
}

fn watch_error(errno: Errno) -> WatchEnd {
    if errno == Errno::NOSPC { WatchEnd::NoWatches } else { WatchEnd::Failed(errno.into()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_that_are_made_while_a_new_directory_is_listed_are_reported_once() {
        const DIRECTORIES: usize = 400;
        const FILES: usize = 8;
        let dir = tempfile::tempdir().unwrap();
        let mut tree = Tree::open(TreeRequest {
            place: Place::Host,
            top: dir.path().to_owned(),
            is_recursive: true,
            filter: Filter::Exclude(Vec::new()),
            kinds: vec![ChangeKind::Create],
        })
        .unwrap();
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..DIRECTORIES {
                    let made = dir.path().join(number.to_string());
                    fs::create_dir(&made).unwrap();
                    for file in 0..FILES {
                        fs::write(made.join(file.to_string()), "").unwrap();
                    }
                }
                fs::write(dir.path().join("end"), "").unwrap();
            });
            while !seen.iter().any(|path: &String| path.ends_with("/end")) {
                tree.drain(&mut |change| seen.push(change.path)).unwrap();
            }
        });
        while tree.drain(&mut |change| seen.push(change.path)).unwrap() {}
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!((count, seen.len()), (DIRECTORIES * (FILES + 1) + 1, count), "none twice, none missed");
    }
}
