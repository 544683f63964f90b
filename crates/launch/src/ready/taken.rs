//! The port of a probe that something else holds.

use penfold_control::ports::{PortHolder, find_holder};
use penfold_control::{Resolver, SandboxRef};

use super::probe::{Probe, ProbeKind};

/// Tells who else listens on the port of a probe; `None` if nothing does, or that cannot be seen.
pub(super) fn describe_holder(probe: &Probe, resolver: &Resolver, known: &SandboxRef) -> Option<String> {
    let ProbeKind::Port(port) = probe.kind else { return None };
    // What a look cannot see, the log may tell.
    let holder = find_holder(&resolver.again(), known, port).ok().flatten()?;
    Some(describe(&holder))
}

fn describe(holder: &PortHolder) -> String {
    let port = holder.port.port;
    let command = holder.command.as_deref().unwrap_or_default();
    match (&holder.sandbox, holder.pid) {
        (Some(id), pid) => {
            let name = holder.name.as_ref().unwrap_or(id);
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid}, {command})"));
            format!("port {port} is held by sandbox {name}{pid}: `penfold stop {name}`")
        }
        (None, Some(pid)) => {
            format!(
                "port {port} is held outside of all sandboxes, by pid {pid} of user {}: {command}",
                holder.user
            )
        }
        (None, None) => {
            format!("port {port} is held by a process that you may not see, of user {}", holder.user)
        }
    }
}

#[cfg(test)]
mod tests {
    use penfold_process::Port;

    use super::*;

    #[test]
    fn a_holder_is_named_as_far_as_it_is_known() {
        let unseen = PortHolder {
            port: Port { address: std::net::Ipv4Addr::LOCALHOST.into(), port: 3000 },
            is_own_network: false,
            sandbox: None,
            name: None,
            pid: None,
            user: 7,
            command: None,
        };
        assert_eq!(describe(&unseen), "port 3000 is held by a process that you may not see, of user 7");
        let outside = PortHolder { pid: Some(9), command: Some("node server.js".to_owned()), ..unseen };
        assert_eq!(
            describe(&outside),
            "port 3000 is held outside of all sandboxes, by pid 9 of user 7: node server.js"
        );
        let unnamed = PortHolder { sandbox: Some("0123456789ab".to_owned()), ..outside };
        assert!(describe(&unnamed).ends_with(": `penfold stop 0123456789ab`"));
        let named = PortHolder { name: Some("web".to_owned()), ..unnamed };
        assert_eq!(
            describe(&named),
            "port 3000 is held by sandbox web (pid 9, node server.js): `penfold stop web`"
        );
    }
}
