//! The unit in which a process runs, as its cgroup shows it.

use std::path::Path;

use crate::manager::ServiceManager;

/// The kind of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitKind {
    /// A login session: the scope that logind makes. It is never delegated.
    Session,
    /// Another scope.
    Scope,
    /// A service.
    Service,
}

/// The unit in which a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerUnit {
    /// The name of the unit.
    pub unit: String,
    /// The kind of the unit.
    pub kind: UnitKind,
    /// The manager of the unit.
    pub manager: ServiceManager,
    /// The slice of the unit, if it is not one that every unit of its kind is in.
    pub slice: Option<String>,
    /// The number of cgroups between the unit's own and that of the process.
    below: usize,
}

impl CallerUnit {
    /// Finds the unit in a cgroup as `/proc/<pid>/cgroup` shows it; `None` if no part of it is a unit.
    pub fn of(cgroup: &str) -> Option<CallerUnit> {
        let names: Vec<&str> = cgroup.split('/').filter(|name| !name.is_empty()).map(unescaped).collect();
        let at = names.iter().rposition(|name| is_unit(name, ".service") || is_unit(name, ".scope"))?;
        let unit = *names.get(at)?;
        let above = names.get(..at)?;
        // The units of a user's manager are below the service of that manager.
        let user = above.iter().rposition(|name| name.starts_with("user@") && is_unit(name, ".service"));
        let manager = if user.is_some() { ServiceManager::User } else { ServiceManager::System };
        let kind = match manager {
            _ if unit.ends_with(".service") => UnitKind::Service,
            ServiceManager::System if unit.starts_with("session-") && above.contains(&"user.slice") => {
                UnitKind::Session
            }
            _ => UnitKind::Scope,
        };
        let slices = above.get(user.map_or(0, |user| user + 1)..)?;
        let slice = slices.iter().rfind(|name| is_unit(name, ".slice")).copied();
        let is_common = |slice: &&str| {
            // `user-1000.slice` is below `user.slice`, and belongs to logind.
            !matches!(*slice, "system.slice" | "user.slice" | "app.slice" | "session.slice")
                && above.contains(&"user.slice") != user.is_none()
        };
        Some(CallerUnit {
            unit: unit.to_owned(),
            kind,
            manager,
            slice: slice.filter(is_common).map(str::to_owned),
            below: names.len() - at - 1,
        })
    }

    /// Tells whether the unit was delegated to its processes. `own` is the directory of the process's cgroup.
    pub fn is_delegated(&self, own: &Path) -> bool {
        own.ancestors().nth(self.below).is_some_and(penfold_cgroup::limits::is_delegated)
    }
}

/// Tells whether a name is that of a unit with this suffix.
fn is_unit(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|stem| !stem.is_empty())
}

/// Removes the mark that systemd puts before names that the kernel could misread.
fn unescaped(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(cgroup: &str) -> (String, UnitKind, ServiceManager, Option<String>, usize) {
        let CallerUnit { unit, kind, manager, slice, below } = CallerUnit::of(cgroup).unwrap();
        (unit, kind, manager, slice, below)
    }

    #[test]
    fn the_innermost_unit_is_the_callers() {
        let system = |unit: &str, kind, below| (unit.to_owned(), kind, ServiceManager::System, None, below);
        let user = |unit: &str, kind, below| (unit.to_owned(), kind, ServiceManager::User, None, below);
        for (cgroup, expected) in [
            ("/user.slice/user-1000.slice/session-3.scope", system("session-3.scope", UnitKind::Session, 0)),
            ("/system.slice/cron.service", system("cron.service", UnitKind::Service, 0)),
            ("/system.slice/pen.service/penfold-3f9a1c2b7d04", system("pen.service", UnitKind::Service, 1)),
            ("/system.slice/docker-77.scope/init", system("docker-77.scope", UnitKind::Scope, 1)),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/run-r1.scope",
                user("run-r1.scope", UnitKind::Scope, 0),
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/dev.service/a/b",
                user("dev.service", UnitKind::Service, 2),
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service",
                system("user@1000.service", UnitKind::Service, 0),
            ),
        ] {
            assert_eq!(found(cgroup), expected, "{cgroup}");
        }
        for cgroup in ["/", "", "/docker/77", "/a.slice", "/.service", "/.scope/x"] {
            assert_eq!(CallerUnit::of(cgroup), None, "{cgroup}");
        }
    }

    #[test]
    fn only_a_slice_that_somebody_chose_counts() {
        let slice = |cgroup: &str| CallerUnit::of(cgroup).unwrap().slice;
        assert_eq!(slice("/ci.slice/ci-jobs.slice/job.service").as_deref(), Some("ci-jobs.slice"));
        assert_eq!(
            slice("/system.slice/system-job.slice/job@1.service").as_deref(),
            Some("system-job.slice")
        );
        let user = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(
            slice(&format!("{user}/app.slice/app-dev.slice/a.service")).as_deref(),
            Some("app-dev.slice")
        );
        assert_eq!(slice(&format!("{user}/dev.service")), None);
        assert_eq!(slice("/user.slice/user-0.slice/session-1.scope"), None);
    }
}
