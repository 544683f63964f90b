//! Generates random sandboxes and their external events.

use penfold_state::wire::{ExecMessage, Size};
use proptest::prelude::*;

use super::*;

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![Just(0), Just(15), Just(10), Just(2), Just(33), Just(99)]
}

fn request() -> impl Strategy<Value = Request> {
    let exec = ExecMessage { command: Vec::new(), detached: false, recorded: false };
    let size = Size { rows: 24, columns: 80 };
    let length = || 0_u64..60;
    let group = proptest::option::of(7..9);
    prop_oneof![
        6 => (number(), group, proptest::option::of(length())).prop_map(|(signal, spared_group, grace_ms)| {
            Request::Stop { signal, spared_group, grace_ms }
        }),
        2 => Just(Request::Kill),
        3 => length().prop_map(Request::Patience),
        5 => length().prop_map(Request::Extend),
        1 => Just(Request::Extend(0)),
        1 => Just(Request::OwnerGone),
        1 => any::<bool>().prop_map(|kill| Request::StdinClosed { kill }),
        1 => number().prop_map(Request::Forward),
        1 => Just(Request::Exec(exec)),
        1 => Just(Request::KillExec(1)),
        1 => prop_oneof![Just(Request::Attach(size)), Just(Request::Resize(size))],
    ]
}

fn input() -> impl Strategy<Value = Input> {
    let carried =
        proptest::option::of(prop_oneof![Just(Signal::USR1), Just(Signal::INT), Just(Signal::TERM)]);
    let status = proptest::option::of(prop_oneof![Just(ExitStatus::Code(3)), Just(ExitStatus::Signal(9))]);
    prop_oneof![
        12 => request().prop_map(Input::Asked),
        6 => (0_usize..3).prop_map(Input::Active),
        1 => carried.prop_map(Input::Term),
        1 => Just(Input::StandbyGone),
        1 => Just(Input::LauncherGone),
        1 => Just(Input::OwnerGone),
        1 => status.prop_map(Input::LeaderEnded),
        1 => Just(Input::OutOfMemory),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let kind = prop_oneof![
        Just(LeaderKind::Foreground),
        Just(LeaderKind::Detached),
        Just(LeaderKind::Exec),
        Just(LeaderKind::Adopted)
    ];
    let owner = prop_oneof![Just(OwnerExit::Kill), Just(OwnerExit::Stop), Just(OwnerExit::Keep)];
    let signal = prop_oneof![3 => Just(Signal::TERM), 1 => Just(Signal::HUP)];
    (kind, owner, signal, 0_u64..60, 0_u64..60, any::<bool>()).prop_map(
        |(kind, on_owner_exit, signal, grace, patience, keep)| {
            let stop_policy =
                StopPolicy { signal, spared_group: None, grace: ms(grace), patience: ms(patience) };
            Terms { kind, stop_policy, on_owner_exit, keep: keep && kind == LeaderKind::Detached }
        },
    )
}

pub(super) fn script() -> impl Strategy<Value = Script> {
    let inputs = proptest::collection::vec(input(), 0..4);
    let round = (1_u64..40, inputs, any::<bool>()).prop_map(|(after, inputs, stalled)| Round {
        after,
        inputs,
        stalled,
    });
    let deadline = || proptest::option::of(0_u64..150);
    let rounds = proptest::collection::vec(round, 0..12);
    (terms(), deadline(), deadline(), deadline(), rounds).prop_map(
        |(terms, limit, lease, idle, mut rounds)| {
            // A leader ends once, and the driver reports its end before it asks the host.
            let mut lives = true;
            let ends = |input: &Input| matches!(input, Input::LeaderEnded(_) | Input::OutOfMemory);
            for round in &mut rounds {
                round.inputs.retain(|input| !ends(input) || std::mem::take(&mut lives));
                if let Some(end) = round.inputs.iter().find(|input| ends(input)) {
                    round.inputs = vec![end.clone()];
                }
            }
            let controlled = has_control_socket(terms.kind);
            Script {
                limit: limit.filter(|_| terms.kind != LeaderKind::Adopted),
                lease: lease.filter(|_| controlled),
                idle: idle.filter(|_| controlled),
                terms,
                rounds,
            }
        },
    )
}
