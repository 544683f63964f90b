//! The answer to a command that has ended.

use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use penfold_server::sent_body;
use penfold_state::log::{LogReader, Stream};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::json_body::json_body;
use crate::output::write_string;
use crate::{answer, time};

/// Output up to this size is sent at once, without a thread.
const SMALL: u64 = 32 << 10;

/// A command that has ended.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) command: String,
    pub(super) session: String,
    pub(super) code: i32,
    /// The log, once for each stream; `None` if there is none.
    pub(super) logs: Option<[LogReader; 2]>,
    /// What the server says on standard error: a line after that of the command.
    pub(super) stderr: String,
    /// The size of the output, if known.
    pub(super) bytes: Option<u64>,
    /// The bytes that the log does not have.
    pub(super) truncated_bytes: u64,
    /// Fields beyond those of the reference.
    pub(super) more: Vec<(&'static str, Value)>,
}

impl Done {
    /// Answers with the output, from the log.
    ///
    /// # Errors
    /// When there is no room for a thread, or the log cannot be read.
    pub(super) fn answer(self) -> Result<Response, ApiError> {
        let body = if self.bytes.is_some_and(|bytes| bytes <= SMALL) {
            let mut body = Vec::new();
            self.write(&mut body).map_err(|error| ApiError::internal(&error))?;
            Body::from(Bytes::from(body))
        } else {
            sent_body::written_body(move |sink| self.write(sink)).map_err(|error| ApiError::full(&error))?
        };
        Ok(([(header::CONTENT_TYPE, answer::JSON)], body).into_response())
    }

    fn write(mut self, out: &mut impl Write) -> io::Result<()> {
        let mut lost = self.truncated_bytes;
        out.write_all(b"{\"stdout\":")?;
        match &mut self.logs {
            Some([stdout, stderr]) => {
                // Both passes meet the same losses.
                let missed = write_string(out, stdout, Stream::Stdout, "")?;
                out.write_all(b",\"stderr\":")?;
                let again = write_string(out, stderr, Stream::Stderr, &self.stderr)?;
                lost = lost.max(missed).max(again);
            }
            None => write!(out, "\"\",\"stderr\":{}", json_body(&self.stderr)?)?,
        }
        let mut rest = json!({
            "success": self.code == 0,
            "exitCode": self.code,
            "command": self.command,
            "duration": 0,
            "sessionId": self.session,
            "timestamp": time::current_time(),
        });
        if let Some(rest) = rest.as_object_mut() {
            if lost > 0 {
                rest.insert("truncated".to_owned(), json!(true));
                rest.insert("truncatedBytes".to_owned(), json!(lost));
            }
            rest.extend(self.more.drain(..).map(|(key, value)| (key.to_owned(), value)));
        }
        out.write_all(b",")?;
        out.write_all(json_body(&rest)?.strip_prefix('{').unwrap_or_default().as_bytes())
    }
}
