//! Describes whether a sandbox can have a scope from a service manager.

use std::path::PathBuf;

use penfold_teardown::Level;

use super::{Abilities, Ability, State, ability, limits};

/// The result of a try to get a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeTrial {
    /// The manager, for people.
    pub manager: String,
    /// The reason why there is no scope.
    pub refused: Option<String>,
    /// The text of `cgroup.controllers` of the scope.
    pub controllers: String,
    /// Whether the manager goes on after logout; `None` if that is not known or does not matter.
    pub lingers: Option<bool>,
    /// The cgroup of the scope, if it was not removed.
    pub left: Option<PathBuf>,
}

impl Abilities {
    /// Adds the result of a try to get a scope. With a scope, the level cgroup is available.
    pub fn add_scope(&mut self, trial: &ScopeTrial) {
        let cgroup = self.levels.iter_mut().find(|level| level.level == Level::Cgroup);
        let needed = cgroup.as_ref().is_some_and(|level| !level.available);
        if let Some(level) = cgroup.filter(|_| needed && trial.refused.is_none()) {
            level.available = true;
            level.reason = format!("in a scope from {}", trial.manager);
            for ability in self.abilities.iter_mut().filter(|ability| ability.name == "cgroup") {
                ability.mend =
                    Some("penfold run --contain cgroup, or `penfold run -d`: in a scope".to_owned());
            }
        }
        if trial.refused.is_none() {
            limits::add_scope(&mut self.abilities, &trial.manager, &trial.controllers);
        }
        let at = self.abilities.iter().position(|ability| ability.name == "cgroup").map_or(0, |at| at + 1);
        self.abilities.splice(at..at, describe(trial, needed));
    }
}

fn describe(trial: &ScopeTrial, needed: bool) -> Vec<Ability> {
    const NAME: &str = "scope";
    let ScopeTrial { manager, refused, lingers, left, controllers: _ } = trial;
    let mut list = Vec::new();
    if let Some(reason) = refused {
        let meaning = "`run -d` and `--contain cgroup` get no cgroup of their own in a login session";
        let state = if needed { State::Warn } else { State::Ok };
        let mend = "a user's manager and its bus: dbus-user-session, a login by ssh or on a console, or as root \
            `loginctl enable-linger USER`";
        list.push(ability(NAME, state, reason.clone(), meaning).mend(mend));
    } else if *lingers == Some(false) {
        let found = format!("scopes from {manager}, which ends at logout: linger is off for this user");
        let meaning = "logout ends the sandboxes of `run -d` that are in a scope";
        list.push(ability(NAME, State::Warn, found, meaning).mend("loginctl enable-linger"));
    } else {
        let meaning = "a sandbox gets a delegated cgroup that outlives the session or service of its caller";
        list.push(ability(NAME, State::Ok, format!("scopes from {manager}"), meaning));
    }
    if let Some(path) = left {
        let found = format!("the scope {} that was made to try was not removed", path.display());
        list.push(ability("scope-left", State::Warn, found, "the try left it behind"));
    }
    list
}
