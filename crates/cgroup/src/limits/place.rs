//! The place for leaves with limits: a cgroup that gives the controllers to the cgroups below.
//!
//! Only the root of the hierarchy may have both processes and enabled controllers. Anywhere else a leaf with limits is not
//! below the caller's own cgroup, but beside it: in a scope of the sandbox's own, or where the caller's cgroup was split from
//! its delegated parent.

use std::path::{Path, PathBuf};

use super::controller::Controller;
use super::error::LimitError;
use super::subtree::{controllers_to_enable, enable_controllers};
use super::{Limits, files};
use crate::dir;
use crate::membership::Membership;
use crate::place::{CallerCgroup, LeafPlace, NoPlace};

/// The beginning of the name of each leaf of a sandbox or an exec.
pub const LEAF_PREFIX: &str = "penfold-";

/// A place for a leaf with limits.
#[derive(Debug)]
pub struct LimitedPlace {
    place: LeafPlace,
    limits: Limits,
    missing: Vec<Controller>,
}

impl LimitedPlace {
    /// Finds a place for a leaf with these limits: the own cgroup, or the cgroup above. Changes nothing.
    pub fn find_here(wanted: &Limits) -> Result<Self, LimitError> {
        let own = own_cgroup()?;
        on_v2(&own, wanted)?;
        let choice = choose(locate(&own)?, wanted, is_delegated)?;
        Ok(Self { place: LeafPlace::open(choice.at)?, limits: choice.limits, missing: choice.missing })
    }

    /// Checks that a leaf with these limits can be made in a scope, which has no processes of its own. Changes nothing.
    ///
    /// `caller` is the text of `/proc/<pid>/cgroup` of the caller, whose limits hold for the leaf too.
    pub fn in_scope(scope: &Path, caller: &[u8], wanted: &Limits) -> Result<Self, LimitError> {
        on_v2(caller, wanted)?;
        let place = LeafPlace::at(scope)?;
        let limits = wanted.stricter(limits_of(&locate(caller)?.path, scope)?);
        let missing = controllers_to_enable(scope, limits.controllers())?;
        Ok(Self { place, limits, missing })
    }

    /// Returns the limits for the leaf: the wanted ones, or those of the caller where they are stricter.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the directory in which the leaf will be.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Enables the controllers for leaves. They stay enabled: other cgroups may use them by now.
    pub fn enable(self) -> Result<LeafPlace, LimitError> {
        enable_controllers(self.place.path(), &self.missing)?;
        Ok(self.place)
    }
}

/// Tells whether the directory is the cgroup of a unit that systemd has delegated to its processes.
///
/// systemd marks it: with `trusted.delegate`, which only root can read, and since version 251 with `user.delegate`.
pub fn is_delegated(unit: &Path) -> bool {
    ["user.delegate", "trusted.delegate"].into_iter().any(|name| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(unit, name, &mut value[..])
            .is_ok_and(|length| value.get(..length) == Some(&b"1"[..]))
    })
}

fn own_cgroup() -> Result<Vec<u8>, NoPlace> {
    const PATH: &std::ffi::CStr = c"/proc/self/cgroup";
    dir::read_proc(PATH)
        .map_err(|errno| NoPlace::Io { path: PathBuf::from("/proc/self/cgroup"), source: errno.into() })
}

fn locate(cgroup: &[u8]) -> Result<CallerCgroup, NoPlace> {
    let mountinfo = dir::read_proc(c"/proc/self/mountinfo")
        .map_err(|errno| NoPlace::Io { path: PathBuf::from("/proc/self/mountinfo"), source: errno.into() })?;
    LeafPlace::locate(&mountinfo, cgroup)
}

/// A controller is either with cgroup v1 or with cgroup2, on the whole host.
fn on_v2(own: &[u8], wanted: &Limits) -> Result<(), LimitError> {
    let membership = Membership::of(own);
    match wanted.controllers().find(|controller| membership.v1(controller.as_str().as_bytes()).is_some()) {
        Some(controller) => Err(LimitError::OnV1 { controller }),
        None => Ok(()),
    }
}

struct Choice {
    at: CallerCgroup,
    limits: Limits,
    missing: Vec<Controller>,
}

/// Chooses between the own cgroup and the one above.
fn choose(own: CallerCgroup, wanted: &Limits, is_delegated: fn(&Path) -> bool) -> Result<Choice, LimitError> {
    let refused = match controllers_to_enable(&own.path, wanted.controllers()) {
        Ok(missing) => return Ok(Choice { at: own, limits: *wanted, missing }),
        Err(error) => error,
    };
    let Some(above) = above(&own, is_delegated) else { return Err(refused) };
    let limits = wanted.stricter(limits_of(&own.path, &above.path)?);
    let missing = controllers_to_enable(&above.path, limits.controllers())?;
    Ok(Choice { at: above, limits, missing })
}

/// Returns the cgroup above the own one, if leaves may be made there.
///
/// The unit of the caller must contain it and be delegated, since the manager owns everything else. The leaf of an
/// enclosing sandbox must contain it too, or the members of the new leaf would escape.
fn above(own: &CallerCgroup, is_delegated: fn(&Path) -> bool) -> Option<CallerCgroup> {
    let (cgroup, name) = own.cgroup.rsplit_once('/')?;
    if name.is_empty() || own.path.file_name()? != name || is_bound(name) {
        return None;
    }
    let path = own.path.parent()?;
    let mut directory = path;
    for name in cgroup.rsplit('/') {
        if is_unit(name) {
            if !is_delegated(directory) {
                return None;
            }
            break;
        }
        if name.starts_with(LEAF_PREFIX) {
            break;
        }
        // Above a mount, names of cgroups are known and directories are not.
        directory = directory.parent().unwrap_or(directory);
    }
    let cgroup = if cgroup.is_empty() { "/" } else { cgroup };
    Some(CallerCgroup { path: path.to_owned(), cgroup: cgroup.to_owned() })
}

/// Tells whether a cgroup with this name contains its processes: nothing of theirs is made beside it.
fn is_bound(name: &str) -> bool {
    is_unit(name) || name.starts_with(LEAF_PREFIX)
}

fn is_unit(name: &str) -> bool {
    [".service", ".scope", ".slice"].iter().any(|suffix| name.ends_with(suffix))
}

/// Returns the strictest limits of `own` and of the cgroups above it that do not contain `other`.
fn limits_of(own: &Path, other: &Path) -> Result<Limits, LimitError> {
    own.ancestors()
        .take_while(|cgroup| !other.starts_with(cgroup))
        .try_fold(Limits::default(), |limits, cgroup| Ok(limits.stricter(files::read_limits(cgroup)?)))
}

#[cfg(test)]
mod tests;
