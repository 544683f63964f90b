//! What is told of containers: counters and events.

use std::path::Path;

use penfold_state::counters::Counts;
use penfold_state::events::{EventKind, EventSubject, Journal};

/// The kind of these leaks in the counters.
const LEAK: &str = "container";
/// The outcome of a leak that is no more.
pub(crate) const ENDED: &str = "ended";

/// Counts what is left of a container, or was, and tells it as an event.
pub(crate) fn publish_end(state_root: &Path, id: &str, left: &str, outcome: &str) {
    // Counters and events are news: their loss changes no answer.
    let _ = Counts::of_leak(LEAK, outcome == ENDED).add_to(state_root);
    let about = EventSubject { id: id.to_owned(), ..EventSubject::default() };
    let (what, outcome) = (format!("container {left}"), outcome.to_owned());
    Journal::new(state_root, about).publish([EventKind::Leak { what, outcome, reason: None }]);
}
