//! `penfold run` inside `penfold run`: the inner one ends with the outer one, and alone without it.

use std::time::Duration;

use crate::support_e2::{Pen, Talk, levels};

/// A tree that is deaf to politeness, with two that left.
const DEAF: &str = "trap '' TERM; setsid -f sleep 600; (sleep 600 &); echo ready; sleep 600; sleep 600; :";

fn words(pen: &Pen, depth: usize, options: &[&str], command: &[&str]) -> Vec<String> {
    let run = pen.shell();
    let mut words: Vec<String> = Vec::new();
    for _ in 1..depth {
        words.extend(options.iter().map(|&word| word.to_owned()));
        words.extend(run.split(' ').map(str::to_owned));
    }
    words.extend(options.iter().chain(command).map(|&word| word.to_owned()));
    words
}

#[test]
fn codes_pass_through_five_levels() {
    let pen = Pen::new();
    let ended = pen.end(words(&pen, 5, &[], &["sh", "-c", "echo $PENFOLD_SANDBOX; exit 9"])).with_code(9);
    assert_eq!(ended.err(), "");
    let out = ended.out();
    let ids: Vec<&str> = out.trim().split(':').collect();
    assert_eq!(ids.len(), 5, "{out}");
    assert!(
        ids.iter().all(|id| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())),
        "{out}"
    );
    let mut different = ids.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 5, "{out}");
    pen.assert_nothing_left();
}

#[test]
fn signals_pass_through_five_levels() {
    let pen = Pen::new();
    let command =
        ["bash", "-c", "trap 'exit 6' USR1; mkfifo g; echo ready; while :; do read -r -t 0.1 <> g; done"];
    let talk = Talk::start(&mut pen.run(words(&pen, 5, &[], &command)));
    talk.hear("ready", 1);
    talk.signal(rustix::process::Signal::USR1);
    talk.end().with_code(6);
    pen.assert_nothing_left();
}

#[test]
fn marker_of_a_stranger_is_not_believed() {
    let pen = Pen::new();
    for odd in ["garbage:::x", "", "../..", "abc:def"] {
        let command = &mut pen.run(["sh", "-c", "echo $PENFOLD_SANDBOX"]);
        let ended = Talk::start(command.env("PENFOLD_SANDBOX", odd)).end().with_code(0);
        assert_eq!(ended.out().trim().len(), 12, "{}", ended.out());
    }
    let ended = pen.end(["-e", "PENFOLD_SANDBOX=mine", "sh", "-c", "echo $PENFOLD_SANDBOX"]).with_code(0);
    assert_eq!(ended.out().trim().len(), 12, "{}", ended.out());
}

#[test]
fn five_deep_end_with_the_outer_time_limit() {
    let pen = Pen::new();
    for level in levels(&pen) {
        let mut all = vec!["--timeout".to_owned(), "1".to_owned(), "--grace".to_owned(), "0.5".to_owned()];
        all.extend(words(&pen, 5, &["--contain", level, "--grace", "0.2"], &["bash", "-c", DEAF]));
        let ended = pen.end(all).with_code(124);
        assert!(ended.took < Duration::from_secs(10), "{:?}", ended.took);
        pen.assert_nothing_left();
    }
}

#[test]
fn every_mix_of_levels_ends() {
    let pen = Pen::new();
    let levels = levels(&pen);
    for outer in &levels {
        for inner in &levels {
            let nested = |options: &[&str], command: &[&str]| {
                let run = pen.shell();
                let outer = ["--contain", outer].into_iter().chain(options.iter().copied());
                let inner = run.split(' ').chain(["--contain", inner]);
                pen.end(outer.chain(inner).chain(command.iter().copied()))
            };
            nested(&[], &["bash", "-c", "setsid -f sleep 600; (sleep 600 &); exit 6"]).with_code(6);
            nested(&["--timeout", "0.5", "--grace", "0.2"], &["bash", "-c", DEAF]).with_code(124);
            pen.assert_nothing_left();
        }
    }
}

#[test]
fn inner_time_limit_leaves_the_outer_one_alone() {
    let pen = Pen::new();
    // Longer than the inner one takes to start its stray.
    let script =
        "setsid -f sleep 599; $PF --timeout 5 sh -c 'setsid -f sleep 600; sleep 600'; echo inner $?; exit 4";
    let ended = pen.end(["bash", "-c", script]).with_code(4);
    assert_eq!(ended.out(), "inner 124\n");
    assert_eq!(ended.err().matches("strays: ").count(), 2, "{}", ended.err());
    pen.assert_nothing_left();
}

#[test]
fn killed_inner_one_ends_and_the_outer_one_goes_on() {
    let pen = Pen::new();
    for level in levels(&pen) {
        for (signal, code) in [("TERM", 143), ("KILL", 137)] {
            let script = format!(
                "mkfifo up; $PF --contain {level} bash -c 'setsid -f sleep 600; echo up > up; exec sleep 600' & \
                 read -r word < up; kill -{signal} $!; wait $!; echo inner $?; \
                 for i in $(seq 100); do cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | \
                 grep -qF \"PENFOLD_SANDBOX=$PENFOLD_SANDBOX:\" || exit 4; read -r -t 0.02 <> up; done; exit 5"
            );
            let ended = pen.end(["bash", "-c", &script]).with_code(4);
            std::fs::remove_file(pen.path("work/up")).unwrap();
            assert_eq!(ended.out(), format!("inner {code}\n"));
        }
    }
    pen.assert_nothing_left();
}

#[test]
fn inner_leader_has_the_outer_grace() {
    let pen = Pen::new();
    // The handler takes a while, with nothing but what bash itself can do.
    let script = "trap 'read -r -t 0.5 <> g; echo clean; exit 3' TERM; mkfifo g; echo ready; while :; do read -r -t 0.1 <> g; done";
    for level in levels(&pen) {
        for depth in [1, 2, 3] {
            let talk =
                Talk::start(&mut pen.run(words(&pen, depth, &["--contain", level], &["bash", "-c", script])));
            talk.hear("ready", 1);
            talk.signal(rustix::process::Signal::TERM);
            let ended = talk.end().with_code(3);
            assert!(ended.out().contains("clean"), "{level}, {depth} deep: {}", ended.err());
            std::fs::remove_file(pen.path("work/g")).unwrap();
        }
    }
    pen.assert_nothing_left();
}

/// The record of the outer sandbox is the user's own, and so is a command in the inner one.
#[test]
fn a_forged_note_in_the_outer_record_is_nobodys_leftover() {
    let pen = Pen::new();
    for forged in ["touch $n", "mkdir $n; touch $n/x", "ln -s /etc $n"] {
        let inner = format!(
            "n={}/${{PENFOLD_SANDBOX%%:*}}/nested-${{PENFOLD_SANDBOX##*:}}; rmdir $n && {{ {forged}; }} && exit 3",
            pen.path("root/sandboxes").display()
        );
        let script = "$PF sh -c \"$INNER\"; echo inner $?; exit 4";
        let ended = Talk::start(pen.run(["bash", "-c", script]).env("INNER", inner)).end().with_code(4);
        assert_eq!(ended.out(), "inner 3\n", "{}", ended.err());
        pen.assert_nothing_left();
    }
}
