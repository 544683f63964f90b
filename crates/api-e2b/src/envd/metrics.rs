//! `GET /metrics`: what this machine uses.

use axum::Json;
use axum::extract::State;
use penfold_state::time::now_ms;
use serde::Serialize;

use crate::api::{Api, ApiState, Processors};
use crate::error::ApiError;

/// What the machine uses at one moment.
#[derive(Debug, Serialize)]
pub(super) struct Metrics {
    /// Seconds since 1970.
    ts: u64,
    cpu_count: usize,
    /// The part of all processors that was in use since the last look, or since the start of the machine.
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// `GET /metrics`.
pub(super) async fn metrics(State(api): State<ApiState>) -> Result<Json<Metrics>, ApiError> {
    api.call(|api| Ok(Json(look(api)))).await
}

/// Looks at the machine; what cannot be read is 0.
fn look(api: &Api) -> Metrics {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = |key: &str| bytes_of(&memory, key);
    let total = bytes("MemTotal");
    let used = total.saturating_sub(bytes("MemAvailable"));
    let disk = rustix::fs::statvfs("/").ok();
    let blocks = |blocks: u64| disk.as_ref().map_or(0, |disk| blocks.saturating_mul(disk.f_frsize));
    let (all, free) = disk.as_ref().map_or((0, 0), |disk| (disk.f_blocks, disk.f_bfree));
    let ticks = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    Metrics {
        ts: now_ms() / 1000,
        cpu_count: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        cpu_used_pct: used_part(api, &ticks).unwrap_or(0.0),
        mem_total: total,
        mem_used: used,
        mem_cache: bytes("Cached"),
        mem_total_mib: total >> 20,
        mem_used_mib: used >> 20,
        disk_used: blocks(all.saturating_sub(free)),
        disk_total: blocks(all),
    }
}

fn used_part(api: &Api, text: &str) -> Option<f64> {
    let now = processors(text)?;
    let before = api.processors.lock().replace(now).unwrap_or(Processors { busy: 0, all: 0 });
    let part = |now: u64, before: u64| u32::try_from(now.saturating_sub(before)).unwrap_or(u32::MAX);
    let (busy, all) = (part(now.busy, before.busy), part(now.all, before.all));
    Some(if all == 0 { 0.0 } else { (1e4 * f64::from(busy) / f64::from(all)).round() / 100.0 })
}

/// Reads the first line of `/proc/stat`.
fn processors(text: &str) -> Option<Processors> {
    let ticks = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // The time of guests is in that of users already.
    let ticks: Vec<u64> = ticks.take(8).map_while(|ticks| ticks.parse().ok()).collect();
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    let all: u64 = ticks.iter().sum();
    Some(Processors { busy: all.saturating_sub(idle), all })
}

/// Reads a line of `/proc/meminfo`.
fn bytes_of(text: &str, key: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read() {
        let found = processors("cpu  10 1 5 80 4 0 0 0 7 0\ncpu0 1 1 1 1\n");
        assert_eq!(found, Some(Processors { busy: 16, all: 100 }));
        assert_eq!(processors("intr 5"), None);
        let text = "MemTotal:        2048 kB\nCached:             3 kB\n";
        assert_eq!((bytes_of(text, "MemTotal"), bytes_of(text, "Mem")), (2 << 20, 0));
    }
}
