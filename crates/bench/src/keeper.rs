//! Cleaning up after a benchmark that was interrupted: it runs in a process of its own, and this one outlives it.

use std::io;
use std::time::{Duration, Instant};

use penfold_process::{ProcFs, Process, Signal};
use penfold_sys::signal::{self, SignalFd, SignalSet};
use penfold_sys::{Forked, fork};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::error::Error;
use crate::tools::{Tools, running};
use crate::{floor, wait};

/// How long what was interrupted may take to end by itself, as all of it does.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at what is still running.
const PAUSE: Duration = Duration::from_millis(20);

/// Does the work in a child; returns once nothing of it is left, whether the child finished or was killed.
pub(crate) fn keep(tools: &Tools, work: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    let cannot = |source: io::Error| Error::io("cannot look after the benchmark", source);
    let ends = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT].map(Signal::as_raw);
    let watched = SignalSet::of(ends.into_iter().chain([Signal::CHILD.as_raw()]));
    let before = signal::block(&watched).map_err(cannot)?;
    let worker = match fork().map_err(cannot)? {
        Forked::Parent(worker) => worker,
        Forked::Child => {
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
        Some(_) => Err(Error::odd("not all was measured")),
        None => Err(Error::odd("interrupted")),
    }
}

/// Waits for the worker, and kills it when this process is asked to end. Gives its exit code, if it had one.
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

/// Ends what the worker left and waits until nothing runs a program of ours: leaders exit when their word-giver is gone.
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
            return Err(Error::odd(format!("{left} processes of the benchmark are still there")));
        }
        wait::pass(PAUSE);
    }
}
