//! The kinds of a sandbox, and what only one of them has.

use crate::detached_parts::DetachedParts;
use crate::nested::NestedSandboxes;
use crate::policy::LeaderKind;
use crate::recorded_exec::ExecRecord;

/// The kind of a sandbox, with the parts that the other kinds lack.
pub(crate) enum SandboxKind {
    /// A sandbox whose launcher waits for its end.
    Foreground(ForegroundParts),
    /// A sandbox with a control socket, which needs no launcher once the command runs.
    Detached(Box<DetachedParts>),
    /// A command in a running sandbox. Its client has its standard streams.
    Exec,
    /// A command in a running sandbox with a log and a report of its own.
    RecordedExec(Box<ExecRecord>),
}

/// The parts that only a foreground sandbox has.
#[derive(Default)]
pub(crate) struct ForegroundParts {
    /// The sandboxes started inside of this one; `None` if this sandbox has no record.
    pub(crate) nested: Option<NestedSandboxes>,
    /// The events say what was left.
    pub(super) is_leak_published: bool,
}

impl SandboxKind {
    /// Tells whether this is a command in a running sandbox.
    pub(crate) fn is_exec(&self) -> bool {
        match self {
            SandboxKind::Exec | SandboxKind::RecordedExec(_) => true,
            SandboxKind::Foreground(_) | SandboxKind::Detached(_) => false,
        }
    }

    /// Returns the kind of the leader, if penfold starts it.
    pub(crate) fn leader_kind(&self) -> LeaderKind {
        match self {
            SandboxKind::Foreground(_) => LeaderKind::Foreground,
            SandboxKind::Detached(_) => LeaderKind::Detached,
            SandboxKind::Exec | SandboxKind::RecordedExec(_) => LeaderKind::Exec,
        }
    }

    /// Returns the parts of a detached sandbox.
    pub(crate) fn detached(&self) -> Option<&DetachedParts> {
        match self {
            SandboxKind::Detached(detached) => Some(detached),
            SandboxKind::Foreground(_) | SandboxKind::Exec | SandboxKind::RecordedExec(_) => None,
        }
    }

    /// Returns the sandboxes started inside of this one, if it has a record that they leave notes in.
    pub(crate) fn nested(&self) -> Option<&NestedSandboxes> {
        match self {
            SandboxKind::Foreground(foreground) => foreground.nested.as_ref(),
            SandboxKind::Detached(detached) => Some(&detached.nested),
            SandboxKind::Exec | SandboxKind::RecordedExec(_) => None,
        }
    }

    /// As [`SandboxKind::nested`], to change them.
    pub(super) fn nested_mut(&mut self) -> Option<&mut NestedSandboxes> {
        match self {
            SandboxKind::Foreground(foreground) => foreground.nested.as_mut(),
            SandboxKind::Detached(detached) => Some(&mut detached.nested),
            SandboxKind::Exec | SandboxKind::RecordedExec(_) => None,
        }
    }
}
