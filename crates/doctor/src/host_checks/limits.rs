//! Describes which limits a sandbox can have here.

use std::time::Duration;

use penfold_cgroup::limits::{Controller, LEAF_PREFIX};
use penfold_cgroup::{LimitError, LimitedPlace, Limits};
use penfold_state::error_chain;

use super::{Ability, State, ability, mend_place};

const NAME: &str = "limits";

/// Returns the remedy where a limit cannot be held. The errors of `run --memory` show the same.
pub fn mend_limits(why: &LimitError) -> &'static str {
    match why {
        LimitError::NoPlace(why) => mend_place(why),
        LimitError::OnV1 { .. } => {
            "boot with systemd.unified_cgroup_hierarchy=1, so that cgroup v2 has all controllers"
        }
        LimitError::Occupied { path, .. } | LimitError::Unavailable { path, .. }
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(LEAF_PREFIX)) =>
        {
            "give the limits to the enclosing sandbox: they hold for all that runs in it"
        }
        LimitError::Occupied { .. } | LimitError::Unavailable { .. } | LimitError::Enable { .. } => {
            "`--unit user` (as root `--unit system`) gives the sandbox a scope with controllers; without systemd, or in a \
             service with Delegate=yes, move the processes to a cgroup below first (DelegateSubgroup=)"
        }
        LimitError::Read { .. } | LimitError::Write { .. } | LimitError::Differs { .. } => {
            "`penfold doctor` shows which limits work here"
        }
    }
}

/// Returns the remedy where a scope lacks a controller.
pub fn mend_scope_limits() -> &'static str {
    "let the managers of users have the controllers: as root `systemctl edit user@.service`, with [Service] \
     Delegate=cpu memory pids, then log in again"
}

/// Returns one limit of this kind, for a try.
fn example(controller: Controller) -> Limits {
    match controller {
        Controller::Memory => Limits { memory_bytes: Some(1 << 30), ..Limits::default() },
        Controller::Pids => Limits { pids: Some(100), ..Limits::default() },
        Controller::Cpu => Limits { cpus: Some(Duration::from_secs(1)), ..Limits::default() },
    }
}

/// Looks for the controllers, and changes nothing.
pub(super) fn check_controllers() -> Ability {
    let mut good: Vec<&str> = Vec::new();
    let (mut place, mut refused) = (None, None);
    for controller in Controller::ALL {
        match LimitedPlace::find_here(&example(controller)) {
            Ok(found) => {
                good.push(flag(controller));
                place = Some(found.path().to_owned());
            }
            Err(why) => {
                refused.get_or_insert(why);
            }
        }
    }
    let works = place.map(|place| format!("{} in {}", good.join(", "), place.display()));
    let found = match (works, &refused) {
        (Some(works), None) => works,
        (Some(works), Some(why)) => format!("{works}; others not: {}", error_chain(why)),
        (None, why) => format!("none: {}", why.as_ref().map(|why| error_chain(why)).unwrap_or_default()),
    };
    let mut ability = line(&found);
    ability.mend = refused.as_ref().map(|why| mend_limits(why).to_owned());
    ability
}

/// Adds what a scope offers that this place does not.
pub(super) fn add_scope(abilities: &mut [Ability], manager: &str, controllers: &str) {
    let Some(known) = abilities.iter_mut().find(|ability| ability.name == NAME && ability.mend.is_some())
    else {
        return;
    };
    let (good, missing): (Vec<Controller>, Vec<Controller>) =
        Controller::ALL.into_iter().partition(|controller| controller.is_in(controllers));
    if good.is_empty() {
        return;
    }
    let flags = |list: &[Controller]| list.iter().map(|one| flag(*one)).collect::<Vec<_>>().join(", ");
    let found = format!("{} in a scope from {manager}", flags(&good));
    *known = line(&if missing.is_empty() {
        found
    } else {
        format!("{found}; {} not: the scope lacks the controller", flags(&missing))
    });
    known.mend = (!missing.is_empty()).then(|| mend_scope_limits().to_owned());
}

/// The guarantee does not depend on limits, so their absence is no warning.
fn line(found: &str) -> Ability {
    let meaning = "a sandbox with a limit that cannot be held is not started";
    ability(NAME, State::Ok, format!("limits: {found}"), meaning)
}

fn flag(controller: Controller) -> &'static str {
    match controller {
        Controller::Memory => "--memory",
        Controller::Pids => "--pids",
        Controller::Cpu => "--cpus",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 17.5
    #[test]
    fn a_scope_is_named_where_the_own_cgroup_has_no_controllers() {
        let mut abilities = vec![Ability { mend: Some("x".to_owned()), ..line("none: x") }];
        add_scope(&mut abilities, "the user's manager", "");
        assert_eq!(abilities[0].found, "limits: none: x");
        add_scope(&mut abilities, "the user's manager", "memory pids\n");
        let expected = "limits: --memory, --pids in a scope from the user's manager; --cpus not: the scope lacks the controller";
        assert_eq!(abilities[0].found, expected);
        assert_eq!(abilities[0].mend.as_deref(), Some(mend_scope_limits()));
        add_scope(&mut abilities, "the user's manager", "cpu memory pids\n");
        assert_eq!(abilities[0].found, "limits: --memory, --pids, --cpus in a scope from the user's manager");
        assert_eq!(abilities[0].mend, None);
    }
}
