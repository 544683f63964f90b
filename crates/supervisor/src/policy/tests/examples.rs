//! Named examples.

use super::*;

const GRACE: u64 = 1000;
const PATIENCE: u64 = 3000;

fn terms_of(kind: LeaderKind) -> Terms {
    let stop_policy =
        StopPolicy { signal: Signal::TERM, spared_group: None, grace: ms(GRACE), patience: ms(PATIENCE) };
    Terms { kind, stop_policy, on_owner_exit: OwnerExit::Kill, keep: false }
}

fn script_of(kind: LeaderKind) -> Script {
    Script { terms: terms_of(kind), limit: None, lease: None, idle: None, rounds: Vec::new() }
}

/// Runs a sandbox with these inputs at these times.
fn run(mut script: Script, inputs: impl IntoIterator<Item = (u64, Vec<Input>)>) -> World {
    let mut last = 0;
    script.rounds.extend(inputs.into_iter().map(|(at, inputs)| {
        let after = at - std::mem::replace(&mut last, at);
        Round { after, inputs, stalled: false }
    }));
    World::run(script)
}

fn stop(grace: u64) -> Input {
    Input::Asked(Request::Stop { signal: 0, spared_group: None, grace_ms: Some(grace) })
}

fn kill() -> Input {
    Input::Asked(Request::Kill)
}

fn patience(length: u64) -> Input {
    Input::Asked(Request::Patience(length))
}

fn extend(length: u64) -> Input {
    Input::Asked(Request::Extend(length))
}

#[test]
fn first_cause_stands() {
    let world = run(
        Script { limit: Some(900), ..script_of(LeaderKind::Detached) },
        [
            (100, vec![stop(5000)]),
            (200, vec![kill()]),
            (300, vec![Input::LeaderEnded(Some(ExitStatus::Signal(9)))]),
        ],
    );
    assert_eq!((world.policy.cause(), world.killed), (Some(Cause::Stop), Some(200)));
}

#[test]
fn kill_outdoes_a_stop_of_the_same_poll_round() {
    for inputs in [vec![stop(500), kill()], vec![kill(), stop(500)]] {
        let world = run(script_of(LeaderKind::Detached), [(100, inputs)]);
        assert_eq!((world.killed, world.asked), (Some(100), None));
    }
}

/// spec: 11.1
#[test]
fn shortest_grace_counts_of_stops_that_come_at_once() {
    let world = run(script_of(LeaderKind::Detached), [(100, vec![stop(500), stop(50), stop(900)])]);
    assert_eq!((world.asked, world.killed), (Some(100), Some(150)));
}

#[test]
fn later_stop_shortens_the_grace_and_never_lengthens_it() {
    let world = run(script_of(LeaderKind::Detached), [(100, vec![stop(5000)]), (200, vec![stop(300)])]);
    assert_eq!(world.killed, Some(500));
    let world = run(script_of(LeaderKind::Detached), [(100, vec![stop(300)]), (200, vec![stop(5000)])]);
    assert_eq!(world.killed, Some(400));
}

#[test]
fn signal_or_time_limit_during_a_stop_does_not_lengthen_its_grace() {
    let script = Script { limit: Some(250), ..script_of(LeaderKind::Foreground) };
    let world = run(script, [(100, vec![stop(300)]), (200, vec![Input::Term(None)])]);
    assert_eq!((world.killed, world.policy.stop_policy().grace), (Some(400), ms(300)));
}

#[test]
fn stop_may_ask_for_more_grace_than_the_sandbox_was_made_with() {
    let world = run(script_of(LeaderKind::Detached), [(100, vec![stop(5 * GRACE)])]);
    assert_eq!(world.killed, Some(100 + 5 * GRACE));
}

#[test]
fn time_limit_shortens_a_grace_that_outlasts_it() {
    let world =
        run(Script { limit: Some(700), ..script_of(LeaderKind::Foreground) }, [(100, vec![stop(8 * GRACE)])]);
    assert_eq!((world.policy.cause(), world.killed), (Some(Cause::Stop), Some(700 + GRACE)));
}

