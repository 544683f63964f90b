//! The words and codes by which this API tells how a process ended.

use penfold_control::execs::{ExecStatus, ExecView};
use penfold_state::ExitStatus;
use penfold_teardown::Cause;
use rustix::process::Signal;

/// The state of a process as the API tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) word: &'static str,
    /// The code, once the process has ended.
    pub(super) code: Option<i32>,
}

/// Converts how a command ended to a code, as a shell does. An end that no process has seen is one by SIGKILL, with the supervisor.
pub(crate) fn code_of(exit: Option<ExitStatus>) -> i32 {
    exit.unwrap_or(ExitStatus::Signal(Signal::KILL.as_raw())).shell_code()
}

/// Converts what was observed of a process.
pub(super) fn observed_status(view: &ExecView) -> Told {
    match view.status {
        ExecStatus::Running => Told { word: "running", code: None },
        ExecStatus::Ended => ended_status(view.exit, view.cause),
    }
}

/// Converts the end of a process. Nothing is known of one whose session was deleted.
pub(super) fn ended_status(exit: Option<ExitStatus>, cause: Option<Cause>) -> Told {
    let code = code_of(exit);
    let by_itself =
        matches!(cause, Some(Cause::Exit | Cause::Signal | Cause::StartFailed | Cause::Memory | Cause::Oom));
    let word = match code {
        _ if !by_itself => "killed",
        0 => "completed",
        137 | 143 => "killed",
        _ => "failed",
    };
    Told { word, code: Some(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_words() {
        let by_itself = [
            (ExitStatus::Code(0), "completed", 0),
            (ExitStatus::Code(1), "failed", 1),
            (ExitStatus::Code(2), "failed", 2),
            (ExitStatus::Code(124), "failed", 124),
            (ExitStatus::Code(130), "failed", 130),
            (ExitStatus::Code(137), "killed", 137),
            (ExitStatus::Code(143), "killed", 143),
            (ExitStatus::Code(255), "failed", 255),
            (ExitStatus::Signal(9), "killed", 137),
            (ExitStatus::Signal(15), "killed", 143),
            (ExitStatus::Signal(11), "failed", 139),
            (ExitStatus::Signal(2), "failed", 130),
        ];
        for (exit, word, code) in by_itself {
            for cause in [Cause::Exit, Cause::Signal] {
                assert_eq!(
                    ended_status(Some(exit), Some(cause)),
                    Told { word, code: Some(code) },
                    "{exit:?}"
                );
            }
        }
        let by_us = [
            (Some(ExitStatus::Code(0)), 0),
            (Some(ExitStatus::Code(7)), 7),
            (Some(ExitStatus::Signal(15)), 143),
            (Some(ExitStatus::Signal(9)), 137),
            (None, 137),
        ];
        for (exit, code) in by_us {
            for cause in [Cause::Stop, Cause::Kill, Cause::Timeout, Cause::Lost, Cause::Supervisor] {
                assert_eq!(
                    ended_status(exit, Some(cause)),
                    Told { word: "killed", code: Some(code) },
                    "{exit:?}"
                );
            }
        }
        // The record is gone: its session was deleted.
        assert_eq!(ended_status(None, None), Told { word: "killed", code: Some(137) });
    }
}
