//! Who hears the polite signal of a stop: every member, wherever it is below the sandbox, and each once.

use std::fmt::Write as _;

use crate::support_e2::{DEADLINE, Pen, Talk, eventually, penfold};
use crate::support_g::Actor;

/// Notes what it hears, until all are let go; `$1` is what it is called.
const MEMBER: &str = "\
    for signal in TERM USR1; do trap \"echo $1 $signal >> heard\" $signal; done\n\
    mkfifo fifo-$1\n\
    echo $1 >> up\n\
    until [ -e go ]; do read -r -t 0.05 <> fifo-$1; done\n";
/// One of them, and another below it that has left its session.
const PAIR: &str = "setsid bash member.sh $1-stray &\n. ./member.sh\nwait\n";

/// What is put into a sandbox, and a sandbox in it of each kind.
const PLACES: [&str; 4] = ["leader", "exec", "detached", "front"];

/// A place to run the pairs in.
fn ground() -> Pen {
    let pen = Pen::new();
    std::fs::write(pen.path("work/member.sh"), MEMBER).unwrap();
    std::fs::write(pen.path("work/pair.sh"), PAIR).unwrap();
    pen
}

fn lines(pen: &Pen, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(pen.path("work").join(name)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[track_caller]
fn every_member_hears(actor: &Actor<'_>, level: &str, signal: &str) {
    let (pen, what) = (actor.pen, format!("{level} {signal}"));
    let ours = format!("{} --root {}", penfold().display(), pen.path("root").display());
    let script = format!(
        "{ours} run -d -- bash pair.sh detached || exit; {ours} run -- bash pair.sh front & . ./pair.sh"
    );
    let work = pen.path("work");
    let words =
        ["--contain", level, "-w", work.to_str().unwrap(), "--", "bash", "-c", &script, "sh", "leader"];
    let sandbox = actor.detach(&words);
    sandbox.put_in(&["bash", "pair.sh", "exec"]);
    let count = PLACES.len() * 2;
    assert!(eventually(DEADLINE, || lines(pen, "up").len() == count), "{what}: {:?}", lines(pen, "up"));
    let stop = Talk::start(&mut actor.verb(["stop", "-s", signal, "-t", "30", &sandbox.id]));
    let all = eventually(DEADLINE, || lines(pen, "heard").len() >= count);
    std::fs::write(pen.path("work/go"), "").unwrap();
    let ended = stop.end();
    let mut heard = lines(pen, "heard");
    heard.sort_unstable();
    let mut expected = String::new();
    for place in PLACES {
        writeln!(expected, "{place} {signal}\n{place}-stray {signal}").unwrap();
    }
    let mut expected: Vec<&str> = expected.lines().collect();
    expected.sort_unstable();
    assert_eq!(heard, expected, "{what}: {}", ended.err());
    assert!(all && ended.code() == Some(0), "{what}: {}", ended.err());
    actor.verb(["gc", "-f", "--older-than", "0", "--kind", "ended,record"]).output().unwrap();
    pen.assert_nothing_left();
}

#[test]
fn every_member_hears_a_stop_once_below_an_exec_and_in_a_nested_sandbox_too() {
    for signal in ["TERM", "USR1"] {
        let levels = Actor::own(&Pen::new()).levels();
        for level in levels {
            let pen = ground();
            every_member_hears(&Actor::own(&pen), level, signal);
        }
    }
}