#[test]
fn shortest_patience_counts_during_a_teardown_and_the_last_one_before() {
    let before =
        run(script_of(LeaderKind::Detached), [(50, vec![patience(10)]), (100, vec![patience(800), kill()])]);
    assert_eq!(before.reported, Some(900));
    let script =
        [(100, vec![kill()]), (200, vec![patience(400), kill()]), (250, vec![patience(900), kill()])];
    assert_eq!(run(script_of(LeaderKind::Detached), script).reported, Some(600));
}

/// spec: 12.3
#[test]
fn renewed_lease_has_the_length_asked_for_from_the_renewal_on() {
    for (first, renewed) in [(300, 5000), (5000, 300)] {
        let world = run(
            Script { lease: Some(first), ..script_of(LeaderKind::Detached) },
            [(200, vec![extend(renewed)])],
        );
        assert_eq!((world.policy.cause(), world.asked), (Some(Cause::Ttl), Some(200 + renewed)));
    }
}

#[test]
fn lease_of_zero_never_ends() {
    let world = run(Script { lease: Some(300), ..script_of(LeaderKind::Adopted) }, [(200, vec![extend(0)])]);
    assert_eq!((world.phase, world.policy.next_deadline(world.activity())), (Phase::Running, None));
}

#[test]
fn lease_beyond_the_range_of_the_clock_never_ends() {
    let mut policy = World::new(script_of(LeaderKind::Detached)).policy;
    let decision = policy.request(&Request::Extend(u64::MAX), Instant::now());
    assert_eq!(decision.answer, Some(Answer::Done));
    let far = policy.next_deadline(None).map(|(at, _)| at - Instant::now());
    assert!(far.is_none_or(|far| far > ms(u64::MAX / 2)), "{far:?}");
}

/// spec: 12.3
#[test]
fn renewal_that_is_queued_when_the_lease_ends_is_in_time() {
    let mut world = World::new(Script { lease: Some(300), ..script_of(LeaderKind::Detached) });
    // The supervisor is not scheduled for a while, and finds deadline and renewal together.
    world.round(&Round { after: 900, inputs: vec![extend(600)], stalled: true });
    assert_eq!(world.policy.cause(), None);
    // The same if the renewal comes after poll(2) has returned for the deadline.
    world.round(&Round { after: 600, inputs: Vec::new(), stalled: true });
    assert_eq!((world.now, world.policy.cause()), (1500, None));
    world.round(&Round { after: 10, inputs: vec![extend(50)], stalled: true });
    assert_eq!(world.policy.cause(), None);
    world.round(&Round { after: 1000, inputs: Vec::new(), stalled: false });
    assert_eq!((world.policy.cause(), world.asked), (Some(Cause::Ttl), Some(1560)));
}

/// spec: 12.3
#[test]
fn idle_time_counts_from_the_last_activity_and_only_without_execs() {
    let script = Script { idle: Some(300), ..script_of(LeaderKind::Detached) };
    let active = |execs| vec![Input::Active(execs)];
    let world = run(script, [(200, active(0)), (400, active(1)), (2000, active(2)), (2500, active(0))]);
    assert_eq!((world.policy.cause(), world.asked), (Some(Cause::Idle), Some(2800)));
}

#[test]
fn earliest_deadline_is_the_cause() {
    let causes = [(Cause::Timeout, 300, 400, 500), (Cause::Idle, 500, 300, 400), (Cause::Ttl, 400, 500, 300)];
    for (cause, limit, idle, lease) in causes {
        let script = Script {
            limit: Some(limit),
            idle: Some(idle),
            lease: Some(lease),
            ..script_of(LeaderKind::Detached)
        };
        let world = run(script, []);
        assert_eq!((world.policy.cause(), world.asked), (Some(cause), Some(300)));
    }
}

