//! What penfold is asked to start.
//!
//! A [`SandboxSpec`] says everything about a sandbox that a person can ask for. It is made from the flags of `penfold run`, from a file, from the
//! configuration, from the body of a request over HTTP, or from the launch file of a restart. [`SandboxSpec::over`] is the one place where these
//! meet. A program that starts a sandbox hands a [`StartRequest`] to penfold, and reads a [`StartAnswer`]; neither is ever a sentence or a command
//! line.

mod local;
mod merge;
mod sandbox_spec;
mod start;
pub mod value;

pub use local::LocalField;
pub use sandbox_spec::{
    Containment, HttpRequest, Ipc, Jail, JailNetwork, Profile, QmpRequest, SandboxSpec, StopChannel,
    USUAL_VARIABLES, Unit, Vmm, VmmKind,
};
pub use start::{OwnerAction, Refusal, RefusalKind, StartAnswer, StartRequest};
