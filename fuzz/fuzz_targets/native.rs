//! Requests to the native API: each route, with any words in its path, query, headers and body.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use penfold_fuzz::{Route, ask};
use serde_json::Value;

static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| {
    let description: Value =
        serde_json::from_str(include_str!("../../docs/openapi.json")).expect("it is JSON");
    let paths = description["paths"].as_object().expect("it has paths").iter();
    let route = |(path, item): (&String, &Value)| {
        let methods = item.as_object().expect("a path has methods").keys();
        methods.map(|method| Route::new(&method.to_uppercase(), path)).collect::<Vec<_>>()
    };
    paths.flat_map(route).collect()
});

fuzz_target!(|data: &[u8]| {
    if let Some(answer) = ask(&ROUTES, data) {
        answer.judge_native();
    }
});
