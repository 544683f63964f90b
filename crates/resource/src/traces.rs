//! Resources that only their names and marks show: their sandbox may have no record.

mod directories;
mod loops;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::directory::Directory;
use crate::error::{ResourceError, failed_step};
use crate::inside::own_namespace;
use crate::links;
use crate::mount::{FileSystem, Mount};
use crate::mount_table;
use crate::netlink::NetlinkSocket;
use crate::netns::{NAMES, Netns};
use crate::own::OwnResource;
use crate::owner::ResourceOwner;
use crate::planned::PlannedResource;
use crate::presence::ResourcePresence;

/// The length of a short id.
const ID: usize = 12;

/// A resource, as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trace {
    /// A name of a network namespace.
    Netns {
        /// The file.
        path: PathBuf,
    },
    /// A link of this network namespace.
    Link {
        /// The name.
        name: String,
    },
    /// A mount of this mount namespace.
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Whether it is an overlay, and not a tmpfs.
        is_overlay: bool,
    },
    /// A loop device whose backing file is in a directory of a sandbox.
    Loop {
        /// The backing file.
        file: PathBuf,
        /// The name of the device, such as `loop3`.
        device: String,
    },
    /// A directory with a mark.
    Directory {
        /// The path.
        path: PathBuf,
        /// The boot in the mark.
        boot: String,
    },
}

/// The traces that a look has found, and what could not be looked at.
#[derive(Debug, Default)]
pub struct FoundTraces {
    /// The traces with the short ids of their sandboxes, in the order in which they can be released.
    pub traces: Vec<(String, Trace)>,
    /// The lists and directories that could not be read as a whole, with the reason. What was read of them is in `traces`.
    pub unread: Vec<(PathBuf, io::Error)>,
}

impl FoundTraces {
    /// Adds the result of one look; gives nothing if it failed.
    fn read<T: Default>(&mut self, what: &str, looked: io::Result<T>) -> T {
        looked.unwrap_or_else(|error| {
            self.unread.push((PathBuf::from(what), error));
            T::default()
        })
    }
}

/// The files of a list of the kernel, for errors.
const MOUNTS: &str = "/proc/self/mountinfo";

/// Lists the traces of this host. Lists no directories: see [`in_directories`].
pub fn find_traces() -> FoundTraces {
    let mut found = FoundTraces::default();
    for mount in found.read(MOUNTS, mount_table::read_mount_table()) {
        if let Some(id) = id_after("penfold-", &mount.source.to_string_lossy()) {
            let is_overlay = mount.fs_type == "overlay";
            found.traces.push((id, Trace::Mount { path: mount.mount_point, is_overlay }));
        }
    }
    let loops = found.read(loops::DEVICES, loops::find_loops());
    found.traces.extend(loops);
    for name in found.read(NAMES, names(NAMES)) {
        if let Some(id) = id_after("penfold-", &name) {
            found.traces.push((id, Trace::Netns { path: Path::new(NAMES).join(name) }));
        }
    }
    let links = NetlinkSocket::open().and_then(|socket| links::list_links(&socket));
    for (name, alias) in found.read("the list of links", links) {
        let Some(id) = id_after("pf-", &name) else { continue };
        // A link without the mark may be half-made, or another's.
        if alias.is_some_and(|alias| alias.starts_with(&format!("penfold {id} "))) {
            found.traces.push((id, Trace::Link { name }));
        }
    }
    found
}

/// Lists the directories of this user that are in these directories and carry a mark. Looks no deeper, and at no more than
/// 100,000 entries of each. A missing directory has nothing in it.
pub fn in_directories(places: &[PathBuf]) -> FoundTraces {
    let mut found = FoundTraces::default();
    for place in places {
        if let Err(error) = directories::find_directories(place, &mut found.traces) {
            found.unread.push((place.clone(), error));
        }
    }
    found
}

impl Trace {
    /// Looks whether the resource still exists, and which processes hold it.
    ///
    /// # Errors
    /// When this cannot be determined.
    pub fn presence(&self, id: &str) -> Result<ResourcePresence, ResourceError> {
        self.planned(id)?.probe(&self.owner(id))
    }

    /// Returns the owner, as far as the trace tells.
    pub fn owner(&self, id: &str) -> ResourceOwner {
        let boot = match self {
            Trace::Directory { boot, .. } => boot.clone(),
            _ => String::new(),
        };
        ResourceOwner { id: id.to_owned(), boot }
    }

    /// Returns the resource, for its release.
    ///
    /// # Errors
    /// When an own namespace cannot be read.
    pub fn planned(&self, id: &str) -> Result<PlannedResource, ResourceError> {
        Ok(match self {
            Trace::Netns { .. } => PlannedResource::Netns(Netns::plan(&self.owner(id), false)?),
            Trace::Loop { file, .. } => PlannedResource::Own(OwnResource::Loop(file.clone())),
            Trace::Directory { path, .. } => PlannedResource::Directory(Directory::at(path.clone())),
            Trace::Link { name } => PlannedResource::Own(OwnResource::Link(name.clone())),
            Trace::Mount { path, is_overlay } => {
                let home = own_namespace("mnt")
                    .map_err(failed_step(|| "read the own mount namespace".to_owned()))?;
                let none = PathBuf::new;
                let file_system = if *is_overlay {
                    FileSystem::Overlay { lower: Vec::new(), upper: none(), work: none() }
                } else {
                    FileSystem::Tmpfs { size: None }
                };
                PlannedResource::Mount(Mount { target: path.clone(), read_only: false, home, file_system })
            }
        })
    }
}

fn names(directory: &str) -> io::Result<Vec<String>> {
    match fs::read_dir(directory) {
        Ok(entries) => {
            entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn id_after(prefix: &str, name: &str) -> Option<String> {
    name.strip_prefix(prefix).filter(|id| is_id(id)).map(str::to_owned)
}

fn is_id(text: &str) -> bool {
    text.len() == ID && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_short_id_follows_the_prefix() {
        assert_eq!(id_after("pf-", "pf-3f9a1c2b7d04").as_deref(), Some("3f9a1c2b7d04"));
        for name in ["pf-3f9a1c2b7d0", "pf-3F9a1c2b7d04", "xpf-3f9a1c2b7d04", "pf-3f9a1c2b7d04-upper0"] {
            assert_eq!(id_after("pf-", name), None, "{name}");
        }
    }
}
