//! `penfold doctor`: what it says of this host, and that it takes nothing living for a leak.

use penfold_cgroup::LeafPlace;
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

use crate::end::leaks::{carried_id, doctor, leaks_with, new_directory};
use crate::end::standing::{Directory, as_user, await_count};
use crate::support::filter::denied;
use crate::support::jail::jailed;
use crate::support::{Running, TestEnv, fresh_id, is_root, penfold, skip};

#[test]
fn every_ability_has_a_state_and_a_meaning_and_nothing_is_left_of_the_tries() {
    let env = TestEnv::new();
    std::fs::remove_dir(env.root()).unwrap();
    let done = env.call(["doctor", "--strict", "--json"]);
    let found = done.json();
    assert_eq!(found["schema"], 1);
    assert_eq!(done.code(), Some(i32::from(found["clean"] != Value::Bool(true))), "{found}");
    let abilities = found["abilities"].as_array().unwrap();
    for name in ["kernel", "cgroup", "v1-freezer", "pid-namespace", "pid-max", "proc", "state"] {
        let ability = abilities.iter().find(|ability| ability["name"] == name);
        let ability = ability.unwrap_or_else(|| panic!("no {name}: {found}"));
        assert!(["ok", "warn", "fail"].contains(&ability["state"].as_str().unwrap()), "{ability}");
        assert!(!ability["meaning"].as_str().unwrap().is_empty(), "{ability}");
    }
    assert!(abilities.iter().all(|ability| ability["name"] != "leaf-left"), "{found}");
    let levels = found["levels"].as_array().unwrap();
    let words: Vec<&Value> = levels.iter().map(|level| &level["level"]).collect();
    assert_eq!(words, ["cgroup", "pidns", "subreaper"]);
    assert_eq!(levels[2]["available"], true);
    assert!(env.processes().is_empty(), "the tries have ended");
    assert!(!env.root().try_exists().unwrap(), "looking makes no state");
}