/// spec: 12.3
#[test]
fn sandbox_that_is_being_ended_takes_no_renewal_and_no_command() {
    for end in [stop(500), kill(), Input::LeaderEnded(None), Input::OutOfMemory] {
        let script =
            Script { lease: Some(200), idle: Some(200), limit: Some(200), ..script_of(LeaderKind::Detached) };
        let mut world = World::new(script);
        world.round(&Round { after: 100, inputs: vec![end], stalled: false });
        let refused = Some(Answer::Refused("the sandbox is being ended".to_owned()));
        assert_eq!(world.policy.request(&Request::Extend(5), Instant::now()).answer, refused);
        assert_eq!(world.policy.refuse_exec(), Some("the sandbox is being ended"));
        let next = world.policy.next_deadline(world.activity()).map(|(_, cause)| cause);
        assert_eq!(next, Some(Cause::Timeout), "lease and idle time end nothing any more");
    }
}

/// spec: 11.1
#[test]
fn stop_or_kill_of_a_stuck_sandbox_is_answered_at_once_and_looks_again() {
    let left = Some(Answer::Outcome(Box::new(outcome(false))));
    let mut world = run(script_of(LeaderKind::Detached), [(100, vec![kill()])]);
    assert_eq!((world.phase, world.reported), (Phase::Stuck, Some(100 + PATIENCE)));
    for request in [Request::Kill, Request::Stop { signal: 0, spared_group: None, grace_ms: None }] {
        let decision = world.policy.request(&request, Instant::now());
        assert_eq!(
            decision,
            Decision { event: Some(LifecycleEvent::Look), answer: left.clone(), effect: None }
        );
        let looks = world.looks;
        world.apply(decision.event);
        assert_eq!(world.looks, looks + 1);
    }
    world.policy.reported(&outcome(true));
    let answer = world.policy.request(&Request::Kill, Instant::now()).answer;
    assert_eq!(answer, Some(Answer::Ending(Ending::Killing)));
}

/// spec: 12.3
#[test]
fn death_of_the_owner_kills_stops_or_changes_nothing() {
    let gone = |kind, on_owner_exit, input: Input| {
        let terms = Terms { on_owner_exit, ..terms_of(kind) };
        let world = run(Script { terms, ..script_of(kind) }, [(100, vec![input])]);
        (world.policy.cause(), world.asked, world.killed)
    };
    let killed = (Some(Cause::Owner), None, Some(100));
    let stopped = (Some(Cause::Owner), Some(100), Some(100 + GRACE));
    for (policy, expected) in
        [(OwnerExit::Kill, killed), (OwnerExit::Stop, stopped), (OwnerExit::Keep, (None, None, None))]
    {
        for input in [Input::OwnerGone, Input::LauncherGone, Input::Asked(Request::OwnerGone)] {
            assert_eq!(gone(LeaderKind::Foreground, policy, input.clone()), expected);
            assert_eq!(gone(LeaderKind::Exec, policy, input), expected);
        }
        // The id of a detached sandbox is unknown if its launcher dies before the command runs.
        assert_eq!(gone(LeaderKind::Detached, policy, Input::LauncherGone), killed);
        assert_eq!(gone(LeaderKind::Adopted, policy, Input::Asked(Request::OwnerGone)), (None, None, None));
    }
}

/// spec: 8.12
#[test]
fn end_of_the_standard_input_kills_or_stops_with_the_second_half_of_the_grace() {
    for (kill, expected) in [(true, (None, Some(100))), (false, (Some(100), Some(100 + GRACE / 2)))] {
        let closed = Input::Asked(Request::StdinClosed { kill });
        let world = run(script_of(LeaderKind::Foreground), [(100, vec![closed.clone()])]);
        assert_eq!(world.policy.cause(), Some(Cause::Stdin));
        assert_eq!((world.asked, world.killed), expected);
        for kind in [LeaderKind::Detached, LeaderKind::Exec, LeaderKind::Adopted] {
            let world = run(script_of(kind), [(100, vec![closed.clone()])]);
            assert_eq!((world.policy.cause(), world.asked, world.killed), (None, None, None));
        }
    }
}

