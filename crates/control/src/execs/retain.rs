//! Bounds the records of ended execs.

use std::io;
use std::time::Duration;

use penfold_state::wire::{Answer, Request};
use penfold_state::{ExecFiles, Files, RecordedExec};

use crate::client::SupervisorClient;

/// The number of ended execs whose records a server keeps in each sandbox.
pub const KEPT: usize = 256;
/// The time in which a supervisor must list its execs.
const LIMIT: Duration = Duration::from_secs(1);

/// Removes the records of the oldest ended execs until `keep` of them are left, and returns those that were removed.
/// Execs that a process [holds](super::hold_exec_record) stay. Without a supervisor that answers, all stay.
///
/// # Errors
/// When the directory of the execs cannot be read.
pub fn forget_oldest(files: &Files, keep: usize) -> io::Result<Vec<RecordedExec>> {
    let mut numbers = ExecFiles::numbers(files)?;
    if numbers.len() <= keep {
        return Ok(Vec::new());
    }
    let listed =
        SupervisorClient::connect(files, LIMIT).and_then(|client| client.request(&Request::Execs, LIMIT));
    let Ok(Answer::Execs(running)) = listed else { return Ok(Vec::new()) };
    numbers.retain(|number| !running.contains(number));
    let excess = numbers.len().saturating_sub(keep);
    if excess == 0 {
        return Ok(Vec::new());
    }
    // After a takeover, a low number may be a young exec.
    ExecFiles::sort_by_change(files, &mut numbers)?;
    let mut removed = Vec::new();
    let mut left = excess;
    for number in numbers {
        if left == 0 {
            break;
        }
        // Another server may do the same.
        if let Ok(Some(exec)) = ExecFiles::open(files, number) {
            let described = exec.exec().ok().flatten().filter(|described| described.number == number);
            if exec.remove_unheld(files).is_ok_and(|is_removed| is_removed) {
                removed.extend(described);
                left -= 1;
            }
        }
    }
    Ok(removed)
}
