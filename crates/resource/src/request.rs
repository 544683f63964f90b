//! What a user asks for: in a spec file, with flags, or over HTTP.

mod mount;
mod network;
mod own;
mod paths;
mod plan;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use mount::{MountRequest, Size};
pub use network::{Network, TapRequest};
pub use own::OwnRequest;

pub use crate::cidr::Cidr;
use crate::error::ResourceError;
pub use crate::mistake::Mistake;
use crate::owner::ResourceOwner;
use crate::planned::PlannedResource;

/// The resources of one sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The directory in which the command starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,
    /// A directory with a short path for sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sockets>,
    /// A network namespace, its links and devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// The mounts, in the order in which they are made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<MountRequest>,
    /// What the command makes itself, each as `KIND=NAME`, to be removed after its end.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<OwnRequest>,
}

/// The working directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Workspace {
    /// The absolute path. A directory that does not exist is made, with mode 0700.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    #[serde(with = "penfold_process::path_text")]
    pub path: PathBuf,
    /// Whether the directory stays after the sandbox. For a directory that exists, this must be `true`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep: bool,
}

/// A directory for sockets: the path of a socket has at most 107 bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Sockets {
    /// The absolute path, at most 80 bytes; by default, a directory named after the sandbox.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(with = "penfold_process::path_text")]
    pub path: Option<PathBuf>,
}

/// The directories in which penfold makes those whose path the user does not choose. Both are absolute.
#[derive(Debug, Clone)]
pub struct PlanPlaces {
    /// For the changes of overlays.
    pub temporary: PathBuf,
    /// For directories of sockets; made if it is missing.
    pub short: PathBuf,
}

impl Request {
    /// Tells whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == Request::default()
    }

    /// Chooses final names and paths, in the order of creation. Nothing is made.
    ///
    /// # Errors
    /// [`ResourceError::Request`] for a mistake of the user.
    pub fn plan(
        &self,
        owner: &ResourceOwner,
        place: &PlanPlaces,
    ) -> Result<Vec<PlannedResource>, ResourceError> {
        plan::plan_resources(self, owner, place)
    }
}
