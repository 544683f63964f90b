//! `pkill -9 penfold`: a broad kill by name, in a pid namespace of the test's own. One of the two penfold processes of a
//! sandbox has another name and another command line.

use std::process::Stdio;

use super::foreground::{Foreground, Shape, await_nothing_left};
use super::standing::Standing;
use crate::support::jail::jailed;
use crate::support::{Level, Process, TestEnv, entries, has_program, wait_until};

/// The words of `pkill`.
pub const BROAD: [&[&str]; 2] = [&["-9", "penfold"], &["-9", "-f", "penfold"]];

/// Sends SIGKILL to whatever is called so in this pid namespace, which must be a jail. The test is its init, which nothing
/// in it can kill.
#[track_caller]
pub fn pkill(env: &TestEnv, words: &[&str]) {
    assert_eq!(std::process::id(), 1, "not in a pid namespace of its own");
    let mut command = env.command("pkill");
    let status = command.args(words).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "`pkill {}` has found nobody", words.join(" "));
}

/// Panics if a member would be killed by its own name.
#[track_caller]
pub fn assert_other_names(members: &[Process]) {
    for member in members.iter().filter(|member| !member.has_ended()) {
        let line = member.command_line();
        assert!(!line.contains("penfold"), "{line}");
    }
}

/// spec: 4.4
#[test]
fn broad_kill_by_name_ends_foreground_sandboxes() {
    if !has_program(&["pkill", "--version"]) {
        return;
    }
    jailed(|| {
        for words in BROAD {
            for (shape, level) in
                [Shape::Pair, Shape::Trio].into_iter().flat_map(|s| Level::ALL.map(|l| (s, l)))
            {
                println!("{words:?} {shape:?} {level:?}");
                let env = TestEnv::new();
                let sandbox = Foreground::start(&env, shape, level, &["--name", "penfold-web"]);
                sandbox.assert_alive();
                assert_other_names(&sandbox.members);
                pkill(&env, words);
                sandbox.await_end();
                await_nothing_left(&env);
                assert_eq!(entries(&env.path("root/names")), Vec::<std::path::PathBuf>::new());
            }
        }
    });
}

/// spec: 4.4
#[test]
fn broad_kill_by_name_ends_detached_sandboxes() {
    if !has_program(&["pkill", "--version"]) {
        return;
    }
    jailed(|| {
        for (words, level) in BROAD.into_iter().flat_map(|words| Level::ALL.map(|level| (words, level))) {
            println!("{words:?} {level:?}");
            let env = TestEnv::new();
            let sandbox = Standing::start(&env, &["--contain", level.word(), "--name", "penfold-web"]);
            sandbox.assert_alive();
            assert_other_names(&sandbox.members);
            pkill(&env, words);
            let report = sandbox.await_end();
            assert_eq!(report["cause"], "supervisor", "{report}");
            wait_until("all members have ended", || sandbox.members.iter().all(Process::has_ended));
            sandbox.assert_gone();
            env.call(["rm", "penfold-web"]).with_code(0);
        }
    });
}
