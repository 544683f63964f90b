//! Creates the parts of a sandbox, before any process of it; releases them if it cannot start.

use std::os::fd::AsFd;
use std::path::Path;

use penfold_cgroup::{Leaf, LeafPlace, LimitedPlace, NoPlace};
use penfold_process::ProcFs;
use penfold_state::names::{self, NameError};
use penfold_state::{Contain, LaunchSource, LeafLabel, LeafName, Scratch, SparePlan, error_chain, lock};
use penfold_sys::descriptors;
use penfold_teardown::{Findings, Resource, Survivor};

use super::conclusion::conclude_sandbox;
use super::{ForegroundParts, SandboxKind, blank, limited_leaf, owned_resources, record};
use crate::ipc;
use crate::leader_cell::LeaderCell;
use crate::nested::NestedSandboxes;
use crate::outcome::{Outcome, Report, StartFailure};
use crate::setup::Setup;

/// The parts of a new sandbox, besides its resources.
pub(super) struct NewParts {
    pub(super) kind: SandboxKind,
    pub(super) spare: Option<SparePlan>,
    pub(super) proc: ProcFs,
    pub(super) leaf: Option<Leaf>,
    pub(super) missing: Vec<String>,
    pub(super) weaker: Option<String>,
    pub(super) leader: LeaderCell,
}

/// Why nothing is started.
pub(super) struct Refusal {
    reason: String,
    /// The living sandbox that has the name, if that is the reason.
    name_holder: Option<String>,
}

impl Refusal {
    fn of_name(error: &NameError) -> Refusal {
        let name_holder = match error {
            NameError::Taken { holder, .. } => Some(holder.clone()),
            NameError::State(_) | NameError::Io { .. } => None,
        };
        Refusal { reason: error.to_string(), name_holder }
    }
}

impl From<String> for Refusal {
    fn from(reason: String) -> Refusal {
        Refusal { reason, name_holder: None }
    }
}

impl NewParts {
    pub(super) fn make(
        setup: &Setup,
        limited: Option<LimitedPlace>,
        launch: Option<LaunchSource>,
        resources: &mut Vec<Box<dyn Resource>>,
    ) -> Result<NewParts, Refusal> {
        // The leaf is created last: it is not in `resources`, so no later step may fail.
        let leader = LeaderCell::create()?;
        let mut missing = Vec::new();
        let (mut proc, no_proc) = open_proc(setup)?;
        if let Some(name) = setup.spec.held_name().filter(|_| resources.is_empty()) {
            match names::take_name(&setup.spec.state_root, &name, &setup.spec.id) {
                Ok(name) => resources.push(Box::new(name)),
                Err(error @ NameError::Taken { .. }) => return Err(Refusal::of_name(&error)),
                Err(error) => missing.push(format!("no name: {}", error_chain(&error))),
            }
        }
        let (place, mut weaker) = match (limited, no_proc) {
            (Some(limited), _) => (Some(limited_leaf::enable_controllers(limited)?), None),
            (None, Some(why)) => (None, Some(why).filter(|_| setup.spec.contain == Contain::Auto)),
            (None, None) => find_place(setup.spec.contain, setup.scope.as_deref())?,
        };
        owned_resources::claim_resources(setup, resources)?;
        let leaf_name = LeafName::of(&setup.spec.id.short());
        let path = place.as_ref().map(|place| place.path().join(&leaf_name));
        let intent = record::build_intent(setup, path, &mut proc);
        let outside = record::leave_outside(setup, &intent, &mut proc, resources)?;
        let kind = match &setup.spec.detach {
            None => {
                let nested = record::write_record(setup, &intent, resources, &mut missing);
                let nested = nested.map(NestedSandboxes::new);
                SandboxKind::Foreground(ForegroundParts { nested, ..ForegroundParts::default() })
            }
            Some(detach) => {
                let detached = record::write_detached(setup, &intent, (detach, launch), outside, resources)?;
                SandboxKind::Detached(Box::new(detached))
            }
        };
        penfold_sys::crash_point!("recorded");
        create_scratch(setup, resources)?;
        owned_resources::make_resources(setup, kind.nested().is_some(), resources)?;
        ipc::add_ipc_namespaces(setup, &proc, resources)?;
        let leaf = match place.map(|place| Leaf::create(&place, leaf_name.as_str())) {
            None => None,
            Some(Ok(leaf)) => {
                let leaf = limited_leaf::set_limits(leaf, &setup.spec.limits)?;
                // The flock protects the leaf from cleanup while a penfold process of this sandbox lives: a leaf
                // without a record need not be an orphan.
                let _ = lock::hold_new(leaf.dir());
                if kind.detached().is_some() {
                    LeafLabel::write(leaf.dir(), &intent);
                }
                Some(leaf)
            }
            Some(Err(error)) if setup.spec.contain == Contain::Cgroup || !setup.spec.limits.is_empty() => {
                return Err(error_chain(&error).into());
            }
            Some(Err(error)) => {
                weaker = Some(error_chain(&error));
                None
            }
        };
        penfold_sys::crash_point!("leaf-made");
        Ok(NewParts { kind, spare: intent.spare, proc, leaf, missing, weaker, leader })
    }
}

