//! The sandboxes of a server.

pub(crate) mod foreground;
pub(crate) mod terminal;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use penfold_api::{Ended, Sandbox};
use penfold_client::{Client, Error, Method, Problem, encode_word};
use penfold_control::{EndLimits, EndMethod, ForgetError, ResolveError, SandboxEnd, SandboxView};
use penfold_state::time::whole_millis;
use penfold_state::{ExitStatus, StartFailure};
use penfold_teardown::Cause;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::Sandboxes;
use super::find::{Among, Miss, Selection};
use super::select::Shown;
use super::tally::EndResult;
use crate::failure::{Failure, FailureKind};
use crate::output;

/// The sandboxes of a server, as it shows them.
#[derive(Debug)]
pub(crate) struct OnServer(pub(crate) Client);

impl Sandboxes for OnServer {
    type Sandbox = SandboxView;

    fn list(&self, among: Among) -> Result<Vec<(SandboxView, SandboxView)>, Failure> {
        Ok(list(&self.0, among)?.into_iter().map(|view| (view.clone(), view)).collect())
    }

    fn find(&self, word: &str) -> Result<SandboxView, Miss> {
        let missing = || Miss::Word(ResolveError::NotFound { word: word.to_owned() }.into());
        if word.is_empty() {
            return Err(missing());
        }
        match self.0.sandbox(word).map(Sandbox::into_view) {
            Ok(view) => Ok(view),
            Err(Error::Problem(problem)) if problem.kind() == "not_found" => Err(missing()),
            Err(error) => {
                let failure = Failure::from(error);
                let is_word = failure.kind() == FailureKind::Ambiguous;
                Err(if is_word { Miss::Word(failure) } else { Miss::Place(failure) })
            }
        }
    }

    fn find_older(&self, word: &str, newest: &SandboxView) -> Result<Vec<SandboxView>, Failure> {
        if newest.name.as_deref() != Some(word) {
            return Ok(Vec::new());
        }
        let mut found = list(&self.0, Among::Every)?;
        found.retain(|view| view.name.as_deref() == Some(word) && !view.status.is_living());
        Ok(found)
    }

    fn look_again(&mut self, _: &mut Selection<SandboxView>) {
        // A request names an id, which no later sandbox has.
    }

    fn shown<'a>(&self, view: &'a SandboxView) -> Shown<'a> {
        Shown { id: &view.id, name: view.name.as_deref(), command: view.command_line() }
    }

    fn view(&self, view: &SandboxView) -> Option<SandboxView> {
        Some(view.clone())
    }

    fn end(&self, found: &[SandboxView], how: EndMethod, limits: &EndLimits, _: &str) -> Vec<EndResult> {
        let patience_ms = limits.patience.map(whole_millis);
        let (act, body) = match how {
            EndMethod::Stop { signal, grace } => {
                let signal = signal.map(|signal| signal.as_raw().to_string());
                let grace_ms = grace.map(whole_millis);
                ("stop", json!({ "signal": signal, "grace_ms": grace_ms, "patience_ms": patience_ms }))
            }
            EndMethod::Kill => ("kill", json!({ "patience_ms": patience_ms })),
        };
        let ended = penfold_control::at_once(found, |view| request_end(&self.0, &view.id, act, &body));
        found.iter().zip(ended).map(|(view, ended)| end_result(&view.id, ended)).collect()
    }

    fn check_signal(&self, signal: Signal) -> Result<(), Failure> {
        if signal == Signal::KILL {
            return Ok(());
        }
        let sentence = "a server kills sandboxes only: `--signal` cannot be used together with `--host`";
        Err(Failure::new(FailureKind::Usage, sentence)
            .hint("`penfold stop -s SIGNAL` sends it, and ends the sandbox"))
    }

    fn signal(&self, found: &[SandboxView], signal: Signal) -> Vec<Result<(), Failure>> {
        found.iter().map(|_| self.check_signal(signal)).collect()
    }

    fn forget(&self, view: &SandboxView, limits: &EndLimits) -> EndResult {
        if view.status.is_living() {
            let error = ForgetError::Living { id: view.id.clone(), status: view.status };
            return EndResult::Failed(error.into());
        }
        self.remove_record(view, limits)
    }

    fn remove_record(&self, view: &SandboxView, _: &EndLimits) -> EndResult {
        end_result(&view.id, self.0.send::<Ended>(Method::DELETE, &path(&view.id), &[], Vec::new().into()))
    }

    fn wait(
        &self,
        found: &[SandboxView],
        any: bool,
        limit: Option<Duration>,
    ) -> Result<Vec<Option<SandboxEnd>>, Failure> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        ends(&self.0, found, any, until)
    }

    fn has_exited(&self, _: &SandboxView) -> bool {
        // The server does not tell.
        false
    }

    fn was_in_front(&self, view: &SandboxView) -> bool {
        !view.detached
    }

    fn set_paused(&self, view: &SandboxView, paused: bool) -> Result<(), Failure> {
        let act = if paused { "pause" } else { "unpause" };
        let url = format!("{}/{act}", path(&view.id));
        let done = self.0.send::<Sandbox>(Method::POST, &url, &[], Vec::new().into());
        done.map(drop).map_err(|error| {
            Failure::new(FailureKind::Other, format!("cannot {act} sandbox {}", view.id)).because(error)
        })
    }

    fn extend(&self, view: &SandboxView, lease_ms: u64) -> Result<(), Box<dyn std::error::Error>> {
        let url = format!("{}/extend", path(&view.id));
        self.0.call::<Sandbox>(Method::POST, &url, &[], &json!({ "lease_ms": lease_ms }))?;
        Ok(())
    }
}

