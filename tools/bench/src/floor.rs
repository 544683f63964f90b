//! The kernel's own floor of a teardown: write `cgroup.kill`, read until `populated 0`, rmdir.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_cgroup::LeafPlace;
use penfold_process::Pid;
use penfold_state::error_chain;
use penfold_sys::child::{self, PeekResult};
use rustix::io::Errno;
use rustix::thread::set_current_timer_slack;

use crate::error::Error;
use crate::wait;

/// The prefix of the names of leaves made here; a number follows.
const PREFIX: &str = "penfold-bench-";
/// The pause between two reads of `cgroup.events`, whose notification may come 10 ms late.
const PAUSE: Duration = Duration::from_micros(50);

/// Returns a place for leaves, or the reason why there is none.
pub(crate) fn place() -> Result<PathBuf, String> {
    match LeafPlace::find_here() {
        Ok(place) => Ok(place.path().to_owned()),
        Err(error) => Err(error_chain(&error)),
    }
}

/// Ends the leaves that a dead process of this program has made.
pub(crate) fn sweep(maker: Pid) {
    let Ok(place) = LeafPlace::find_here() else { return };
    let prefix = format!("{PREFIX}{maker}-");
    for entry in std::fs::read_dir(place.path()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            drop(Leaf { path: entry.path(), gone: false });
        }
    }
}

/// A cgroup, with the least possible code. When it is dropped, its members are killed and its directory is removed.
#[derive(Debug)]
pub(crate) struct Leaf {
    path: PathBuf,
    gone: bool,
}

impl Leaf {
    pub(crate) fn create(place: &Path, number: u32) -> Result<Leaf, Error> {
        let path = place.join(format!("{PREFIX}{}-{number}", std::process::id()));
        std::fs::create_dir(&path).map_err(Error::at("create", &path))?;
        Ok(Leaf { path, gone: false })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file through which a process joins.
    pub(crate) fn processes(&self) -> Result<OwnedFd, Error> {
        Ok(self.open("cgroup.procs")?.into())
    }

    fn open(&self, name: &str) -> Result<File, Error> {
        let path = self.path.join(name);
        OpenOptions::new().write(true).open(&path).map_err(Error::at("open", &path))
    }

    /// Kills all members, waits until none is left, and removes the directory.
    pub(crate) fn end(mut self) -> Result<(), Error> {
        self.end_now()
    }

    fn end_now(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + wait::LIMIT;
        self.open("cgroup.kill")?.write_all(b"1").map_err(Error::at("write to", &self.path))?;
        let path = self.path.join("cgroup.events");
        let events = File::open(&path).map_err(Error::at("open", &path))?;
        let mut text = [0; 128];
        loop {
            let length = events.read_at(&mut text, 0).map_err(Error::at("read", &path))?;
            if text.get(..length).unwrap_or_default().starts_with(b"populated 0") {
                break;
            }
            if Instant::now() > deadline {
                return Err(wait::late("the end of a cgroup"));
            }
            wait::pass(PAUSE);
        }
        while let Err(errno) = rustix::fs::rmdir(&self.path) {
            if errno != Errno::BUSY || Instant::now() > deadline {
                return Err(Error::at("remove", &self.path)(errno));
            }
        }
        self.gone = true;
        Ok(())
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        if !self.gone {
            let _ = self.end_now();
        }
    }
}

/// Makes this process a subreaper, and restores that and the timer slack when dropped. Without [`Prompt::sharpen`],
/// prctl(2) `PR_SET_TIMERSLACK` stretches short waits by 50 µs.
#[derive(Debug)]
pub(crate) struct Prompt;

impl Prompt {
    pub(crate) fn begin() -> Result<Prompt, Error> {
        let cannot = |errno: Errno| Error::io("cannot become a subreaper", errno.into());
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(cannot)?;
        Ok(Prompt)
    }

    /// Sets the timer slack to 1 ns. Children that are started later inherit the slack.
    pub(crate) fn sharpen() {
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(None);
        let _ = rustix::process::set_child_subreaper(None);
    }
}

/// Reaps all processes that are left of a crowd, as any tool must; there are no other children.
pub(crate) fn reap_all() -> Result<(), Error> {
    let cannot = |source| Error::io("cannot reap", source);
    let deadline = Instant::now() + wait::LIMIT;
    loop {
        match child::peek_child().map_err(cannot)? {
            PeekResult::NoChild => return Ok(()),
            PeekResult::Ended(pid, _) => {
                child::reap_child(pid).map_err(cannot)?;
            }
            PeekResult::NoneEnded if Instant::now() > deadline => {
                return Err(wait::late("the end of members"));
            }
            PeekResult::NoneEnded => wait::pass(PAUSE),
        }
    }
}
