//! Messages for engines: they read the last line of `--log`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use penfold_state::time::format_rfc3339;

/// The weight of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// The verb failed.
    Error,
    /// The verb went on.
    Warning,
}

/// Returns a message as runc writes it with `--log-format json`.
pub fn log_line(level: LogLevel, message: &str) -> String {
    let level = match level {
        LogLevel::Error => "error",
        LogLevel::Warning => "warning",
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = format_rfc3339(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    serde_json::json!({ "level": level, "msg": message, "time": time }).to_string()
}

/// Appends a message to the file of `--log`.
///
/// # Errors
/// When the file cannot be written.
pub fn append_log(file: &Path, level: LogLevel, message: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(format!("{}\n", log_line(level, message)).as_bytes())
}
