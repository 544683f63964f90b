//! How a sandbox is described.

use std::collections::BTreeMap;
use std::time::Duration;

use penfold_control::SandboxView;
use penfold_state::state::Status;
use penfold_state::time::{format_rfc3339, now_ms};
use serde::Serialize;

use super::Found;
use crate::access::access_token;
use crate::api::Api;
use crate::error::ApiError;
use crate::templates::{SECURE, TEMPLATE};

/// The version of the data plane that clients are told; they use what it can do.
const ENVD_VERSION: &str = "0.6.4";
/// Who serves the sandbox.
const CLIENT: &str = "penfold";
/// The prefixes of labels that are no metadata.
const OWN: [&str; 2] = ["e2b.", "penfold."];

/// What a client needs to reach a sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Handle {
    #[serde(rename = "templateID")]
    template: String,
    #[serde(rename = "sandboxID")]
    id: String,
    #[serde(rename = "clientID")]
    client: &'static str,
    alias: String,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
}

/// Describes how to reach a sandbox.
///
/// # Errors
/// When there is no secret for the access token.
pub(super) fn handle(api: &Api, id: &str, template: &str, is_secure: bool) -> Result<Handle, ApiError> {
    let token = is_secure.then(|| api.secret().map(|secret| access_token(&secret, id))).transpose();
    Ok(Handle {
        template: template.to_owned(),
        id: id.to_owned(),
        client: CLIENT,
        alias: template.to_owned(),
        envd_version: ENVD_VERSION,
        envd_access_token: token.map_err(|error| ApiError::internal(&error))?,
    })
}

/// Describes how to reach a sandbox that was found.
///
/// # Errors
/// When there is no secret for the access token.
pub(super) fn handle_of(api: &Api, seen: &SandboxView) -> Result<Handle, ApiError> {
    handle(api, &seen.id, template(seen), seen.labels.contains_key(SECURE))
}

fn template(seen: &SandboxView) -> &str {
    seen.labels.get(TEMPLATE).map_or("", String::as_str)
}

/// A sandbox in a list, or alone.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Described {
    #[serde(flatten)]
    handle: Handle,
    started_at: String,
    end_at: String,
    cpu_count: u32,
    #[serde(rename = "memoryMB")]
    memory: u64,
    #[serde(rename = "diskSizeMB")]
    disk: u64,
    state: &'static str,
    metadata: BTreeMap<String, String>,
}

impl Described {
    /// Describes a sandbox; only one `alone` has the access token.
    ///
    /// # Errors
    /// When there is no secret for the access token.
    pub(super) fn of(api: &Api, (_, seen): &Found, alone: bool) -> Result<Described, ApiError> {
        let host = Host::look(api);
        let is_own = |key: &&String| OWN.iter().any(|own| key.starts_with(own));
        let metadata = seen.labels.iter().filter(|(key, _)| !is_own(key));
        let handle = if alone { handle_of(api, seen) } else { handle(api, &seen.id, template(seen), false) };
        Ok(Described {
            handle: handle?,
            started_at: time(started(seen)),
            // The time of a paused sandbox does not pass.
            end_at: time(seen.expires_at_ms.unwrap_or_else(now_ms)),
            cpu_count: cpus(seen, &host),
            memory: memory(seen, &host) >> 20,
            disk: host.disk_bytes >> 20,
            state: if seen.status == Status::Paused { "paused" } else { "running" },
            metadata: metadata.map(|(key, value)| (key.clone(), value.clone())).collect(),
        })
    }
}

/// The start of a sandbox, in milliseconds since 1970.
pub(super) fn started(seen: &SandboxView) -> u64 {
    seen.started_at_ms.unwrap_or(0)
}

/// Milliseconds since 1970 as a text.
pub(super) fn time(ms: u64) -> String {
    format_rfc3339(ms.saturating_mul(1_000_000))
}

/// The processors of a sandbox, at least one.
pub(super) fn cpus(seen: &SandboxView, host: &Host) -> u32 {
    let whole = |cpus: Duration| cpus.as_secs() + u64::from(cpus.subsec_nanos() > 0);
    seen.limits.cpus.map_or(host.cpus, |cpus| u32::try_from(whole(cpus)).unwrap_or(host.cpus)).max(1)
}

/// The memory of a sandbox, in bytes.
pub(super) fn memory(seen: &SandboxView, host: &Host) -> u64 {
    seen.limits.memory_bytes.unwrap_or(host.memory_bytes).min(host.memory_bytes)
}

/// What the host has.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) cpus: u32,
    pub(super) memory_bytes: u64,
    pub(super) disk_bytes: u64,
    pub(super) disk_used_bytes: u64,
}

impl Host {
    /// Looks at the host; what cannot be read is 0.
    pub(super) fn look(api: &Api) -> Host {
        let info = rustix::system::sysinfo();
        let disk = rustix::fs::statvfs(&api.app.config.temporary).ok();
        let bytes = |blocks: u64| disk.as_ref().map_or(0, |disk| blocks.saturating_mul(disk.f_frsize));
        let (all, free) = disk.as_ref().map_or((0, 0), |disk| (disk.f_blocks, disk.f_bfree));
        Host {
            cpus: std::thread::available_parallelism()
                .map_or(1, |cpus| u32::try_from(cpus.get()).unwrap_or(1)),
            memory_bytes: info.totalram.saturating_mul(u64::from(info.mem_unit)),
            disk_bytes: bytes(all),
            disk_used_bytes: bytes(all.saturating_sub(free)),
        }
    }
}
