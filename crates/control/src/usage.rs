//! The CPU time, the memory and the processes of a sandbox at one moment. Read only.
//!
//! The leaf has the numbers where there is one. What the kernel does not count for the leaf, or a sandbox without a leaf, is
//! the sum over the members in `/proc`; [`SandboxUsage`] says which.

pub mod words;

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use penfold_cgroup::Readings;
use penfold_process::{Pid, ProcFs, Stat};
use penfold_teardown::Level;
use serde::Serialize;

use crate::resolve::{Resolver, SandboxRef};
use crate::view::{self, SandboxView};

/// Where a number was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum UsageSource {
    /// The leaf: what all members have used, ended ones included.
    Cgroup,
    /// The sum over the members in `/proc`. Memory that members share counts for each; CPU time of a member that has ended counts
    /// only if another member has reaped it.
    Processes,
}

/// What the members of a sandbox use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SandboxUsage {
    /// User and system time so far, in microseconds.
    pub cpu_us: u64,
    /// Where the CPU time was read.
    pub cpu_source: UsageSource,
    /// The memory in use now, in bytes.
    pub memory_bytes: u64,
    /// Where the memory was read.
    pub memory_source: UsageSource,
    /// The number of processes that are visible here.
    pub processes: usize,
}

/// Reads the usage of sandboxes.
#[derive(Debug)]
pub struct Meter {
    proc: ProcFs,
    ticks_per_second: u64,
    page_bytes: u64,
}

impl Meter {
    /// Makes a meter.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn open() -> io::Result<Meter> {
        Ok(Meter {
            proc: ProcFs::open()?,
            ticks_per_second: rustix::param::clock_ticks_per_second().max(1),
            page_bytes: u64::try_from(rustix::param::page_size()).unwrap_or(4096),
        })
    }

    /// Reads what a sandbox uses now, with its processes.
    ///
    /// The first sandbox without a leaf costs a look at all processes of the host; `resolver` keeps what was found.
    pub fn read(
        &mut self,
        resolver: &Resolver,
        known: &SandboxRef,
        view: &SandboxView,
    ) -> (SandboxUsage, Vec<Pid>) {
        let leaf = known.leaf.as_deref().and_then(Readings::open);
        let mut pids = members(resolver, known, leaf.as_ref());
        if view.level == Some(Level::Pidns) {
            // Our init is in the leaf, too.
            let ours = view::claimed_supervisors(view);
            pids.retain(
                |&pid| !matches!(self.proc.stat(pid), Ok(Some(stat)) if view::is_between(&ours, &stat)),
            );
        }
        let cpu = leaf.as_ref().and_then(Readings::cpu_time).map(micros);
        let memory = leaf.as_ref().and_then(Readings::memory);
        let mut usage = SandboxUsage {
            cpu_us: cpu.unwrap_or_default(),
            cpu_source: source(cpu.as_ref()),
            memory_bytes: memory.unwrap_or_default(),
            memory_source: source(memory.as_ref()),
            processes: pids.len(),
        };
        if cpu.is_some() && memory.is_some() {
            return (usage, pids);
        }
        let stats: Vec<Stat> = pids
            .iter()
            .filter_map(|&pid| self.proc.stat(pid).ok().flatten())
            .filter(|s| !s.is_dead())
            .collect();
        usage.processes = stats.len();
        if cpu.is_none() {
            let ticks: u64 = stats.iter().map(Stat::cpu_ticks).fold(0, u64::saturating_add);
            usage.cpu_us = ticks.saturating_mul(1_000_000) / self.ticks_per_second;
        }
        if memory.is_none() {
            let pages = stats.iter().map(|stat| stat.resident).fold(0, u64::saturating_add);
            usage.memory_bytes = pages.saturating_mul(self.page_bytes);
        }
        (usage, pids)
    }
}

/// The processes in the leaf; without a leaf, those with the marker.
fn members(resolver: &Resolver, known: &SandboxRef, leaf: Option<&Readings>) -> Vec<Pid> {
    let Some(leaf) = leaf else {
        return resolver.fingerprints().marked().get(&known.id).cloned().unwrap_or_default();
    };
    let mut pids = Vec::new();
    // A leaf that goes meanwhile has no members.
    let _ = leaf.processes(&mut pids);
    pids
}

fn source<T>(counted: Option<&T>) -> UsageSource {
    if counted.is_some() { UsageSource::Cgroup } else { UsageSource::Processes }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The use of CPU between two readings of each sandbox.
#[derive(Debug, Default)]
pub struct CpuRates {
    last: HashMap<String, (Instant, u64)>,
}

impl CpuRates {
    /// Returns the CPU time since the last reading of this sandbox, in percent of one CPU; `None` for the first reading.
    ///
    /// A sum over processes is smaller than the last one if a process has ended: that counts as none.
    pub fn percent(&mut self, id: &str, usage: &SandboxUsage, now: Instant) -> Option<f64> {
        let (then, before) = self.last.insert(id.to_owned(), (now, usage.cpu_us))?;
        let passed = now.saturating_duration_since(then).as_secs_f64();
        let used = Duration::from_micros(usage.cpu_us.saturating_sub(before)).as_secs_f64();
        (passed > 0.0).then(|| used / passed * 100.0)
    }

    /// Forgets the sandboxes that `is_kept` does not want.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.last.retain(|id, _| is_kept(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_two_readings_and_is_never_negative() {
        let usage = |cpu_us| SandboxUsage {
            cpu_us,
            cpu_source: UsageSource::Processes,
            memory_bytes: 0,
            memory_source: UsageSource::Processes,
            processes: 1,
        };
        let mut rates = CpuRates::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(rates.percent("a", &usage(1_000_000), at(0)), None);
        assert_eq!(rates.percent("a", &usage(1_100_000), at(200)), Some(50.0));
        assert_eq!(rates.percent("a", &usage(900_000), at(400)), Some(0.0), "a member has ended");
        assert_eq!(rates.percent("a", &usage(900_000), at(400)), None, "no time has passed");
        rates.retain(|id| id != "a");
        assert_eq!(rates.percent("a", &usage(900_000), at(600)), None);
    }
}
