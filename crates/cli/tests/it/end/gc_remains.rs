//! `penfold gc` and `penfold doctor` on remains of detached sandboxes: ended records, names, unfinished files, supervisors
//! without a control socket.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use super::leaks::{doctor, leaks_with, new_directory};
use super::standing::{answers, await_count, ended};
use crate::support::jail::jailed;
use crate::support::{TestEnv, Who, fresh_id, wait_until};

/// spec: 5.9
#[test]
fn ended_sandboxes_are_kept_until_they_are_old_or_named() {
    jailed(|| {
        let env = TestEnv::new();
        let one = ended(&env, &["--name", "one"], "echo said; exit 3");
        let two = ended(&env, &[], "true");
        let living = env.detach(["sleep", "3401"]);
        let found = doctor(&env);
        assert_eq!(found["leaks"], Value::Array(Vec::new()), "{found}");
        assert_eq!(found["ended"], 2, "{found}");

        let young = env.call(["gc", "-f", "--json"]).with_code(0).json();
        assert!(leaks_with(&young, &one.id).is_empty(), "{young}");
        let named = env.call(["gc", "one", "--json"]).json();
        assert_eq!(leaks_with(&named, &one.id)[0]["outcome"], "kept", "{named}");
        answers(&env, &["gc", "-f", "--older-than", "0", "--kind", "cgroup,name"], 0, &[]);

        answers(&env, &["gc", "--older-than", "0"], 2, &[]);
        let gone = env.call(["gc", "--older-than", "0", &one.id]).with_code(0).out();
        assert!(gone.starts_with("[ok]   removed "), "{gone}");
        assert!(!one.record.try_exists().unwrap() && two.record.try_exists().unwrap());
        let all = env.call(["gc", "-f", "--older-than", "0", "--kind", "ended", "--json"]).json();
        assert_eq!(leaks_with(&all, &two.id)[0]["outcome"], "removed", "{all}");
        assert!(!two.record.try_exists().unwrap());

        env.call(["gc", "-f", "--older-than", "0", &living.id]).with_code(2);
        env.call(["gc", "-f", &one.id]).with_code(3);
        // Nothing means nothing.
        env.call(["gc", "-f", ""]).with_code(3);
        assert!(env.is_running("sleep 3401"));
    });
}

/// spec: 5.9
#[test]
fn an_orphan_goes_with_its_name_and_its_unfinished_files_whatever_their_age() {
    jailed(|| {
        let env = TestEnv::new();
        let sandbox = env.detach(["--name", "web", "--", "sh", "-c", "setsid sleep 3411 & sleep 3411"]);
        await_count(&env, "3411", 2);
        sandbox.kill_supervisors();
        let unfinished = sandbox.record.join("state.json.7.new");
        std::fs::write(&unfinished, "{").unwrap();
        let found = doctor(&env);
        let leaks = leaks_with(&found, &sandbox.id);
        assert!(leaks.len() == 1 && leaks[0]["kind"] == "record", "{found}");
        let done = env.call(["gc", "web", "--json"]).with_code(0).json();
        assert_eq!(leaks_with(&done, &sandbox.id)[0]["findings"]["verified"], true);
        assert!(!env.is_running("sleep 3411"));
        let events = std::fs::read_to_string(env.root().join("events.jsonl")).unwrap();
        let removed = events.contains("\"kind\":\"leak\"") && events.contains("\"outcome\":\"removed\"");
        assert!(removed, "{events}");
        assert!(!env.root().join("names/web").try_exists().unwrap());
        assert!(!unfinished.try_exists().unwrap());
        let kept = sandbox.file("exit.json").unwrap();
        assert_eq!((&kept["exit"], &kept["cause"]), (&Value::Null, &Value::from("lost")), "{kept}");
        assert_eq!(doctor(&env)["leaks"], Value::Array(Vec::new()));
    });
}

