//! What a sandbox with a `/dev/shm` of its own would not see: directories and mounts below that of the host.

use std::path::{Path, PathBuf};

use penfold_request::{Ipc, Profile, SandboxSpec};
use penfold_resource::PlannedResource;

use crate::error::LaunchError;

const SHARED_MEMORY: &str = "/dev/shm";

/// Refuses `--ipc private` together with what penfold makes for the command below the host's `/dev/shm`. `scratch` is the directory below
/// which the scratch directory is made.
///
/// # Errors
/// When there is something: the command would find nothing at its path.
pub(crate) fn refuse_hidden_paths(
    spec: &SandboxSpec,
    planned: &[PlannedResource],
    scratch: &Path,
) -> Result<(), LaunchError> {
    // A jail has a `/dev/shm` of its own in any case, and shows there what it was given.
    if spec.ipc != Some(Ipc::Private) || spec.profile == Some(Profile::Jail) {
        return Ok(());
    }
    let made = planned.iter().filter_map(|planned| match planned {
        PlannedResource::Directory(directory) => Some(directory.path.as_path()),
        PlannedResource::Mount(mount) => Some(mount.target.as_path()),
        _ => None,
    });
    let hidden = made.chain(Some(scratch).filter(|_| spec.has_scratch())).find(|path| is_hidden(path));
    hidden.map_or(Ok(()), |path| {
        let sentence = format!(
            "`--ipc private` gives the command a `/dev/shm` of its own: it would not see `{}`",
            path.display()
        );
        Err(LaunchError::new(sentence)
            .hint("choose a path outside of `/dev/shm`; `TMPDIR` and `--root` name other places for what has no path of its own"))
    })
}

/// Tells whether a path, which need not exist, leads below `/dev/shm`.
fn is_hidden(path: &Path) -> bool {
    let existing = path.ancestors().find_map(|parent| parent.canonicalize().ok());
    existing.unwrap_or_else(|| PathBuf::from(path)).starts_with(SHARED_MEMORY)
}
