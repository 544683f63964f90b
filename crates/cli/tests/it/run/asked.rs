//! A stop sends the polite signal to every member, wherever it is below the sandbox, and to each once.

use super::launcher::at_once;
use crate::support::{Level, TestEnv, wait_until};

/// Writes its name `$1` and each signal that it gets to `heard`, and exits once `go` is there.
const MEMBER: &str = "\
    for signal in TERM USR1; do trap \"echo $1 $signal >> heard\" $signal; done\n\
    mkfifo fifo-$1\n\
    echo $1 >> up\n\
    until [ -e go ]; do read -r -t 0.05 <> fifo-$1; done\n";
/// A member, and a child of it in another session.
const PAIR: &str = "setsid bash member.sh $1-stray &\n. ./member.sh\nwait\n";

/// The leader, a command of `exec`, and the leaders of two sandboxes in the sandbox.
const PLACES: [&str; 4] = ["leader", "exec", "detached", "launcher"];

/// An environment with the scripts of the pairs.
fn pairs() -> TestEnv {
    let env = TestEnv::new();
    std::fs::write(env.path("work/member.sh"), MEMBER).unwrap();
    std::fs::write(env.path("work/pair.sh"), PAIR).unwrap();
    env
}

fn lines(env: &TestEnv, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(env.path("work").join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[track_caller]
fn every_member_hears(level: Level, signal: &str) {
    let env = pairs();
    let script = "$PF -d -- bash pair.sh detached || exit; $PF -- bash pair.sh launcher & . ./pair.sh";
    let sandbox = env.detach(["--contain", level.word(), "--", "bash", "-c", script, "sh", "leader"]);
    sandbox.call(&env, &["exec", "-d", "ID", "bash", "pair.sh", "exec"]).with_code(0);
    let count = PLACES.len() * 2;
    wait_until("all members are up", || lines(&env, "up").len() == count);
    let stop = env.begin(["stop", "-s", signal, "-t", "60", &sandbox.id]);
    wait_until("all members have heard the signal", || lines(&env, "heard").len() >= count);
    std::fs::write(env.path("work/go"), "").unwrap();
    let finished = stop.finish().with_code(0);
    let mut heard = lines(&env, "heard");
    heard.sort_unstable();
    let both = |place: &str| [format!("{place} {signal}"), format!("{place}-stray {signal}")];
    let mut expected: Vec<String> = PLACES.into_iter().flat_map(both).collect();
    expected.sort_unstable();
    assert_eq!(heard, expected, "{level:?} {signal}: {}", finished.err());
    env.call(["gc", "-f", "--older-than", "0", "--kind", "ended,record"]);
    env.assert_nothing_left();
}

/// spec: 1.2
#[test]
fn every_member_hears_a_stop_once_below_an_exec_and_in_a_nested_sandbox_too() {
    for level in TestEnv::new().levels() {
        at_once(&["TERM", "USR1"], |signal| every_member_hears(level, signal));
    }
}