/// spec: 5.2
#[test]
fn an_orphan_whose_record_cannot_be_read_is_named_and_no_success() {
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let sandbox = env.detach(["--contain", "subreaper", "--name", "closed", "sleep", "3403"]);
    sandbox.kill_supervisors();
    std::fs::set_permissions(&sandbox.record, std::fs::Permissions::from_mode(0o000)).unwrap();
    assert!(env.is_running("sleep 3403"));
    let name = env.root().join("names/closed");
    // What is younger may just be made.
    wait_until("the name is old enough to go", || {
        std::fs::metadata(&name).unwrap().modified().unwrap().elapsed().unwrap().as_secs() >= 3
    });
    let finished = env.call(["gc", "-f"]).with_code(5);
    assert!(finished.err().contains(&sandbox.id), "{}", finished.err());
    assert!(env.is_running("sleep 3403"));
    assert!(name.try_exists().unwrap());
    env.call(["rm", "-f", "closed"]).with_code(0);
    env.call(["gc", "-f"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 5.9
#[test]
fn a_report_beside_a_living_member_is_not_believed() {
    jailed(|| {
        let env = TestEnv::new();
        let sandbox = env.detach(["--contain", "subreaper", "--", "sleep", "3421"]);
        await_count(&env, "3421", 1);
        sandbox.kill_supervisors();
        std::fs::write(sandbox.record.join("report.json"), "{}").unwrap();
        assert_eq!(leaks_with(&doctor(&env), &sandbox.id)[0]["kind"], "record");
        env.call(["gc", "-f", "--json"]).with_code(0);
        assert!(!env.is_running("sleep 3421"));
    });
}

/// spec: 5.9
#[test]
fn names_that_nobody_holds_go_and_others_stay() {
    jailed(|| {
        let env = TestEnv::new();
        env.detach(["--name", "held", "--", "sleep", "3431"]);
        let names = env.root().join("names");
        // A session has a name for each of its processes.
        let id = fresh_id();
        for name in ["free", "free-too"] {
            std::fs::write(names.join(name), &id).unwrap();
        }
        std::fs::write(names.join("empty"), "").unwrap();
        std::os::unix::fs::symlink(env.root(), names.join("link")).unwrap();
        // A name that young may be one that is just being taken.
        wait_until("all names are seen", || leaks_with(&doctor(&env), "\"name\"").len() == 3);
        env.call(["gc", "-f", "--json"]).with_code(0);
        assert!(!["free", "free-too", "empty"].iter().any(|name| names.join(name).try_exists().unwrap()));
        assert!(names.join("held").try_exists().unwrap() && names.join("link").is_symlink());
        assert!(env.is_running("sleep 3431"));
    });
}

/// spec: 5.10
#[test]
fn a_supervisor_that_nobody_can_ask_is_named_and_left_alone() {
    let env = TestEnv::new();
    let (lost, deaf) = (env.detach(["sleep", "3441"]), env.detach(["sleep", "3442"]));
    std::fs::rename(&lost.record, env.path("elsewhere")).unwrap();
    std::fs::remove_file(deaf.record.join("control.sock")).unwrap();
    let mut found = Value::Null;
    wait_until("both are seen", || {
        found = doctor(&env);
        leaks_with(&found, &lost.id).len() == 1 && leaks_with(&found, &deaf.id).len() == 1
    });
    assert_eq!(leaks_with(&found, &lost.id)[0]["kind"], "socket", "{found}");
    assert_eq!(leaks_with(&found, &deaf.id)[0]["kind"], "unreachable", "{found}");
    let text = env.call(["doctor"]).out();
    for sandbox in [&lost, &deaf] {
        assert!(text.contains(&format!("kill {}", sandbox.id)), "{text}");
    }
    let words = ["gc", "-f", "--older-than", "0", "--json", &lost.id, &deaf.id];
    let done = env.call(words).with_code(0).json();
    assert!(leaks_with(&done, "sleep").is_empty(), "{done}");
    assert!(done["leaks"].as_array().unwrap().iter().all(|leak| leak["outcome"] == "kept"), "{done}");
    assert!(env.is_running("sleep 3441") && env.is_running("sleep 3442"));
}

/// spec: 5.9
#[test]
fn a_name_stays_as_long_as_anything_of_its_sandbox_lives() {
    jailed(|| {
        let env = TestEnv::new();
        let sandbox = env.detach(["--name", "web", "--", "sleep", "3451"]);
        await_count(&env, "3451", 1);
        sandbox.kill_supervisors();
        std::fs::rename(&sandbox.record, env.path("elsewhere")).unwrap();
        let names = env.root().join("names");
        std::fs::write(names.join("free"), fresh_id()).unwrap();
        // The other file is older: once this one is seen, that one would be.
        wait_until("the free name is seen", || leaks_with(&doctor(&env), "\"name\":\"free\"").len() == 1);
        env.call(["gc", "-f", "--kind", "name", "--json"]).with_code(0);
        assert!(!names.join("free").try_exists().unwrap());
        assert!(env.is_running("sleep 3451"));
        assert!(names.join("web").try_exists().unwrap());
        env.call(["gc", "-f", "--older-than", "0", &sandbox.id]).with_code(0);
        assert!(!env.is_running("sleep 3451"));
        env.call(["gc", "-f", "--kind", "name"]).with_code(0);
        assert!(!names.join("web").try_exists().unwrap());
    });
}

/// spec: 5.9
#[test]
fn what_is_kept_is_summed_up_where_nobody_asked_by_name() {
    jailed(|| {
        let env = TestEnv::new();
        let ids = [fresh_id(), fresh_id(), fresh_id()];
        let _directories = [0, 1, 2].map(|index| new_directory(&env, &ids[index]));
        let forced = env.call(["gc", "-f"]).with_code(0).err();
        let kept: Vec<&str> = forced.lines().filter(|line| line.contains("kept")).collect();
        assert_eq!(kept.len(), 1, "{forced}");
        assert!(kept[0].contains("kept 3 leaks: younger than"), "{forced}");
        let dry = env.call(["gc", "-n"]).with_code(0).err();
        let named = env.call(["gc", "-f", &ids[0], &ids[1]]).with_code(0).err();
        for (said, ids) in [(dry, &ids[..]), (named, &ids[..2])] {
            assert_eq!(said.lines().count(), ids.len(), "{said}");
            assert!(ids.iter().all(|id| said.contains(id.as_str())), "{said}");
        }
    });
}
