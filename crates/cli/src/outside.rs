//! Leaves the sandbox in which penfold was called, for `run --outside` and `keep`.
//!
//! A process cannot change its marker, which `/proc` shows as it was at the last execve(2). So penfold first leaves the cgroup, and then
//! executes itself anew without the id of the sandbox in its marker.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use penfold_cgroup::Leaf;
use penfold_launch::surroundings::LEFT;
use penfold_process::ProcFs;
use penfold_state::{Intent, Registry, error_chain};
use penfold_teardown::MARKER;

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::{surroundings, variables};

/// Leaves the innermost sandbox around this process, and returns its id. The first time, this does not return.
///
/// # Errors
/// If there is no such sandbox, it does not allow this, or its cgroup cannot be left.
pub(crate) fn leave(global: &Global, kind: FailureKind) -> Result<String, Failure> {
    if let Some(left) = variables::get(OsStr::new(LEFT)).and_then(|id| id.into_string().ok()) {
        allowed(global, &left, kind)?;
        return Ok(left);
    }
    let mut chain = surroundings::outer_sandboxes();
    let Some(id) = chain.pop() else {
        return Err(Failure::new(
            kind,
            "this process is in no sandbox: there is none that it could be outside of",
        )
        .hint("leave out `--outside`"));
    };
    let intent = allowed(global, &id, kind)?;
    leave_cgroup(&intent).map_err(|error| {
        Failure::new(kind, format!("cannot leave the cgroup of sandbox {id}")).because(error)
    })?;
    let mut arguments = std::env::args_os();
    let mut anew = Command::new(surroundings::program());
    anew.arg0(arguments.next().unwrap_or_default()).args(arguments).env(LEFT, &id);
    if chain.is_empty() {
        anew.env_remove(MARKER);
    } else {
        anew.env(MARKER, chain.join(":"));
    }
    Err(Failure::new(kind, "cannot execute penfold anew").because(anew.exec()))
}

/// Returns the intent of a sandbox that allows sandboxes outside.
///
/// # Errors
/// If it has no record below the state root, or does not allow this.
pub(crate) fn allowed(global: &Global, id: &str, kind: FailureKind) -> Result<Intent, Failure> {
    let root = surroundings::root(global);
    let cannot =
        |why: String| Failure::new(kind, format!("cannot tell whether sandbox {id} allows this: {why}"));
    let registry = Registry::open_existing(&root).map_err(|error| cannot(error_chain(&error)))?;
    let files = registry.and_then(|registry| registry.look(id).ok().flatten());
    let Some(files) = files else {
        let sentence = format!("sandbox {id} has no record below `{}`", root.display());
        return Err(Failure::new(kind, sentence)
            .hint("`--root` or PENFOLD_ROOT must name the state root of the sandbox around this process"));
    };
    let intent = files.intent().map_err(|error| cannot(error.to_string()))?;
    if intent.spare.as_ref().is_some_and(|plan| plan.allows_outside) {
        return Ok(intent);
    }
    Err(Failure::new(kind, format!("sandbox {id} lets nothing go on outside of it"))
        .hint("whoever starts it can allow that: `penfold run --allow-outside`"))
}

/// Moves this process from the leaf of the sandbox to the cgroup in which the sandbox was started.
fn leave_cgroup(intent: &Intent) -> std::io::Result<()> {
    let Some(path) = &intent.leaf else { return Ok(()) };
    let own = rustix::process::getpid();
    let mut proc = ProcFs::open()?;
    let Some(leaf) = Leaf::open(path).map_err(std::io::Error::other)? else { return Ok(()) };
    let mut is_inside =
        || Ok::<_, std::io::Error>(proc.cgroups(own)?.is_some_and(|groups| leaf.holds(&groups)));
    if !is_inside()? {
        return Ok(());
    }
    leaf.move_out(own, intent.spare.as_ref().and_then(|plan| plan.home.as_deref()))?;
    if is_inside()? { Err(std::io::Error::other("this process is still there")) } else { Ok(()) }
}
