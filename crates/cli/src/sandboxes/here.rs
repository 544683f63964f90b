//! The sandboxes of this host.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::time::Duration;

use penfold_control::{
    ANSWER, EndLimits, EndMethod, ForgetError, PauseError, ResolveError, Resolver, SandboxEnd, SandboxRef,
    SandboxView, SupervisorClient, SupervisorClientError, view,
};
use penfold_process::quote_words;
use penfold_state::Files;
use penfold_state::wire::{Answer, Request};
use rustix::process::Signal;

use super::Sandboxes;
use super::find::{self, Among, Miss, Selection};
use super::select::Shown;
use super::tally::{self, EndResult};
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};

/// The sandboxes below the state root of this call.
#[derive(Debug)]
pub(crate) struct Here<'a> {
    pub(crate) resolver: Resolver,
    global: &'a Global,
}

impl<'a> Here<'a> {
    /// The sandboxes, for a verb that only looks at them.
    pub(crate) fn new(global: &'a Global) -> Here<'a> {
        Here { resolver: find::resolver(global), global }
    }

    /// The sandboxes, for a verb that acts on many of them.
    ///
    /// # Errors
    /// When the records belong to somebody else.
    pub(crate) fn for_many(global: &'a Global) -> Result<Here<'a>, Failure> {
        find::allow_many();
        let here = Here::new(global);
        // A record that root cannot read is damaged: root still ends such a sandbox by its leaf and marker. For any other
        // user the record belongs to somebody else.
        match here.resolver.blocked().filter(|_| !rustix::process::geteuid().is_root()) {
            Some(error) => Err(error.into()),
            None => Ok(here),
        }
    }

    fn lives(&self, known: &SandboxRef) -> bool {
        view::observe_sandbox(&self.resolver, known).is_some_and(|seen| seen.status.is_living())
    }
}

impl Sandboxes for Here<'_> {
    type Sandbox = SandboxRef;

    fn list(&self, among: Among) -> Result<Vec<(SandboxRef, SandboxView)>, Failure> {
        find::list(&self.resolver, among)
    }

    fn find(&self, word: &str) -> Result<SandboxRef, Miss> {
        self.resolver.resolve(word).map_err(|error| Miss::Word(error.into()))
    }

    fn find_older(&self, word: &str, newest: &SandboxRef) -> Result<Vec<SandboxRef>, Failure> {
        if newest.name.as_deref() != Some(word) {
            return Ok(Vec::new());
        }
        let sentence = format!("cannot list the sandboxes with the name `{word}`");
        self.resolver.ended_with_name(word).or_fail(FailureKind::Other, &sentence)
    }

    fn look_again(&mut self, selection: &mut Selection<SandboxRef>) {
        let fresh = self.resolver.again();
        for known in std::mem::take(&mut selection.found) {
            let same = |now: &SandboxRef| now.id == known.id && now.generation() == known.generation();
            match fresh.resolve(&known.id) {
                Ok(now) if same(&now) => selection.found.push(now),
                // The record disappeared during the question: the sandbox counts as gone.
                Err(ResolveError::NotFound { .. }) => selection.found.push(known),
                Ok(_) | Err(_) => {
                    let sentence = format!("sandbox {} changed while the question was open", known.id);
                    selection.missed.push(Failure::new(FailureKind::Other, sentence));
                }
            }
        }
        self.resolver = fresh;
    }

    fn shown<'a>(&self, known: &'a SandboxRef) -> Shown<'a> {
        let command = known.intent.as_ref().map(|intent| quote_words(&intent.command)).unwrap_or_default();
        Shown { id: &known.id, name: known.name.as_deref(), command }
    }

    fn view(&self, known: &SandboxRef) -> Option<SandboxView> {
        view::observe_sandbox(&self.resolver, known)
    }

    fn end(&self, found: &[SandboxRef], how: EndMethod, limits: &EndLimits, doing: &str) -> Vec<EndResult> {
        let mut slow = tally::progress(self.global, doing, found);
        let results = penfold_control::end_sandboxes(&self.resolver, found, how, limits, &mut slow);
        drop(slow);
        found.iter().zip(results).map(|(known, result)| EndResult::of(&known.id, result)).collect()
    }

    fn check_signal(&self, _: Signal) -> Result<(), Failure> {
        Ok(())
    }

    fn signal(&self, found: &[SandboxRef], signal: Signal) -> Vec<Result<(), Failure>> {
        let records: Vec<Option<&Files>> =
            found.iter().map(|known| known.record.as_ref().filter(|_| self.lives(known))).collect();
        let request = Request::Forward(signal.as_raw());
        let answers = penfold_control::at_once(&records, |files| {
            files.map(|files| SupervisorClient::connect(files, ANSWER)?.request(&request, ANSWER))
        });
        found.iter().zip(answers).map(|(known, answer)| self.is_sent(known, answer)).collect()
    }

    fn forget(&self, known: &SandboxRef, limits: &EndLimits) -> EndResult {
        removal(penfold_control::forget_sandbox(&self.resolver, known, limits))
    }

    fn remove_record(&self, known: &SandboxRef, limits: &EndLimits) -> EndResult {
        removal(penfold_control::remove_record(&self.resolver, known, limits))
    }

    fn wait(
        &self,
        found: &[SandboxRef],
        any: bool,
        limit: Option<Duration>,
    ) -> Result<Vec<Option<SandboxEnd>>, Failure> {
        Ok(penfold_control::wait_for_sandboxes(&self.resolver, found, any, limit, &mut |_| ()))
    }

    fn has_exited(&self, known: &SandboxRef) -> bool {
        known.record.as_ref().is_some_and(|files| matches!(files.exited(), Ok(Some(_))))
    }

    fn was_in_front(&self, known: &SandboxRef) -> bool {
        // The supervisor removes the record at the end.
        let foreground = known.intent.as_ref().is_some_and(|intent| intent.detached.is_none());
        let gone = |files: &Files| files.intent().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        foreground && known.record.as_ref().is_some_and(gone)
    }

    fn set_paused(&self, known: &SandboxRef, paused: bool) -> Result<(), Failure> {
        let (act, set) = if paused {
            ("pause", penfold_control::pause_sandbox(&self.resolver, known))
        } else {
            ("unpause", penfold_control::unpause_sandbox(&self.resolver, known))
        };
        set.map_err(|error| pause_failure(act, &known.id, error))
    }

    fn extend(&self, known: &SandboxRef, lease_ms: u64) -> Result<(), Box<dyn Error>> {
        Ok(penfold_control::extend_lease(&self.resolver, known, lease_ms)?)
    }
}

