//! The live view of sandboxes on a terminal: draws, reads keys, restores the terminal.
//!
//! **Purpose.** [`run_view`] shows a table of sandboxes, the processes of one, or its log, until a key or a signal ends it.
//!
//! **Non-goals.** No policy, and no look at the host: a [`Source`] says what there is, and [`Actions`] ends a sandbox.
//!
//! **Invariants.**
//! - The terminal is restored on each way out: a key, a signal, an error, [`restore_terminal`] in the hook for panics.
//! - No key waits for the host: looks, and the end of a sandbox, have threads of their own.
//! - All text of other programs comes from the [`Source`], which has escaped it.
//!
//! crossterm installs a handler of SIGWINCH, by which a changed size of the terminal is known. The other signals come through
//! descriptors of the caller.

mod app;
mod draw;
mod endings;
mod model;
mod refresh;
mod run;
mod screen;

pub use model::{Actions, Detail, Ending, Page, Sandbox, Source, StatusColour};
pub use run::{End, Settings, TopError, run_view};
pub use screen::restore_terminal;
