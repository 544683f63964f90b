//! The command that ends members which could not be ended.

use std::fmt::Write as _;

use penfold_process::ProcessId;

/// The command that ends processes which this user may not signal, by their pids and, as far as known, their start times.
pub(crate) fn reap_as_root(processes: impl IntoIterator<Item = (i32, Option<ProcessId>)>) -> String {
    let mut command = "sudo penfold reap".to_owned();
    for (pid, id) in processes {
        // Writing to a String cannot fail.
        let _ = match id {
            Some(id) => write!(command, " --pid {pid}@{}", id.start.0),
            None => write!(command, " --pid {pid}"),
        };
    }
    command
}
