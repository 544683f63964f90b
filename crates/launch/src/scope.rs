//! Whether a sandbox gets a scope of its own from a service manager.

use std::path::Path;
use std::time::Duration;

use penfold_cgroup::{LeafPlace, LimitError, LimitedPlace, Limits, Membership, NoPlace};
use penfold_doctor::host_checks::{mend_limits, mend_place, mend_scope_limits};
use penfold_request::{Containment, SandboxSpec, Unit};
use penfold_state::{Life, ScopeDir, Spec, error_chain};
use penfold_supervisor::{Launcher, ScopeEntry, StartError};
use penfold_unit::{Buses, CallerUnit, ScopeError, ScopeRequest, ServiceManager, UnitKind, UnitScope};
use rustix::process::Pid;

use crate::error::{LaunchError, LaunchErrorKind};
use crate::surroundings::Surroundings;

/// The variable that is used without `--unit`.
const VARIABLE: &str = "PENFOLD_UNIT";
/// The time for the question how a service ends, and for the scope.
const ASK_LIMIT: Duration = Duration::from_millis(500);
const SCOPE_LIMIT: Duration = Duration::from_millis(1500);
/// The time that the manager gives the sandbox beyond its own grace and patience before it kills.
const STOP_MARGIN: Duration = Duration::from_secs(5);

/// The unit that a sandbox will be in.
pub(crate) enum Plan {
    /// That of the caller, which may end it.
    Stay(Option<String>),
    /// A scope of its own.
    Scope(ScopePlan),
}

/// A scope that is asked for.
pub(crate) struct ScopePlan {
    manager: ServiceManager,
    slice: Option<String>,
    /// Whether the sandbox does not start without the scope.
    is_required: bool,
    /// What the user must know if there is no scope.
    warning: Option<String>,
    taken: Option<Result<UnitScope, ScopeError>>,
}

impl Plan {
    /// Returns what may end the sandbox unexpectedly.
    #[must_use]
    pub(crate) fn warning(&self, is_detached: bool) -> Option<String> {
        match self {
            Plan::Stay(warning) => warning.clone(),
            Plan::Scope(ScopePlan { taken: Some(Ok(scope)), .. }) => (scope.lingers == Some(false)
                && is_detached)
                .then(|| "logout ends it, since linger is off: see `loginctl enable-linger`".to_owned()),
            Plan::Scope(ScopePlan { taken: Some(Err(error)), warning, .. }) => {
                let reason = error_chain(error);
                Some(match warning {
                    Some(warning) => format!("{reason}; {warning}"),
                    None => format!("{reason}; see `penfold doctor`"),
                })
            }
            Plan::Scope(ScopePlan { taken: None, .. }) => None,
        }
    }
}

impl ScopePlan {
    fn of(caller: Option<&CallerUnit>, manager: ServiceManager) -> ScopePlan {
        let slice = caller.filter(|caller| caller.manager == manager).and_then(|caller| caller.slice.clone());
        ScopePlan { manager, slice, is_required: false, warning: None, taken: None }
    }
}

