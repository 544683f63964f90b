//! Ends execs, and waits for their ends.
//!
//! All execs of a call share one connection. The supervisor is asked to report the end of one exec; then its list of
//! execs shows which of the others have ended meanwhile.

use std::time::{Duration, Instant};

use penfold_state::time::whole_millis;
use penfold_state::wire::{Answer, Request};
use penfold_state::{ExecFiles, ExitStatus, Files, Report};
use penfold_teardown::{Cause, Survivor};

use super::view::{ExecEnding, ExecEvidence, ExecStatus, LIMIT};
use super::{ExecError, ask, open};
use crate::client::{ANSWER, SupervisorClient, SupervisorClientError, has_just_ended};
use crate::timeout::pause_before_retry;

/// The interval of looks without a supervisor that would report the end, and with one.
const LOOK: Duration = Duration::from_millis(5);
const LOOK_ASKED: Duration = Duration::from_millis(100);
/// The most requests without an answer: so many fit into the buffers of a socket.
const MAX_UNANSWERED: usize = 32;
/// The most directories that are open at a time.
const MAX_OPEN: usize = 128;

/// The end of an exec.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecEnd {
    /// The number of the exec.
    pub number: u32,
    /// How the command ended; `None` if unknown.
    pub exit: Option<ExitStatus>,
    /// Why the exec ended.
    pub cause: Option<Cause>,
    /// The time of the end, in milliseconds since 1970.
    pub ended_at_ms: Option<u64>,
    /// The report of the verified end; `None` with survivors.
    pub report: Option<Report>,
    /// The survivors after the patience.
    pub remaining: Vec<Survivor>,
}

/// Stops an exec politely, and waits for its verified end. Without `signal` or `grace`, the exec's own apply.
///
/// # Errors
/// [`ExecError::Unverified`] when the exec has not ended within its grace and `patience`.
pub fn stop_exec(
    files: &Files,
    number: u32,
    signal: Option<i32>,
    grace: Option<Duration>,
    patience: Duration,
) -> Result<ExecEnd, ExecError> {
    let mut ends = stop_all(files, &[number], signal, grace, patience);
    ends.pop().unwrap_or(Err(ExecError::Unverified { number }))
}

/// Stops execs of one sandbox at the same time, as [`stop_exec`] does, and waits until each has ended or `patience` is over.
///
/// The results are in the order of `numbers`. Each end is verified for itself: an exec that does not end delays this
/// answer, but no other exec.
pub fn stop_all(
    files: &Files,
    numbers: &[u32],
    signal: Option<i32>,
    grace: Option<Duration>,
    patience: Duration,
) -> Vec<Result<ExecEnd, ExecError>> {
    let (signal, grace_ms) = (signal.unwrap_or(0), grace.map(whole_millis));
    end_all(files, numbers, |number| Request::StopExec { number, signal, grace_ms }, patience)
}

/// Kills an exec at once, and waits for its verified end.
///
/// # Errors
/// [`ExecError::Unverified`] when the exec has not ended within `patience`.
pub fn kill_exec(files: &Files, number: u32, patience: Duration) -> Result<ExecEnd, ExecError> {
    let mut ends = end_all(files, &[number], Request::KillExec, patience);
    ends.pop().unwrap_or(Err(ExecError::Unverified { number }))
}

/// Asks the supervisor to stop an exec as [`stop_exec`] does, and does not wait for the end. The stop goes on without the caller.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs.
pub fn begin_stop(
    files: &Files,
    number: u32,
    signal: Option<i32>,
    grace: Option<Duration>,
) -> Result<(), ExecError> {
    ask(files, &Request::StopExec { number, signal: signal.unwrap_or(0), grace_ms: grace.map(whole_millis) })
}

/// Asks the supervisor to kill an exec, and does not wait for the end. The kill goes on without the caller.
///
/// # Errors
/// [`ExecError::Refused`] when no such exec runs.
pub fn begin_kill(files: &Files, number: u32) -> Result<(), ExecError> {
    ask(files, &Request::KillExec(number))
}

