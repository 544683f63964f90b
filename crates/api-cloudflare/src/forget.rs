//! Forgets what is gone from the disk.

use std::collections::BTreeMap;

use penfold_server::ids::Spot;

use crate::api::Api;
use crate::claims;
use crate::ids::{CONTEXT, PROCESS, TERMINAL};

/// Forgets an exec with these labels whose record is gone.
pub(crate) fn forget_exec(api: &Api, spot: &Spot, labels: &BTreeMap<String, String>) {
    let known = [(PROCESS, &api.places), (CONTEXT, &api.contexts), (TERMINAL, &api.terminals)];
    for (label, places) in known {
        if let Some(id) = labels.get(label) {
            places.forget(id, spot);
        }
    }
    if let Some(process) = labels.get(PROCESS) {
        claims::forget_process_claim(api.app.engine.scope(), process, &spot.sandbox);
    }
}

/// Forgets a sandbox whose record is gone, with all that was in it.
pub(crate) fn forget_sandbox(api: &Api, sandbox: &str) {
    api.contexts.forget_sandbox(sandbox);
    api.terminals.forget_sandbox(sandbox);
    api.lost_shells.forget(sandbox);
    for process in api.places.forget_sandbox(sandbox) {
        claims::forget_process_claim(api.app.engine.scope(), &process, sandbox);
    }
}

#[cfg(test)]
mod tests {
    use penfold_server::ids::Places;
    use penfold_server::{App, Config, Limits, Tokens};

    use super::*;
    use crate::api::ApiState;

    /// An API without a server, in a root of its own.
    fn api(root: &std::path::Path) -> ApiState {
        Api::new(App::new(Config {
            state_root: root.to_owned(),
            temporary: root.to_owned(),
            program: "/nowhere/penfold".into(),
            environment: Vec::new(),
            tokens: Tokens::default(),
            token_file: None,
            has_terminal: false,
            limits: Limits::default(),
            drain: std::time::Duration::ZERO,
        }))
    }

    /// All that is known by an id.
    fn places(api: &Api) -> [&Places; 3] {
        [&api.places, &api.contexts, &api.terminals]
    }

    /// Notes something of each kind in a sandbox, with the id of the sandbox.
    fn note(api: &Api, sandbox: &str) {
        for places in places(api) {
            let spot = Spot { sandbox: sandbox.to_owned(), number: 1 };
            places.reserve(sandbox).unwrap().settle(spot);
        }
        api.lost_shells.note(sandbox);
    }

    /// What is known of a sandbox that was noted.
    fn known(api: &Api, sandbox: &str) -> [bool; 4] {
        let [processes, contexts, terminals] = places(api).map(|places| places.get(sandbox).is_some());
        [processes, contexts, terminals, api.lost_shells.has(sandbox)]
    }

    #[test]
    fn an_exec_that_is_gone_is_forgotten_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        let api = api(root.path());
        for sandbox in ["one", "two"] {
            note(&api, sandbox);
        }
        for (at, label) in [PROCESS, CONTEXT, TERMINAL].into_iter().enumerate() {
            let labels = BTreeMap::from([(label.to_owned(), "one".to_owned())]);
            // The next exec may have the id already.
            forget_exec(&api, &Spot { sandbox: "one".to_owned(), number: 2 }, &labels);
            assert!(known(&api, "one")[at], "{label}");
            forget_exec(&api, &Spot { sandbox: "one".to_owned(), number: 1 }, &labels);
            assert!(!known(&api, "one")[at], "{label}");
        }
        assert_eq!((known(&api, "one"), known(&api, "two")), ([false, false, false, true], [true; 4]));
    }

    #[test]
    fn a_sandbox_that_is_gone_is_forgotten_with_all_that_was_in_it() {
        let root = tempfile::tempdir().unwrap();
        let api = api(root.path());
        for sandbox in ["one", "two"] {
            note(&api, sandbox);
        }
        forget_sandbox(&api, "one");
        assert_eq!((known(&api, "one"), known(&api, "two")), ([false; 4], [true; 4]));
    }
}
