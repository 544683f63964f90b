//! From a request to final names and paths.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::mount::MountRequest;
use super::network::{Network, checked_link_name};
use super::paths::{check_path, kind_of, resolve_path};
use super::{PlanPlaces, Request, Sockets, Workspace};
use crate::directory::Directory;
use crate::error::{ResourceError, failed_step};
use crate::inside;
use crate::mistake::Mistake;
use crate::mount::{FileSystem, Mount, Origin};
use crate::netns::Netns;
use crate::own::OwnResource;
use crate::owner::ResourceOwner;
use crate::planned::PlannedResource;
use crate::tap::Tap;
use crate::veth::{PEER, Veth};

/// The room that a socket's name has in the 108 bytes of `sun_path`: 27 bytes and a slash.
const LONGEST_SOCKET_DIRECTORY: usize = 80;

pub(super) fn plan_resources(
    request: &Request,
    owner: &ResourceOwner,
    place: &PlanPlaces,
) -> Result<Vec<PlannedResource>, ResourceError> {
    let mut plan = Plan { owner, place, planned: Vec::new(), paths: BTreeSet::new(), targets: Vec::new() };
    if let Some(workspace) = &request.workspace {
        plan.workspace(workspace)?;
    }
    if let Some(sockets) = &request.sockets {
        plan.sockets(sockets)?;
    }
    if let Some(network) = &request.network {
        plan.network(network)?;
    }
    for (index, mount) in request.mounts.iter().enumerate() {
        plan.mount(index, mount)?;
    }
    for own in &request.own {
        plan.own(&own.0)?;
    }
    Ok(plan.planned)
}

struct Plan<'a> {
    owner: &'a ResourceOwner,
    place: &'a PlanPlaces,
    planned: Vec<PlannedResource>,
    /// The directories and other paths that do not exist yet.
    paths: BTreeSet<PathBuf>,
    /// The mount points, and whether each is a tmpfs.
    targets: Vec<(PathBuf, bool)>,
}

