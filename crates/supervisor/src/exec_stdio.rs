//! The standard descriptors of an exec: the client's own, or those of a record.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penfold_process::ProcFs;
use penfold_state::execs::ExecInput;
use penfold_state::intent::shorten_command;
use penfold_state::record::SCHEMA;
use penfold_state::time::now_ms;
use penfold_state::{RecordSettings, RecordedExec, Spec};
use penfold_sys::launch::OwnStdio;
use rustix::process::getpid;

use crate::detached_parts::DetachedParts;
use crate::end_cell::EndCell;
use crate::ended_execs::RecordOfExec;
use crate::output::Output;
use crate::recorded_exec::{ExecPlan, ExecRecord};
use crate::wire::Size;

/// The standard descriptors of an exec.
pub(crate) enum ExecStdio {
    /// The client's descriptors.
    Given([OwnedFd; 3]),
    /// The output goes into the record.
    Recorded(ExecPlan),
}

impl ExecStdio {
    /// Takes the descriptors that came with the request. Creates the directory and the end cell of a recorded exec.
    ///
    /// # Errors
    /// The reason, as a sentence.
    pub(crate) fn of(
        detached: &DetachedParts,
        number: u32,
        recorded: bool,
        fds: impl Iterator<Item = OwnedFd>,
    ) -> Result<(ExecStdio, Option<RecordOfExec>), String> {
        let fds: Vec<OwnedFd> = fds.collect();
        if !recorded {
            let given = <[OwnedFd; 3]>::try_from(fds);
            let given = given.map_err(|_| "an exec needs its description and three standard descriptors")?;
            return Ok((ExecStdio::Given(given), None));
        }
        let [input] = <[OwnedFd; 1]>::try_from(fds)
            .map_err(|_| "a recorded exec needs its description and a standard input")?;
        let cells = EndCell::create().and_then(|cell| Ok((cell.try_clone()?, cell)));
        let (cell, own) = cells.map_err(|error| format!("cannot make an eventfd: {error}"))?;
        let files = detached
            .create_exec_files(number)
            .map_err(|error| format!("cannot make the record of the exec: {error}"))?;
        let plan = ExecPlan { input, files, cell };
        Ok((ExecStdio::Recorded(plan), Some(RecordOfExec { number, cell: Some(own) })))
    }

    /// Returns the descriptors that the exec supervisor keeps.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        match self {
            ExecStdio::Given(fds) => fds.iter().map(AsFd::as_fd).collect(),
            ExecStdio::Recorded(plan) => plan.fds().to_vec(),
        }
    }

    /// Returns another handle to the cell of a recorded exec.
    pub(crate) fn cell(&self) -> Option<EndCell> {
        match self {
            ExecStdio::Given(_) => None,
            ExecStdio::Recorded(plan) => plan.cell.try_clone().ok(),
        }
    }
}

/// The most bytes of labels: `exec.json` is read up to a size.
const MAX_LABELS: usize = 256 << 10;

/// Creates the log and writes `exec.json`. Returns the command's standard descriptors too.
pub(crate) fn record_exec(
    plan: ExecPlan,
    spec: &Spec,
    recorded: RecordSettings,
    terminal: bool,
) -> io::Result<(OwnStdio, ExecRecord)> {
    let RecordSettings { labels, log_limit, open_input, size, lingers } = recorded;
    if labels.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_LABELS {
        return Err(io::Error::other("its labels are too long"));
    }
    let ExecPlan { input, files, cell } = plan;
    let (input, holder) = if open_input {
        let ExecInput { reader, holder } = files.make_input()?;
        (reader, Some(holder))
    } else {
        (input, None)
    };
    let size = terminal.then(|| size.unwrap_or(Size { rows: 24, columns: 80 }));
    let (output, stdio) = Output::of_exec(&files, log_limit, size, input)?;
    let words = spec.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let own = ProcFs::open()?.stat(getpid())?.ok_or(io::ErrorKind::NotFound)?;
    let exec = RecordedExec {
        schema: SCHEMA,
        number: files.number(),
        command: shorten_command(words),
        labels,
        started_at_ms: now_ms(),
        supervisor: own.id(),
        leader: None,
        leader_inside: None,
        log_limit,
        terminal,
        lingers,
    };
    Ok((stdio, ExecRecord::begin(files, cell, output, exec, holder)?))
}