#[test]
fn text_has_a_line_for_each_and_is_readable_without_colour() {
    let env = TestEnv::new();
    let done = env.call(["doctor"]);
    let text = done.out();
    let starts = ["[ok]   ", "[warn] ", "[fail] ", "       "];
    assert!(text.lines().all(|line| starts.contains(&&line[..7])), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert_eq!(done.err(), "");
}

#[test]
fn an_ordinary_user_gets_the_same_with_other_answers() {
    let env = TestEnv::new();
    let root = std::path::Path::new("/nonexistent/penfold");
    let Some(mut command) = as_user(&env, root, &["doctor", "--strict", "--json"]) else { return };
    let found = Running::start(&mut command).finish().with_code(1).json();
    let abilities = found["abilities"].as_array().unwrap();
    let state = abilities.iter().find(|ability| ability["name"] == "state").unwrap();
    assert_eq!(state["state"], "warn", "a root that cannot be made: {found}");
}

/// spec: 8.2.1
#[test]
fn warnings_are_no_failure_unless_strict_and_leaks_always_are() {
    jailed(|| {
        let env = TestEnv::new();
        let call = |words: &[&str]| {
            let words = [&["doctor", "--json"], words].concat();
            // That this call is refused is a warning.
            let command = denied(&env, &[("clone3", Errno::PERM.raw_os_error())], &words);
            command.map(|mut command| Running::start(&mut command).finish())
        };
        let Some(found) = call(&[]) else { return };
        assert_eq!(found.with_code(0).json()["clean"], false);
        call(&["--strict"]).unwrap().with_code(1);
        let _leak = new_directory(&env, &fresh_id());
        call(&[]).unwrap().with_code(1);
    });
}

/// What `doctor` says of one ability and of the levels where these calls fail.
fn under_filter(env: &TestEnv, calls: &[(&str, Errno)]) -> Option<Value> {
    let calls: Vec<(&str, i32)> = calls.iter().map(|(call, errno)| (*call, errno.raw_os_error())).collect();
    let mut command = denied(env, &calls, &["doctor", "--strict", "--json"])?;
    Some(Running::start(&mut command).finish().with_code(1).json())
}

fn left_of_the_tries(found: &Value) -> bool {
    found["abilities"].as_array().unwrap().iter().any(|ability| ability["name"] == "leaf-left")
}

/// spec: 8.2
#[test]
fn clone3_that_is_refused_is_no_cgroup_that_was_killed() {
    if LeafPlace::find_here().is_err() {
        return skip("no cgroup2 to write to");
    }
    for errno in [Errno::PERM, Errno::NOSYS] {
        let env = TestEnv::new();
        let Some(found) = under_filter(&env, &[("clone3", errno)]) else { return };
        let abilities = found["abilities"].as_array().unwrap();
        let clone = abilities.iter().find(|ability| ability["name"] == "clone-into-cgroup").unwrap();
        assert!(clone["found"].as_str().unwrap().contains("(clone3)"), "{clone}");
        assert!(!clone.to_string().contains("killed once"), "{clone}");
        assert!(clone["mend"].as_str().unwrap().contains("seccomp"), "{clone}");
        assert_eq!(found["levels"][0]["available"], true, "{found}");
        assert!(!left_of_the_tries(&found), "{found}");
    }
}

/// spec: 8.2
#[test]
fn without_handles_no_level_is_to_be_had() {
    for calls in
        [&[("pidfd_open", Errno::PERM)][..], &[("pidfd_open", Errno::NOSYS), ("clone3", Errno::NOSYS)]]
    {
        let env = TestEnv::new();
        let Some(found) = under_filter(&env, calls) else { return };
        assert_eq!(found["abilities"][0]["state"], "fail", "{found}");
        let levels = found["levels"].as_array().unwrap();
        assert!(levels.len() == 3 && levels.iter().all(|level| level["available"] == false), "{found}");
        assert!(!left_of_the_tries(&found), "{found}");
        assert!(env.processes().is_empty(), "the tries have ended");
    }
}

/// spec: 5.2
#[test]
fn a_living_sandbox_is_no_leak_even_to_who_cannot_see_its_record() {
    jailed(|| {
        let env = TestEnv::new();
        let stateless = env.path("file");
        std::fs::write(&stateless, "").unwrap();
        for root in [env.path("elsewhere"), stateless] {
            let mut command = env.command(penfold());
            let script = "env -i sleep 3201 & sleep 3202";
            command.arg("--root").arg(&root).args(["run", "--scratch", "--", "sh", "-c", script]);
            let launcher = Running::start(&mut command);
            await_count(&env, "3202", 1);
            let id = carried_id(&env.running("sleep 3202")[0]);
            for found in [doctor(&env), env.call(["gc", "-f", "--older-than", "0", "--json"]).json()] {
                assert!(leaks_with(&found, &id).is_empty(), "{id}: {found}");
            }
            assert!(launcher.is_alive(), "{}", root.display());
            assert!(env.is_running("sleep 3202"));
            launcher.signal(Signal::TERM);
            launcher.finish();
        }
    });
}

/// spec: 5.3
#[test]
fn a_cgroup_and_a_directory_without_a_record_are_leaks() {
    let env = TestEnv::new();
    let id = fresh_id();
    let (directory, near) = (new_directory(&env, &id), new_directory(&env, &format!("{id}0")));
    let found = env.call(["doctor", "--json"]).with_code(1).json();
    let leaks = leaks_with(&found, &id);
    assert_eq!(leaks.len(), 1, "{found}");
    assert_eq!(leaks[0]["path"], directory.path().display().to_string());
    drop((directory, near));
    let Ok(place) = LeafPlace::find_here() else { return skip("no cgroup2 to write to") };
    let cgroup = Directory::make(place.path().join(format!("penfold-{id}"))).unwrap();
    let found = env.call(["doctor", "--json"]).with_code(1).json();
    assert_eq!(leaks_with(&found, &id).len(), 1, "{found}");
    assert!(cgroup.path().try_exists().unwrap(), "looking changes nothing");
}

#[test]
fn inside_a_pid_namespace_of_a_sandbox_its_members_are_no_leaks() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    let script = "sleep 3211 & setsid sleep 3212 & exec \"$PENFOLD\" --root \"$ELSEWHERE\" doctor --json";
    let mut command = env.run_command(["--", "unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"]);
    command.arg(format!("sh -c '{script}'; true")).env("ELSEWHERE", env.path("elsewhere"));
    let found = Running::start(&mut command).finish().json();
    let ours = |leak: &&Value| leak["processes"].to_string().contains("sleep");
    assert!(found["leaks"].as_array().unwrap().iter().find(ours).is_none(), "{found}");
}