/// Waits for the end of an exec. `None` when the exec has not ended at the deadline.
///
/// # Errors
/// [`ExecError::NotFound`] when there is no such exec, also when it is removed meanwhile.
pub fn wait_for_exec(
    files: &Files,
    number: u32,
    deadline: Option<Instant>,
) -> Result<Option<ExecEnd>, ExecError> {
    let mut awaited = AwaitedExec { number, exec: Some(open(files, number)?), result: None };
    wait_for(files, &mut [&mut awaited], &mut SupervisorLink::default(), deadline);
    awaited.result.transpose()
}

fn end_all(
    files: &Files,
    numbers: &[u32],
    request: impl Fn(u32) -> Request,
    patience: Duration,
) -> Vec<Result<ExecEnd, ExecError>> {
    let deadline = Instant::now().checked_add(patience);
    let mut all: Vec<AwaitedExec> =
        numbers.iter().map(|&number| AwaitedExec { number, exec: None, result: None }).collect();
    let mut evidence = ExecEvidence::default();
    for (index, awaited) in all.iter_mut().enumerate() {
        awaited.look(files, &mut evidence);
        awaited.exec.take_if(|_| index >= MAX_OPEN);
    }
    let mut running: Vec<&mut AwaitedExec> =
        all.iter_mut().filter(|awaited| awaited.result.is_none()).collect();
    let mut supervisor = SupervisorLink::default();
    if !running.is_empty() {
        match SupervisorClient::connect(files, ANSWER) {
            Ok(client) => {
                penfold_sys::crash_point!("exec-end-connected");
                let numbers: Vec<u32> = running.iter().map(|awaited| awaited.number).collect();
                if let Err((answered, error)) =
                    ask_all(&client, numbers.iter().map(|&number| request(number)))
                    && !has_just_ended(files)
                {
                    for awaited in running.iter_mut().skip(answered) {
                        awaited.result = Some(Err(ExecError::Unanswered(error.clone())));
                    }
                }
                supervisor.client = Some(client);
            }
            // All of them have ended with their sandbox.
            Err(SupervisorClientError::Ended { .. }) => {}
            Err(error) => {
                for awaited in &mut running {
                    awaited.result = Some(Err(ExecError::Client(error.clone())));
                }
            }
        }
    }
    // All have been asked: the wait for one group costs the next no time.
    for group in running.chunks_mut(MAX_OPEN) {
        wait_for(files, group, &mut supervisor, deadline);
        for awaited in group {
            awaited.exec = None;
        }
        supervisor.is_news = true;
    }
    let unverified = |number| Err(ExecError::Unverified { number });
    all.into_iter().map(|awaited| awaited.result.unwrap_or(unverified(awaited.number))).collect()
}

/// Sends requests, and waits until each is answered. A refusal is an answer: the exec has ended meanwhile, or its end is
/// not on disk so far.
///
/// # Errors
/// The number of answered requests, and why the next is not answered.
fn ask_all(
    client: &SupervisorClient,
    requests: impl Iterator<Item = Request>,
) -> Result<(), (usize, SupervisorClientError)> {
    let until = Instant::now() + ANSWER;
    let (mut sent, mut answered, mut failed) = (0, 0, None);
    for request in requests {
        if sent - answered == MAX_UNANSWERED {
            await_answer(client, until).map_err(|error| (answered, error))?;
            answered += 1;
        }
        if let Err(error) = client.send(&request, &[]) {
            failed = Some(error);
            break;
        }
        sent += 1;
    }
    while answered < sent {
        await_answer(client, until).map_err(|error| (answered, error))?;
        answered += 1;
    }
    failed.map_or(Ok(()), |error| Err((answered, error)))
}

fn await_answer(client: &SupervisorClient, until: Instant) -> Result<(), SupervisorClientError> {
    // An outcome is sent to every client.
    while let Answer::Outcome(_) = client.answer(until)? {}
    Ok(())
}

/// An exec whose end is awaited.
struct AwaitedExec {
    number: u32,
    /// The directory, once it was opened. A member may put another one in its place.
    exec: Option<ExecFiles>,
    result: Option<Result<ExecEnd, ExecError>>,
}

impl AwaitedExec {
    /// Sets the result if the exec has ended or has survivors.
    fn look(&mut self, files: &Files, evidence: &mut ExecEvidence) {
        self.result = self.end(files, evidence).transpose();
    }

