//! The table of the lifecycle against misbehaving worlds, driven by the rules of the real driver.

use penfold_teardown::lifecycle::{Action, LifecycleEvent, Phase, step_lifecycle};
use proptest::prelude::*;

/// In ticks of a clock that only this model has.
const GRACE: u32 = 20;
const PATIENCE: u32 = 30;
const LOOK_MOST: u32 = 8;
const LOOK_STUCK: u32 = 40;
/// The last tick at which a world changes by itself.
const SCRIPT: u32 = 60;
const CLOCK_MOST: u32 = SCRIPT + GRACE + PATIENCE + 4 * LOOK_STUCK;

/// The reaction of a member to the polite signal.
#[derive(Debug, Clone, Copy)]
enum Manners {
    Dies {
        after: u32,
    },
    Ignores,
    /// Starts this many others, which die or ignore, and dies.
    Forks {
        children: u32,
        deaf: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct Member {
    manners: Manners,
    /// This many kills do not reach the member.
    slips: u32,
    /// Stuck in the kernel until this tick; for ever if the tick never comes.
    stuck_until: Option<u32>,
    /// Dies at this tick, for whatever reason.
    dies_at: Option<u32>,
    asked: bool,
    alive: bool,
}

impl Member {
    fn new(manners: Manners) -> Member {
        Member { manners, slips: 0, stuck_until: Some(0), dies_at: None, asked: false, alive: true }
    }

    fn is_stuck(&self, now: u32) -> bool {
        self.stuck_until.is_none_or(|until| now < until)
    }

    fn dies_no_later_than(&mut self, at: u32) {
        self.dies_at = Some(self.dies_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// The members of a sandbox, and the events from outside. The first member is the leader.
#[derive(Debug, Clone)]
struct World {
    members: Vec<Member>,
    /// The events of the host, which may come late and twice.
    told: Vec<(u32, LifecycleEvent)>,
    /// The time of members that outlive their leader.
    linger: u32,
}

impl World {
    fn ask(&mut self, now: u32) {
        let mut born = Vec::new();
        for member in self.members.iter_mut().filter(|member| member.alive && !member.asked) {
            member.asked = true;
            match member.manners {
                Manners::Ignores => {}
                Manners::Dies { after } => member.dies_no_later_than(now + after),
                Manners::Forks { children, deaf } => {
                    let manners = if deaf { Manners::Ignores } else { Manners::Dies { after: 1 } };
                    born.extend((0..children).map(|_| Member::new(manners)));
                    member.dies_no_later_than(now);
                }
            }
        }
        self.members.extend(born);
    }

    fn kill(&mut self, now: u32) {
        for member in self.members.iter_mut().filter(|member| member.alive) {
            if member.slips > 0 {
                member.slips -= 1;
            } else {
                member.dies_no_later_than(now);
            }
        }
    }

    /// Lets the members die whose tick has come, and tells whether there was one.
    fn pass(&mut self, now: u32) -> bool {
        let mut died = false;
        for member in self.members.iter_mut().filter(|member| member.alive) {
            if member.dies_at.is_some_and(|at| at <= now) && !member.is_stuck(now) {
                member.alive = false;
                died = true;
            }
        }
        died
    }

    fn is_empty(&self) -> bool {
        self.members.iter().all(|member| !member.alive)
    }

    fn holds_for_ever(&self) -> bool {
        self.members.iter().any(|member| member.alive && member.stuck_until.is_none())
    }
}

/// The actions of the driver, with their ticks.
#[derive(Debug, Default)]
struct Trace {
    asks: Vec<u32>,
    kills: Vec<u32>,
    reports: Vec<u32>,
    released: Option<u32>,
    /// Whether a member was alive at the release.
    lied: bool,
    steps: u32,
}

/// The rules of `drive`, with a clock that jumps from one event to the next.
#[derive(Debug)]
struct Driver {
    world: World,
    phase: Phase,
    now: u32,
    leader_ended: bool,
    look_now: bool,
    begun: bool,
    grace: Option<u32>,
    patience: Option<u32>,
    look: Option<u32>,
    interval: u32,
    trace: Trace,
}

impl Driver {
    fn run(world: World) -> (Trace, Phase, World) {
        let mut driver = Driver {
            world,
            phase: Phase::Starting,
            now: 0,
            leader_ended: false,
            look_now: true,
            begun: false,
            grace: None,
            patience: None,
            look: None,
            interval: 1,
            trace: Trace::default(),
        };
        while driver.now < CLOCK_MOST && driver.phase != Phase::Gone {
            driver.turn();
        }
        (driver.trace, driver.phase, driver.world)
    }

    fn turn(&mut self) {
        self.trace.steps += 1;
        let reaped = self.world.pass(self.now);
        let look = std::mem::take(&mut self.look_now);
        let event = if !self.leader_ended && !self.world.members[0].alive {
            self.leader_ended = true;
            let lingers = self.phase == Phase::Running && self.world.linger > 0;
            Some(if lingers { LifecycleEvent::LeaderLeft } else { LifecycleEvent::LeaderExited })
        } else if (self.begun || self.phase == Phase::Lingering) && (reaped || look) && self.world.is_empty()
        {
            Some(LifecycleEvent::Unpopulated)
        } else {
            self.due().or_else(|| self.told())
        };
        let Some(event) = event else {
            self.now += 1;
            self.look_now = true;
            return;
        };
        let (phase, action) = step_lifecycle(self.phase, event);
        self.phase = phase;
        match action {
            Action::Nothing => {}
            Action::Linger => self.linger(),
            Action::Ask => self.ask(),
            Action::Kill => self.kill(),
            Action::Report => self.trace.reports.push(self.now),
            Action::Release => {
                self.trace.released = Some(self.now);
                self.trace.lied = !self.world.is_empty();
            }
        }
    }

    fn due(&mut self) -> Option<LifecycleEvent> {
        let now = self.now;
        let over = |due: &mut Option<u32>| due.take_if(|at| *at <= now).is_some();
        if over(&mut self.patience) {
            Some(LifecycleEvent::PatienceOver)
        } else if over(&mut self.grace) {
            Some(LifecycleEvent::GraceOver)
        } else if over(&mut self.look) {
            Some(LifecycleEvent::Look)
        } else {
            None
        }
    }

    fn told(&mut self) -> Option<LifecycleEvent> {
        let at = self.world.told.iter().position(|(at, _)| *at <= self.now)?;
        Some(self.world.told.remove(at).1)
    }

    fn linger(&mut self) {
        self.grace.get_or_insert(self.now + self.world.linger);
        self.look_within(LOOK_MOST);
    }

    fn ask(&mut self) {
        self.world.ask(self.now);
        self.trace.asks.push(self.now);
        if !std::mem::replace(&mut self.begun, true) {
            self.grace = Some(self.now + GRACE);
        }
        self.look_within(LOOK_MOST);
    }

    fn kill(&mut self) {
        self.world.kill(self.now);
        if self.trace.kills.is_empty() {
            self.grace = None;
            self.patience = Some(self.now + PATIENCE);
            self.interval = 1;
        }
        self.trace.kills.push(self.now);
        self.begun = true;
        self.look_within(if self.phase == Phase::Stuck { LOOK_STUCK } else { LOOK_MOST });
    }

    fn look_within(&mut self, most: u32) {
        self.look = Some(self.now + self.interval);
        self.interval = (self.interval * 2).min(most);
        self.look_now = true;
    }
}

fn manners() -> impl Strategy<Value = Manners> {
    prop_oneof![
        (0..GRACE + 10).prop_map(|after| Manners::Dies { after }),
        Just(Manners::Ignores),
        (0_u32..4, any::<bool>()).prop_map(|(children, deaf)| Manners::Forks { children, deaf }),
    ]
}

fn member() -> impl Strategy<Value = Member> {
    let stuck = prop_oneof![
        6 => Just(Some(0)),
        2 => (0..SCRIPT + PATIENCE).prop_map(Some),
        1 => Just(None),
    ];
    (manners(), 0_u32..10, stuck, proptest::option::of(0..SCRIPT)).prop_map(
        |(manners, slips, stuck_until, dies_at)| Member {
            slips,
            stuck_until,
            dies_at,
            ..Member::new(manners)
        },
    )
}

/// Generates worlds. A fair world ends, so its last event is a request to end.
fn world() -> impl Strategy<Value = World> {
    let event = prop_oneof![
        Just(LifecycleEvent::Started),
        Just(LifecycleEvent::StartFailed),
        Just(LifecycleEvent::LeaderExited),
        Just(LifecycleEvent::StopRequested),
        Just(LifecycleEvent::KillRequested),
    ];
    let last = prop_oneof![Just(LifecycleEvent::StopRequested), Just(LifecycleEvent::KillRequested)];
    let told = proptest::collection::vec((0..SCRIPT, event), 0..8);
    let linger = prop_oneof![Just(0), 1..GRACE];
    let all = (proptest::collection::vec(member(), 1..6), told, last, linger);
    all.prop_map(|(members, mut told, last, linger)| {
        told.push((SCRIPT, last));
        told.sort_by_key(|(at, _)| *at);
        World { members, told, linger }
    })
}

fn event() -> impl Strategy<Value = LifecycleEvent> {
    prop_oneof![
        Just(LifecycleEvent::Started),
        Just(LifecycleEvent::StartFailed),
        Just(LifecycleEvent::LeaderExited),
        Just(LifecycleEvent::LeaderLeft),
        Just(LifecycleEvent::StopRequested),
        Just(LifecycleEvent::KillRequested),
        Just(LifecycleEvent::GraceOver),
        Just(LifecycleEvent::PatienceOver),
        Just(LifecycleEvent::Unpopulated),
        Just(LifecycleEvent::Look),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// spec: 2.1
    #[test]
    fn every_fair_world_ends_or_is_reported(world in world()) {
        let (trace, phase, world) = Driver::run(world);
        prop_assert!(!trace.lied, "released while somebody lived: {trace:?}");
        prop_assert_eq!(phase == Phase::Gone, trace.released.is_some());
        if world.holds_for_ever() {
            prop_assert_eq!(phase, Phase::Stuck, "{:?}", trace);
        } else {
            prop_assert_eq!(phase, Phase::Gone, "{:?} {:?}", trace, world);
        }
        prop_assert!(trace.steps < 3 * CLOCK_MOST, "too busy: {trace:?}");
    }

    /// spec: 7.2
    #[test]
    fn a_kill_is_over_or_reported_when_the_patience_is(world in world()) {
        let (trace, _, _) = Driver::run(world);
        prop_assert!(trace.reports.len() <= 1, "reported twice: {trace:?}");
        let Some(&killed) = trace.kills.first() else { return Ok(()) };
        let answered = trace.reports.first().or(trace.released.as_ref());
        prop_assert!(answered.is_some_and(|&at| at <= killed + PATIENCE), "{trace:?}");
    }

    /// spec: 2.5
    #[test]
    fn nobody_is_asked_after_a_kill_and_a_stop_ends_with_the_grace(world in world()) {
        let (trace, _, _) = Driver::run(world);
        if let (Some(asked), Some(killed)) = (trace.asks.last(), trace.kills.first()) {
            prop_assert!(asked <= killed, "{trace:?}");
        }
        if let Some(asked) = trace.asks.first() {
            let next = trace.kills.first().or(trace.released.as_ref());
            prop_assert!(next.is_some_and(|&at| at <= asked + GRACE), "{trace:?}");
        }
    }

    /// spec: 2.5
    #[test]
    fn an_event_that_comes_twice_changes_nothing(events in proptest::collection::vec(event(), 0..24)) {
        let mut phase = Phase::Starting;
        for event in events {
            let (next, _) = step_lifecycle(phase, event);
            if event != LifecycleEvent::Look {
                prop_assert_eq!(step_lifecycle(next, event), (next, Action::Nothing), "{:?} twice in {:?}", event, phase);
            }
            phase = next;
        }
    }

    /// spec: 2.5
    #[test]
    fn a_life_never_runs_backwards(events in proptest::collection::vec(event(), 0..24)) {
        let rank = |phase| match phase {
            Phase::Starting => 0,
            Phase::Running => 1,
            Phase::Lingering => 2,
            Phase::Stopping => 3,
            Phase::Killing => 4,
            Phase::Stuck => 5,
            Phase::Gone => 6,
        };
        let (mut phase, mut gone) = (Phase::Starting, 0);
        for event in events {
            let (next, action) = step_lifecycle(phase, event);
            prop_assert!(rank(next) >= rank(phase), "{phase:?} -> {next:?}");
            prop_assert!(action != Action::Release || event == LifecycleEvent::Unpopulated);
            gone += u32::from(action == Action::Release);
            phase = next;
        }
        prop_assert!(gone <= 1);
    }
}
