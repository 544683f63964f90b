//! How two specifications become one: configuration < file < flags.

use std::collections::BTreeMap;

use penfold_resource::request::Network;

use crate::{Jail, SandboxSpec, Vmm};

impl SandboxSpec {
    /// Lays this specification over another one. What only one of the two has stays; of a value that both have, this one's counts; lists and
    /// maps are joined, the other's first. A command replaces the other one as a whole.
    ///
    /// Every field is named, so that a new one does not compile before it is merged.
    #[must_use]
    pub fn over(self, base: SandboxSpec) -> SandboxSpec {
        SandboxSpec {
            command: if self.command.is_empty() { base.command } else { self.command },
            name: self.name.or(base.name),
            labels: joined_maps(base.labels, self.labels),
            env: joined_maps(base.env, self.env),
            env_files: joined(base.env_files, self.env_files),
            inherit_env: self.inherit_env.or(base.inherit_env),
            dir: self.dir.or(base.dir),
            scratch: self.scratch || base.scratch,
            timeout_ms: self.timeout_ms.or(base.timeout_ms),
            lease_ms: self.lease_ms.or(base.lease_ms),
            lease_pauses: self.lease_pauses || base.lease_pauses,
            idle_timeout_ms: self.idle_timeout_ms.or(base.idle_timeout_ms),
            signal: self.signal.or(base.signal),
            grace_ms: self.grace_ms.or(base.grace_ms),
            patience_ms: self.patience_ms.or(base.patience_ms),
            contain: self.contain.or(base.contain),
            ipc: self.ipc.or(base.ipc),
            memory_bytes: self.memory_bytes.or(base.memory_bytes),
            pids: self.pids.or(base.pids),
            cpus: self.cpus.or(base.cpus),
            workspace: self.workspace.or(base.workspace),
            sockets: self.sockets.or(base.sockets),
            network: merged(self.network, base.network, network_over),
            mounts: joined(base.mounts, self.mounts),
            own: joined(base.own, self.own),
            profile: self.profile.or(base.profile),
            jail: merged(self.jail, base.jail, jail_over),
            vmm: merged(self.vmm, base.vmm, |Vmm { kind }, base| Vmm { kind: kind.or(base.kind) }),
            stop: self.stop.or(base.stop),
            spare: joined(base.spare, self.spare),
            allow_outside: self.allow_outside || base.allow_outside,
            ready: self.ready.or(base.ready),
            ready_timeout_ms: self.ready_timeout_ms.or(base.ready_timeout_ms),
            restart: self.restart.or(base.restart),
            log_size: self.log_size.or(base.log_size),
            remove_at_end: self.remove_at_end || base.remove_at_end,
            user: self.user.or(base.user),
            unit: self.unit.or(base.unit),
            event_log: self.event_log.or(base.event_log),
            survive_supervisor: self.survive_supervisor || base.survive_supervisor,
            terminal: self.terminal || base.terminal,
        }
    }
}

fn merged<T>(over: Option<T>, base: Option<T>, both: impl FnOnce(T, T) -> T) -> Option<T> {
    match (over, base) {
        (Some(over), Some(base)) => Some(both(over, base)),
        (one, other) => one.or(other),
    }
}

fn joined<T>(mut base: Vec<T>, over: Vec<T>) -> Vec<T> {
    base.extend(over);
    base
}

fn joined_maps<V>(mut base: BTreeMap<String, V>, over: BTreeMap<String, V>) -> BTreeMap<String, V> {
    base.extend(over);
    base
}

fn network_over(over: Network, base: Network) -> Network {
    let Network { address, gateway, peer_address, tap, namespace, enter } = over;
    Network {
        address: address.or(base.address),
        gateway: gateway.or(base.gateway),
        peer_address: peer_address.or(base.peer_address),
        tap: tap.or(base.tap),
        namespace: namespace || base.namespace,
        enter: enter && base.enter,
    }
}

fn jail_over(over: Jail, base: Jail) -> Jail {
    let Jail { rootfs, network, seccomp, user } = over;
    Jail {
        rootfs: rootfs.or(base.rootfs),
        network: network.or(base.network),
        seccomp: seccomp.or(base.seccomp),
        user: user.or(base.user),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> SandboxSpec {
        serde_json::from_str(text).unwrap()
    }

    /// spec: 8.9
    #[test]
    fn values_are_replaced_and_lists_are_joined() {
        let base = read(
            r#"{"command":["a","b"],"grace_ms":1,"timeout_ms":2,"env":{"A":"1","B":"2"},"spare":["x"],"scratch":true,
                "network":{"address":"10.7.0.2/30"},"jail":{"rootfs":"/r","seccomp":false,"user":"a"}}"#,
        );
        let over = read(
            r#"{"grace_ms":3,"env":{"B":"3"},"spare":["y"],"network":{"namespace":false,"tap":{}},"jail":{"network":"host","user":"b"}}"#,
        );
        let expected = read(
            r#"{"command":["a","b"],"grace_ms":3,"timeout_ms":2,"env":{"A":"1","B":"3"},"spare":["x","y"],"scratch":true,
                "network":{"address":"10.7.0.2/30","tap":{}},"jail":{"rootfs":"/r","network":"host","seccomp":false,"user":"b"}}"#,
        );
        assert_eq!(over.over(base), expected);
    }

    /// spec: 8.9
    #[test]
    fn nothing_changes_nothing_on_either_side() {
        let some = read(
            r#"{"command":["a"],"name":"n","contain":"pidns","user":"u","unit":"none","terminal":true}"#,
        );
        assert_eq!(SandboxSpec::default().over(some.clone()), some);
        assert_eq!(some.clone().over(SandboxSpec::default()), some);
    }
}
