//! The sandboxes of one place, and the steps that verbs share: select sandboxes, connect to a supervisor, collect the results.

pub(crate) mod conclude;
pub(crate) mod connect;
pub(crate) mod find;
pub(crate) mod here;
pub(crate) mod on_server;
pub(crate) mod other_roots;
pub(crate) mod sampler;
pub(crate) mod select;
pub(crate) mod tally;

use std::error::Error;
use std::time::Duration;

use penfold_control::{EndLimits, EndMethod, SandboxEnd, SandboxView};
use rustix::process::Signal;

use self::find::{Among, Miss, Selection};
use self::select::Shown;
use self::tally::EndResult;
use crate::failure::Failure;

/// The sandboxes of one place: this host, or a server. A verb has one text for all of them.
pub(crate) trait Sandboxes {
    /// A sandbox that was found.
    type Sandbox;

    /// Lists the sandboxes with their views, the youngest last.
    fn list(&self, among: Among) -> Result<Vec<(Self::Sandbox, SandboxView)>, Failure>;

    /// Finds one sandbox by its id, a prefix of the id, or its name.
    fn find(&self, word: &str) -> Result<Self::Sandbox, Miss>;

    /// Finds the other ended sandboxes with the same name, if `word` is the name of `newest`.
    fn find_older(&self, word: &str, newest: &Self::Sandbox) -> Result<Vec<Self::Sandbox>, Failure>;

    /// Takes the sandboxes out of a selection that are others now than when the user was asked.
    fn look_again(&mut self, selection: &mut Selection<Self::Sandbox>);

    /// Id, name and command.
    fn shown<'a>(&self, sandbox: &'a Self::Sandbox) -> Shown<'a>;

    /// The view; `None` if the sandbox is gone.
    fn view(&self, sandbox: &Self::Sandbox) -> Option<SandboxView>;

    /// Ends sandboxes in parallel. `doing` says what a user reads meanwhile.
    fn end(&self, found: &[Self::Sandbox], how: EndMethod, limits: &EndLimits, doing: &str)
    -> Vec<EndResult>;

    /// Refuses a signal that cannot be sent to a command.
    fn check_signal(&self, signal: Signal) -> Result<(), Failure>;

    /// Sends a signal to the commands of sandboxes.
    fn signal(&self, found: &[Self::Sandbox], signal: Signal) -> Vec<Result<(), Failure>>;

    /// Removes the record of a sandbox that has ended.
    fn forget(&self, sandbox: &Self::Sandbox, limits: &EndLimits) -> EndResult;

    /// Removes the record of a sandbox whose end was just verified.
    fn remove_record(&self, sandbox: &Self::Sandbox, limits: &EndLimits) -> EndResult;

    /// Waits until sandboxes have ended, or one of them if `any`; `None` for those that have not ended in time.
    fn wait(
        &self,
        found: &[Self::Sandbox],
        any: bool,
        limit: Option<Duration>,
    ) -> Result<Vec<Option<SandboxEnd>>, Failure>;

    /// Whether the command has ended, although something of the sandbox may be left.
    fn has_exited(&self, sandbox: &Self::Sandbox) -> bool;

    /// Whether only a caller in the foreground got the exit code.
    fn was_in_front(&self, sandbox: &Self::Sandbox) -> bool;

    /// Freezes a sandbox, or lets it go on.
    fn set_paused(&self, sandbox: &Self::Sandbox, paused: bool) -> Result<(), Failure>;

    /// Sets the lease, in milliseconds from now; 0 removes it.
    fn extend(&self, sandbox: &Self::Sandbox, lease_ms: u64) -> Result<(), Box<dyn Error>>;
}
