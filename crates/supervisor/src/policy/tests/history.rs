//! The model: keeps all events, and computes the expected decisions from the whole history.

use super::*;

/// The meaning of an input for the end of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EndRequest {
    /// A polite end; with the grace of the sandbox's terms unless another is given.
    Polite(Cause, Option<u64>),
    Kill(Cause),
    LeaderEnded(Cause),
}

/// The model: all events, and no derived state.
#[derive(Debug)]
pub(super) struct History {
    pub(super) script: Script,
    pub(super) wishes: Vec<(u64, EndRequest)>,
    /// Time, length, and whether the end had begun before.
    pub(super) patiences: Vec<(u64, u64, bool)>,
    pub(super) renewals: Vec<(u64, u64)>,
    pub(super) stops: Vec<(i32, Option<i32>)>,
    pub(super) active: (u64, usize),
    pub(super) timed_out: bool,
    pub(super) stuck: bool,
}

impl History {
    pub(super) fn new(script: Script) -> History {
        History {
            script,
            wishes: Vec::new(),
            patiences: Vec::new(),
            renewals: Vec::new(),
            stops: Vec::new(),
            active: (0, 0),
            timed_out: false,
            stuck: false,
        }
    }

    pub(super) fn kind(&self) -> LeaderKind {
        self.script.terms.kind
    }

    pub(super) fn cause(&self) -> Option<Cause> {
        self.wishes.first().map(|(_, wish)| match *wish {
            EndRequest::Polite(cause, _) | EndRequest::Kill(cause) | EndRequest::LeaderEnded(cause) => cause,
        })
    }

    fn owner_wish(&self) -> Option<EndRequest> {
        match self.script.terms.on_owner_exit {
            OwnerExit::Kill => Some(EndRequest::Kill(Cause::Owner)),
            OwnerExit::Stop => Some(EndRequest::Polite(Cause::Owner, None)),
            OwnerExit::Keep => None,
        }
    }

    fn wish(&self, input: &Input) -> Option<EndRequest> {
        let adopted = self.kind() == LeaderKind::Adopted;
        match input {
            Input::Asked(Request::Stop { .. } | Request::Kill) if self.stuck => None,
            Input::Asked(Request::Stop { grace_ms, .. }) => Some(EndRequest::Polite(Cause::Stop, *grace_ms)),
            Input::Asked(Request::Kill) => Some(EndRequest::Kill(Cause::Kill)),
            Input::Asked(Request::OwnerGone) | Input::Term(Some(_)) if adopted => None,
            Input::Asked(Request::OwnerGone) | Input::OwnerGone => self.owner_wish(),
            Input::Asked(Request::StdinClosed { .. }) if self.kind() != LeaderKind::Foreground => None,
            Input::Asked(Request::StdinClosed { kill: true }) => Some(EndRequest::Kill(Cause::Stdin)),
            Input::Asked(Request::StdinClosed { kill: false }) => {
                Some(EndRequest::Polite(Cause::Stdin, Some(ticks(self.script.terms.stop_policy.grace / 2))))
            }
            Input::Asked(_) | Input::Active(_) => None,
            Input::Term(_) => Some(EndRequest::Polite(Cause::Stop, None)),
            Input::StandbyGone => (!self.script.terms.keep).then_some(EndRequest::Kill(Cause::Supervisor)),
            Input::LauncherGone if self.kind() == LeaderKind::Detached => {
                Some(EndRequest::Kill(Cause::Owner))
            }
            Input::LauncherGone => self.owner_wish(),
            Input::LeaderEnded(Some(ExitStatus::Signal(_))) => Some(EndRequest::LeaderEnded(Cause::Signal)),
            Input::LeaderEnded(_) => Some(EndRequest::LeaderEnded(Cause::Exit)),
            Input::OutOfMemory => Some(EndRequest::LeaderEnded(Cause::Oom)),
        }
    }

