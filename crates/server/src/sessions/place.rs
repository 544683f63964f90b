//! Where the directory of a session is: in the record of the sandbox, or in its jail, which cannot see the record.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_control::execs;
use penfold_session::{SessionClient, SessionClientError};
use penfold_state::{Files, JAIL_PROGRAM, Profile};
use rustix::event::Timespec;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::error::SessionError;

/// The directory of sessions in a jail: on the jail's own `/run`, so that it ends with the jail.
const IN_JAIL: &str = "/run/penfold-sessions";
/// The pause between two looks for a directory that a host has not made yet.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

/// Where the directory of a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryPlace {
    /// In the record.
    Record,
    /// In the record, for a host that becomes the user of the sandbox.
    OfUser,
    /// In the jail of the sandbox.
    InJail,
}

/// A session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held<'a> {
    /// The number of the exec that holds it, if known.
    pub(super) holder: Option<u32>,
    pub(super) name: &'a str,
}

impl DirectoryPlace {
    /// Returns the place of the sessions of a sandbox.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub(super) fn of(files: &Files) -> Result<DirectoryPlace, SessionError> {
        let intent = files.intent().map_err(SessionError::UnreadableRecord)?;
        Ok(match (intent.profile, intent.identity) {
            (Some(Profile::Jail), _) => DirectoryPlace::InJail,
            (_, Some(_)) => DirectoryPlace::OfUser,
            (_, None) => DirectoryPlace::Record,
        })
    }

    /// Returns the first words of the command of a host.
    pub(super) fn host_words(self, program: OsString, root: &Path) -> Vec<OsString> {
        match self {
            DirectoryPlace::Record => vec![program, "--root".into(), root.into(), "session-host".into()],
            DirectoryPlace::OfUser => {
                vec![program, "--root".into(), root.into(), "session-host".into(), "--as-user".into()]
            }
            DirectoryPlace::InJail => {
                vec![JAIL_PROGRAM.into(), "session-host".into(), format!("--base={IN_JAIL}").into()]
            }
        }
    }

    /// Connects to a session; waits for a host that has not made its socket yet.
    ///
    /// # Errors
    /// When there is no host, or it does not answer.
    pub(super) fn connect(
        self,
        files: &Files,
        held: Held<'_>,
        limit: Duration,
        has_ended: impl Fn() -> bool,
    ) -> Result<SessionClient, SessionClientError> {
        let Held { holder, name } = held;
        if self != DirectoryPlace::InJail {
            return SessionClient::connect_in(files.dir(), files.path(), name, limit, has_ended);
        }
        let missing = || SessionClientError::Missing { session: name.to_owned() };
        let holder = holder.ok_or_else(missing)?;
        let until = Instant::now() + limit;
        loop {
            if let Ok((dir, path)) = open_in_jail(files, holder) {
                let left = until.saturating_duration_since(Instant::now());
                return SessionClient::connect_in(dir.as_fd(), &path, name, left, has_ended);
            }
            if has_ended() || Instant::now() >= until {
                return Err(missing());
            }
            let _ = rustix::event::poll(&mut [], Some(&PAUSE));
        }
    }
}

/// Opens the directory of sessions in the jail of an exec. The jail's processes may have changed what is there: no link is followed.
fn open_in_jail(files: &Files, holder: u32) -> io::Result<(OwnedFd, PathBuf)> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let view = execs::find_exec(files, holder).map_err(io::Error::other)?.ok_or_else(gone)?;
    let root = PathBuf::from(format!("/proc/{}/root", view.leader_pid.ok_or_else(gone)?));
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, &root, flags, Mode::empty())?;
    let below = IN_JAIL.trim_start_matches('/');
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let dir = rustix::fs::openat2(&opened, below, flags, Mode::empty(), resolve)?;
    Ok((dir, root.join(below)))
}
