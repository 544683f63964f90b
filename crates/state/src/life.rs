//! The lives of a sandbox that is restarted.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::outcome::ExitStatus;

/// A life that was longer begins a new row of restarts.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// When a sandbox is restarted without a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnFailure {
    /// The most restarts in a row; `None` means any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<u32>,
}

impl OnFailure {
    /// Returns the number of the next restart in the row, after `failures` restarts in this row and a life of this length.
    ///
    /// # Errors
    /// The limit, when it is reached.
    pub fn next_in_row(self, failures: u32, life: Duration) -> Result<u32, u32> {
        let next = if life > LONG_LIFE { 1 } else { failures.saturating_add(1) };
        match self.most {
            Some(most) if next > most => Err(most),
            _ => Ok(next),
        }
    }
}

/// The place of a life in a row of restarts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// The short id of the former life, in a record of an older penfold. Empty: all lives have one id and one record.
    pub restart_of: String,
    /// The number of restarts since the first life.
    pub restarts: u32,
    /// The number of lives in a row that failed soon, before this one; 0 after a restart on request.
    #[serde(default)]
    pub failures: u32,
}

impl Life {
    /// Returns the number of this life, from 1.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.restarts.saturating_add(1)
    }

    /// Returns the line in the log between this life and the former one, which ended like this.
    #[must_use]
    pub fn line(&self, former: Option<ExitStatus>) -> String {
        let ended = match former {
            Some(ExitStatus::Code(code)) => format!("ended with code {code}"),
            Some(ExitStatus::Signal(signal)) => format!("ended by signal {signal}"),
            None => "has ended".to_owned(),
        };
        format!("{}life {} {ended} ---", begin(self.number()), self.restarts)
    }

    /// Tells whether bytes of the log are the line before this life.
    #[must_use]
    pub fn is_line(life: u32, bytes: &[u8]) -> bool {
        bytes.trim_ascii_start().starts_with(begin(life).as_bytes())
    }
}

fn begin(life: u32) -> String {
    format!("--- life {life} begins; ")
}
