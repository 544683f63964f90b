//! Whether this process runs in a sandbox itself.

use penfold_state::Id;
use penfold_teardown::MARKER;

/// The sandboxes that this process runs in, from the outermost, by its marker.
#[expect(clippy::disallowed_methods, reason = "the binary is who reads the environment")]
pub(crate) fn ids() -> Vec<String> {
    let marker = std::env::var_os(MARKER).unwrap_or_default();
    let marker = marker.to_string_lossy();
    marker.split(':').filter(|id| Id::is_short(id)).map(str::to_owned).collect()
}
