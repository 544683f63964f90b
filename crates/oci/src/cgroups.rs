//! Which cgroups belong to a container, in every hierarchy that is mounted.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use penfold_cgroup::{Membership, mountinfo};
use penfold_process::ProcFs;

use crate::delegate::DelegateReport;

/// A mounted hierarchy.
#[derive(Debug)]
struct Hierarchy {
    mount_point: PathBuf,
    /// The cgroup that is the root of the mount.
    root: PathBuf,
    /// Controllers of a v1 hierarchy, and `name=…`; `None` for cgroup v2.
    v1: Option<String>,
}

impl Hierarchy {
    /// The directory of a cgroup.
    fn directory(&self, cgroup: &Path) -> Option<PathBuf> {
        Some(self.mount_point.join(cgroup.strip_prefix(&self.root).ok()?))
    }

    /// The cgroup of a process with this `/proc/PID/cgroup`.
    fn of<'a>(&self, membership: Membership<'a>) -> Option<&'a Path> {
        let path = match &self.v1 {
            None => membership.unified(),
            Some(options) => options.split(',').find_map(|option| membership.v1(option.as_bytes())),
        };
        path.map(|path| Path::new(OsStr::from_bytes(path)))
    }
}

/// What names the cgroups of a container.
pub(crate) struct CgroupNames<'a> {
    pub(crate) id: &'a str,
    /// `cgroupsPath` of `config.json`.
    pub(crate) cgroups_path: &'a str,
}

impl CgroupNames<'_> {
    /// Tells whether a cgroup is the container's own: the root, a parent, or another's cgroup is not.
    pub(crate) fn own(&self, cgroup: &Path) -> bool {
        let plain = cgroup.is_absolute()
            && cgroup.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        let asked = self.asked();
        let is_asked = asked.as_deref().is_some_and(|asked| cgroup.ends_with(asked));
        plain
            && (is_asked
                || cgroup.file_name().and_then(OsStr::to_str).is_some_and(|name| self.is_named(name)))
    }

    /// `ID`, or a scope of systemd: `PREFIX-ID.scope`.
    fn is_named(&self, name: &str) -> bool {
        let scope = name.strip_suffix(".scope").and_then(|name| name.strip_suffix(self.id));
        name == self.id || scope.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
    }

    /// The cgroup that the engine asked for, without the leading slash.
    fn asked(&self) -> Option<PathBuf> {
        let path = match self.cgroups_path.split(':').collect::<Vec<_>>()[..] {
            [slice, prefix, name] => {
                let slice = if slice.is_empty() { "system.slice" } else { slice };
                let scope = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}-{name}") };
                slices(slice).join(format!("{scope}.scope"))
            }
            _ => PathBuf::from(self.cgroups_path.trim_start_matches('/')),
        };
        // A single component of another name may be a cgroup of the host, such as `system.slice`.
        let is_deep = path.components().count() > 1 || path.to_str().is_some_and(|name| self.is_named(name));
        is_deep.then_some(path)
    }
}

/// `a-b.slice` is `a.slice/a-b.slice`, systemd.slice(5).
fn slices(slice: &str) -> PathBuf {
    let name = slice.strip_suffix(".slice").unwrap_or(slice);
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("{}.slice", &name[..end])).collect()
}

/// The cgroups of a container: those that the delegate wrote down, those of the first process, those that the engine asked for.
///
/// # Errors
/// When the mounts cannot be read.
pub(crate) fn find_cgroups(
    names: &CgroupNames<'_>,
    report: &DelegateReport,
    known: &[PathBuf],
) -> io::Result<BTreeSet<PathBuf>> {
    let hierarchies = hierarchies()?;
    let mut found = BTreeSet::new();
    let below_a_mount = |directory: &&PathBuf| {
        let inside =
            |one: &Hierarchy| directory.starts_with(&one.mount_point) && **directory != one.mount_point;
        hierarchies.iter().any(inside) && names.own(directory)
    };
    found.extend(report.directories.values().chain(known).filter(below_a_mount).cloned());
    let membership = report.init.and_then(|init| {
        let mut proc = ProcFs::open().ok()?;
        let text = proc.cgroups(init.pid).ok()??;
        (proc.stat(init.pid).ok()??.id() == init).then_some(text)
    });
    let asked = names.asked().map(|asked| Path::new("/").join(asked));
    for hierarchy in &hierarchies {
        let of_init = membership.as_deref().and_then(|text| hierarchy.of(Membership::of(text)));
        let paths = [report.path.as_deref(), of_init, asked.as_deref()];
        let own = paths.into_iter().flatten().filter(|path| names.own(path));
        found.extend(own.filter_map(|path| hierarchy.directory(path)));
    }
    Ok(found)
}

/// The hierarchies of cgroup v1 in which a cgroup below the container's stands in the way of no later change: a child of the container's cpuset
/// keeps its processors, and then the kernel refuses to take one from the container, cpusets(7).
const TRACKING: [&str; 2] = ["pids", "name=systemd"];

