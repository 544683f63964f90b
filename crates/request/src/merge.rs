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
        let SandboxSpec {
            command,
            name,
            labels,
            env,
            inherit_env,
            dir,
            scratch,
            timeout_ms,
            lease_ms,
            idle_timeout_ms,
            signal,
            grace_ms,
            patience_ms,
            contain,
            ipc,
            memory_bytes,
            pids,
            cpus,
            workspace,
            sockets,
            network,
            mounts,
            own,
            profile,
            jail,
            vmm,
            stop,
            spare,
            allow_outside,
            ready,
            ready_timeout_ms,
            restart,
            log_size,
            remove_at_end,
            user,
            unit,
            event_log,
            survive_supervisor,
            terminal,
        } = self;
        SandboxSpec {
            command: if command.is_empty() { base.command } else { command },
            name: name.or(base.name),
            labels: joined_maps(base.labels, labels),
            env: joined_maps(base.env, env),
            inherit_env: inherit_env.or(base.inherit_env),
            dir: dir.or(base.dir),
            scratch: scratch || base.scratch,
            timeout_ms: timeout_ms.or(base.timeout_ms),
            lease_ms: lease_ms.or(base.lease_ms),
            idle_timeout_ms: idle_timeout_ms.or(base.idle_timeout_ms),
            signal: signal.or(base.signal),
            grace_ms: grace_ms.or(base.grace_ms),
            patience_ms: patience_ms.or(base.patience_ms),
            contain: contain.or(base.contain),
            ipc: ipc.or(base.ipc),
            memory_bytes: memory_bytes.or(base.memory_bytes),
            pids: pids.or(base.pids),
            cpus: cpus.or(base.cpus),
            workspace: workspace.or(base.workspace),
            sockets: sockets.or(base.sockets),
            network: merged(network, base.network, network_over),
            mounts: joined(base.mounts, mounts),
            own: joined(base.own, own),
            profile: profile.or(base.profile),
            jail: merged(jail, base.jail, jail_over),
            vmm: merged(vmm, base.vmm, |Vmm { kind }, base| Vmm { kind: kind.or(base.kind) }),
            stop: stop.or(base.stop),
            spare: joined(base.spare, spare),
            allow_outside: allow_outside || base.allow_outside,
            ready: ready.or(base.ready),
            ready_timeout_ms: ready_timeout_ms.or(base.ready_timeout_ms),
            restart: restart.or(base.restart),
            log_size: log_size.or(base.log_size),
            remove_at_end: remove_at_end || base.remove_at_end,
            user: user.or(base.user),
            unit: unit.or(base.unit),
            event_log: event_log.or(base.event_log),
            survive_supervisor: survive_supervisor || base.survive_supervisor,
            terminal: terminal || base.terminal,
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
    let Jail { rootfs, network, seccomp } = over;
    Jail {
        rootfs: rootfs.or(base.rootfs),
        network: network.or(base.network),
        seccomp: seccomp.or(base.seccomp),
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
                "network":{"address":"10.7.0.2/30"},"jail":{"rootfs":"/r","seccomp":false}}"#,
        );
        let over = read(
            r#"{"grace_ms":3,"env":{"B":"3"},"spare":["y"],"network":{"namespace":false,"tap":{}},"jail":{"network":"host"}}"#,
        );
        let expected = read(
            r#"{"command":["a","b"],"grace_ms":3,"timeout_ms":2,"env":{"A":"1","B":"3"},"spare":["x","y"],"scratch":true,
                "network":{"address":"10.7.0.2/30","tap":{}},"jail":{"rootfs":"/r","network":"host","seccomp":false}}"#,
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
