//! `penfold run --status-fd`: what a program that starts penfold reads from it.

use serde_json::{Value, json};

use crate::support::{Finished, Level, TestEnv, wait_until};

/// Runs the words with the file `status` as descriptor 7; returns the lines of the file too.
#[track_caller]
fn run(env: &TestEnv, words: &str) -> (Finished, Vec<Value>) {
    let ended = env.script(&format!("$PF --status-fd 7 {words} 7>status"));
    (ended, lines(&std::fs::read_to_string(env.path("work/status")).unwrap()))
}

#[track_caller]
fn lines(text: &str) -> Vec<Value> {
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// spec: 8.11
#[test]
fn status_has_the_start_and_the_report_at_every_level() {
    let env = TestEnv::new();
    for level in env.levels() {
        let words = format!("--contain {} sh -c 'setsid -f sleep 600; echo $$; exit 3'", level.word());
        let (ended, lines) = run(&env, &words);
        assert_eq!(ended.code(), Some(3), "{level:?}: {ended:?}");
        let [running, over] = lines.as_slice() else { panic!("{level:?}: {lines:?}") };
        assert_eq!((&running["event"], &running["schema"]), (&json!("running"), &json!(1)));
        assert!(running["start_time"].as_u64() > Some(0), "{level:?}: {running}");
        if level != Level::Pidns {
            assert_eq!(running["pid"].to_string(), ended.out().trim(), "{level:?}: {running}");
        }
        assert_eq!((&over["event"], &over["schema"]), (&json!("ended"), &json!(1)));
        let report = &over["report"];
        assert_eq!((&report["id"], &report["exit"]), (&running["id"], &json!({"code": 3})), "{level:?}");
        assert_eq!((&report["cause"], &report["verified"]), (&json!("exit"), &json!(true)), "{level:?}");
        assert_eq!(report["ended"][0]["stray"], true, "{level:?}: {report}");
    }
    env.assert_nothing_left();
}

/// spec: 8.11
#[test]
fn command_that_cannot_start_is_named_by_the_status_alone() {
    let env = TestEnv::new();
    for (words, code, failure) in [
        ("/no/such/program", 127, json!("not-found")),
        ("/etc/passwd", 126, json!({"not-executable": 13})),
        ("-w /no/such/directory true", 125, json!({"directory": 2})),
    ] {
        let (ended, lines) = run(&env, words);
        assert_eq!((ended.code(), ended.err()), (Some(code), String::new()), "{words}");
        let [over] = lines.as_slice() else { panic!("{words}: {lines:?}") };
        assert_eq!((&over["event"], &over["report"]["failure"]), (&json!("ended"), &failure), "{words}");
    }
    env.assert_nothing_left();
}

/// spec: 8.11
#[test]
fn command_does_not_get_the_descriptor_and_eof_means_gone() {
    let env = TestEnv::new();
    let (ended, _) = run(&env, "sh -c 'test ! -e /proc/self/fd/7 && test -e /proc/self/fd/6' 6>&1");
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    // `cat` ends with the last holder of the descriptor, which is the supervisor here.
    let script = r#"sh -c 'echo $$ > launcher; exec "$@"' _ $PF --status-fd 7 \
        sh -c 'setsid -f sleep 4711; echo up >> $UP; exec sleep 4712' 7>&1 >/dev/null | cat > lines &
        until test -s $UP; do sleep 0.05; done; kill -KILL $(cat launcher); wait"#;
    let ended = env.script(script);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let lines = lines(&std::fs::read_to_string(env.path("work/lines")).unwrap());
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(
        (&lines[1]["report"]["cause"], &lines[1]["report"]["verified"]),
        (&json!("owner"), &json!(true))
    );
    assert!(env.find("sleep 4711").is_empty() && env.find("sleep 4712").is_empty());
    wait_until("the supervisor has exited", || env.left().is_empty());
}

/// spec: 8.11
#[test]
fn descriptor_that_cannot_be_written_starts_nothing() {
    let env = TestEnv::new();
    for words in
        ["$PF --status-fd 7 echo ran", "$PF --status-fd 7 echo ran 7</dev/null", "$PF --status-fd 2 echo ran"]
    {
        let ended = env.script(words);
        assert_eq!((ended.code(), ended.out()), (Some(125), String::new()), "{words}: {ended:?}");
        assert!(ended.err().contains("--status-fd"), "{words}: {}", ended.err());
    }
    env.assert_nothing_left();
}

/// spec: 8.11
#[test]
fn status_keeps_the_run_on_this_host() {
    let env = TestEnv::new();
    let ended =
        env.script("PENFOLD_HOST=unix:/no/socket $PF --status-fd 7 printenv PENFOLD_HOST 7>/dev/null");
    assert_eq!((ended.code(), ended.out().trim()), (Some(0), "unix:/no/socket"), "{ended:?}");
    let ended = env.script("$PF --host unix:/no/socket --status-fd 7 true 7>/dev/null");
    assert_eq!(ended.code(), Some(125), "{ended:?}");
    env.assert_nothing_left();
}
