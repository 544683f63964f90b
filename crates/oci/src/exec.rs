//! `exec` with the annotation `dev.penfold.exec=contain`: what a command starts ends with it.
//!
//! The delegate starts the command in a cgroup below the container's. A [follower] ends what is left there.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use penfold_state::Id;
use penfold_sys::crash_point;
use rustix::io::Errno;

use crate::cgroups;
use crate::follower::{self, Followed};
use crate::runtime::{Answer, Refused, Runtime};

/// The beginning of the names of these cgroups.
const PREFIX: &str = "penfold-exec-";

impl Runtime {
    /// Has the delegate start the command, in a cgroup of its own if the container asks for that.
    pub(crate) fn exec(&self) -> Result<Answer, Refused> {
        let failed = |source| Refused::Exec { id: self.words.id.clone(), source };
        if !self.is_known() {
            return Ok(self.pass_on());
        }
        let container = self.find()?;
        if container.note.as_ref().is_none_or(|note| !note.asked.contains_execs) {
            return Ok(self.pass_on());
        }
        let name = format!("{PREFIX}{}", Id::new().map_err(failed)?.short());
        let parents = cgroups::of_commands(&container.told, container.members.roots()).map_err(failed)?;
        let leaves: BTreeSet<PathBuf> = parents.iter().map(|parent| parent.join(&name)).collect();
        if leaves.is_empty() {
            return Err(failed(io::Error::other("its cgroups are not known")));
        }
        // The follower is forked without the descriptors of the look.
        drop(container);
        let pid_file = self.words.pid_file.clone().unwrap_or_else(|| self.pid_file(&name));
        let pid_file = std::path::absolute(pid_file).map_err(failed)?;
        let mut words = vec![OsString::from("--cgroup"), OsString::from(&name)];
        if self.words.pid_file.is_none() {
            words.extend([OsString::from("--pid-file"), pid_file.clone().into()]);
        }
        crash_point!("oci-exec");
        // A file there tells from now on that this command has started.
        match std::fs::remove_file(&pid_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => (),
        }
        let followed = Followed::Exec { leaves: leaves.clone(), pid_file };
        follower::fork(self.clone(), followed).map_err(failed)?;
        crash_point!("oci-followed");
        // If one cannot be made, the follower removes the others.
        leaves.iter().try_for_each(|leaf| make(leaf)).map_err(failed)?;
        crash_point!("oci-exec-made");
        let mut all = self.all.clone();
        all.splice(self.words.before..self.words.before, words);
        Ok(Answer::PassOn(all))
    }

    /// Has the note of a container removed that the delegate deletes at the end of `run`.
    pub(crate) fn follow_run(&self, token: String) -> io::Result<()> {
        follower::fork(self.clone(), Followed::Run { token })
    }
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
