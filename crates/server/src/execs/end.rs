//! The end of an exec that a client asks for. It is over once everything was observed gone.

use std::time::Duration;

use penfold_control::SupervisorClientError;
use penfold_control::execs::{self, ExecEnd, ExecError, ExecStatus, ExecView};
use penfold_teardown::Survivor;
use tokio::sync::OwnedSemaphorePermit;

use super::look::FoundExec;
use crate::engine::{Engine, EngineError};

/// How an exec is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecEndOrder {
    /// The polite signal, and SIGKILL after the grace; both are the exec's own by default.
    Stop {
        /// The polite signal.
        signal: Option<i32>,
        /// The time between the polite signal and SIGKILL.
        grace: Option<Duration>,
        /// The time after which survivors are reported, with the grace.
        patience: Duration,
    },
    /// SIGKILL at once.
    Kill {
        /// The time after which survivors are reported.
        patience: Duration,
    },
}

impl ExecEndOrder {
    /// Has the end begun, and does not wait for it.
    ///
    /// # Errors
    /// When the supervisor was not reached. An exec that ends just now, or has ended with its sandbox, is no error.
    pub fn begin(self, exec: &FoundExec) -> Result<(), ExecError> {
        let FoundExec { files, view } = exec;
        let begun = match self {
            ExecEndOrder::Stop { signal, grace, .. } => execs::begin_stop(files, view.number, signal, grace),
            ExecEndOrder::Kill { .. } => execs::begin_kill(files, view.number),
        };
        match begun {
            Err(ExecError::Refused(_) | ExecError::Client(SupervisorClientError::Ended { .. })) => Ok(()),
            begun => begun,
        }
    }

    /// Ends an exec, and waits until nothing of it is left, or its survivors are known.
    ///
    /// # Errors
    /// When the supervisor was not reached, or the end could not be observed.
    pub fn carry_out(self, exec: &FoundExec) -> Result<ExecEnd, ExecError> {
        let FoundExec { files, view } = exec;
        match self {
            ExecEndOrder::Stop { signal, grace, patience } => {
                execs::stop_exec(files, view.number, signal, grace, patience)
            }
            ExecEndOrder::Kill { patience } => execs::kill_exec(files, view.number, patience),
        }
    }
}

/// How the end of an exec went.
#[derive(Debug)]
pub enum ExecEnding {
    /// It had ended before.
    AlreadyGone(Box<ExecView>),
    /// It has begun, and goes on without the server.
    Begun,
    /// Everything was observed gone.
    Gone(Box<ExecEnd>),
}

/// Why the end of an exec was not observed.
#[derive(Debug, thiserror::Error)]
pub enum EndExecError {
    /// The server cannot wait.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A request about the exec failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// These survived the patience.
    #[error("something of exec {number} is left")]
    Left {
        /// The number of the exec.
        number: u32,
        /// The processes and resources.
        survivors: Vec<Survivor>,
    },
}

/// Ends an exec. `place` is one of [`Engine::ender`]; without `waits`, the call returns once the end has begun.
///
/// # Errors
/// When the end could not be observed, or something is left.
pub async fn end_exec(
    engine: &Engine,
    place: OwnedSemaphorePermit,
    exec: FoundExec,
    order: ExecEndOrder,
    waits: bool,
) -> Result<ExecEnding, EndExecError> {
    let number = exec.view.number;
    if exec.view.status == ExecStatus::Ended {
        return Ok(ExecEnding::AlreadyGone(Box::new(exec.view)));
    }
    if !waits {
        engine.call(move |_| order.begin(&exec)).await??;
        return Ok(ExecEnding::Begun);
    }
    let ending = engine.wait(place, move |_| {
        penfold_sys::crash_point!("serve-exec-end-wanted");
        let ended = order.carry_out(&exec);
        penfold_sys::crash_point!("serve-exec-ended");
        ended
    });
    let mut end = ending.await??;
    if end.remaining.is_empty() {
        return Ok(ExecEnding::Gone(Box::new(end)));
    }
    Err(EndExecError::Left { number, survivors: std::mem::take(&mut end.remaining) })
}
