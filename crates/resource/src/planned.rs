//! A resource of any kind.

use std::path::PathBuf;
use std::time::Instant;

use penfold_process::path_text::path_text;
use serde::{Deserialize, Serialize};

use crate::directory::Directory;
use crate::error::ResourceError;
use crate::mount::Mount;
use crate::netns::Netns;
use crate::own::OwnResource;
use crate::owner::ResourceOwner;
use crate::presence::ResourcePresence;
use crate::tap::Tap;
use crate::veth::Veth;

/// A resource with its final names and paths. The record has it before it exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum PlannedResource {
    /// A private directory.
    Directory(Directory),
    /// A network namespace.
    Netns(Netns),
    /// A pair of links between the host and the network namespace.
    Veth(Veth),
    /// A tap device.
    Tap(Tap),
    /// A mount.
    Mount(Mount),
    /// Something that the command makes.
    Own(OwnResource),
}

/// Calls a method of the resource in any variant.
macro_rules! each {
    ($planned:expr, $it:ident => $call:expr) => {
        match $planned {
            PlannedResource::Directory($it) => $call,
            PlannedResource::Netns($it) => $call,
            PlannedResource::Veth($it) => $call,
            PlannedResource::Tap($it) => $call,
            PlannedResource::Mount($it) => $call,
            PlannedResource::Own($it) => $call,
        }
    };
}

impl PlannedResource {
    /// Names the resource in reports: ``network namespace `penfold-3f9a1c2b7d04` ``.
    pub fn describe(&self) -> String {
        each!(self, it => it.describe())
    }

    /// Checks before the start that name, path and address are free.
    ///
    /// # Errors
    /// [`ResourceError::Taken`], or when this cannot be determined. Nothing was made.
    pub fn check(&self) -> Result<(), ResourceError> {
        each!(self, it => it.check())
    }

    /// Makes the resource. Does nothing for [`PlannedResource::Own`].
    ///
    /// # Errors
    /// When a step fails; nothing of the resource is left then, unless its removal fails too.
    pub fn create(&self, owner: &ResourceOwner) -> Result<(), ResourceError> {
        each!(self, it => it.create(owner))
    }

    /// Looks whether the resource exists, and which processes hold it.
    ///
    /// # Errors
    /// When this cannot be determined: unknown is not absent.
    pub fn probe(&self, owner: &ResourceOwner) -> Result<ResourcePresence, ResourceError> {
        each!(self, it => it.probe(owner))
    }

    /// Removes the resource, and succeeds only after a look showed that it is gone. A release may be repeated.
    ///
    /// # Errors
    /// When the resource is not gone at the deadline, cannot be seen from here, or is not the sandbox's.
    pub fn release(&self, owner: &ResourceOwner, until: Instant) -> Result<(), ResourceError> {
        each!(self, it => it.release(owner, until))
    }

    /// Tells whether a directory is in one of the mounts among these resources.
    pub fn is_below_mount(&self, all: &[PlannedResource]) -> bool {
        let PlannedResource::Directory(directory) = self else { return false };
        all.iter()
            .any(|other| matches!(other, PlannedResource::Mount(mount) if directory.path.starts_with(&mount.target)))
    }

    /// Returns what only one sandbox may have, each as `KIND=NAME`.
    pub fn claims(&self) -> Vec<String> {
        match self {
            PlannedResource::Own(OwnResource::Mount(target))
            | PlannedResource::Mount(Mount { target, .. }) => {
                vec![format!("mount={}", path_text(target))]
            }
            PlannedResource::Own(own) => vec![own.to_string()],
            PlannedResource::Veth(veth) => {
                veth.host_address.iter().map(|cidr| format!("address={}", cidr.address())).collect()
            }
            PlannedResource::Directory(_) | PlannedResource::Netns(_) | PlannedResource::Tap(_) => Vec::new(),
        }
    }

    /// Tells whether only the name shows that the resource is the sandbox's: it has no mark.
    pub fn is_known_by_name(&self) -> bool {
        matches!(self, PlannedResource::Own(_) | PlannedResource::Mount(_))
    }

    /// Tells whether the resource still exists after a boot.
    pub fn outlives_boot(&self) -> bool {
        matches!(self, PlannedResource::Directory(_) | PlannedResource::Own(OwnResource::Path(_)))
    }

    /// Returns the file of the network namespace that the command enters.
    pub fn netns_path(&self) -> Option<PathBuf> {
        match self {
            PlannedResource::Netns(netns) if netns.enter => Some(netns.path()),
            _ => None,
        }
    }
}
