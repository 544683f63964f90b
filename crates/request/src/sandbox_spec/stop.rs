//! How the members of a sandbox are asked to end, before the polite signal.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How the members are asked to end before they get the polite signal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum StopChannel {
    /// A command that runs in the sandbox: the program and its arguments.
    Command(Vec<String>),
    /// A command of the QEMU machine protocol.
    Qmp(QmpRequest),
    /// A request of HTTP on a Unix socket.
    Http(HttpRequest),
}

/// A command of the QEMU machine protocol.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QmpRequest {
    /// The Unix socket of the monitor; a relative path begins in `$PENFOLD_SOCKETS`.
    pub socket: String,
    /// The command, without arguments.
    #[serde(default = "system_powerdown")]
    pub execute: String,
}

/// A request of HTTP on a Unix socket. An answer of 200 to 299 is success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpRequest {
    /// The Unix socket; a relative path begins in `$PENFOLD_SOCKETS`.
    pub socket: String,
    /// The method.
    #[serde(default = "put")]
    #[schema(example = "PUT")]
    pub method: String,
    /// The path, with a leading slash.
    #[schema(example = "/actions")]
    pub path: String,
    /// The body, of type `application/json`.
    pub body: Option<String>,
}

/// The settings of the profile `vmm`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Vmm {
    /// The virtual machine monitor; default: the first that the command names.
    pub kind: Option<VmmKind>,
}

/// A virtual machine monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[cfg_attr(feature = "flags", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum VmmKind {
    /// qemu.
    Qemu,
    /// Firecracker.
    Firecracker,
    /// Cloud Hypervisor.
    CloudHypervisor,
}

impl VmmKind {
    /// Its word in JSON and as the value of `--vmm`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            VmmKind::Qemu => "qemu",
            VmmKind::Firecracker => "firecracker",
            VmmKind::CloudHypervisor => "cloud-hypervisor",
        }
    }
}

fn system_powerdown() -> String {
    "system_powerdown".to_owned()
}

fn put() -> String {
    "PUT".to_owned()
}
