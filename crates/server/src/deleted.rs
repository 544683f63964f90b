//! The reports of sandboxes whose records this server has removed, for a client that lost the answer and asks again.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use penfold_state::Report;

/// The most reports.
const MOST: usize = 128;
/// The largest report, in bytes of JSON.
const LARGEST: usize = 64 << 10;

/// The last reports.
#[derive(Debug, Default)]
pub struct Deleted(Mutex<VecDeque<Report>>);

impl Deleted {
    /// Keeps a report, unless it is large.
    pub fn keep(&self, report: &Report) {
        if serde_json::to_vec(report).is_ok_and(|text| text.len() <= LARGEST) {
            let mut reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            reports.push_back(report.clone());
            if reports.len() > MOST {
                reports.pop_front();
            }
        }
    }

    /// Returns the report of a sandbox, if it is kept.
    pub fn report(&self, id: &str) -> Option<Report> {
        let reports = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reports.iter().rev().find(|report| report.id == id).cloned()
    }
}
