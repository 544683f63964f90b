//! Verbs that lose against a kill of their sandbox say that it has ended.

use rustix::process::Signal;

use crate::state::crash::can_crash;
use crate::support::{Process, Running, TestEnv, skip, wait_until};

/// spec: 13.8.1
#[test]
fn a_verb_that_loses_against_a_kill_says_that_the_sandbox_has_ended() {
    if !can_crash() {
        return;
    }
    for end in [&["kill", "ID"][..], &["rm", "-f", "ID"]] {
        for (point, words, code) in [
            ("exec-connected", &["exec", "ID", "true"][..], 125),
            ("extend-connected", &["extend", "ID", "1h"], 1),
            ("leaf-opened-to-pause", &["pause", "ID"], 1),
            ("leaf-opened-to-unpause", &["unpause", "ID"], 1),
        ] {
            let env = TestEnv::new();
            let sandbox = env.detach(["sleep", "1000"]);
            if point.starts_with("leaf") && sandbox.leaf.is_none() {
                sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
                skip("no cgroup can be made here");
                continue;
            }
            let members = sandbox.members(&env);
            let words = words.iter().map(|&word| if word == "ID" { sandbox.id.as_str() } else { word });
            let stopped = Running::start(env.penfold(words.clone()).env("PENFOLD_STOP_AT", point));
            wait_until("it stands", || stopped.process().state() == Some('T'));
            assert!(!members.is_empty());
            sandbox.call(&env, end).with_code(0);
            assert!(members.iter().all(Process::has_ended));
            stopped.signal(Signal::CONT);
            let finished = stopped.finish().with_code(code);
            let said = finished.err();
            let ended = ["has ended", "it is killed", "it is gone"];
            assert!(ended.iter().any(|word| said.contains(word)), "{point} {end:?}: {said}");
            let _ = sandbox.call(&env, &["rm", "ID"]);
            env.assert_nothing_left();
        }
    }
}
