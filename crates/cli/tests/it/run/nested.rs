//! `penfold run` inside `penfold run`: a nested sandbox ends with the enclosing one, and can end alone.

use rustix::process::Signal;

use super::launcher::{DEAF, SERVE, at_once, await_ready, run_until_limit};
use crate::support::{Level, Running, TestEnv, entries, penfold};

/// The words for `run` that nest `depth` sandboxes, each with these options.
fn words(env: &TestEnv, depth: usize, options: &[&str], command: &[&str]) -> Vec<String> {
    let (penfold, root) = (penfold().to_str().unwrap(), env.root());
    let run = [penfold, "--root", root.to_str().unwrap(), "run"];
    let mut words: Vec<&str> = Vec::new();
    for _ in 1..depth {
        words.extend(options.iter().chain(&run));
    }
    words.extend(options.iter().chain(command));
    words.into_iter().map(str::to_owned).collect()
}

/// spec: 1.7
#[test]
fn codes_pass_through_five_levels() {
    let env = TestEnv::new();
    let finished = env.run(words(&env, 5, &[], &["sh", "-c", "echo $PENFOLD_SANDBOX; exit 9"])).with_code(9);
    assert_eq!(finished.err(), "");
    let out = finished.out();
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
    env.assert_nothing_left();
}

/// spec: 1.7
#[test]
fn signals_pass_through_five_levels() {
    let env = TestEnv::new();
    let command = ["bash", "-c", &format!("trap 'exit 6' USR1; {SERVE}")];
    let running = Running::start(&mut env.run_command(words(&env, 5, &[], &command)));
    await_ready(&running, 1);
    running.signal(Signal::USR1);
    running.finish().with_code(6);
    env.assert_nothing_left();
}

/// spec: 5.2
#[test]
fn marker_of_a_stranger_is_not_believed() {
    let env = TestEnv::new();
    for odd in ["garbage:::x", "", "../..", "abc:def"] {
        let command = &mut env.run_command(["sh", "-c", "echo $PENFOLD_SANDBOX"]);
        let finished = Running::start(command.env("PENFOLD_SANDBOX", odd)).finish().with_code(0);
        assert_eq!(finished.out().trim().len(), 12, "{}", finished.out());
    }
    let finished = env.run(["-e", "PENFOLD_SANDBOX=mine", "sh", "-c", "echo $PENFOLD_SANDBOX"]).with_code(0);
    assert_eq!(finished.out().trim().len(), 12, "{}", finished.out());
}

/// spec: 1.3
#[test]
fn five_deep_end_with_the_outer_time_limit() {
    let env = TestEnv::new();
    at_once(&env.levels(), |level| {
        let options = ["--contain", level.word(), "--grace", "0.1"];
        let inner = words(&env, 5, &options, &["bash", "-c", DEAF]);
        let run = |limit: &str| {
            let outer = ["--timeout", limit, "--grace", "0.3"].map(str::to_owned);
            env.run(outer.iter().chain(&inner))
        };
        run_until_limit(run).with_code(124);
    });
    env.assert_nothing_left();
}

/// spec: 1.5
#[test]
fn every_mix_of_levels_ends() {
    let env = TestEnv::new();
    let levels = env.levels();
    for outer in levels.clone() {
        at_once(&levels, |inner| {
            let nested = |options: &[&str], script: &str| {
                let exec = format!("exec $PF --contain {} bash -c \"$SCRIPT\"", inner.word());
                let contain = ["--contain", outer.word()];
                let command = ["sh", "-c", &exec];
                let mut command = env.run_command(contain.iter().chain(options).chain(&command));
                Running::start(command.env("SCRIPT", script)).finish()
            };
            nested(&[], "setsid -f sleep 600; (sleep 600 &); exit 6").with_code(6);
            let run = |limit: &str| nested(&["--timeout", limit, "--grace", "0.2"], DEAF);
            run_until_limit(run).with_code(124);
        });
        env.assert_nothing_left();
    }
}

/// spec: 1.3
#[test]
fn inner_time_limit_leaves_the_outer_one_alone() {
    let env = TestEnv::new();
    let run = |limit: &str| {
        let inner = format!("$PF --timeout {limit} sh -c 'setsid -f sleep 600; echo ready; exec sleep 600'");
        env.run(["bash", "-c", &format!("setsid -f sleep 599; {inner}; echo inner $?; exit 4")])
    };
    let finished = run_until_limit(run).with_code(4);
    assert_eq!(finished.out(), "ready\ninner 124\n");
    assert_eq!(finished.err().matches("strays: ").count(), 2, "{}", finished.err());
    env.assert_nothing_left();
}

