//! `/v1/sandboxes/{id}/files`: files in the workspace of a sandbox, the directory in which its command started.
//!
//! No path leads out of the workspace, by `..`, a link, or a race: the kernel resolves each path below an open directory
//! (openat2(2) with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`). Paths are in the query or in the body, because
//! clients and proxies rewrite `..` in the path of an address. In the workspace of a jail, the server acts without capabilities.

mod content;
mod rights;
mod tree;
mod upload;
mod workspace;

use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().merge(content::routes()).merge(tree::routes())
}
