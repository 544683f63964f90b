//! Messages for engines: they read the last line of `--log`.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use penfold_state::time::rfc3339;

/// Returns a message as runc writes it with `--log-format json`.
pub fn log_line(message: &str) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = rfc3339(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
    serde_json::json!({ "level": "error", "msg": message, "time": time }).to_string()
}

/// Appends a message to the file of `--log`.
///
/// # Errors
/// When the file cannot be written.
pub fn append(file: &Path, message: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(format!("{}\n", log_line(message)).as_bytes())
}
