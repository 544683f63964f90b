//! Requests to the Cloudflare Sandbox API: each route, with any words in its path, query, headers and body.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use penfold_fuzz::{Route, ask};

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let posts = [
        "execute",
        "execute/stream",
        "read",
        "read/stream",
        "write",
        "delete",
        "rename",
        "move",
        "mkdir",
        "list-files",
        "exists",
        "session/create",
        "session/delete",
        "process/start",
    ];
    let others = [
        ("GET", "session/list"),
        ("GET", "process/list"),
        ("DELETE", "process/kill-all"),
        ("GET", "process/{id}"),
        ("DELETE", "process/{id}"),
        ("GET", "process/{id}/logs"),
        ("GET", "process/{id}/stream"),
        ("GET", "{word}"),
    ];
    let all = posts.map(|path| ("POST", path)).into_iter().chain(others);
    all.map(|(method, path)| Route::new(method, &format!("/api/{path}"))).collect()
});

fuzz_target!(|data: &[u8]| {
    if let Some(answer) = ask(&ROUTES, data) {
        answer.judge();
    }
});
