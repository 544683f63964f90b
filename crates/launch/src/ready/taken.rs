//! The port of a probe that something else holds.

use penfold_control::ports::{PortHolder, find_holder};
use penfold_control::{Resolver, SandboxRef};

use super::probe::{Probe, ProbeKind};

/// Tells whether the last output of a command says that it could not have its port, in the words of most languages.
pub(super) fn tells_of_a_port(output: &str) -> bool {
    let output = output.to_ascii_lowercase();
    output.lines().any(|line| {
        line.contains("eaddrinuse")
            || line.contains("running on port")
            || line.contains("in use") && (line.contains("address") || line.contains("port"))
    })
}

/// Tells who else listens on the port of a probe; `None` if nothing does, or that cannot be seen.
pub(super) fn describe_holder(probe: &Probe, resolver: &Resolver, known: &SandboxRef) -> Option<String> {
    let ProbeKind::Port(port) = probe.kind else { return None };
    let holder = find_holder(&resolver.again(), known, port).ok().flatten()?;
    Some(describe(&holder))
}

fn describe(holder: &PortHolder) -> String {
    let PortHolder { port, user, .. } = holder;
    let command = holder.command.as_deref().unwrap_or_default();
    match (&holder.sandbox, holder.pid) {
        (Some(id), pid) => {
            let name = holder.name.as_ref().unwrap_or(id);
            let pid = pid.map_or_else(String::new, |pid| format!(" (pid {pid}, {command})"));
            format!("{port} is held by sandbox {name}{pid}: `penfold stop {name}`")
        }
        (None, Some(pid)) => {
            format!(
                "{port} is held by pid {pid} of user {user}, which is in no sandbox of this state root: {command}"
            )
        }
        (None, None) => format!("{port} is held by a process of user {user} that you may not see"),
    }
}

#[cfg(test)]
mod tests {
    use penfold_process::Port;

    use super::*;

    #[test]
    fn only_words_about_an_address_tell_of_a_port() {
        for told in [
            "Error: listen EADDRINUSE: address already in use :::3000",
            "OSError: [Errno 98] Address already in use",
        ] {
            assert!(tells_of_a_port(told), "{told}");
        }
        for other in ["", "boom", "the lock is in use", "port 80"] {
            assert!(!tells_of_a_port(other), "{other}");
        }
    }

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
        assert_eq!(describe(&unseen), "127.0.0.1:3000 is held by a process of user 7 that you may not see");
        let outside = PortHolder { pid: Some(9), command: Some("node server.js".to_owned()), ..unseen };
        assert_eq!(
            describe(&outside),
            "127.0.0.1:3000 is held by pid 9 of user 7, which is in no sandbox of this state root: node server.js"
        );
        let unnamed = PortHolder { sandbox: Some("0123456789ab".to_owned()), ..outside };
        assert!(describe(&unnamed).ends_with(": `penfold stop 0123456789ab`"));
        let named = PortHolder { name: Some("web".to_owned()), ..unnamed };
        assert_eq!(
            describe(&named),
            "127.0.0.1:3000 is held by sandbox web (pid 9, node server.js): `penfold stop web`"
        );
    }
}
