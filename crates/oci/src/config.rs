//! What penfold reads of a bundle's `config.json`, of the OCI runtime specification.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::note::Asked;

/// The annotation that says what `delete` does about leftovers: `block` or `report`.
const LEAK: &str = "dev.penfold.leak";

/// The annotation that says what becomes of the processes that `exec` started, once its command has ended: `contain`.
const EXEC: &str = "dev.penfold.exec";

/// The value for `delete` that only reports.
const REPORT: &str = "report";
/// The value for commands that end with all that they started.
const CONTAIN: &str = "contain";

impl Asked {
    /// What holds for containers without annotations, from the values of two variables: engines without annotations set these.
    pub fn usual(leak: Option<&OsStr>, exec: Option<&OsStr>) -> Asked {
        let is = |given: Option<&OsStr>, value: &str| given.is_some_and(|given| given == value);
        Asked { only_reports: is(leak, REPORT), contains_execs: is(exec, CONTAIN) }
    }
}

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

    /// What the annotations ask for; `usual` holds where there is none.
    pub(crate) fn asked(&self, usual: Asked) -> Asked {
        let asks = |name: &str, value: &str| self.annotations.get(name).map(|given| given == value);
        Asked {
            only_reports: asks(LEAK, REPORT).unwrap_or(usual.only_reports),
            contains_execs: asks(EXEC, CONTAIN).unwrap_or(usual.contains_execs),
        }
    }
}
