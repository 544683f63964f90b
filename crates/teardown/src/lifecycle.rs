//! The life of a sandbox as a pure table: what to do when something happens.
//!
//! All I/O sits in the driver ([`drive()`](crate::drive())); late and duplicate events are normal and change nothing.

/// Where in its life a sandbox is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The leader is not yet running its program.
    Starting,
    /// The leader runs.
    Running,
    /// Members were asked to end and have their grace.
    Stopping,
    /// Members are being killed.
    Killing,
    /// Something would not die in the time given; it is still looked after.
    Stuck,
    /// Nothing is left.
    Gone,
}

/// What can happen to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// The leader has become its program.
    Started,
    /// The leader could not become its program.
    StartFailed,
    /// The leader has ended.
    LeaderExited,
    /// Somebody wants the sandbox to end politely.
    StopRequested,
    /// Somebody wants the sandbox to end now.
    KillRequested,
    /// The grace of a stop is over.
    GraceOver,
    /// The time that a kill may take is over.
    PatienceOver,
    /// It was looked, and no member is left.
    Unpopulated,
    /// It is time to look again for members that are new, or still there.
    Look,
}

/// What the driver is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Wait for the next event.
    Nothing,
    /// Send the polite signal to every member that has not had it; the first time, arm the grace.
    Ask,
    /// Kill every member; the first time, arm the patience.
    Kill,
    /// Name what is left, answer, and go on looking after it.
    Report,
    /// Release the resources, verify and answer.
    Release,
}

/// The next phase and what to do, for each phase and event.
pub fn step(phase: Phase, event: Event) -> (Phase, Action) {
    match (phase, event) {
        (Phase::Starting, Event::Started) => (Phase::Running, Action::Nothing),
        // No program yet, so nothing can honour a polite signal.
        (
            Phase::Starting,
            Event::StartFailed | Event::LeaderExited | Event::StopRequested | Event::KillRequested,
        )
        // What the leader left behind has no one to be polite for.
        | (Phase::Running, Event::LeaderExited | Event::KillRequested)
        | (Phase::Stopping, Event::KillRequested | Event::GraceOver) => {
            (Phase::Killing, Action::Kill)
        }
        (Phase::Running, Event::StopRequested) | (Phase::Stopping, Event::Look) => {
            (Phase::Stopping, Action::Ask)
        }
        (Phase::Killing | Phase::Stuck, Event::Look) => (phase, Action::Kill),
        (Phase::Killing, Event::PatienceOver) => (Phase::Stuck, Action::Report),
        (Phase::Starting | Phase::Running | Phase::Stopping | Phase::Killing | Phase::Stuck, Event::Unpopulated) => {
            (Phase::Gone, Action::Release)
        }
        (
            Phase::Starting | Phase::Running,
            Event::Look | Event::GraceOver | Event::PatienceOver,
        )
        | (
            Phase::Running | Phase::Stopping | Phase::Killing | Phase::Stuck,
            Event::Started | Event::StartFailed,
        )
        // A second wish to stop is nothing new: who wants more asks to kill.
        | (Phase::Stopping, Event::LeaderExited | Event::StopRequested | Event::PatienceOver)
        | (
            Phase::Killing | Phase::Stuck,
            Event::LeaderExited | Event::StopRequested | Event::KillRequested | Event::GraceOver,
        )
        | (Phase::Stuck, Event::PatienceOver)
        | (Phase::Gone, _) => (phase, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 6] =
        [Phase::Starting, Phase::Running, Phase::Stopping, Phase::Killing, Phase::Stuck, Phase::Gone];
    const EVENTS: [Event; 9] = [
        Event::Started,
        Event::StartFailed,
        Event::LeaderExited,
        Event::StopRequested,
        Event::KillRequested,
        Event::GraceOver,
        Event::PatienceOver,
        Event::Unpopulated,
        Event::Look,
    ];

    /// spec: 2.5
    #[test]
    fn a_kill_request_never_leads_back_to_politeness() {
        for phase in PHASES {
            let (next, action) = step(phase, Event::KillRequested);
            assert!(matches!(next, Phase::Killing | Phase::Stuck | Phase::Gone), "{phase:?} -> {next:?}");
            assert_ne!(action, Action::Ask);
        }
    }

    /// spec: 2.1
    #[test]
    fn only_an_observed_end_leads_to_gone() {
        for phase in PHASES {
            for event in EVENTS {
                let (next, action) = step(phase, event);
                if next == Phase::Gone && phase != Phase::Gone {
                    assert_eq!((event, action), (Event::Unpopulated, Action::Release), "{phase:?}");
                }
                assert_eq!(action == Action::Release, next == Phase::Gone && phase != Phase::Gone);
            }
        }
    }

    /// spec: 2.1
    #[test]
    fn gone_is_the_end() {
        for event in EVENTS {
            assert_eq!(step(Phase::Gone, event), (Phase::Gone, Action::Nothing));
        }
    }
}