/// Where the delegate starts further commands.
pub(crate) struct ExecPlaces {
    /// The cgroups of the container, or below, in which a command gets one.
    pub(crate) parents: BTreeSet<PathBuf>,
    /// The controllers of these hierarchies, as runc wants them; `None` for all.
    pub(crate) controllers: Option<String>,
}

/// The cgroups in which the delegate starts further commands, as far as they are the container's or below. crun may have its processes in a
/// cgroup below the container's.
///
/// # Errors
/// When the mounts cannot be read.
pub(crate) fn of_commands(report: &DelegateReport, own: &BTreeSet<PathBuf>) -> io::Result<ExecPlaces> {
    let is_own = |directory: &PathBuf| {
        let plain = directory.components().all(|part| part != Component::ParentDir);
        plain && directory.is_dir() && own.iter().any(|own| directory.starts_with(own))
    };
    let tracking = |name: &'static str| {
        let directory = report.directories.get(name).filter(|directory| is_own(directory))?;
        let is_alone = report.directories.get("cpuset") != Some(directory);
        is_alone.then(|| (name, directory.clone()))
    };
    let tracking: Vec<(&str, PathBuf)> = TRACKING.into_iter().filter_map(tracking).collect();
    if !tracking.is_empty() {
        let names: Vec<&str> = tracking.iter().map(|(name, _)| *name).collect();
        let controllers = Some(names.join(","));
        return Ok(ExecPlaces {
            parents: tracking.into_iter().map(|(_, parent)| parent).collect(),
            controllers,
        });
    }
    let hierarchies = hierarchies()?;
    let by_path =
        report.path.iter().flat_map(|path| hierarchies.iter().filter_map(|one| one.directory(path)));
    let parents = report.directories.values().cloned().chain(by_path).filter(is_own).collect();
    Ok(ExecPlaces { parents, controllers: None })
}

/// The cgroups that the delegate makes where the engine asks for no absolute path: runc below its own, or with cgroup v2 beside it, crun at the
/// top. Whoever looks later does not know the delegate's own.
///
/// # Errors
/// When the mounts, or the cgroups of this process, cannot be read.
pub(crate) fn usual_cgroups(names: &CgroupNames<'_>) -> io::Result<BTreeSet<PathBuf>> {
    let relative = Path::new(if names.cgroups_path.is_empty() { names.id } else { names.cgroups_path });
    if relative.is_absolute() || names.cgroups_path.contains(':') {
        return Ok(BTreeSet::new());
    }
    let text = ProcFs::open()?.cgroups(rustix::process::getpid())?.unwrap_or_default();
    let mut found = BTreeSet::new();
    for hierarchy in hierarchies()? {
        let own = hierarchy.of(Membership::of(&text));
        let mut places: Vec<&Path> = own.into_iter().collect();
        if hierarchy.v1.is_none() {
            places.extend(own.and_then(Path::parent));
            places.push(Path::new("/"));
        }
        let cgroups = places.into_iter().map(|place| place.join(relative)).filter(|cgroup| names.own(cgroup));
        found.extend(cgroups.filter_map(|cgroup| hierarchy.directory(&cgroup)));
    }
    Ok(found)
}

fn hierarchies() -> io::Result<Vec<Hierarchy>> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let mounts = mountinfo::parse_mountinfo(&text).map_err(io::Error::other)?;
    let hierarchy = |mount: mountinfo::MountEntry| {
        let v1 = match mount.fs_type.as_str() {
            "cgroup2" => None,
            "cgroup" => Some(mount.super_options),
            _ => return None,
        };
        Some(Hierarchy { mount_point: mount.mount_point, root: mount.root, v1 })
    };
    Ok(mounts.into_iter().filter_map(hierarchy).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 30.3
    #[test]
    fn roots_parents_and_cgroups_of_others_are_refused() {
        let own = |cgroups_path, path: &str| CgroupNames { id: "c1", cgroups_path }.own(Path::new(path));
        for path in
            ["/c1", "/k8s.io/c1", "/system.slice/cri-containerd-c1.scope", "/user.slice/crun-c1.scope"]
        {
            assert!(own("", path), "{path}");
        }
        for path in [
            "/",
            "",
            "c1",
            "/a/../c1",
            "/c1/..",
            "/c1/below",
            "/c11",
            "/xc1",
            "/system.slice",
            "/x-c11.scope",
        ] {
            assert!(!own("", path), "{path}");
        }
        assert!(own("/machine/box", "/machine/box") && own("/machine/box", "/outer/machine/box"));
        for path in ["/", "/machine", "/box", "/machine/box/below"] {
            assert!(!own("/machine/box", path), "{path}");
        }
        assert!(own("a-b.slice:docker:x", "/a.slice/a-b.slice/docker-x.scope"));
        for host in ["/system.slice", "/", "", "/.."] {
            assert!(!own(host, host), "{host}");
        }
    }
}
