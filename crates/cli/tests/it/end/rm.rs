//! `penfold rm`: removes the records of ended sandboxes only.

use super::standing::{Standing, answers, ended, hold_lock};
use crate::support::jail::jailed;
use crate::support::{Running, Sandbox, TestEnv};

#[track_caller]
fn assert_forgotten(sandbox: &Sandbox) {
    assert!(!sandbox.record.try_exists().unwrap(), "the record is left");
}

/// spec: 11.7
#[test]
fn record_of_what_is_over_goes_with_its_log() {
    let env = TestEnv::new();
    let sandbox = ended(&env, &["--name", "web"], "echo hello");
    answers(&env, &["rm", "web"], 0, &[&sandbox.id]);
    assert_forgotten(&sandbox);
    assert!(env.listed(&["-a"]).is_empty());
    answers(&env, &["rm", "web"], 3, &[]);
}

/// spec: 11.7
#[test]
fn name_removes_all_ended_ones_that_bear_it() {
    let env = TestEnv::new();
    let old = [(); 3].map(|()| ended(&env, &["--name", "web"], "true"));
    let other = ended(&env, &["--name", "web2"], "true");
    let [one, two, three] = old.each_ref().map(|sandbox| sandbox.id.as_str());
    answers(&env, &["rm", "web"], 0, &[three, two, one]);
    old.iter().for_each(assert_forgotten);
    // One that lives is refused, or ended by force; the others go.
    let before = ended(&env, &["--name", "web"], "true");
    let living = Standing::start(&env, &["--name", "web"]);
    answers(&env, &["rm", "web"], 2, &[&before.id]);
    assert_forgotten(&before);
    living.assert_alive();
    let before = living;
    answers(&env, &["rm", "-f", "web"], 0, &[&before.id]);
    before.assert_gone();
    assert_forgotten(&before);
    // An id means one.
    let [one, two] = [(); 2].map(|()| ended(&env, &["--name", "web"], "true"));
    answers(&env, &["rm", &two.id], 0, &[&two.id]);
    assert_forgotten(&two);
    assert!(one.record.try_exists().unwrap() && other.record.try_exists().unwrap());
}

/// spec: 11.1
#[test]
fn what_runs_is_refused_and_ended_first_by_force() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let refused = answers(&env, &["rm", &sandbox.id], 2, &[]).err();
    assert!(refused.contains(&format!("penfold rm -f {}", sandbox.id)), "{refused}");
    sandbox.assert_alive();
    answers(&env, &["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert_forgotten(&sandbox);
}

/// spec: 11.1
#[test]
fn orphan_is_refused_and_ended_first_by_force() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.kill_supervisors();
    assert_eq!(sandbox.status(&env).as_deref(), Some("orphaned"));
    answers(&env, &["rm", &sandbox.id], 2, &[]);
    sandbox.assert_alive();
    answers(&env, &["rm", "-f", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert_forgotten(&sandbox);
}

/// spec: 11.7
#[test]
fn contents_that_a_command_put_there_go_and_what_they_point_at_stays() {
    let env = TestEnv::new();
    let sandbox = ended(&env, &[], "true");
    let precious = env.path("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::os::unix::fs::symlink(&precious, sandbox.record.join("link")).unwrap();
    std::fs::create_dir_all(sandbox.record.join("a/b/c")).unwrap();
    answers(&env, &["rm", &sandbox.id], 0, &[&sandbox.id]);
    assert_forgotten(&sandbox);
    assert_eq!(std::fs::read_to_string(precious).unwrap(), "precious");
}

/// spec: 11.4
#[test]
fn two_that_forget_at_once_both_succeed() {
    let env = TestEnv::new();
    let sandbox = env.detach(["sleep", "1000"]);
    let all = [0; 3].map(|_| env.begin(["rm", "-f", &sandbox.id]));
    for one in all {
        let done = one.finish();
        // The last one may find nothing of this id any more.
        assert!(matches!(done.code(), Some(0 | 3)), "{}", done.err());
    }
    sandbox.assert_gone(&[]);
    assert_forgotten(&sandbox);
}

/// A lock holder without children is another command that is cleaning up.
/// spec: 11.4
#[test]
fn who_puts_the_record_away_is_waited_for_and_woken() {
    let env = TestEnv::new();
    let scripts = ["exec sleep 0.7", "kill -STOP $$"];
    let sandboxes = scripts.map(|_| ended(&env, &[], "true"));
    let [slow, stopped] = &sandboxes;
    let others = [hold_lock(slow, scripts[0]), hold_lock(stopped, scripts[1])];
    let remove = [slow, stopped].map(|sandbox| env.begin(["rm", "-f", &sandbox.id]));
    for (remove, sandbox) in remove.into_iter().zip(&sandboxes) {
        assert_eq!(remove.finish().with_code(0).out(), format!("{}\n", sandbox.id));
        assert_forgotten(sandbox);
    }
    for other in others {
        other.finish().with_code(0);
    }
}

/// spec: 11.1
#[test]
fn name_of_an_orphan_goes_with_it() {
    let env = TestEnv::new();
    for words in [&["kill"][..], &["stop"], &["rm", "-f"]] {
        let sandbox = Standing::start(&env, &["--name", "o2"]);
        let name = env.root().join("names/o2");
        assert!(name.try_exists().unwrap());
        sandbox.kill_supervisors();
        sandbox.assert_alive();
        answers(&env, &[words, &[&sandbox.id]].concat(), 0, &[&sandbox.id]);
        sandbox.assert_gone();
        assert!(!name.try_exists().unwrap(), "{words:?}");
    }
}

/// spec: 11.7
#[test]
fn one_that_fails_half_way_keeps_its_name() {
    jailed(|| {
        let env = TestEnv::new();
        let sandbox = ended(&env, &["--name", "web"], "true");
        let inside = sandbox.record.join("inside");
        std::fs::create_dir(&inside).unwrap();
        let mount = |words: &[&str]| {
            Running::start(env.command(words[0]).args(&words[1..]).arg(&inside)).finish().with_code(0);
        };
        mount(&["mount", "-t", "tmpfs", "none"]);
        for words in [["rm", "web"].as_slice(), &["rm", "-f", "web"]] {
            answers(&env, words, 1, &[]);
            let listed = env.listed(&["-a"]);
            assert!(listed.len() == 1 && listed[0]["name"] == "web", "{words:?}: {listed:?}");
        }
        mount(&["umount"]);
        answers(&env, &["rm", "web"], 0, &[&sandbox.id]);
        assert_forgotten(&sandbox);
    });
}