    /// Adds an input, and returns the expected decision.
    pub(super) fn note(&mut self, now: u64, input: &Input) -> (Option<LifecycleEvent>, Option<Answer>, bool) {
        let ending = self.cause().is_some();
        let wish = self.wish(input);
        let refused = || Some(Answer::Refused("the sandbox is being ended".to_owned()));
        self.wishes.extend(wish.map(|wish| (now, wish)));
        let mut answer = None;
        match input {
            Input::Asked(Request::Stop { .. } | Request::Kill) if self.stuck => {
                return (Some(LifecycleEvent::Look), Some(Answer::Outcome(Box::new(outcome(false)))), false);
            }
            Input::Asked(Request::Stop { signal, spared_group, .. }) => {
                self.stops.push((*signal, *spared_group));
                answer = Some(Answer::Ending(Ending::Stopping(self.grace(now))));
            }
            Input::Asked(Request::Kill) => answer = Some(Answer::Ending(Ending::Killing)),
            Input::Asked(Request::Patience(length)) => {
                self.patiences.push((now, *length, ending));
                answer = Some(Answer::Done);
            }
            Input::Asked(Request::Extend(_)) if ending => answer = refused(),
            Input::Asked(Request::Extend(length)) => {
                if has_control_socket(self.kind()) {
                    self.renewals.push((now, *length));
                }
                answer = Some(Answer::Done);
            }
            Input::Asked(Request::OwnerGone) if self.kind() == LeaderKind::Adopted => {
                answer = Some(Answer::Done);
            }
            Input::Asked(Request::StdinClosed { .. }) if self.kind() != LeaderKind::Foreground => {
                answer = Some(Answer::Refused("the sandbox does not run in the foreground".to_owned()));
            }
            // Like a stop whose signal counts only if no other signal was requested.
            Input::Term(carried) if wish.is_some() && self.signal() == 15 => {
                let group = self.stops.last().and_then(|stop| stop.1);
                self.stops.push((carried.map_or(0, Signal::as_raw), group));
            }
            Input::Active(execs) => self.active = (now, *execs),
            _ => {}
        }
        let begins = !ending && matches!(wish, Some(EndRequest::Polite(..) | EndRequest::Kill(_)));
        let event = wish.map(|wish| match wish {
            EndRequest::Polite(..) => LifecycleEvent::StopRequested,
            EndRequest::Kill(_) => LifecycleEvent::KillRequested,
            EndRequest::LeaderEnded(_) => LifecycleEvent::LeaderExited,
        });
        (event, answer, begins)
    }

    /// Returns the grace at that time: the first one, or the shortest one since.
    pub(super) fn grace(&self, until: u64) -> u64 {
        let made = ticks(self.script.terms.stop_policy.grace);
        let graces = self.wishes.iter().enumerate().filter(|(_, (at, _))| *at <= until);
        let graces = graces.filter_map(|(index, (_, wish))| match wish {
            EndRequest::Polite(_, grace) => Some(grace.unwrap_or(made)),
            EndRequest::Kill(_) | EndRequest::LeaderEnded(_) => (index == 0).then_some(made),
        });
        graces.min().unwrap_or(made)
    }

    /// Returns the patience at that time: the last one before the end began, or the shortest one since.
    pub(super) fn patience(&self, until: u64) -> u64 {
        let asked = || self.patiences.iter().filter(|(at, _, _)| *at <= until);
        let before = asked().rfind(|(_, _, ending)| !ending).map(|patience| patience.1);
        let before = before.unwrap_or(ticks(self.script.terms.stop_policy.patience));
        asked().filter(|(_, _, ending)| *ending).map(|patience| patience.1).fold(before, u64::min)
    }

    pub(super) fn signal(&self) -> i32 {
        let made = self.script.terms.stop_policy.signal.as_raw();
        let mut valid =
            self.stops.iter().map(|stop| stop.0).filter(|number| signal_of_number(*number).is_some());
        if self.kind() == LeaderKind::Exec && made != 15 {
            return made;
        }
        if self.kind() == LeaderKind::Exec {
            // The first signal other than SIGTERM stays.
            return valid.find(|number| *number != 15).unwrap_or(made);
        }
        valid.next_back().unwrap_or(made)
    }

    pub(super) fn spared_group(&self) -> Option<i32> {
        self.stops.last().and_then(|stop| stop.1).filter(|_| self.kind() != LeaderKind::Exec)
    }

    /// Returns the next deadline without a request, and its cause.
    pub(super) fn deadline(&self) -> Option<(u64, Cause)> {
        let (last, execs) = self.active;
        let limit = self.script.limit.filter(|_| !self.timed_out);
        let lease = match self.renewals.last() {
            None => self.script.lease,
            Some((_, 0)) => None,
            Some((at, length)) => Some(at + length),
        };
        let idle = self.script.idle.filter(|_| execs == 0).map(|idle| last + idle);
        let ending = self.cause().is_some();
        let all = [(limit, Cause::Timeout), (idle, Cause::Idle), (lease, Cause::Ttl)];
        let mut first: Option<(u64, Cause)> = None;
        for (at, cause) in all {
            if let Some(at) = at
                && (!ending || cause == Cause::Timeout)
                && first.is_none_or(|(first, _)| at < first)
            {
                first = Some((at, cause));
            }
        }
        first
    }

    /// Returns the time at which the members are killed: no client waits longer than its own grace.
    pub(super) fn kill_time(&self) -> Option<u64> {
        let times = self.wishes.iter().enumerate().filter_map(|(index, (at, wish))| match wish {
            EndRequest::Polite(..) => Some(at + self.grace(*at)),
            EndRequest::Kill(_) => Some(*at),
            // Members that were asked to end keep their grace after the leader's end.
            EndRequest::LeaderEnded(_) => (index == 0).then_some(*at),
        });
        times.min()
    }

    /// Returns the time at which survivors are reported.
    pub(super) fn report_time(&self) -> Option<u64> {
        let killed = self.kill_time()?;
        let later = self
            .wishes
            .iter()
            .filter(|(at, wish)| *at >= killed && !matches!(wish, EndRequest::LeaderEnded(_)));
        let times = later.map(|(at, _)| at + self.patience(*at));
        times.chain([killed + self.patience(killed)]).min()
    }
}
