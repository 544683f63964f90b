//! What cannot be ended is named by `penfold kill` in time, and ended once that is possible.

mod support_control;
mod support_d;

use std::time::{Duration, Instant};

use support_control::Fold;
use support_d::{frozen, said, until};

/// The patience of the supervisor, and what it takes to look again.
const BOUND: Duration = Duration::from_secs(20);

#[test]
fn member_in_state_d_is_named_and_gone_once_it_is_let_go() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let file = frozen.path().join("file");
    let script = format!("echo lead >> $UP; echo text > {}; sleep 1000", file.display());
    let sandbox = fold.start(&[], &script);
    fold.yard.await_up(&["lead"]);
    until("it is stuck", || support_d::state(sandbox.leader) == Some('D'));
    let begun = Instant::now();
    let done = fold.expect(&["kill", &sandbox.id], 5, &[]);
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    let named = format!("{}  not gone: pid {} (sh) state D", sandbox.id, sandbox.leader.as_raw_pid());
    assert!(said(&done).starts_with(&named), "{}", said(&done));
    assert_eq!(fold.status(&sandbox.id), "unkillable");
    // Who waits hears that it will not be over soon, and not that its command is.
    let waited = fold.expect(&["wait", &sandbox.id], 120, &["120"]);
    assert!(
        said(&waited).contains("would not end") && !said(&waited).contains("is over"),
        "{}",
        said(&waited)
    );
    drop(frozen);
    until("it is over", || fold.status(&sandbox.id) == "killed");
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}
