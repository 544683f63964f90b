//! Tests the policy with a fake host: random clients and a simulated clock, against a model that keeps only the
//! history.

mod examples;
mod history;
mod script;
mod world;

use std::collections::BTreeMap;

use penfold_state::{Limits, Report};
use penfold_teardown::lifecycle::Phase;
use penfold_teardown::{Findings, Level};
use proptest::prelude::*;

use self::history::{EndRequest, History};
use self::script::script;
use self::world::World;
use super::*;

/// An external event of a sandbox.
#[derive(Debug, Clone)]
enum Input {
    Asked(Request),
    Term(Option<Signal>),
    StandbyGone,
    LauncherGone,
    OwnerGone,
    LeaderEnded(Option<ExitStatus>),
    OutOfMemory,
    /// Output, or the start or end of an exec, with the number of execs that run from then on.
    Active(usize),
}

/// One poll round: inputs that are queued together, `after` ticks later than the last round.
#[derive(Debug, Clone)]
struct Round {
    after: u64,
    inputs: Vec<Input>,
    /// The supervisor is not scheduled before `after`, even if a deadline passes.
    stalled: bool,
}

/// A sandbox and all its external events.
#[derive(Debug, Clone)]
struct Script {
    terms: Terms,
    limit: Option<u64>,
    lease: Option<u64>,
    idle: Option<u64>,
    rounds: Vec<Round>,
}

fn ms(ticks: u64) -> Duration {
    Duration::from_millis(ticks)
}

fn ticks(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

fn has_control_socket(kind: LeaderKind) -> bool {
    matches!(kind, LeaderKind::Detached | LeaderKind::Adopted)
}

fn outcome(verified: bool) -> Outcome {
    let report = Report {
        life: None,
        schema: 1,
        id: "0a1b2c3d".to_owned(),
        name: None,
        labels: BTreeMap::new(),
        command: Vec::new(),
        level: Level::Cgroup,
        cause: Cause::Kill,
        exit: None,
        limits: Limits::default(),
        failure: None,
        started_at_ms: 0,
        duration_ms: 0,
        missing: Vec::new(),
        weaker: None,
        running: Vec::new(),
        leaks: Vec::new(),
        objects: Vec::new(),
        engine_clients: Vec::new(),
        omitted: None,
        by: None,
        findings: Findings { verified, ..Findings::default() },
    };
    Outcome::of(&report, None)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn policy_decides_what_follows_from_the_history(script in script()) {
        let world = World::run(script);
        prop_assert_eq!(world.killed, world.history.kill_time());
        prop_assert_eq!(world.reported, world.history.report_time());
        prop_assert!(world.begun <= 1, "the end began {} times", world.begun);
    }

    /// spec: 11.1
    #[test]
    fn no_client_waits_longer_than_its_own_grace(script in script()) {
        let world = World::run(script);
        let made = ticks(world.history.script.terms.stop_policy.grace);
        for (at, wish) in &world.history.wishes {
            let grace = match wish {
                EndRequest::Polite(_, grace) => grace.unwrap_or(made),
                EndRequest::Kill(_) => 0,
                EndRequest::LeaderEnded(_) => continue,
            };
            prop_assert!(world.killed.is_some_and(|killed| killed <= at + grace), "{:?} at {}", wish, at);
        }
    }

    /// spec: 12.3
    #[test]
    fn sandbox_that_nobody_ends_lives_until_its_first_deadline(script in script()) {
        let quiet = |input: &Input| matches!(input, Input::Active(_) | Input::Asked(Request::Extend(_)));
        let mut script = script;
        for round in &mut script.rounds {
            round.inputs.retain(quiet);
        }
        let world = World::run(script);
        if let Some((at, _)) = world.history.wishes.first() {
            prop_assert_eq!(world.asked, Some(*at));
        } else {
            prop_assert_eq!((world.phase, world.history.deadline()), (Phase::Running, None));
        }
    }
}