/// Creates the scratch directory, if the sandbox has one.
fn create_scratch(setup: &Setup, resources: &mut Vec<Box<dyn Resource>>) -> Result<(), String> {
    let (Some(path), Some(asked)) = (&setup.scratch, &setup.spec.scratch) else { return Ok(()) };
    let scratch = Scratch::create(path.clone())
        .map_err(|error| format!("cannot make the scratch directory `{}`: {error}", path.display()))?;
    let furnished = scratch.furnish(asked);
    resources.push(Box::new(scratch));
    furnished.map_err(|error| format!("cannot furnish the scratch directory `{}`: {error}", path.display()))
}

/// The descriptors that each process of a foreground sandbox opens from here on. A teardown without free descriptors
/// could not inspect the members. The tests try every descriptor limit.
const FOREGROUND_DESCRIPTORS: usize = 12;
/// The same number for a detached sandbox, which also has socket, log, pipes and lease.
const DETACHED_DESCRIPTORS: usize = 18;

/// Checks, before any resource is created, that the descriptor limit is high enough.
pub(super) fn has_room(setup: &Setup) -> Result<(), String> {
    let spec = &setup.spec;
    let count = if spec.detach.is_some() { DETACHED_DESCRIPTORS } else { FOREGROUND_DESCRIPTORS };
    let count = count + 2 * usize::from(spec.name.is_some()) + usize::from(setup.scratch.is_some());
    let pipe = spec.detach.as_ref().and_then(|detach| detach.ready_pipe.as_ref());
    let count = count + 2 * usize::from(pipe.is_some());
    let count = count + owned_resources::descriptor_count(&spec.resources);
    let count = count + ipc::DESCRIPTORS * usize::from(setup.program.ipc().is_some());
    descriptors::has_room(setup.channel.as_fd(), count)
        .map_err(|error| format!("cannot open the {count} descriptors that its supervision needs: {error}"))
}

/// Opens `/proc`, or returns the reason why it cannot be read.
///
/// Without `/proc`, the level subreaper still works in the foreground: a process needs no `/proc` to wait for its own
/// children. Stronger levels and detached sandboxes are refused.
fn open_proc(setup: &Setup) -> Result<(ProcFs, Option<String>), String> {
    let error = match ProcFs::open() {
        Ok(proc) => return Ok((proc, None)),
        Err(error) => format!("cannot read /proc: {error}"),
    };
    let in_reach = matches!(setup.spec.contain, Contain::Auto | Contain::Subreaper);
    if in_reach && setup.spec.detach.is_none() { Ok((ProcFs::blind(), Some(error))) } else { Err(error) }
}

/// Finds the place for a leaf if one is wanted, or the reason why there is none. In a scope the leaf is beside the cgroup of this
/// process.
fn find_place(contain: Contain, scope: Option<&Path>) -> Result<(Option<LeafPlace>, Option<String>), String> {
    if contain == Contain::Subreaper {
        return Ok((None, None));
    }
    match scope.map_or_else(LeafPlace::find_here, LeafPlace::at) {
        Ok(place) => Ok((Some(place), None)),
        Err(error) if contain == Contain::Cgroup => {
            Err(format!("no cgroup can be made here: {}", error_chain(&error)))
        }
        Err(NoPlace::NotMounted) => Ok((None, Some("no cgroup2 file system is mounted".to_owned()))),
        Err(error) => Ok((None, Some(error_chain(&error)))),
    }
}

/// Releases the resources of a sandbox that will not start, and builds its outcome.
pub(super) fn refuse_start(
    setup: &Setup,
    refusal: Refusal,
    mut resources: Vec<Box<dyn Resource>>,
) -> Outcome {
    let Refusal { reason, name_holder } = refusal;
    let mut findings = Findings::default();
    penfold_teardown::release_resources(&mut resources, false, |resource, _, reason| {
        if let Some(reason) = reason {
            findings.survivors.push(Survivor::Resource { what: resource.describe(), reason });
        }
    });
    findings.verified = findings.survivors.is_empty();
    let report = Report { failure: Some(StartFailure::Other(reason)), ..blank(setup, findings) };
    Outcome { name_holder, ..conclude_sandbox(setup, &report) }
}
