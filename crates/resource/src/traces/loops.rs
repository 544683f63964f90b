//! Loop devices whose backing file is in a directory of a sandbox. A loop device itself carries no mark.
//!
//! The kernel shows the loop devices of all mount namespaces. A file that is not here at its path is in another one.

use std::io;
use std::path::{Component, Path};

use super::directories::owner_of;
use super::{Trace, id_after};
use crate::own::backing_file;

/// The directory with the block devices.
pub(super) const DEVICES: &str = "/sys/block";
/// The prefix of the names of directories.
const PREFIX: &str = "penfold-";

pub(super) fn find_loops() -> io::Result<Vec<(String, Trace)>> {
    let entries = match std::fs::read_dir(DEVICES) {
        Ok(entries) => entries,
        // Without /sys, no loop device can be seen.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let Ok(device) = entry?.file_name().into_string() else { continue };
        if !device.starts_with("loop") {
            continue;
        }
        let Some((file, is_deleted)) = backing_file(&device) else { continue };
        if !is_deleted && rustix::fs::lstat(&file).is_err() {
            continue;
        }
        if let Some(id) = named_in(&file).or_else(|| if is_deleted { None } else { marked_above(&file) }) {
            found.push((id, Trace::Loop { file, device }));
        }
    }
    Ok(found)
}

/// Returns the id in the name of the innermost directory above that has one, such as `penfold-3f9a1c2b7d04` or
/// `penfold-3f9a1c2b7d04-upper0`: below the TMPDIR of a sandbox are the directories of those inside of it.
fn named_in(file: &Path) -> Option<String> {
    file.parent()?.components().rev().find_map(|part| match part {
        Component::Normal(name) => {
            let name = name.to_str()?;
            let end = name.strip_prefix(PREFIX)?.find('-').map_or(name.len(), |end| PREFIX.len() + end);
            id_after(PREFIX, name.get(..end)?)
        }
        _ => None,
    })
}

/// Returns the id in the mark of the innermost directory above that has one.
fn marked_above(file: &Path) -> Option<String> {
    file.ancestors().skip(1).find_map(owner_of).map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_above_names_the_sandbox() {
        let id = |path: &str| named_in(Path::new(path));
        assert_eq!(id("/tmp/penfold-3f9a1c2b7d04/disk").as_deref(), Some("3f9a1c2b7d04"));
        assert_eq!(id("/tmp/penfold-3f9a1c2b7d04-upper0/a/disk").as_deref(), Some("3f9a1c2b7d04"));
        let inner = id("/tmp/penfold-000000000001/tmp/penfold-3f9a1c2b7d04/disk");
        assert_eq!(inner.as_deref(), Some("3f9a1c2b7d04"));
        for path in ["/tmp/penfold-3f9a1c2b7d04", "/tmp/penfold-x/disk", "/tmp/penfold/disk", "/disk"] {
            assert_eq!(id(path), None, "{path}");
        }
    }
}
