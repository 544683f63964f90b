//! What penfold reads of a bundle's `config.json`, of the OCI runtime specification.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::note::{Annotations, Engine};

/// The annotation that says what `delete` does about leftovers: `block` or `report`.
const LEAK: &str = "dev.penfold.leak";

/// The annotation that says what becomes of the processes that `exec` started, once its command has ended: `contain`.
const EXEC: &str = "dev.penfold.exec";

/// The annotation in which Podman names itself.
const MANAGER: &str = "io.container.manager";

/// The value for `delete` that only reports.
const REPORT: &str = "report";
/// The value for commands that end with all that they started.
const CONTAIN: &str = "contain";

impl Annotations {
    /// What holds for containers without annotations, from the values of two variables: engines without annotations set these.
    pub fn usual(leak: Option<&OsStr>, exec: Option<&OsStr>) -> Annotations {
        let is = |given: Option<&OsStr>, value: &str| given.is_some_and(|given| given == value);
        Annotations { only_reports: is(leak, REPORT), contains_execs: is(exec, CONTAIN) }
    }
}

/// Tells whether a directory is where Podman keeps its containers: `overlay-containers`, `vfs-containers`.
fn is_podmans(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.ends_with("-containers"))
}

/// A `config.json`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ContainerConfig {
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    linux: Option<Linux>,
}

#[derive(Debug, Default, Deserialize)]
struct Linux {
    #[serde(default, rename = "cgroupsPath")]
    cgroups_path: String,
    #[serde(default)]
    namespaces: Vec<Namespace>,
}

#[derive(Debug, Deserialize)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    path: PathBuf,
}

impl ContainerConfig {
    /// Reads the file of a bundle.
    pub(crate) fn of_bundle(bundle: &Path) -> io::Result<ContainerConfig> {
        Ok(serde_json::from_slice(&std::fs::read(bundle.join("config.json"))?)?)
    }

    /// Tells whether the container has a pid namespace that ends with its first process.
    pub(crate) fn has_private_pids(&self) -> bool {
        self.has_new("pid")
    }

    /// Tells whether the container has a mount namespace of its own.
    pub(crate) fn has_private_mounts(&self) -> bool {
        self.has_new("mount")
    }

    fn has_new(&self, kind: &str) -> bool {
        let mut namespaces = self.linux.iter().flat_map(|linux| &linux.namespaces);
        namespaces.any(|namespace| namespace.kind == kind && namespace.path.as_os_str().is_empty())
    }

    /// The engine that wrote the file into this bundle, and keeps the state of its runtime below `root`.
    pub(crate) fn engine(&self, root: &Path, bundle: &Path) -> Engine {
        let is_podmans = self.annotations.get(MANAGER).is_some_and(|manager| manager == "libpod")
            || (bundle.ends_with("userdata") && bundle.components().any(|part| is_podmans(part.as_os_str())));
        match root.file_name().and_then(OsStr::to_str) {
            // The namespaces of Docker in containerd.
            Some("moby" | "plugins.moby") => Engine::Docker,
            _ if is_podmans => Engine::Podman,
            _ => Engine::Other,
        }
    }

    /// The cgroup that the engine asks for; empty if the delegate chooses.
    pub(crate) fn cgroups_path(&self) -> &str {
        self.linux.as_ref().map_or("", |linux| &linux.cgroups_path)
    }

    /// What the annotations ask for; `usual` holds where there is none.
    pub(crate) fn asked(&self, usual: Annotations) -> Annotations {
        let asks = |name: &str, value: &str| self.annotations.get(name).map(|given| given == value);
        Annotations {
            only_reports: asks(LEAK, REPORT).unwrap_or(usual.only_reports),
            contains_execs: asks(EXEC, CONTAIN).unwrap_or(usual.contains_execs),
        }
    }
}
