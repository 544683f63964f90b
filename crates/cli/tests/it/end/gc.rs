//! `penfold gc` on the leaks of killed supervisors, and on things that only resemble leaks.

use std::path::Path;

use penfold_cgroup::LeafPlace;

use super::leaks::{carried_id, doctor, leaks_of, new_directory};
use super::standing::{Directory, answers, await_count};
use crate::support::jail::jailed;
use crate::support::{Process, Running, TestEnv, children, fresh_id, kill_at_once, penfold, skip};

/// Runs a sandbox in the foreground, and kills its leader and all processes of penfold in one instant; gives the id.
#[track_caller]
fn lose_supervisors(env: &TestEnv, root: &Path, contain: &str, seconds: &str) -> String {
    let mut command = env.command(penfold());
    let script = format!("setsid sleep {seconds} & sleep {seconds}; true");
    command.arg("--root").arg(root).args(["run", "--contain", contain, "--", "sh", "-c", &script]);
    let launcher = Running::start(&mut command);
    await_count(env, seconds, 2);
    let id = carried_id(&env.running(&format!("sleep {seconds}"))[0]);
    let supervisor = children(launcher.pid())[0];
    let leader = children(supervisor)[0];
    let ours = [launcher.pid(), supervisor, leader].map(|pid| Process::find(pid).unwrap());
    kill_at_once(&ours.iter().collect::<Vec<_>>());
    assert_eq!(count(env, seconds), 2, "{contain}");
    id
}

/// How many `sleep` of so many seconds run.
fn count(env: &TestEnv, seconds: &str) -> usize {
    env.running(&format!("sleep {seconds}")).len()
}

/// spec: 4.2
#[test]
fn a_record_without_supervisors_is_found_and_ended() {
    jailed(|| {
        for (contain, seconds) in [("auto", "3301"), ("subreaper", "3302")] {
            let env = TestEnv::new();
            let bystander =
                Running::start(env.command("sleep").arg("3303").env("PENFOLD_SANDBOX", "not an id"));
            let id = lose_supervisors(&env, &env.root(), contain, seconds);

            let seen = env.call(["doctor", "--json"]).with_code(1).json();
            assert_eq!(leaks_of(&seen, &id)[0]["kind"], "record", "{contain}");

            let refused = answers(&env, &["gc"], 2, &[]).err();
            assert!(refused.contains("gc -f"), "nobody to ask: {refused}");
            let dry = env.call(["gc", "-n", "--json"]).with_code(0).json();
            assert_eq!(leaks_of(&dry, &id)[0]["outcome"], "would remove");
            assert_eq!(count(&env, seconds), 2, "{contain}: nothing was touched");

            let found = env.call(["gc", "-f", "--json"]).with_code(0).json();
            assert_eq!(leaks_of(&found, &id)[0]["outcome"], "removed", "{found}");
            assert_eq!(leaks_of(&found, &id)[0]["findings"]["verified"], true, "{found}");
            assert_eq!(count(&env, seconds), 0, "{contain}");
            assert!(bystander.is_alive());
            let after = doctor(&env);
            assert!(leaks_of(&after, &id).is_empty(), "{after}");
        }
    });
}

/// spec: 5.3, 5.13
#[test]
fn what_has_no_record_must_be_old_enough() {
    jailed(|| {
        for (contain, seconds) in [("auto", "3311"), ("subreaper", "3312")] {
            let env = TestEnv::new();
            let stateless = env.path("file");
            std::fs::write(&stateless, "").unwrap();
            let id = lose_supervisors(&env, &stateless, contain, seconds);

            let found = env.call(["gc", "-f", "--json"]).with_code(0).json();
            assert!(!leaks_of(&found, &id).is_empty(), "{contain}: {found}");
            assert!(leaks_of(&found, &id).iter().all(|leak| leak["outcome"] == "kept"), "{found}");
            assert_eq!(count(&env, seconds), 2, "{contain}");

            let mut old = env.penfold(["gc", "-f", "--json", "--older-than", "0"]);
            if contain == "subreaper" {
                // Nothing tells the state root of its sandbox.
                old.arg(&id);
            }
            let done = Running::start(&mut old).finish().with_code(0);
            assert_eq!(count(&env, seconds), 0, "{contain}: {}", done.out());
            let after = doctor(&env);
            assert!(leaks_of(&after, &id).is_empty(), "{after}");
        }
    });
}

/// spec: 5.3
#[test]
fn cgroups_and_directories_without_a_record_go() {
    jailed(|| {
        let env = TestEnv::new();
        let id = fresh_id();
        let directory = new_directory(&env, &id);
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        std::fs::write(directory.path().join("deep/file"), "").unwrap();
        let outside = env.path("outside");
        std::fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, directory.path().join("link")).unwrap();
        let place = LeafPlace::find_here().ok();
        let cgroup = place.map(|place| Directory::make(place.path().join(format!("penfold-{id}"))).unwrap());
        if cgroup.is_none() {
            skip("no cgroup2 to write to; the directory alone is tried");
        }
        let stranger = env.path("tmp").join(format!("penfold-{}", fresh_id()));
        std::fs::write(&stranger, "a file, and no directory").unwrap();

        let found = env.call(["gc", "-f", "--json", "--older-than", "0"]).json();
        assert!(leaks_of(&found, &id).iter().all(|leak| leak["outcome"] == "removed"), "{found}");
        assert!(!directory.path().try_exists().unwrap());
        assert!(cgroup.is_none_or(|cgroup| !cgroup.path().try_exists().unwrap()));
        assert!(outside.try_exists().unwrap() && stranger.try_exists().unwrap());
    });
}

/// spec: 5.2
#[test]
fn a_directory_that_somebody_stands_in_stays() {
    jailed(|| {
        let env = TestEnv::new();
        let id = fresh_id();
        let directory = new_directory(&env, &id);
        let _inside = Running::start(env.command("sleep").arg("3321").current_dir(directory.path()));
        let found = env.call(["gc", "-f", "--json", "--older-than", "0"]).json();
        assert!(leaks_of(&found, &id).is_empty(), "{found}");
        assert!(directory.path().try_exists().unwrap());
    });
}

#[test]
fn with_nothing_to_do_nobody_is_asked() {
    jailed(|| {
        let env = TestEnv::new();
        // What others have left on this host is older than no time at all, and younger than this.
        answers(&env, &["gc", "--older-than", "10000d"], 0, &[]);
    });
}

/// spec: 5.2
#[test]
fn an_unreadable_state_root_keeps_all_that_has_no_record() {
    jailed(|| {
        let env = TestEnv::new();
        let id = fresh_id();
        let directory = new_directory(&env, &id);
        std::os::unix::fs::symlink("/nonexistent", env.root().join("sandboxes")).unwrap();
        let found = env.call(["gc", "-f", "--json", "--older-than", "0"]).with_code(5).json();
        assert_eq!(found["complete"], false, "{found}");
        assert_eq!(leaks_of(&found, &id)[0]["outcome"], "kept", "{found}");
        assert!(directory.path().try_exists().unwrap());
    });
}
