//! Hostile trees in every mode, commands that attack penfold, and soaks.

mod adversary;
mod locked_leaf;
pub mod matrix;
mod soak;
mod soak_detached;
mod stopped;

use std::time::Duration;

/// What somebody asks a soak for: to be longer, or to do the same again.
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
fn wish(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

/// Lets a time go by that a soak has drawn.
fn pause(time: Duration) {
    let _ = rustix::event::poll(&mut [], Some(&time.try_into().unwrap()));
}