#[test]
fn death_of_the_other_supervisor_kills_unless_the_sandbox_is_to_be_kept() {
    for (keep, cause) in [(false, Some(Cause::Supervisor)), (true, None)] {
        let terms = Terms { keep, ..terms_of(LeaderKind::Detached) };
        let script = Script { terms, ..script_of(LeaderKind::Detached) };
        let world = run(script, [(100, vec![Input::StandbyGone])]);
        assert_eq!((world.policy.cause(), world.killed), (cause, cause.map(|_| 100)));
    }
}

#[test]
fn signal_to_the_supervisor_stops_and_brings_the_signal_of_the_sandbox_around() {
    let signalled = |kind, made, carried| {
        let stop_policy = StopPolicy { signal: made, ..terms_of(kind).stop_policy };
        let script = Script { terms: Terms { stop_policy, ..terms_of(kind) }, ..script_of(kind) };
        let world = run(script, [(100, vec![Input::Term(carried)])]);
        (world.policy.cause(), world.policy.stop_policy().signal)
    };
    let stopped = Some(Cause::Stop);
    for kind in [LeaderKind::Foreground, LeaderKind::Detached, LeaderKind::Exec] {
        assert_eq!(signalled(kind, Signal::TERM, None), (stopped, Signal::TERM));
        assert_eq!(signalled(kind, Signal::TERM, Some(Signal::INT)), (stopped, Signal::INT));
        assert_eq!(signalled(kind, Signal::HUP, Some(Signal::INT)), (stopped, Signal::HUP));
    }
    assert_eq!(signalled(LeaderKind::Adopted, Signal::TERM, None), (stopped, Signal::TERM));
    assert_eq!(signalled(LeaderKind::Adopted, Signal::TERM, Some(Signal::INT)), (None, Signal::TERM));
}

#[test]
fn client_of_an_exec_chooses_the_signal_only_where_the_sandbox_has_the_usual_one() {
    let request = Request::Stop { signal: 2, spared_group: Some(7), grace_ms: None };
    let stop_policy = |kind, made| {
        let stop_policy = StopPolicy { signal: made, ..terms_of(kind).stop_policy };
        let terms = Terms { stop_policy, ..terms_of(kind) };
        let world = run(Script { terms, ..script_of(kind) }, [(100, vec![Input::Asked(request.clone())])]);
        (world.policy.stop_policy().signal, world.policy.stop_policy().spared_group)
    };
    assert_eq!(stop_policy(LeaderKind::Exec, Signal::TERM), (Signal::INT, None));
    assert_eq!(stop_policy(LeaderKind::Exec, Signal::HUP), (Signal::HUP, None));
    assert_eq!(stop_policy(LeaderKind::Foreground, Signal::HUP), (Signal::INT, Some(7)));
    assert_eq!(stop_policy(LeaderKind::Adopted, Signal::HUP), (Signal::INT, Some(7)));
}

#[test]
fn cause_of_a_leader_that_ends_by_itself_tells_how() {
    let ended = |input| run(script_of(LeaderKind::Foreground), [(100, vec![input])]).policy.cause();
    assert_eq!(ended(Input::LeaderEnded(Some(ExitStatus::Code(3)))), Some(Cause::Exit));
    assert_eq!(ended(Input::LeaderEnded(Some(ExitStatus::Signal(11)))), Some(Cause::Signal));
    assert_eq!(ended(Input::LeaderEnded(None)), Some(Cause::Exit));
    assert_eq!(ended(Input::OutOfMemory), Some(Cause::Oom));
    let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
    policy.out_of_memory(Cause::Memory);
    assert_eq!(policy.leader_ended(Some(ExitStatus::Signal(9))), Cause::Memory);
}

fn at(base: Instant, ticks: u64) -> Instant {
    base + ms(ticks)
}

const INT: i32 = 2;
const QUIT: i32 = 3;