/// spec: 1.7, 4.1
#[test]
fn killed_inner_one_ends_and_the_outer_one_goes_on() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().map(Level::word) {
        for (signal, code) in [("TERM", 143), ("KILL", 137)] {
            let script = format!(
                "mkfifo go; $PF --contain {level} bash -c 'setsid -f sleep 600; echo ready; exec sleep 600' & \
                 read -r _ < go; kill -{signal} $!; wait $!; echo inner $?; \
                 for i in $(seq 100); do cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | \
                 grep -qF \"PENFOLD_SANDBOX=$PENFOLD_SANDBOX:\" || exit 4; read -r -t 0.02 <> go; done; exit 5"
            );
            let running = Running::start(&mut env.run_command(["bash", "-c", &script]));
            await_ready(&running, 1);
            std::fs::write(env.path("work/go"), "go\n").unwrap();
            let finished = running.finish().with_code(4);
            std::fs::remove_file(env.path("work/go")).unwrap();
            assert_eq!(finished.out(), format!("ready\ninner {code}\n"));
        }
    }
    env.assert_nothing_left();
}

/// spec: 1.7
#[test]
fn inner_leader_has_the_outer_grace() {
    let env = TestEnv::new();
    // The handler waits within bash: a child would get the signal, too.
    let script = format!("trap 'read -r -t 0.3 <> gate; echo clean; exit 3' TERM; {SERVE}");
    for level in env.levels() {
        at_once(&[1, 2, 3], |depth| {
            let nested = words(&env, depth, &["--contain", level.word()], &["bash", "-c", &script]);
            let running = Running::start(&mut env.run_command(nested));
            await_ready(&running, 1);
            running.signal(Signal::TERM);
            let finished = running.finish().with_code(3);
            assert!(finished.out().contains("clean"), "{level:?}, {depth} deep: {}", finished.err());
        });
    }
    env.assert_nothing_left();
}

/// The user owns the record of the outer sandbox and runs the command in the inner one.
/// spec: 5.2
#[test]
fn a_forged_note_in_the_outer_record_is_nobodys_leftover() {
    let env = TestEnv::new();
    for forged in ["touch $n", "mkdir $n; touch $n/x", "ln -s /etc $n"] {
        let inner = format!(
            "n={}/${{PENFOLD_SANDBOX%%:*}}/nested-${{PENFOLD_SANDBOX##*:}}; rmdir $n && {{ {forged}; }} && exit 3",
            env.path("root/sandboxes").display()
        );
        let script = "$PF sh -c \"$INNER\"; echo inner $?; exit 4";
        let finished =
            Running::start(env.run_command(["bash", "-c", script]).env("INNER", inner)).finish().with_code(4);
        assert_eq!(finished.out(), "inner 3\n", "{}", finished.err());
        env.assert_nothing_left();
    }
}

/// Its supervisors are no news to people: the sandbox is, and it leaves nothing once it is forgotten.
/// spec: 1.7
#[test]
fn inner_one_that_was_left_behind_is_one_stray_with_its_name_and_leaves_no_name() {
    let env = TestEnv::new();
    let started = ["-d", "-d --rm", "--on-owner-exit keep"];
    for (level, how) in env.levels().into_iter().flat_map(|level| started.map(|how| (level.word(), how))) {
        let end = if how.starts_with("-d") { ";" } else { "&" };
        let script = format!(
            "mkfifo up; $PF {how} --name inner --contain subreaper -- sh -c 'echo up > up; exec sleep 1000' > id {end} \
             read -r _ < up; rm up; exit 4"
        );
        for flags in [&[][..], &["--report", "report.json"]] {
            let words = [&["--contain", level], flags, &["bash", "-c", &script]].concat();
            let said = env.run(words).with_code(4).err();
            let id = std::fs::read_to_string(env.path("work/id")).unwrap();
            let line = if id.is_empty() {
                "sandbox inner (".to_owned()
            } else {
                format!("sandbox inner ({}) (pid ", id.trim())
            };
            assert_eq!(said.matches(&line).count(), 1, "{level} {how}: {said}");
            assert!(!said.contains("pf-supervisor") && !said.contains("run -"), "{level} {how}: {said}");
            if how == "-d" {
                env.call(["rm", "inner"]).with_code(0);
            }
            let names = entries(&env.root().join("names"));
            assert_eq!(names, Vec::<std::path::PathBuf>::new(), "{level} {how} {flags:?}: {said}");
        }
    }
    std::fs::remove_file(env.path("work/id")).unwrap();
    env.assert_nothing_left();
}