/// Decides whether to ask for a scope. In the foreground nothing is read, unless a flag or the variable asks for more.
pub(crate) fn plan_scope(
    spec: &SandboxSpec,
    is_detached: bool,
    surroundings: &Surroundings,
) -> Result<Plan, LaunchError> {
    let asked = CgroupNeeds::of(spec);
    let variable = surroundings.variables.value(VARIABLE).filter(|value| !value.is_empty());
    let configured = match variable.filter(|_| spec.unit.is_none()) {
        None => None,
        Some(value) => {
            let value = value.to_string_lossy();
            let unit = Unit::of_word(&value).ok_or_else(|| {
                let sentence =
                    format!("the value `{value}` of {VARIABLE} is none of auto, none, user, system");
                LaunchError::new(sentence)
            })?;
            Some(unit)
        }
    };
    let asks = is_detached || asked.contain == Containment::Cgroup || !asked.limits.is_empty();
    let manager = match spec.unit.or(configured) {
        Some(Unit::None) => return Ok(Plan::Stay(None)),
        None if !asks => return Ok(Plan::Stay(None)),
        None | Some(Unit::Auto) => None,
        Some(Unit::User) => Some(ServiceManager::User),
        Some(Unit::System) => Some(ServiceManager::System),
    };
    let enclosing = surroundings.variables.outer_sandboxes().pop();
    if asked.contain == Containment::Subreaper || enclosing.is_some() {
        return match enclosing {
            _ if spec.unit.is_none() || manager.is_none() => Ok(Plan::Stay(None)),
            Some(id) => Err(refused(&format!("this command runs in sandbox {id}, which would not hold it"))),
            None => Err(refused("`--contain subreaper` uses no cgroup")),
        };
    }
    let own = std::fs::read("/proc/self/cgroup").unwrap_or_default();
    let own = Membership::of(&own).unified().unwrap_or_default();
    let caller = CallerUnit::of(&String::from_utf8_lossy(own));
    match manager {
        Some(manager) => {
            Ok(Plan::Scope(ScopePlan { is_required: true, ..ScopePlan::of(caller.as_ref(), manager) }))
        }
        None => Ok(caller
            .filter(|_| penfold_unit::is_booted())
            .map_or(Plan::Stay(None), |caller| auto(&asked, is_detached, &caller, &surroundings.buses))),
    }
}

fn refused(why: &str) -> LaunchError {
    LaunchError::new(format!("cannot give the sandbox a scope: {why}"))
}

/// Decides for `--unit auto`, where systemd runs and the caller is in a unit.
fn auto(asked: &CgroupNeeds, is_detached: bool, caller: &CallerUnit, buses: &Buses) -> Plan {
    let limits = asked.limits;
    // Where cgroup v1 has a controller, no scope has it.
    let has_limits =
        limits.is_empty() || matches!(LimitedPlace::find_here(&limits), Ok(_) | Err(LimitError::OnV1 { .. }));
    let place = LeafPlace::find_here();
    let can_stay = !matches!(place, Err(NoPlace::NotWritable { .. }));
    let wanted = || {
        let is_root = rustix::process::geteuid().is_root();
        let manager = if is_root { ServiceManager::System } else { ServiceManager::User };
        // Without the scope the start fails anyway, and this error has both reasons.
        let is_required = !has_limits || (!can_stay && asked.contain == Containment::Cgroup);
        ScopePlan { is_required, ..ScopePlan::of(Some(caller), manager) }
    };
    match caller.kind {
        _ if !has_limits => Plan::Scope(wanted()),
        // The next life of a sandbox does not stay in the scope of the former one.
        UnitKind::Scope if is_detached && ScopeDir::is_unit(&caller.unit) => {
            Plan::Scope(ScopePlan { is_required: true, ..wanted() })
        }
        UnitKind::Session if is_detached => Plan::Scope(wanted()),
        UnitKind::Service if is_detached => {
            in_service(caller, place.as_ref().ok().map(LeafPlace::path), buses, wanted)
        }
        _ if can_stay => Plan::Stay(None),
        _ => Plan::Scope(wanted()),
    }
}

/// Decides for a detached sandbox of a service. `place` is its cgroup, if sandboxes can be made there.
fn in_service(
    caller: &CallerUnit,
    place: Option<&Path>,
    buses: &Buses,
    wanted: impl FnOnce() -> ScopePlan,
) -> Plan {
    // Only a delegated cgroup is writable for others than root.
    if place.is_some_and(|place| caller.is_delegated(place) || !rustix::process::geteuid().is_root()) {
        return Plan::Stay(None);
    }
    let unit = &caller.unit;
    let service = penfold_unit::ask_service(buses, caller.manager, unit, ASK_LIMIT);
    let (ends_soon, warning) = match service.ok().flatten() {
        Some(service) if !service.kills_members => (false, None),
        Some(service) => (
            service.is_oneshot && !service.remains,
            Some(format!("the end of {unit} ends it: `--unit` gives it a scope of its own")),
        ),
        None => (
            false,
            Some(format!(
                "the end of {unit} may end it, and its manager does not tell: `--unit` gives it a scope of its own"
            )),
        ),
    };
    if ends_soon || place.is_none() {
        return Plan::Scope(ScopePlan { warning, ..wanted() });
    }
    Plan::Stay(warning)
}