fn removal(removed: Result<(), ForgetError>) -> EndResult {
    removed.map_or_else(|error| EndResult::Failed(error.into()), |()| EndResult::Gone)
}

impl Here<'_> {
    /// Judges the answer of a supervisor to a signal request. If the sandbox has ended meanwhile, that is success.
    fn is_sent(
        &self,
        known: &SandboxRef,
        answer: Option<Result<Answer, SupervisorClientError>>,
    ) -> Result<(), Failure> {
        let failed = |reason: Box<dyn Error>| {
            Failure::new(FailureKind::Other, format!("cannot signal the command of sandbox {}", known.id))
                .because(reason)
        };
        let ends = || format!("`penfold kill {}` ends it", known.id);
        match answer {
            Some(Ok(Answer::Done)) => Ok(()),
            _ if !Here { resolver: self.resolver.again(), ..*self }.lives(known) => Ok(()),
            Some(Ok(Answer::Refused(reason))) => Err(failed(reason.into())),
            Some(Ok(_)) => Err(failed("the supervisor sent an unexpected answer".into())),
            Some(Err(SupervisorClientError::Foreground { .. })) => {
                Err(failed("it is a foreground sandbox: send the signal to its `penfold run`".into()))
            }
            Some(Err(
                error @ (SupervisorClientError::NoSocket { .. } | SupervisorClientError::Deserted { .. }),
            )) => Err(failed(error.into()).hint(ends())),
            Some(Err(error)) => Err(failed(error.into())),
            None => Err(failed("its record is lost, so its supervisor cannot be asked".into()).hint(ends())),
        }
    }
}

fn pause_failure(act: &str, id: &str, error: PauseError) -> Failure {
    let kind = match &error {
        PauseError::Cgroup(error) => error_kind(error),
        _ => FailureKind::Other,
    };
    let hint = match &error {
        PauseError::NoLeaf => Some(
            "`penfold kill -s STOP ID` stops its command only; `penfold doctor` tells why there is no cgroup",
        ),
        PauseError::Inside => Some("call it from outside of the sandbox"),
        _ => None,
    };
    let failure = Failure::new(kind, format!("cannot {act} sandbox {id}")).because(error);
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// The kind of an error of the kernel.
fn error_kind(error: &(dyn std::error::Error + 'static)) -> FailureKind {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.map_or(FailureKind::Other, FailureKind::from)
}