    fn end(&mut self, files: &Files, evidence: &mut ExecEvidence) -> Result<Option<ExecEnd>, ExecError> {
        let number = self.number;
        let exec = match &mut self.exec {
            Some(exec) => exec,
            none => none.insert(open(files, number)?),
        };
        let ending = ExecEnding::of(files, exec, evidence, false);
        let removed = rustix::fs::fstat(exec.dir()).is_ok_and(|stat| stat.st_nlink == 0);
        if removed && ending.report.is_none() {
            return Err(ExecError::NotFound { number, id: files.name().to_owned() });
        }
        if ending.status == ExecStatus::Running && ending.remaining.is_empty() {
            return Ok(None);
        }
        let ExecEnding { exit, cause, ended_at_ms, report, remaining, .. } = ending;
        Ok(Some(ExecEnd { number, exit, cause, ended_at_ms, report, remaining }))
    }
}

/// The supervisor, as far as it can be asked about the ends of execs.
#[derive(Default)]
struct SupervisorLink {
    client: Option<SupervisorClient>,
    /// The exec whose end it will report on this connection.
    reports: Option<u32>,
    /// Execs may have ended since it was asked last.
    is_news: bool,
}

impl SupervisorLink {
    /// Returns the evidence about execs that have not ended so far.
    fn evidence(&mut self, running: &[u32]) -> ExecEvidence {
        let is_news = std::mem::take(&mut self.is_news);
        let listed =
            self.client.as_ref().map(|client| if is_news { listed(client) } else { Ok(running.to_vec()) });
        match listed {
            Some(Ok(running)) => ExecEvidence::of_supervisor(running),
            Some(Err(_)) => {
                *self = SupervisorLink::default();
                ExecEvidence::default()
            }
            None => ExecEvidence::default(),
        }
    }

    /// Waits for news about this exec, but not for long.
    fn wait(&mut self, files: &Files, number: u32, until: Instant) {
        let Some(client) = &self.client else {
            let left = until.saturating_duration_since(Instant::now());
            match SupervisorClient::connect(files, left) {
                Ok(client) => *self = SupervisorLink { client: Some(client), reports: None, is_news: false },
                Err(_) => pause_before_retry(LOOK.min(left)),
            }
            return;
        };
        if self.reports != Some(number) {
            if client.send(&Request::AwaitExec(number), &[]).is_err() {
                *self = SupervisorLink::default();
                return;
            }
            self.reports = Some(number);
        }
        match client.answer(until) {
            Ok(Answer::ExecEnded(_) | Answer::UnwrittenEnds(_)) => {
                (self.reports, self.is_news) = (None, true);
            }
            Err(SupervisorClientError::Silent { .. }) => {}
            Ok(Answer::Refused(_)) | Err(_) => {
                *self = SupervisorLink::default();
                pause_before_retry(LOOK);
            }
            Ok(_) => {}
        }
    }
}

/// Returns the execs whose end is not verified, as the supervisor says.
fn listed(client: &SupervisorClient) -> Result<Vec<u32>, SupervisorClientError> {
    let until = Instant::now() + LIMIT;
    client.send(&Request::Execs, &[])?;
    loop {
        if let Answer::Execs(running) = client.answer(until)? {
            return Ok(running);
        }
    }
}

/// Waits until all have a result, or the deadline has passed.
fn wait_for(
    files: &Files,
    execs: &mut [&mut AwaitedExec],
    supervisor: &mut SupervisorLink,
    deadline: Option<Instant>,
) {
    loop {
        let running = |execs: &[&mut AwaitedExec]| -> Vec<u32> {
            let running = execs.iter().filter(|awaited| awaited.result.is_none());
            running.map(|awaited| awaited.number).collect()
        };
        let mut evidence = supervisor.evidence(&running(execs));
        for awaited in execs.iter_mut().filter(|awaited| awaited.result.is_none()) {
            awaited.look(files, &mut evidence);
        }
        // When it has ended, half of the others most likely have: their ends are read while the rest still end.
        let left = running(execs);
        let Some(&next) = left.get(left.len() / 2) else { return };
        let now = Instant::now();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return;
        }
        let until = deadline.map_or(now + LOOK_ASKED, |deadline| deadline.min(now + LOOK_ASKED));
        supervisor.wait(files, next, until);
        // One that is stuck keeps the supervisor silent about the others.
        supervisor.is_news |= left.len() > 1 && Instant::now() >= until;
    }
}