/// Lists the sandboxes of the server; the youngest last.
pub(crate) fn list(client: &Client, among: Among) -> Result<Vec<SandboxView>, Failure> {
    Ok(client.list(among == Among::Every)?.into_iter().map(Sandbox::into_view).collect())
}

/// The path of a sandbox.
pub(crate) fn path(id: &str) -> String {
    format!("/v1/sandboxes/{}", encode_word(id))
}

/// Says that a sandbox was removed while this client worked with it, and returns the exit code for its command; `None` if the server
/// still has it, or does not answer.
pub(crate) fn tell_removed(client: &Client, id: &str) -> Option<u8> {
    let gone = |problem: &Problem| problem.kind() == "not_found";
    client.sandbox(id).err().filter(|error| error.problem().is_some_and(gone))?;
    output::message(&format!("penfold: sandbox {id} was killed and removed\n"));
    Some(ExitStatus::Signal(Signal::KILL.as_raw()).process_code())
}

/// Requests the end of one sandbox, with a client of its own.
pub(crate) fn request_end(client: &Client, id: &str, act: &str, body: &Value) -> Result<Ended, Error> {
    let client = client.again()?;
    // Ending twice is ending once.
    client.persist(true, |client| client.call(Method::POST, &format!("{}/{act}", path(id)), &[], body))
}

fn end_result(id: &str, ended: Result<Ended, Error>) -> EndResult {
    match ended {
        Ok(_) => EndResult::Gone,
        Err(Error::Problem(problem)) if !problem.remaining.is_empty() => EndResult::Left(problem.remaining),
        Err(Error::Problem(problem)) if problem.kind() == "not_found" => EndResult::Gone,
        Err(error) => {
            let failure = Failure::new(failure_kind(&error), format!("cannot end sandbox {id}"));
            EndResult::Failed(failure.because(error))
        }
    }
}

fn failure_kind(error: &Error) -> FailureKind {
    match error.problem().map(penfold_client::Problem::kind) {
        Some("unverified") => FailureKind::StillThere,
        Some("unauthorized" | "forbidden" | "not_permitted") => FailureKind::NotPermitted,
        _ => FailureKind::Other,
    }
}

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

/// Waits for all sandboxes, or for one of them if `any`; `None` for those that have not ended.
fn ends(
    client: &Client,
    found: &[SandboxView],
    any: bool,
    until: Option<Instant>,
) -> Result<Vec<Option<SandboxEnd>>, Failure> {
    let (sender, answers) = mpsc::channel();
    for (index, view) in found.iter().enumerate() {
        let (client, id, sender) = (client.again()?, view.id.clone(), sender.clone());
        std::thread::Builder::new()
            .spawn(move || {
                // Nobody receives it once the answer is known.
                let _ = sender.send((index, wait_for_end(&client, &id, until)));
            })
            .map_err(|error| Failure::new(FailureKind::Other, "cannot start a thread").because(error))?;
    }
    drop(sender);
    let mut ends: Vec<Option<SandboxEnd>> = vec![None; found.len()];
    loop {
        let received = match until {
            // The server's last answer may take a moment.
            Some(until) => answers.recv_timeout(until.saturating_duration_since(Instant::now()) + MOMENT),
            None => answers.recv().map_err(RecvTimeoutError::from),
        };
        let Ok((index, end)) = received else { return Ok(ends) };
        let end = end?;
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
pub(crate) fn wait_for_end(
    client: &Client,
    id: &str,
    until: Option<Instant>,
) -> Result<Option<SandboxEnd>, Error> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let ms = left.map_or(ROUND_MS, |left| penfold_state::time::whole_millis(left).min(ROUND_MS));
        let path = format!("{}/wait?timeout_ms={ms}", path(id));
        match client.persist(false, |client| client.get::<Waited>(&path)) {
            Ok(Waited { ended: true, exit, cause: Some(cause), failure }) => {
                return Ok(Some(SandboxEnd::Known { exit, cause, failure }));
            }
            Ok(Waited { ended: true, .. }) => return Ok(Some(SandboxEnd::Unknown)),
            Ok(_) if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            Ok(_) => {}
            Err(Error::Problem(problem)) if problem.kind() == "unverified" => {
                return Ok(Some(SandboxEnd::Unverified));
            }
            Err(Error::Problem(problem)) if problem.kind() == "not_found" => {
                return Ok(Some(SandboxEnd::Removed));
            }
            Err(error) => return Err(error),
        }
    }
}
