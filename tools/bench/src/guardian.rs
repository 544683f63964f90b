//! Cleans up after an interrupted benchmark. The benchmark runs in a child; this process outlives the child.

use std::io;
use std::time::{Duration, Instant};

use penfold_process::{ProcFs, Process, Signal};
use penfold_sys::signal::{self, SignalFd, SignalSet};
use penfold_sys::{ForkSide, fork};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::error::Error;
use crate::tools::{Tools, running};
use crate::{floor, wait};

/// The time that an interrupted benchmark's processes may take to end; all of them end by themselves.
const PATIENCE: Duration = Duration::from_secs(20);
/// The pause between two looks at running processes.
const PAUSE: Duration = Duration::from_millis(20);

/// Does the work in a child. Returns when none of its processes is left, whether the child finished or was killed.
pub(crate) fn guard(tools: &Tools, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let cannot = |source: io::Error| Error::io("cannot supervise the benchmark", source);
    let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].map(Signal::as_raw);
    let watched = SignalSet::of(ends.into_iter().chain([Signal::CHILD.as_raw()]));
    let before = signal::block_signals(&watched).map_err(cannot)?;
    let worker = match fork().map_err(cannot)? {
        ForkSide::Parent(worker) => worker,
        ForkSide::Child => {
            let result = signal::set_mask(&before).map_err(cannot).and_then(|()| work());
            let code = i32::from(result.inspect_err(crate::complain).is_err());
            penfold_sys::fork::exit_now(code)
        }
    };
    let signals = SignalFd::open(&watched).map_err(cannot)?;
    let status = end_of(worker, &signals).map_err(cannot)?;
    sweep(tools, worker)?;
    match status {
        Some(0) => Ok(()),
        Some(_) => Err(Error::odd("a measurement is missing")),
        None => Err(Error::odd("interrupted")),
    }
}

/// Waits for the worker, and kills the worker if this process gets a signal. Returns the worker's exit code, if any.
fn end_of(worker: Pid, signals: &SignalFd) -> io::Result<Option<i32>> {
    let handle = Process::open(&mut ProcFs::open()?, worker)?;
    loop {
        if let Some((_, status)) = waitpid(Some(worker), WaitOptions::NOHANG)? {
            return Ok(status.exit_status());
        }
        wait::readable(signals, Duration::from_hours(1));
        while let Some(signalled) = signals.take()? {
            if signalled.signal != Signal::CHILD.as_raw()
                && let Some(handle) = &handle
            {
                handle.signal(Signal::KILL)?;
            }
        }
    }
}

/// Ends the leaves of the worker and waits until no copied program runs: leaders exit when their input ends.
fn sweep(tools: &Tools, worker: Pid) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    floor::sweep(worker);
    loop {
        let left = running(&mut proc, &tools.penfold)?.len() + running(&mut proc, &tools.bench)?.len();
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::odd(format!("{left} processes of the benchmark are left")));
        }
        wait::pass(PAUSE);
    }
}
