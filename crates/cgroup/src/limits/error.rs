//! The reasons why a limit cannot be held.

use std::io;
use std::path::PathBuf;

use super::controller::Controller;
use crate::place::NoPlace;

/// Why a limit cannot be held.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// No leaf can be created.
    #[error(transparent)]
    NoPlace(#[from] NoPlace),
    /// cgroup v1 has the controller.
    #[error("the controller `{controller}` belongs to cgroup v1 on this host")]
    OnV1 {
        /// The controller.
        controller: Controller,
    },
    /// The cgroup does not have the controller: the kernel lacks it, or a cgroup above does not enable it.
    #[error("the controller `{controller}` is not available in the cgroup `{}`", path.display())]
    Unavailable {
        /// The controller.
        controller: Controller,
        /// The directory of the cgroup.
        path: PathBuf,
    },
    /// The cgroup has processes, and so cannot enable a controller.
    #[error(
        "the controller `{controller}` cannot be enabled in the cgroup `{}`, which has processes of its own",
        path.display()
    )]
    Occupied {
        /// The controller.
        controller: Controller,
        /// The directory of the cgroup.
        path: PathBuf,
    },
    /// The controller could not be enabled.
    #[error("cannot enable the controller `{controller}` in the cgroup `{}`", path.display())]
    Enable {
        /// The controller, or the first of several.
        controller: Controller,
        /// The directory of the cgroup.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A control file could not be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The path of the file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A limit could not be written.
    #[error("cannot write `{text}` to `{}`", path.display())]
    Write {
        /// The text that was to be written.
        text: String,
        /// The path of the file.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The kernel holds another limit than the one that was written.
    #[error("`{}` has the value `{found}` after `{text}` was written", path.display())]
    Differs {
        /// The text that was written.
        text: String,
        /// The path of the file.
        path: PathBuf,
        /// The text that was read.
        found: String,
    },
}