impl Plan<'_> {
    fn workspace(&mut self, workspace: &Workspace) -> Result<(), ResourceError> {
        let path = check_path(&workspace.path)?;
        match kind(&path)? {
            Some(FileType::Directory) if workspace.keep => Ok(()),
            Some(FileType::Directory) => Err(Mistake::WorkspaceExists(path).into()),
            Some(_) => Err(Mistake::NoDirectory(path).into()),
            None => self.directory(Directory { keep: workspace.keep, ..Directory::at(path) }),
        }
    }

    fn sockets(&mut self, sockets: &Sockets) -> Result<(), ResourceError> {
        let (path, in_shared_parent) = match &sockets.path {
            Some(path) => (check_path(path)?, false),
            None => (self.place.short.join(&self.owner.id), true),
        };
        if path.as_os_str().len() > LONGEST_SOCKET_DIRECTORY {
            return Err(Mistake::LongSocketPath(path).into());
        }
        self.directory(Directory { in_shared_parent, ..Directory::at(path) })
    }

    /// Plans a directory whose parent exists or is planned.
    fn directory(&mut self, directory: Directory) -> Result<(), ResourceError> {
        let parent = directory.path.parent().unwrap_or(Path::new("/"));
        let has_parent = directory.in_shared_parent
            || self.paths.contains(parent)
            || kind(parent)? == Some(FileType::Directory);
        let in_tmpfs = self.targets.iter().any(|(target, is_tmpfs)| *is_tmpfs && parent == target);
        if !has_parent && !in_tmpfs {
            return Err(Mistake::NoParent(directory.path).into());
        }
        self.claim(&directory.path)?;
        self.planned.push(PlannedResource::Directory(directory));
        Ok(())
    }

    fn claim(&mut self, path: &Path) -> Result<(), Mistake> {
        if self.paths.insert(path.to_owned()) { Ok(()) } else { Err(Mistake::Twice(path.to_owned())) }
    }

    fn network(&mut self, network: &Network) -> Result<(), ResourceError> {
        let has_link =
            network.address.is_some() || network.gateway.is_some() || network.peer_address.is_some();
        if !network.namespace && has_link {
            return Err(Mistake::NoNamespace.into());
        }
        let netns = if network.namespace { Some(Netns::plan(self.owner, network.enter)?) } else { None };
        if let Some(netns) = &netns {
            self.planned.push(PlannedResource::Netns(netns.clone()));
            if has_link {
                self.planned.push(PlannedResource::Veth(self.link(network, netns.clone())?));
            }
        }
        if let Some(tap) = &network.tap {
            let home = inside::own_namespace("net")
                .map_err(failed_step(|| "read the own network namespace".to_owned()))?;
            let usual = if netns.is_some() { "tap0".to_owned() } else { self.owner.link_name() };
            let name = checked_link_name(tap.name.as_deref().unwrap_or(&usual))?.to_owned();
            if netns.is_some() && (name == "lo" || (name == PEER && has_link)) {
                return Err(Mistake::LinkName(name).into());
            }
            self.planned.push(PlannedResource::Tap(Tap { name, netns, home, user: tap.user }));
        }
        Ok(())
    }

    fn link(&self, network: &Network, netns: Netns) -> Result<Veth, Mistake> {
        let address = network.address.ok_or(Mistake::NoAddress)?;
        let host_address = match (network.gateway, network.peer_address) {
            (Some(_), Some(_)) => return Err(Mistake::TwoHostAddresses),
            (Some(gateway), None) => Some(address.neighbour(gateway).ok_or(Mistake::Gateway(gateway))?),
            (None, peer) => peer,
        };
        let name = self.owner.link_name();
        Ok(Veth { name, netns, host_address, address: Some(address), gateway: network.gateway })
    }

    fn mount(&mut self, index: usize, request: &MountRequest) -> Result<(), ResourceError> {
        let (target, read_only) = match request {
            MountRequest::Bind { target, read_only, .. }
            | MountRequest::Overlay { target, read_only, .. }
            | MountRequest::Tmpfs { target, read_only, .. } => (target, *read_only),
        };
        let target = plain(target)?;
        if self.targets.iter().any(|(other, _)| *other == target) {
            return Err(Mistake::Twice(target).into());
        }
        let file_system = match request {
            MountRequest::Bind { source, .. } => self.bind(source, &target)?,
            MountRequest::Overlay { lower, upper, work, .. } => {
                self.overlay(index, lower, (upper.as_deref(), work.as_deref()))?
            }
            MountRequest::Tmpfs { size, .. } => FileSystem::Tmpfs { size: size.map(super::Size::bytes) },
        };
        self.mount_point(&target)?;
        self.targets.push((target.clone(), matches!(request, MountRequest::Tmpfs { .. })));
        self.planned.push(PlannedResource::Mount(Mount::plan(target, read_only, file_system)?));
        Ok(())
    }

    /// Plans the directory of a mount point that does not exist.
    fn mount_point(&mut self, target: &Path) -> Result<(), ResourceError> {
        let below = self.targets.iter().filter(|(other, _)| target.starts_with(other));
        let innermost = below.max_by_key(|(other, _)| other.components().count());
        let exists = match innermost {
            // What a bind or an overlay shows is seen only when it is mounted.
            Some((_, is_tmpfs)) => !is_tmpfs,
            None => kind(target)?.is_some(),
        };
        if exists || self.paths.contains(target) {
            return Ok(());
        }
        self.directory(Directory::at(target.to_owned()))
    }

    fn bind(&self, source: &Path, target: &Path) -> Result<FileSystem, ResourceError> {
        let source = plain(source)?;
        self.must_exist(&source)?;
        let (from, to) = (kind(&source)?, kind(target)?);
        if from.is_some_and(|kind| kind != FileType::Directory)
            && to.is_none_or(|kind| kind == FileType::Directory)
        {
            return Err(Mistake::FileSource(source).into());
        }
        let later = self.targets.iter().any(|(other, _)| source.starts_with(other));
        let origin = if later {
            None
        } else {
            Origin::of(&source).map_err(failed_step(|| "read the mounts".to_owned()))?
        };
        Ok(FileSystem::Bind { source, origin })
    }

    fn overlay(
        &mut self,
        index: usize,
        lower: &[PathBuf],
        changes: (Option<&Path>, Option<&Path>),
    ) -> Result<FileSystem, ResourceError> {
        let lower = lower.iter().map(|path| plain(path)).collect::<Result<Vec<_>, ResourceError>>()?;
        if lower.is_empty() {
            return Err(Mistake::Missing { mount: "overlay".to_owned(), key: "lower" }.into());
        }
        for path in &lower {
            self.must_exist(path)?;
        }
        let (upper, work) = match changes {
            (Some(upper), Some(work)) => {
                let (upper, work) = (plain(upper)?, plain(work)?);
                self.must_exist(&upper)?;
                self.must_exist(&work)?;
                (upper, work)
            }
            (None, None) => {
                let name = |part: &str| format!("{}-{part}{index}", self.owner.name());
                let (upper, work) =
                    (self.place.temporary.join(name("upper")), self.place.temporary.join(name("work")));
                self.directory(Directory::at(upper.clone()))?;
                self.directory(Directory::at(work.clone()))?;
                (upper, work)
            }
            _ => return Err(Mistake::HalfOverlay.into()),
        };
        Ok(FileSystem::Overlay { lower, upper, work })
    }

    /// A source may also be planned, or be in a mount that is made before.
    fn must_exist(&self, path: &Path) -> Result<(), ResourceError> {
        let is_planned = self.paths.contains(path);
        let in_mount = self.targets.iter().any(|(target, _)| path.starts_with(target));
        if is_planned || in_mount || kind(path)?.is_some() {
            Ok(())
        } else {
            Err(Mistake::NoSource(path.to_owned()).into())
        }
    }

    fn own(&mut self, own: &OwnResource) -> Result<(), ResourceError> {
        let own = match own {
            OwnResource::Path(path) => {
                self.claim(path)?;
                own.clone()
            }
            OwnResource::Mount(point) => {
                let point = plain(point)?;
                if self.targets.iter().any(|(target, _)| *target == point) {
                    return Err(Mistake::Twice(point).into());
                }
                OwnResource::Mount(point)
            }
            OwnResource::Loop(file) => OwnResource::Loop(plain(file)?),
            OwnResource::Netns(_) | OwnResource::Link(_) | OwnResource::Nft { .. } => own.clone(),
        };
        let planned = PlannedResource::Own(own);
        if self.planned.contains(&planned) {
            return Err(Mistake::OwnTwice(planned.describe()).into());
        }
        self.planned.push(planned);
        Ok(())
    }
}

fn kind(path: &Path) -> Result<Option<FileType>, ResourceError> {
    kind_of(path).map_err(failed_step(|| format!("look for `{}`", path.display())))
}

/// Returns a path as the table of mounts has it.
fn plain(path: &Path) -> Result<PathBuf, ResourceError> {
    let path = check_path(path)?;
    resolve_path(&path).map_err(failed_step(|| format!("look for `{}`", path.display())))
}
