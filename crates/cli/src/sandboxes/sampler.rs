//! Reads what sandboxes use, again and again.

use std::collections::HashMap;
use std::time::Instant;

use penfold_control::{CpuRates, Meter, Resolver, SandboxRef, SandboxView};
use rustix::event::Timespec;

use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::text::row::Numbers;

/// The time between the two looks without which no use of CPU is known.
const BETWEEN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Reads what sandboxes use, and compares it with the last look.
#[derive(Debug)]
pub(crate) struct Sampler {
    meter: Meter,
    rates: CpuRates,
}

impl Sampler {
    /// # Errors
    /// If the processes cannot be read.
    pub(crate) fn new() -> Result<Sampler, Failure> {
        let meter = Meter::open().or_fail(FailureKind::Other, "cannot read the processes")?;
        Ok(Sampler { meter, rates: CpuRates::default() })
    }

    /// Reads the living ones of these sandboxes once.
    pub(crate) fn look(
        &mut self,
        resolver: &Resolver,
        found: &[(SandboxRef, SandboxView)],
    ) -> HashMap<String, Numbers> {
        let living = found.iter().filter(|(_, seen)| seen.status.is_living());
        let numbers: HashMap<String, Numbers> = living
            .map(|(known, seen)| {
                let (usage, _) = self.meter.read(resolver, known, seen);
                let cpu_percent = self.rates.percent(&known.id, &usage, Instant::now());
                (known.id.clone(), Numbers { usage, cpu_percent })
            })
            .collect();
        self.rates.retain(|id| numbers.contains_key(id));
        numbers
    }

    /// Reads them twice, a moment apart, if one of them has not been read before.
    pub(crate) fn look_twice(
        &mut self,
        resolver: &Resolver,
        found: &[(SandboxRef, SandboxView)],
    ) -> HashMap<String, Numbers> {
        let numbers = self.look(resolver, found);
        if numbers.values().all(|numbers| numbers.cpu_percent.is_some()) {
            return numbers;
        }
        let _ = rustix::event::poll(&mut [], Some(&BETWEEN));
        // Of a sandbox without a leaf, the members of now.
        self.look(&resolver.again(), found)
    }
}