/// spec: 1.2.1
#[test]
fn interrupt_that_the_leader_handles_ends_nothing() {
    let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
    let base = Instant::now();
    for key in 0..5 {
        let decision = policy.key(INT, 7, false, at(base, key * 600));
        assert_eq!(decision, Decision { effect: Some(Effect::PassOn), ..Decision::default() });
    }
    assert_eq!((policy.cause(), policy.stop_policy().spared_group), (None, Some(7)));
}

/// spec: 1.2.1
#[test]
fn three_interrupts_within_a_second_kill() {
    for (times, killed) in [([0, 499, 999], true), ([0, 500, 1000], false), ([0, 0, 0], true)] {
        let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
        let base = Instant::now();
        let last = times.map(|time| policy.key(INT, 7, false, at(base, time))).into_iter().last().unwrap();
        assert_eq!((last.event == Some(LifecycleEvent::KillRequested)), killed, "{times:?}");
        assert_eq!(policy.cause(), killed.then_some(Cause::Kill));
    }
}

/// spec: 1.2.1
#[test]
fn quit_kills_within_a_minute_after_an_interrupt_only() {
    let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
    let base = Instant::now();
    assert_eq!(policy.key(QUIT, 7, false, base), Decision::default());
    let _ = policy.key(INT, 7, false, base);
    assert_eq!(policy.key(QUIT, 7, false, at(base, 60_000)), Decision::default());
    assert_eq!(policy.key(QUIT, 7, false, at(base, 59_999)).event, Some(LifecycleEvent::KillRequested));
}

/// spec: 1.2.1
#[test]
fn members_of_a_leader_that_ends_after_an_interrupt_get_the_grace() {
    for (ends, asked) in [(0, true), (59_999, true), (60_000, false)] {
        for status in [ExitStatus::Signal(2), ExitStatus::Code(0)] {
            let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
            let base = Instant::now();
            let _ = policy.key(INT, 7, false, base);
            let decision = policy.leader_left_members(Some(status), at(base, ends));
            assert_eq!(decision.event, asked.then_some(LifecycleEvent::StopRequested), "{ends}");
            assert_eq!(decision.effect.is_some(), asked);
            let cause = if status == ExitStatus::Code(0) { Cause::Exit } else { Cause::Signal };
            assert_eq!(policy.leader_ended(Some(status)), cause, "the leader ended by itself");
            // A person who does not want to wait presses Ctrl-C again.
            let second = policy.key(INT, 7, false, at(base, ends + 5000));
            assert_eq!(second.event, Some(LifecycleEvent::KillRequested));
        }
    }
    let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
    assert_eq!(policy.leader_left_members(Some(ExitStatus::Code(0)), Instant::now()), Decision::default());
}

/// spec: 1.2.1
#[test]
fn interrupt_that_the_leader_ignores_stops_and_the_second_kills() {
    let mut policy = World::new(script_of(LeaderKind::Foreground)).policy;
    let now = Instant::now();
    let first = policy.key(INT, 7, true, now);
    assert_eq!((first.event, policy.cause()), (Some(LifecycleEvent::StopRequested), Some(Cause::Stop)));
    assert_eq!((policy.stop_policy().signal, policy.stop_policy().spared_group), (Signal::TERM, Some(7)));
    // The leader has ended; the remaining members keep their grace.
    assert_eq!(policy.leader_left_members(Some(ExitStatus::Code(0)), now), Decision::default());
    assert_eq!(policy.key(INT, 7, true, now).event, Some(LifecycleEvent::KillRequested));
}

/// spec: 1.2.1
#[test]
fn keys_are_those_of_a_foreground_sandbox() {
    for kind in [LeaderKind::Detached, LeaderKind::Exec, LeaderKind::Adopted] {
        let mut policy = World::new(script_of(kind)).policy;
        let decision = policy.key(INT, 7, true, Instant::now());
        assert!(matches!(decision, Decision { event: None, answer: Some(Answer::Refused(_)), effect: None }));
    }
}
