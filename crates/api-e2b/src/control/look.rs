//! Looks at one sandbox: how it is described, what it uses, what it has written.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use penfold_control::Resolver;
use penfold_control::usage::Meter;
use penfold_state::log::{LogEntry, LogPosition, LogReader, Stream};
use penfold_state::time::now_ms;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::model::{Described, Host, cpus, memory, started, time};
use super::{Found, SandboxPath, find};
use crate::api::{Api, ApiState};
use crate::error::ApiError;

/// The most lines of a log that are returned.
const LINES: usize = 1000;
/// The seconds that the clock of a client may be behind.
const SLACK: u64 = 2;
/// The most sandboxes whose usage is returned at once.
const SANDBOXES: usize = 100;

/// Describes one sandbox.
pub(super) async fn get(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
) -> Result<Json<Described>, ApiError> {
    let found = find(&api, &id).await?;
    api.call(move |api| Described::of(api, &found, true)).await.map(Json)
}

/// What a sandbox uses at one moment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    timestamp: String,
    timestamp_unix: u64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl Metric {
    /// Reads the usage of a sandbox: its processor time is the average since its start.
    fn read(api: &Api, (known, seen): &Found) -> Result<Metric, ApiError> {
        let resolver = Resolver::new(api.app.engine.scope().root());
        let mut meter = Meter::open().map_err(|error| ApiError::internal(&error))?;
        let (usage, _) = meter.read(&resolver, known, seen);
        let (now, host) = (now_ms(), Host::look(api));
        let lived = Duration::from_millis(now.saturating_sub(started(seen)).max(1));
        let used = Duration::from_micros(usage.cpu_us);
        Ok(Metric {
            timestamp: time(now),
            timestamp_unix: now / 1000,
            cpu_count: cpus(seen, &host),
            cpu_used_pct: 100.0
                * (used.as_secs_f64() / lived.as_secs_f64()).min(f64::from(cpus(seen, &host))),
            mem_used: usage.memory_bytes,
            mem_total: memory(seen, &host),
            mem_cache: 0,
            disk_used: host.disk_used_bytes,
            disk_total: host.disk_bytes,
        })
    }
}

/// What a sandbox uses now, as a list of one; nothing if now is not in the interval.
pub(super) async fn metrics(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
    Query(interval): Query<Interval>,
) -> Result<Json<Vec<Metric>>, ApiError> {
    let found = find(&api, &id).await?;
    let mut now = vec![api.call(move |api| Metric::read(api, &found)).await?];
    now.retain(|metric| {
        let is_in_time = |end: u64| metric.timestamp_unix <= end.saturating_add(SLACK);
        interval.start.is_none_or(|start| metric.timestamp_unix >= start)
            && interval.end.is_none_or(is_in_time)
    });
    Ok(Json(now))
}

/// The time in which a client wants to know the usage, in seconds since 1970.
#[derive(Debug, Deserialize)]
pub(super) struct Interval {
    start: Option<u64>,
    end: Option<u64>,
}

/// What several sandboxes use now.
pub(super) async fn metrics_of_all(
    State(api): State<ApiState>,
    Query(parameters): Query<Vec<(String, String)>>,
) -> Result<Json<Value>, ApiError> {
    let ids = parameters.iter().filter(|(key, _)| key == "sandbox_ids").flat_map(|(_, ids)| ids.split(','));
    let mut sandboxes = BTreeMap::new();
    for id in ids.take(SANDBOXES) {
        if let Ok(found) = find(&api, id).await {
            let metric: Result<Metric, ApiError> = api.call(move |api| Metric::read(api, &found)).await;
            sandboxes.extend(metric.ok().map(|metric| (id.to_owned(), metric)));
        }
    }
    Ok(Json(json!({ "sandboxes": sandboxes })))
}

/// The last lines of the sandbox's own command.
pub(super) async fn logs(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
) -> Result<Json<Value>, ApiError> {
    let entries = entries(&api, &id).await?;
    let lines: Vec<Value> = entries
        .iter()
        .map(|entry| json!({ "timestamp": entry["timestamp"], "line": entry["message"] }))
        .collect();
    Ok(Json(json!({ "logs": lines, "logEntries": entries })))
}

/// The same, without the lines as texts.
pub(super) async fn log_entries(
    State(api): State<ApiState>,
    Path(id): SandboxPath,
) -> Result<Json<Value>, ApiError> {
    entries(&api, &id).await.map(|entries| Json(json!({ "logs": entries })))
}

async fn entries(api: &ApiState, id: &str) -> Result<Vec<Value>, ApiError> {
    let (known, _) = find(api, id).await?;
    api.call(move |_| {
        let Some(files) = &known.record else { return Ok(Vec::new()) };
        let log = LogReader::open(files.dir(), LogPosition::Start);
        log.map(last_lines).map_err(|error| ApiError::internal(&error))
    })
    .await
}

fn last_lines(mut log: LogReader) -> Vec<Value> {
    let mut lines = std::collections::VecDeque::new();
    while let Ok(Some(entry)) = log.next_entry() {
        let LogEntry::Data { stream, bytes, .. } = entry else { continue };
        let level = if stream == Stream::Stderr { "error" } else { "info" };
        for line in String::from_utf8_lossy(bytes).lines() {
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(
                json!({ "timestamp": time(now_ms()), "level": level, "message": line, "fields": {} }),
            );
        }
    }
    lines.into()
}
