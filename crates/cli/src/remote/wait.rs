//! `wait` for sandboxes of a server.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use penfold_client::{Client, Error};
use penfold_control::{End, View};
use penfold_state::{ExitStatus, StartFailure};
use penfold_teardown::Cause;
use serde::Deserialize;

use super::{ending, failure, select};
use crate::args::verb::Global;
use crate::commands::wait::{self, WaitArgs};
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::tally::Tally;

/// The end of a sandbox, as far as the server knows it.
#[derive(Debug, Deserialize)]
struct Waited {
    ended: bool,
    #[serde(default)]
    exit: Option<ExitStatus>,
    #[serde(default)]
    cause: Option<Cause>,
    #[serde(default)]
    failure: Option<StartFailure>,
}

/// The time that one request waits.
const ROUND_MS: u64 = 30_000;

/// Waits until sandboxes have ended; returns the exit codes of their commands.
pub(super) fn wait(client: &Client, global: &Global, args: &WaitArgs) -> Result<u8, Failure> {
    let &WaitArgs { ref ids, any, timeout } = args;
    let until = timeout.and_then(|limit| Instant::now().checked_add(limit));
    let selection =
        select::select(client, ids, Among::Living, true, "wait for").map_err(super::before_the_start)?;
    let mut tally = Tally::default();
    let missed: Vec<Failure> = selection.missed.into_iter().map(Failure::not_started).collect();
    tally.missed(global, &missed);
    let mut codes = Vec::from_iter(missed.first().map(Failure::exit_code));
    let ends = ends(client, &selection.found, any, until)?;
    let mut left = Vec::new();
    for (view, end) in selection.found.iter().zip(&ends) {
        let Some(end) = end else {
            left.push(view.id.as_str());
            continue;
        };
        if *end == End::Removed && view.detached {
            let sentence = format!(
                "no sandbox is called `{}` any more: its record was removed during the wait",
                view.id
            );
            tally.missed(global, &[Failure::new(FailureKind::NotStarted, sentence)]);
            codes.push(exit_codes::NOT_STARTED);
            continue;
        }
        let code = wait::code(&view.id, end, false, !view.detached);
        let text = code.map_or_else(|| "unknown".to_owned(), |code| code.to_string());
        tally.done(&if any { format!("{} {text}", view.id) } else { text });
        codes.push(code.unwrap_or(exit_codes::UNVERIFIED));
    }
    let enough = any && left.len() < ends.len();
    if !left.is_empty() && !enough {
        let sentence = format!("not ended in time: {}", left.join(", "));
        codes.push(Failure::new(FailureKind::TimedOut, sentence).report(false));
    }
    tally.finish()?;
    Ok(codes.into_iter().find(|&code| code != exit_codes::SUCCESS).unwrap_or(exit_codes::SUCCESS))
}

/// Waits for all sandboxes, or for one of them if `any`; `None` for those that have not ended.
fn ends(
    client: &Client,
    found: &[View],
    any: bool,
    until: Option<Instant>,
) -> Result<Vec<Option<End>>, Failure> {
    let (sender, answers) = mpsc::channel();
    for (index, view) in found.iter().enumerate() {
        let (client, id, sender) = (client.again().map_err(failure)?, view.id.clone(), sender.clone());
        std::thread::Builder::new()
            .spawn(move || {
                // Nobody receives it once the answer is known.
                let _ = sender.send((index, end(&client, &id, until)));
            })
            .map_err(|error| Failure::new(FailureKind::Other, "cannot start a thread").because(error))?;
    }
    drop(sender);
    let mut ends: Vec<Option<End>> = vec![None; found.len()];
    loop {
        let received = match until {
            // The server's last answer may take a moment.
            Some(until) => answers.recv_timeout(until.saturating_duration_since(Instant::now()) + MOMENT),
            None => answers.recv().map_err(RecvTimeoutError::from),
        };
        let Ok((index, end)) = received else { return Ok(ends) };
        let end = end.map_err(failure)?;
        let is_over = end.is_some();
        if let Some(place) = ends.get_mut(index) {
            *place = end;
        }
        if any && is_over {
            return Ok(ends);
        }
    }
}

const MOMENT: Duration = Duration::from_secs(1);

/// Waits for the end of one sandbox; `None` when the time is over.
pub(super) fn end(client: &Client, id: &str, until: Option<Instant>) -> Result<Option<End>, Error> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ms = left.map_or(ROUND_MS, |left| penfold_state::time::millis(left).min(ROUND_MS));
        let path = format!("{}/wait?timeout_ms={ms}", ending::path(id));
        match client.persist(false, |client| client.get::<Waited>(&path)) {
            Ok(Waited { ended: true, exit, cause: Some(cause), failure }) => {
                return Ok(Some(End::SandboxRef { exit, cause, failure }));
            }
            Ok(Waited { ended: true, .. }) => return Ok(Some(End::Unknown)),
            Ok(_) if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            Ok(_) => {}
            Err(Error::Problem(problem)) if problem.kind() == "unverified" => {
                return Ok(Some(End::Unverified));
            }
            Err(Error::Problem(problem)) if problem.kind() == "not_found" => return Ok(Some(End::Removed)),
            Err(error) => return Err(error),
        }
    }
}
