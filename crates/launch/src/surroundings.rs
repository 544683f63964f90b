//! [`Surroundings`]: what a launch knows of the process that starts it. The caller reads all of it; this crate reads none.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use penfold_state::Id;
use penfold_teardown::MARKER;
use penfold_unit::Buses;

/// The variable by which penfold tells itself which sandbox it has left.
pub const LEFT: &str = "PENFOLD_LEFT";

/// What a launch knows of the process that starts it.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The state root.
    pub state_root: PathBuf,
    /// The parent of scratch directories, as an absolute path.
    pub temporary: PathBuf,
    /// The program of penfold, which runs in front of commands and as stop command.
    pub program: PathBuf,
    /// The environment variables.
    pub variables: Variables,
    /// The buses of the service managers.
    pub buses: Buses,
}

/// The environment variables of the caller.
#[derive(Debug, Clone, Default)]
pub struct Variables(Vec<(OsString, OsString)>);

impl Variables {
    /// Returns the value of a variable.
    pub fn value(&self, key: impl AsRef<OsStr>) -> Option<&OsStr> {
        let key = key.as_ref();
        self.iter().find(|(other, _)| *other == key).map(|(_, value)| value.as_os_str())
    }

    /// Returns all variables, in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, (OsString, OsString)> {
        self.0.iter()
    }

    /// Returns the ids of the sandboxes around the caller, outermost first.
    pub fn outer_sandboxes(&self) -> Vec<String> {
        self.value(MARKER).map(outer_sandboxes).unwrap_or_default()
    }
}

impl<'a> IntoIterator for &'a Variables {
    type Item = &'a (OsString, OsString);
    type IntoIter = std::slice::Iter<'a, (OsString, OsString)>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl FromIterator<(OsString, OsString)> for Variables {
    fn from_iter<T: IntoIterator<Item = (OsString, OsString)>>(variables: T) -> Variables {
        Variables(variables.into_iter().collect())
    }
}

/// Tells whether a variable is a credential of penfold: a command gets one only if its request names it.
pub(crate) fn is_token(key: &OsStr) -> bool {
    let key = key.as_encoded_bytes();
    key.starts_with(b"PENFOLD_") && key.ends_with(b"TOKEN")
}

/// Returns the ids of the enclosing sandboxes, outermost first, from the value of the marker.
#[must_use]
pub fn outer_sandboxes(marker: &OsStr) -> Vec<String> {
    let marker = marker.to_string_lossy();
    marker.split(':').filter(|id| Id::is_short(id)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_names_the_sandboxes_around_the_caller() {
        let variables: Variables = [(MARKER, "3f9a1c2b7d04:x:0123456789ab"), ("A", "1"), ("A", "2")]
            .map(|(key, value)| (key.into(), value.into()))
            .into_iter()
            .collect();
        assert_eq!(variables.outer_sandboxes(), ["3f9a1c2b7d04", "0123456789ab"]);
        assert_eq!(variables.value("A"), Some(OsStr::new("1")));
        assert_eq!(variables.value("B"), None);
        assert!(Variables::default().outer_sandboxes().is_empty());
    }
}
