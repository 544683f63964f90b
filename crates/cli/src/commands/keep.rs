//! `penfold keep`.

use clap::Args as _;
use penfold_control::descent::{self, ProcessSandbox};
use penfold_process::{ProcessId, Stat};
use penfold_state::{Contain, Spec, spared};
use penfold_teardown::MARKER;
use rustix::io::Errno;

use super::adopt::{self, AdoptArgs};
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{foreign, outside, surroundings};

/// The verb `keep`.
pub(crate) const VERB: Verb = Verb {
    name: "keep",
    aliases: &[],
    about: "Hand a process of a sandbox over to a sandbox of its own, which lives on",
    description: "Takes a process and its descendants out of their sandbox, makes a detached sandbox of them, and prints its id. At no \
        moment do they belong to nobody: if penfold dies on the way, they end with their old sandbox or with the new one. The sandbox \
        must have been started with `--allow-outside`, and the tree must be moved into a cgroup of its own. The new sandbox ends as an \
        adopted one does: when the process exits, on a stop or kill, or when the lease runs out. It has no output and no exit code. The \
        limits of the old sandbox no longer hold for it. penfold never hands over the command of a sandbox, nested sandboxes, or itself.",
    examples: &[
        (
            "penfold keep --name dev 4120",
            "a dev server that was started in a sandbox lives on, until `penfold stop dev`",
        ),
        ("penfold keep --ttl 2h 4121", "from another terminal: process 4121 lives on for two hours"),
    ],
    usage_failure: FailureKind::Usage,
    define: AdoptArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| keep(global, usage::read(&VERB, matches)?),
};

/// Hands a tree over to a sandbox of its own; prints the id.
fn keep(global: &Global, args: AdoptArgs) -> Result<u8, Failure> {
    let number = args.pid.as_raw_pid();
    let failed = |kind| Failure::new(kind, format!("cannot keep process {number}"));
    let gone =
        || Failure::new(FailureKind::NoSuchId, format!("cannot keep process {number}: no such process"));
    let (root, members) = foreign::tree(args.pid)?.ok_or_else(gone)?;
    if rustix::process::test_kill_process(args.pid) == Err(Errno::PERM) {
        return Err(failed(FailureKind::NotPermitted).because(std::io::Error::from(Errno::PERM)));
    }
    let sentence = "cannot tell to which sandbox the process belongs";
    let owners = descent::list_sandboxes_around(root.pid).or_fail(FailureKind::Other, sentence)?;
    let Some((outer, enclosing)) = owners.split_last() else {
        return Err(Failure::new(FailureKind::Usage, format!("process {number} is in no sandbox"))
            .hint(format!("`penfold adopt {number}` makes a sandbox of it")));
    };
    outside::allowed(global, outer, FailureKind::Usage)?;
    refuse(global, &members, root, outer)?;
    // This process must not be a member any more when it becomes the supervisor.
    if surroundings::outer_sandboxes().last() == Some(outer) {
        outside::leave(global, FailureKind::Usage)?;
    }
    let spec = adopt::spec(global, args, root)?;
    let mut environment = spec.environment;
    if !enclosing.is_empty() {
        environment.push((MARKER.into(), enclosing.join(":").into()));
    }
    let spec = Spec { contain: Contain::Cgroup, outside: Some(outer.clone()), environment, ..spec };
    adopt::make(spec, root, &failed)
}

/// Refuses the command of the sandbox, and a tree with a penfold process or a member of another sandbox.
fn refuse(global: &Global, members: &[Stat], root: ProcessId, outer: &str) -> Result<(), Failure> {
    let number = root.pid.as_raw_pid();
    if spared::noted_leader(&surroundings::root(global), outer) == Some(root) {
        let sentence =
            format!("process {number} is the command of sandbox {outer}: the sandbox ends with it");
        return Err(Failure::new(FailureKind::Usage, sentence));
    }
    for stat in members {
        let pid = stat.pid.as_raw_pid();
        if matches!(descent::find_owner(stat.pid), Ok(ProcessSandbox::Penfold)) {
            return Err(Failure::new(
                FailureKind::Usage,
                format!(
                    "process {pid} below it is a launcher or supervisor: a nested sandbox is not handed over"
                ),
            ));
        }
        let around = descent::list_sandboxes_around(stat.pid).unwrap_or_default();
        if around.last().is_some_and(|id| id != outer) {
            return Err(Failure::new(
                FailureKind::Usage,
                format!("process {pid} below it is in another sandbox"),
            ));
        }
    }
    Ok(())
}
