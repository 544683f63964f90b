//! Waits until a new context can run code.

use std::time::{Duration, Instant};

use penfold_control::execs;
use penfold_server::log_stream;
use penfold_server::records;
use penfold_state::error_chain;
use penfold_state::log::{LogEntry, LogPosition, LogReader, LogWaitEnd};
use serde_json::{Value, json};

use crate::api::ApiState;
use crate::error::{ApiError, Code};

use super::contexts::Context;
use super::frames::{Marks, Piece, new_token};
use super::input::send_request;

/// The time in which an interpreter must answer.
const LIMIT: Duration = Duration::from_secs(30);

/// What a context can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Abilities {
    pub(super) typescript: bool,
}

/// Asks a new context what it can do, and waits for the answer.
///
/// # Errors
/// When its interpreter ends, or does not answer in time.
pub(super) async fn greet_context(api: &ApiState, context: &Context) -> Result<Abilities, ApiError> {
    let token = new_token();
    // An interpreter that has ended is noticed in its log.
    let sent = send_request(api, context, &token, &json!({})).await;
    let (context, until) = (context.clone(), Instant::now() + LIMIT);
    api.wait(move |_| {
        let open = execs::open_exec_log(&context.exec.files, context.number(), LogPosition::Start);
        let mut log = open.map_err(|error| ApiError::internal(&error))?;
        let answer = await_answer(&context, &mut log, &token, until)?;
        if let Some(answer) = answer {
            return Ok(Abilities { typescript: answer["typescript"] == true });
        }
        Err(match sent {
            _ if Instant::now() >= until => not_ready(),
            Err(error) if !execs::has_ended(&context.exec.files, context.number()) => {
                failed(&error_chain(&error))
            }
            _ => failed(&last_words(&context)),
        })
    })
    .await
}

/// Waits for the answer; `None` if none comes.
fn await_answer(
    context: &Context,
    log: &mut LogReader,
    token: &str,
    until: Instant,
) -> Result<Option<Value>, ApiError> {
    let mut marks = Marks::new(token);
    let failed = |error: &dyn std::error::Error| ApiError::internal(error);
    loop {
        while let Some((entry, _)) = log_stream::next_entry(log).map_err(|error| failed(&error))? {
            let LogEntry::Data { stream: penfold_state::log::Stream::Stdout, bytes, .. } = entry else {
                continue;
            };
            let answer = marks.take(bytes).into_iter().find_map(|piece| match piece {
                Piece::Event(event) => Some(event),
                Piece::Output(_) | Piece::End => None,
            });
            if answer.is_some() {
                return Ok(answer);
            }
        }
        let is_over = || Instant::now() >= until || execs::has_ended(&context.exec.files, context.number());
        if log.wait(is_over, None).map_err(|error| failed(&error))? != LogWaitEnd::More {
            return Ok(None);
        }
    }
}

/// Returns what an interpreter said that could not start.
fn last_words(context: &Context) -> String {
    let last = LogPosition::Last { lines: 4, of: None };
    let log = execs::open_exec_log(&context.exec.files, context.number(), last);
    let said = log.map(records::last_words).unwrap_or_default();
    if said.is_empty() { "its interpreter ended at once".to_owned() } else { said }
}

fn failed(why: &str) -> ApiError {
    let code = Code::InternalError.or_no_space(why);
    ApiError::new(code, format!("Failed to create code context: {why}")).with("originalError", why)
}

fn not_ready() -> ApiError {
    let message = format!("the interpreter is not ready after {} s", LIMIT.as_secs());
    ApiError::new(Code::InterpreterNotReady, message).with("progress", 0).with("retryAfter", 5)
}
