//! What the sandbox owns besides its processes, its cgroup and its record.

use penfold_resource::{OwnedResource, PlannedResource, ReleaseDeadline, ResourceOwner};
use penfold_state::{claims, error_chain};
use penfold_teardown::Resource;

use crate::setup::Setup;

/// The descriptors that the release of a resource needs.
const RELEASE: usize = 8;

/// Returns the number of descriptors that the resources of a sandbox need: two for each claim, one for each directory.
pub(super) fn descriptor_count(all: &[PlannedResource]) -> usize {
    let each = |planned: &PlannedResource| 2 * planned.claims().len() + 1;
    if all.is_empty() { 0 } else { RELEASE + all.iter().map(each).sum::<usize>() }
}

/// Claims what only one sandbox may have, and checks that all names, paths and addresses are free. Nothing else is made.
pub(super) fn claim_resources(setup: &Setup, resources: &mut Vec<Box<dyn Resource>>) -> Result<(), String> {
    for planned in &setup.spec.resources {
        for thing in planned.claims() {
            let claim = claims::claim_resource(&setup.spec.state_root, thing, &setup.spec.id);
            resources.push(Box::new(claim.map_err(|error| error_chain(&error))?));
        }
        planned.check().map_err(|error| error_chain(&error))?;
    }
    Ok(())
}

/// Makes the resources, which the record must have: without one, nobody would find them after a crash.
pub(super) fn make_resources(
    setup: &Setup,
    is_recorded: bool,
    resources: &mut Vec<Box<dyn Resource>>,
) -> Result<(), String> {
    let all = &setup.spec.resources;
    if all.is_empty() {
        return Ok(());
    }
    if !is_recorded {
        let root = setup.spec.state_root.display();
        return Err(format!("its resources need a record, and there can be none in the state root `{root}`"));
    }
    let boot = penfold_process::boot_id().unwrap_or_default();
    let owner = ResourceOwner { id: setup.spec.id.short(), boot };
    let deadline = ReleaseDeadline::after(setup.spec.patience);
    for planned in all {
        planned.create(&owner).map_err(|error| error_chain(&error))?;
        let mut made = OwnedResource::new(planned.clone(), owner.clone(), &deadline);
        if !planned.is_below_mount(all) {
            made.hold();
        }
        resources.push(Box::new(made));
        penfold_sys::crash_point!("resource-made");
    }
    Ok(())
}
