//! Forgets what is gone from the disk.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use penfold_server::ids::Spot;
use penfold_state::record::Registry;

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
    forget_sandboxes(api, |known| known == sandbox);
}

/// Forgets the sandboxes whose records others have removed, as `penfold rm` and `penfold gc` do. To be called for each new session:
/// the server looks again after as many new sessions as it knew sandboxes, so that a look costs each of them little.
pub(crate) fn forget_removed_sandboxes(api: &Api) {
    let next = |left: usize| left.checked_sub(1);
    if api.until_look.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok() {
        return;
    }
    let mut known = api.lost_shells.sandboxes();
    for places in [&api.places, &api.contexts, &api.terminals] {
        known.extend(places.sandboxes());
    }
    api.until_look.store(known.len(), Ordering::Relaxed);
    let Ok(Some(records)) = Registry::open_existing(api.app.engine.scope().root()) else { return };
    known.retain(|sandbox| !records.holds(sandbox));
    if !known.is_empty() {
        forget_sandboxes(api, |sandbox| known.contains(sandbox));
    }
}

fn forget_sandboxes(api: &Api, is_gone: impl Fn(&str) -> bool) {
    api.lost_shells.forget_sandboxes(&is_gone);
    api.contexts.forget_sandboxes(&is_gone);
    api.terminals.forget_sandboxes(&is_gone);
    for (process, spot) in api.places.forget_sandboxes(&is_gone) {
        claims::forget_process_claim(api.app.engine.scope(), &process, &spot.sandbox);
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
            templates: std::collections::BTreeMap::new(),
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

    #[test]
    fn sandboxes_that_others_have_removed_are_forgotten_in_time() {
        let root = tempfile::tempdir().unwrap();
        let api = api(root.path());
        Registry::open(root.path()).unwrap();
        let record = |sandbox: &str| root.path().join("sandboxes").join(sandbox);
        for sandbox in ["one", "two", "three"] {
            std::fs::create_dir(record(sandbox)).unwrap();
            note(&api, sandbox);
        }
        forget_removed_sandboxes(&api);
        assert_eq!(["one", "two", "three"].map(|sandbox| known(&api, sandbox)), [[true; 4]; 3]);
        std::fs::remove_dir(record("one")).unwrap();
        // The first look knew three.
        let looks = (0..9).take_while(|_| {
            forget_removed_sandboxes(&api);
            known(&api, "one") != [false; 4]
        });
        assert_eq!(looks.count(), 3);
        assert_eq!(["two", "three"].map(|sandbox| known(&api, sandbox)), [[true; 4]; 2]);
    }

    #[test]
    fn an_id_that_is_reserved_stays_though_sandboxes_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let api = api(root.path());
        let reserved = api.places.reserve("p").unwrap();
        forget_sandboxes(&api, |_| true);
        assert!(api.places.reserve("p").is_none());
        drop(reserved);
        assert!(api.places.reserve("p").is_some());
    }
}
