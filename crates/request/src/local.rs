//! What only `penfold run` on this host can give to a sandbox.

use crate::SandboxSpec;

/// A field that a server does not follow, and that is not sent to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalField {
    /// `ready` and `ready_timeout_ms`.
    Ready,
    /// `restart`.
    Restart,
    /// `user`.
    User,
    /// `unit`.
    Unit,
    /// `event_log`.
    EventLog,
    /// `env_files`.
    EnvFiles,
}

impl SandboxSpec {
    /// The first field that was given and that only this host can follow.
    ///
    /// Every field is named, so that a new one does not compile before somebody has decided whether a server follows it.
    #[must_use]
    pub fn local_field(&self) -> Option<LocalField> {
        let SandboxSpec {
            command: _,
            name: _,
            labels: _,
            env: _,
            inherit_env: _,
            dir: _,
            scratch: _,
            timeout_ms: _,
            lease_ms: _,
            lease_pauses: _,
            idle_timeout_ms: _,
            signal: _,
            grace_ms: _,
            patience_ms: _,
            contain: _,
            ipc: _,
            memory_bytes: _,
            pids: _,
            cpus: _,
            workspace: _,
            sockets: _,
            network: _,
            mounts: _,
            own: _,
            profile: _,
            jail: _,
            vmm: _,
            stop: _,
            spare: _,
            allow_outside: _,
            log_size: _,
            remove_at_end: _,
            survive_supervisor: _,
            terminal: _,
            ready,
            ready_timeout_ms,
            restart,
            user,
            unit,
            event_log,
            env_files,
        } = self;
        let fields = [
            (event_log.is_some(), LocalField::EventLog),
            (unit.is_some(), LocalField::Unit),
            (user.is_some(), LocalField::User),
            (ready.is_some() || ready_timeout_ms.is_some(), LocalField::Ready),
            (restart.is_some(), LocalField::Restart),
            (!env_files.is_empty(), LocalField::EnvFiles),
        ];
        fields.into_iter().find(|(given, _)| *given).map(|(_, field)| field)
    }
}
