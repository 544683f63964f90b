//! The life of a sandbox as a pure table: the next phase and the action for each phase and event.
//!
//! All I/O is in the driver ([`drive_teardown()`](crate::drive_teardown())); late and duplicate events are normal and change nothing.

/// The phase of a sandbox's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The leader may execute its program at any moment, and is not seen to run it yet.
    Starting,
    /// The leader runs.
    Running,
    /// The leader has ended, and the members that it left have time to end by themselves.
    Lingering,
    /// Members were asked to end and have their grace.
    Stopping,
    /// Members are being killed.
    Killing,
    /// A member did not die in time; the driver continues to kill it.
    Stuck,
    /// Nothing is left.
    Gone,
}

/// An event in a sandbox's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LifecycleEvent {
    /// The leader has executed its program.
    Started,
    /// The leader could not execute its program.
    StartFailed,
    /// The leader has ended.
    LeaderExited,
    /// The leader has ended, and the members that it left get time to end by themselves.
    LeaderLeft,
    /// A stop was requested.
    StopRequested,
    /// A kill was requested.
    KillRequested,
    /// The grace of a stop is over, or the time of members that outlived their leader.
    GraceOver,
    /// The time that a kill may take is over.
    PatienceOver,
    /// A look has verified that no member is left.
    Unpopulated,
    /// The next look for new or remaining members is due.
    Look,
}

/// An action of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Wait for the next event.
    Nothing,
    /// Leave the members alone; the first time, arm the time after which they count as left behind.
    Linger,
    /// Send the polite signal to every member that has not had it; the first time, arm the grace.
    Ask,
    /// Kill every member; the first time, arm the patience.
    Kill,
    /// Name the survivors, answer, and continue to kill them.
    Report,
    /// Release the resources, verify and answer.
    Release,
}

/// Returns the next phase and the action, for each phase and event.
pub fn step_lifecycle(phase: Phase, event: LifecycleEvent) -> (Phase, Action) {
    match (phase, event) {
        (Phase::Starting, LifecycleEvent::Started) => (Phase::Running, Action::Nothing),
        (
            Phase::Starting,
            LifecycleEvent::LeaderExited | LifecycleEvent::LeaderLeft | LifecycleEvent::KillRequested,
        )
        // Without a program, nothing can honour a polite signal.
        | (Phase::Starting | Phase::Stopping, LifecycleEvent::StartFailed)
        // Members that outlive the leader are killed without a grace.
        | (Phase::Running, LifecycleEvent::LeaderExited | LifecycleEvent::KillRequested)
        | (Phase::Lingering | Phase::Stopping, LifecycleEvent::KillRequested | LifecycleEvent::GraceOver) => {
            (Phase::Killing, Action::Kill)
        }
        (Phase::Running, LifecycleEvent::LeaderLeft) | (Phase::Lingering, LifecycleEvent::Look) => {
            (Phase::Lingering, Action::Linger)
        }
        // The program may run already: the supervisor sees that a moment later.
        (Phase::Starting | Phase::Running | Phase::Lingering, LifecycleEvent::StopRequested)
        | (Phase::Stopping, LifecycleEvent::Look) => (Phase::Stopping, Action::Ask),
        (Phase::Killing | Phase::Stuck, LifecycleEvent::Look) => (phase, Action::Kill),
        (Phase::Killing, LifecycleEvent::PatienceOver) => (Phase::Stuck, Action::Report),
        (
            Phase::Starting
            | Phase::Running
            | Phase::Lingering
            | Phase::Stopping
            | Phase::Killing
            | Phase::Stuck,
            LifecycleEvent::Unpopulated,
        ) => (Phase::Gone, Action::Release),
        (
            Phase::Starting | Phase::Running,
            LifecycleEvent::Look | LifecycleEvent::GraceOver | LifecycleEvent::PatienceOver,
        )
        | (
            Phase::Running | Phase::Lingering | Phase::Stopping | Phase::Killing | Phase::Stuck,
            LifecycleEvent::Started,
        )
        | (
            Phase::Running | Phase::Lingering | Phase::Killing | Phase::Stuck,
            LifecycleEvent::StartFailed,
        )
        | (Phase::Lingering, LifecycleEvent::LeaderExited | LifecycleEvent::LeaderLeft | LifecycleEvent::PatienceOver)
        // A second stop request changes nothing: a client that wants more requests a kill.
        | (
            Phase::Stopping,
            LifecycleEvent::LeaderExited | LifecycleEvent::LeaderLeft | LifecycleEvent::StopRequested | LifecycleEvent::PatienceOver,
        )
        | (
            Phase::Killing | Phase::Stuck,
            LifecycleEvent::LeaderExited | LifecycleEvent::LeaderLeft | LifecycleEvent::StopRequested | LifecycleEvent::KillRequested | LifecycleEvent::GraceOver,
        )
        | (Phase::Stuck, LifecycleEvent::PatienceOver)
        | (Phase::Gone, _) => (phase, Action::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 7] = [
        Phase::Starting,
        Phase::Running,
        Phase::Lingering,
        Phase::Stopping,
        Phase::Killing,
        Phase::Stuck,
        Phase::Gone,
    ];
    const EVENTS: [LifecycleEvent; 10] = [
        LifecycleEvent::Started,
        LifecycleEvent::StartFailed,
        LifecycleEvent::LeaderExited,
        LifecycleEvent::LeaderLeft,
        LifecycleEvent::StopRequested,
        LifecycleEvent::KillRequested,
        LifecycleEvent::GraceOver,
        LifecycleEvent::PatienceOver,
        LifecycleEvent::Unpopulated,
        LifecycleEvent::Look,
    ];

    /// spec: 2.5
    #[test]
    fn a_kill_request_never_leads_back_to_politeness() {
        for phase in PHASES {
            let (next, action) = step_lifecycle(phase, LifecycleEvent::KillRequested);
            assert!(matches!(next, Phase::Killing | Phase::Stuck | Phase::Gone), "{phase:?} -> {next:?}");
            assert_ne!(action, Action::Ask);
        }
    }

    /// spec: 1.2
    #[test]
    fn a_stop_during_the_start_is_polite_until_the_start_fails() {
        let (stopping, action) = step_lifecycle(Phase::Starting, LifecycleEvent::StopRequested);
        assert_eq!((stopping, action), (Phase::Stopping, Action::Ask));
        assert_eq!(step_lifecycle(stopping, LifecycleEvent::Started), (Phase::Stopping, Action::Nothing));
        assert_eq!(step_lifecycle(stopping, LifecycleEvent::StartFailed), (Phase::Killing, Action::Kill));
    }

    /// spec: 2.1
    #[test]
    fn only_an_observed_end_leads_to_gone() {
        for phase in PHASES {
            for event in EVENTS {
                let (next, action) = step_lifecycle(phase, event);
                if next == Phase::Gone && phase != Phase::Gone {
                    assert_eq!((event, action), (LifecycleEvent::Unpopulated, Action::Release), "{phase:?}");
                }
                assert_eq!(action == Action::Release, next == Phase::Gone && phase != Phase::Gone);
            }
        }
    }

    /// spec: 2.1
    #[test]
    fn gone_is_the_end() {
        for event in EVENTS {
            assert_eq!(step_lifecycle(Phase::Gone, event), (Phase::Gone, Action::Nothing));
        }
    }
}
