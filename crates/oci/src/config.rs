//! What penfold reads of a bundle's `config.json`, of the OCI runtime specification.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::note::Asked;

/// The annotation that says what `delete` does about leftovers: `block` or `report`.
const LEAK: &str = "dev.penfold.leak";

/// The annotation that says what becomes of the processes that `exec` started, once its command has ended: `contain`.
const EXEC: &str = "dev.penfold.exec";

/// A `config.json`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Config {
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

impl Config {
    /// Reads the file of a bundle.
    pub(crate) fn of_bundle(bundle: &Path) -> io::Result<Config> {
        Ok(serde_json::from_slice(&std::fs::read(bundle.join("config.json"))?)?)
    }

    /// Tells whether the container has a pid namespace that ends with its first process.
    pub(crate) fn has_private_pids(&self) -> bool {
        let namespaces = self.linux.iter().flat_map(|linux| &linux.namespaces);
        namespaces
            .into_iter()
            .any(|namespace| namespace.kind == "pid" && namespace.path.as_os_str().is_empty())
    }

    /// The cgroup that the engine asks for; empty if the delegate chooses.
    pub(crate) fn cgroups_path(&self) -> &str {
        self.linux.as_ref().map_or("", |linux| &linux.cgroups_path)
    }

    /// What the annotations ask for.
    pub(crate) fn asked(&self) -> Asked {
        let is = |name: &str, value: &str| self.annotations.get(name).is_some_and(|given| given == value);
        Asked { only_reports: is(LEAK, "report"), contains_execs: is(EXEC, "contain") }
    }
}