/// Starts the sandbox, in the scope if one is wanted and can be had.
pub(crate) fn start_in_plan(plan: &mut Plan, spec: Spec, buses: &Buses) -> Result<Launcher, StartError> {
    let Plan::Scope(wanted) = plan else { return penfold_supervisor::start_sandbox(spec) };
    let id = spec.id.short();
    let life = spec.detach.as_ref().and_then(|detach| detach.life.as_ref()).map_or(1, Life::number);
    let (name, description) = (ScopeDir::unit(&id, life), described(&id, spec.name.as_deref()));
    let stop_timeout = spec.grace.saturating_add(spec.patience).saturating_add(STOP_MARGIN);
    penfold_supervisor::start_in_scope(spec, &mut |process: Pid| {
        let request = ScopeRequest {
            manager: wanted.manager,
            name: &name,
            description: &description,
            slice: wanted.slice.as_deref(),
            stop_timeout,
        };
        let taken = penfold_unit::take_scope(&request, buses, process, SCOPE_LIMIT);
        let entered = match &taken {
            Ok(scope) => ScopeEntry::Scope(scope.path.clone()),
            Err(_) if wanted.is_required => ScopeEntry::Refused,
            Err(_) => ScopeEntry::Nothing,
        };
        wanted.taken = Some(taken);
        entered
    })
}

fn described(id: &str, name: Option<&str>) -> String {
    name.map_or_else(|| format!("penfold sandbox {id}"), |name| format!("penfold sandbox {id} ({name})"))
}

/// What the user asked for that needs a cgroup.
#[derive(Clone, Copy)]
pub(crate) struct CgroupNeeds {
    contain: Containment,
    limits: Limits,
}

impl CgroupNeeds {
    /// Returns the needs of a request.
    #[must_use]
    pub(crate) fn of(spec: &SandboxSpec) -> CgroupNeeds {
        CgroupNeeds { contain: spec.contain.unwrap_or_default(), limits: spec.limits() }
    }
}

/// Checks that the limits can be held where the caller is. An end of another sandbox by `--replace` comes later.
pub(crate) fn check_limits(plan: &Plan, asked: &CgroupNeeds, command: &str) -> Result<(), LaunchError> {
    if asked.limits.is_empty() || matches!(plan, Plan::Scope(_)) {
        return Ok(());
    }
    LimitedPlace::find_here(&asked.limits).map(drop).map_err(|error| {
        let reason = format!("the limits cannot be held: {}", error_chain(&error));
        let failure = LaunchError::new(format!("cannot run `{command}`"));
        failure.because(reason).hint(mend_limits(&error))
    })
}

/// Adds the reason why there is no scope, and the hint that `doctor` shows.
pub(crate) fn explain_error(plan: &Plan, asked: &CgroupNeeds, failure: LaunchError) -> LaunchError {
    let failure = match plan {
        Plan::Scope(ScopePlan { taken: Some(Err(error)), is_required: true, .. }) => {
            failure.because(error_chain(error))
        }
        _ => failure,
    };
    if failure.kind != LaunchErrorKind::NotStarted {
        return failure;
    }
    if !asked.limits.is_empty() {
        return match (plan, LimitedPlace::find_here(&asked.limits)) {
            (Plan::Scope(ScopePlan { taken: Some(Ok(scope)), .. }), _) => {
                let lacks = asked.limits.controllers().any(|wanted| !wanted.is_in(&scope.controllers));
                if lacks { failure.hint(mend_scope_limits()) } else { failure }
            }
            (_, Err(why)) => failure.hint(mend_limits(&why)),
            (_, Ok(_)) => failure,
        };
    }
    if asked.contain != Containment::Cgroup {
        return failure;
    }
    match LeafPlace::find_here() {
        Err(why) => failure.hint(mend_place(&why)),
        Ok(_) => failure,
    }
}
