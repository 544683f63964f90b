//! `exec` with the annotation `dev.penfold.exec=contain`: what a command starts ends with it.
//!
//! The delegate starts the command in a cgroup below the container's. A [follower] ends what is left there.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use penfold_state::Id;
use penfold_sys::crash_point;
use rustix::io::Errno;

use crate::cgroups;
use crate::follower::{self, FollowerTask};
use crate::refused::VerbError;
use crate::runtime::{NextStep, Runtime};

/// The beginning of the names of these cgroups.
const PREFIX: &str = "penfold-exec-";

impl Runtime {
    /// Has the delegate start the command, in a cgroup of its own if the container asks for that.
    pub(crate) fn exec(&self) -> Result<NextStep, VerbError> {
        let failed = |source| VerbError::Exec { id: self.words.id.clone(), source };
        if !self.is_known() {
            return Ok(self.pass_on());
        }
        let container = self.find()?;
        if container.note.as_ref().is_none_or(|note| !note.asked.contains_execs) {
            return Ok(self.pass_on());
        }
        let name = format!("{PREFIX}{}", Id::new().map_err(failed)?.short());
        let places = cgroups::of_commands(&container.report, container.members.roots()).map_err(failed)?;
        let leaves: BTreeSet<PathBuf> = places.parents.iter().map(|parent| parent.join(&name)).collect();
        if leaves.is_empty() {
            return Err(failed(io::Error::other("its cgroups are not known")));
        }
        // The follower is forked without the descriptors of the look.
        drop(container);
        // The engine may remove its own file at any time.
        let (pid_file, for_engine) = match &self.words.pid_file {
            Some(file) if !self.words.detach => (file.clone(), None),
            file => (self.pid_file(&name), file.clone()),
        };
        let pid_file = std::path::absolute(pid_file).map_err(failed)?;
        let mut all = self.all.clone();
        all.drain(self.words.pid_file_words.clone());
        let cgroup = places.controllers.map_or_else(|| name.clone(), |of| format!("{of}:{name}"));
        let words = ["--cgroup".into(), OsString::from(cgroup), "--pid-file".into(), pid_file.clone().into()];
        all.splice(self.words.before..self.words.before, words);
        crash_point!("oci-exec");
        // A file there tells from now on that this command has started.
        match std::fs::remove_file(&pid_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => (),
        }
        let followed = FollowerTask::Exec { leaves: leaves.clone(), pid_file: pid_file.clone() };
        follower::fork_follower(self.clone(), followed).map_err(failed)?;
        crash_point!("oci-followed");
        // If one cannot be made, the follower removes the others.
        leaves.iter().try_for_each(|leaf| make(leaf)).map_err(failed)?;
        crash_point!("oci-exec-made");
        let Some(for_engine) = for_engine else { return Ok(NextStep::PassOn(all)) };
        let code = self.started(&all)?;
        if code == 0 {
            publish(&pid_file, &for_engine).map_err(failed)?;
        }
        Ok(NextStep::Exit(code))
    }

    /// Has the delegate start a command, which goes on; returns the exit code of the delegate.
    fn started(&self, words: &[OsString]) -> Result<u8, VerbError> {
        let program = self.delegate().program();
        let start = |source| VerbError::Start { delegate: program.to_owned(), source };
        let mut child = Command::new(program).args(words).spawn().map_err(start)?;
        match child.wait() {
            Ok(status) => Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
            // The caller ignores SIGCHLD: nobody knows the code. The pid file tells whether the command has started.
            Err(error) if error.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => Ok(0),
            Err(error) => Err(start(error)),
        }
    }

    /// Has other containers ended whose `delete` was refused. Without a process for that, the next call, `watch`, `serve` or `gc` does it.
    pub(crate) fn follow_refused(&self) {
        let _ = follower::fork_follower(self.clone(), FollowerTask::Refused);
    }

    /// Has the note of a container removed that the delegate deletes at the end of `run`.
    pub(crate) fn follow_run(&self, token: String) -> io::Result<()> {
        follower::fork_follower(self.clone(), FollowerTask::Run { token })
    }
}

/// Copies the pid to the file that the engine reads, whole.
fn publish(pid_file: &Path, for_engine: &Path) -> io::Result<()> {
    let name = for_engine.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let new = for_engine.with_file_name([OsStr::new("."), name].into_iter().collect::<OsString>());
    std::fs::write(&new, std::fs::read(pid_file)?)?;
    std::fs::rename(new, for_engine)
}

/// Makes a cgroup that a process can enter.
fn make(leaf: &Path) -> io::Result<()> {
    let parent = leaf.parent().unwrap_or(leaf);
    match rustix::fs::mkdir(leaf, 0o755.into()) {
        // The cgroup of the container is not in this hierarchy any more.
        Err(Errno::NOENT) => return Ok(()),
        made => made?,
    }
    // A new cgroup of the v1 controller `cpuset` has no processors and no memory: cpusets(7).
    let is_v1 = leaf.join("tasks").try_exists()?;
    for file in ["cpuset.cpus", "cpuset.mems"].into_iter().filter(|_| is_v1) {
        match std::fs::read(parent.join(file)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => (),
            content => std::fs::write(leaf.join(file), content?)?,
        }
    }
    Ok(())
}
