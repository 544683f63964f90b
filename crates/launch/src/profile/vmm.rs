//! `--profile vmm`: what penfold knows of virtual machine monitors: their API sockets, and how each asks its guest to end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use penfold_request::{HttpRequest, QmpRequest, StopChannel, VmmKind as Vmm};

/// The name of the API socket in the directory of sockets.
const SOCKET: &str = "vmm";
/// The variable with the path of the API socket.
pub(super) const VARIABLE: &str = "PENFOLD_VMM_SOCKET";

/// Finds the first monitor that the words of a command name, also inside of the words of a shell.
pub(super) fn find_monitor(command: &[OsString]) -> Option<Vmm> {
    let mut parts =
        command.iter().flat_map(|word| word.as_bytes().split(|byte| b" \t\n;&|()\"'".contains(byte)));
    parts.find_map(|part| monitor_of(OsStr::from_bytes(part)))
}

/// Returns the monitor of this program.
pub(super) fn monitor_of(program: &OsStr) -> Option<Vmm> {
    let name = Path::new(program).file_name()?.to_str()?;
    match name {
        "firecracker" => Some(Vmm::Firecracker),
        "cloud-hypervisor" => Some(Vmm::CloudHypervisor),
        "qemu-kvm" => Some(Vmm::Qemu),
        _ => name.starts_with("qemu-system-").then_some(Vmm::Qemu),
    }
}

/// The option of the monitor that names its API socket.
pub(super) fn socket_option(vmm: Vmm) -> &'static str {
    match vmm {
        Vmm::Qemu => "-qmp",
        Vmm::Firecracker => "--api-sock",
        Vmm::CloudHypervisor => "--api-socket",
    }
}

/// The arguments by which the monitor listens on this socket.
pub(super) fn socket_arguments(vmm: Vmm, socket: &Path) -> [OsString; 2] {
    let mut value = OsString::new();
    let (before, after) = match vmm {
        Vmm::Qemu => ("unix:", ",server=on,wait=off"),
        Vmm::Firecracker => ("", ""),
        Vmm::CloudHypervisor => ("path=", ""),
    };
    value.push(before);
    value.push(socket);
    value.push(after);
    [socket_option(vmm).into(), value]
}

/// The request by which the monitor asks its guest to end.
pub(super) fn stop_channel(vmm: Vmm) -> StopChannel {
    let http = |path: &str, body: Option<&str>| {
        StopChannel::Http(HttpRequest {
            socket: SOCKET.to_owned(),
            method: "PUT".to_owned(),
            path: path.to_owned(),
            body: body.map(str::to_owned),
        })
    };
    match vmm {
        Vmm::Qemu => {
            StopChannel::Qmp(QmpRequest { socket: SOCKET.to_owned(), execute: "system_powerdown".to_owned() })
        }
        Vmm::Firecracker => http("/actions", Some(r#"{"action_type":"SendCtrlAltDel"}"#)),
        Vmm::CloudHypervisor => http("/api/v1/vm.power-button", None),
    }
}

/// Returns the path of the API socket.
pub(super) fn api_socket(sockets: &Path) -> std::path::PathBuf {
    sockets.join(SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(command: &[&str]) -> Option<Vmm> {
        find_monitor(&command.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn a_monitor_is_found_below_its_wrappers() {
        assert_eq!(found(&["/usr/bin/qemu-system-aarch64", "-M", "virt"]), Some(Vmm::Qemu));
        assert_eq!(found(&["sudo", "-u", "vm", "firecracker"]), Some(Vmm::Firecracker));
        assert_eq!(
            found(&[
                "bash",
                "-c",
                "ip netns exec \"$PENFOLD_NETNS\" '/opt/cloud-hypervisor' --kernel k; exit"
            ]),
            Some(Vmm::CloudHypervisor)
        );
        assert_eq!(found(&["cat", "firecracker.log", "qemu-img"]), None);
    }
}
