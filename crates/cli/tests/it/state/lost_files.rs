//! What the verbs say of a living sandbox whose files are lost or damaged: the sentence names the file, and nothing ends.

use std::fs;

use crate::support::{Sandbox, TestEnv, skip, wait_until};

/// What happens to the record of the sandbox, the words of the commands, and what each says.
type Row = (&'static str, &'static [(&'static [&'static str], i32, &'static str)]);

const ROWS: [Row; 5] = [
    (
        "control.sock",
        &[
            (&["kill", "-s", "USR1", "ID"], 1, "its control socket is gone"),
            (&["extend", "ID", "1m"], 1, "its control socket is gone"),
            (&["exec", "ID", "true"], 125, "its control socket is gone"),
            (&["attach", "ID"], 125, "its control socket is gone"),
        ],
    ),
    (
        "",
        &[
            (&["kill", "-s", "USR1", "ID"], 1, "its record is lost"),
            (&["extend", "ID", "1m"], 1, "its record is lost"),
            (&["exec", "ID", "true"], 125, "has lost its record"),
            (&["restart", "ID"], 1, "its record is lost"),
            (&["pause", "ID"], 1, "its record is lost"),
            (&["logs", "ID"], 1, "its record is lost"),
        ],
    ),
    ("log", &[(&["logs", "ID"], 1, "the log is lost")]),
    ("launch", &[(&["restart", "ID"], 1, "its launch file is lost")]),
    ("intent.json", &[(&["restart", "ID"], 1, "`intent.json`")]),
];

/// spec: 5.21
#[test]
fn a_verb_that_needs_a_lost_file_names_it_and_ends_nothing() {
    let env = TestEnv::new();
    for (file, verbs) in ROWS {
        let sandbox = start(&env);
        let (path, aside) = (sandbox.record.join(file), env.path("aside"));
        if file.is_empty() && env.call(["inspect", &sandbox.id]).json()[0]["leaf"].is_null() {
            skip("no cgroup2 to write to: nothing leads to a sandbox without a record");
        } else {
            fs::rename(&path, &aside).unwrap();
            for &(words, code, sentence) in verbs {
                let said = sandbox.call(&env, words).with_code(code).err();
                assert!(said.contains(sentence), "{file}, {words:?}: {said}");
                assert!(
                    !said.contains("foreground") && env.is_running("sleep 4417"),
                    "{file}, {words:?}: {said}"
                );
            }
            if file.is_empty() {
                let status = sandbox.call(&env, &["status", "ID"]).with_code(0).out();
                assert!(status.contains("is lost") && !status.contains("without a supervisor"), "{status}");
            }
            fs::rename(&aside, &path).unwrap();
        }
        sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    }
    env.assert_nothing_left();
}

/// spec: 5.21
#[test]
fn a_damaged_launch_file_is_named_before_anything_ends() {
    let env = TestEnv::new();
    let sandbox = start(&env);
    fs::write(sandbox.record.join("launch"), "{").unwrap();
    let said = sandbox.call(&env, &["restart", "ID"]).with_code(1).err();
    assert!(said.contains("its launch file is damaged"), "{said}");
    assert!(env.is_running("sleep 4417"));
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// Starts a sandbox that can be restarted.
fn start(env: &TestEnv) -> Sandbox {
    let sandbox = env.detach(["--restart", "on-failure", "--", "sleep", "4417"]);
    wait_until("the command runs", || env.is_running("sleep 4417"));
    sandbox
}
