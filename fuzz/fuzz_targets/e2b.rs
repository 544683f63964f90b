//! Requests to the control plane of the E2B API: each route, with any words in its path, query, headers and body.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use penfold_fuzz::{Route, ask};

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let routes = [
        ("GET", "/sandboxes"),
        ("POST", "/sandboxes"),
        ("GET", "/v2/sandboxes"),
        ("POST", "/v2/sandboxes"),
        ("GET", "/sandboxes/metrics"),
        ("GET", "/sandboxes/{id}"),
        ("DELETE", "/sandboxes/{id}"),
        ("POST", "/sandboxes/{id}/timeout"),
        ("POST", "/sandboxes/{id}/refreshes"),
        ("POST", "/sandboxes/{id}/pause"),
        ("POST", "/sandboxes/{id}/resume"),
        ("POST", "/v2/sandboxes/{id}/connect"),
        ("GET", "/sandboxes/{id}/metrics"),
        ("GET", "/v2/sandboxes/{id}/logs"),
        ("GET", "/files"),
        ("POST", "/files"),
        ("POST", "/process.Process/{word}"),
        ("POST", "/filesystem.Filesystem/{word}"),
    ];
    routes.map(|(method, path)| Route::new(method, path)).into()
});

fuzz_target!(|data: &[u8]| {
    if let Some(answer) = ask(&ROUTES, data) {
        answer.judge();
    }
});
