//! `penfold inspect`, `status`, `tree` and `report`: one sandbox from all sides, also when its record is gone.

use super::output::{array, ids, kill, own, shown};
use crate::support::{TestEnv, skip, wait_until};

#[test]
fn inspect_shows_what_the_record_holds() {
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "--", "sleep", "4421"]);
    let found = &array(&env, ["inspect", "web"])[0];
    assert_eq!((&found["schema"], &found["status"]), (&1.into(), &"running".into()));
    assert_eq!(found["files"]["intent"]["name"], "web");
    assert_eq!(found["files"]["state"]["word"], "running");
    assert!(found["files"]["exit"].is_null() && found["files"]["report"].is_null());
    let leader = found["leader"]["pid"].as_i64().unwrap();
    assert!(std::fs::read_to_string(format!("/proc/{leader}/cmdline")).unwrap().starts_with("sleep"));
    kill(&env, &web);
    let found = &array(&env, ["inspect", &web.id])[0];
    assert_eq!(found["files"]["report"]["verified"], true);
    assert!(!found["files"]["report"]["steps"].as_array().unwrap().is_empty());
    assert_eq!(found["files"]["exit"]["exit"]["signal"], 9);
    assert_eq!(shown(&env, ["inspect", &web.id, "--format", "{{.State}} {{.Cause}}"]), "killed kill\n");
}

/// spec: 5.4
#[test]
fn a_damaged_file_is_named_and_no_error() {
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "--", "sleep", "4422"]);
    std::fs::write(web.record.join("state.json"), "{").unwrap();
    for verb in ["inspect", "status", "tree"] {
        assert_eq!(env.call([verb, "web"]).code(), Some(0), "{verb}");
    }
    let found = &array(&env, ["inspect", "web"])[0];
    assert_eq!(found["status"], "running");
    assert!(
        found["files"]["state"].is_null() && found["damage"][0].as_str().unwrap().starts_with("state.json")
    );
    assert!(shown(&env, ["status", "web"]).contains("state.json"));
    assert!(shown(&env, ["ps"]).contains("(damaged)"));
}

/// spec: 5.6
#[test]
fn a_living_sandbox_whose_record_is_gone_is_an_orphan_with_its_name() {
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "--", "sleep", "4423"]);
    let found = &array(&env, ["inspect", "web"])[0];
    if found["leaf"].is_null() {
        return skip("no cgroup2 to write to: nothing knows the name");
    }
    let aside = env.path("aside");
    std::fs::rename(&web.record, &aside).unwrap();
    for word in ["web", &web.id, &web.id[..10]] {
        let found = &array(&env, ["inspect", word])[0];
        assert_eq!((&found["status"], &found["name"]), (&"orphaned".into(), &"web".into()), "{word}");
        let evidence = found["evidence"].to_string();
        assert!(evidence.contains("cgroup") && evidence.contains("control socket"), "{evidence}");
    }
    assert_eq!(ids(&own(array(&env, ["ps", "--json"]))), [web.id.as_str()]);
    assert!(shown(&env, ["tree", "web"]).contains("sleep"));
    std::fs::rename(&aside, &web.record).unwrap();
    assert_eq!(array(&env, ["inspect", "web"])[0]["status"], "running");
}

/// spec: 5.4
#[test]
fn a_sandbox_that_lost_both_supervisors_is_an_orphan_until_it_is_dead() {
    let env = TestEnv::new();
    let web = env.detach(["--name", "web", "--", "sh", "-c", "setsid sleep 4424 & exec sleep 4424"]);
    wait_until("the members run", || env.running("sleep 4424").len() == 2);
    web.kill_supervisors();
    // With a pid namespace as the only containment, the members die with the supervisor.
    if env.is_running("sleep 4424") {
        let seen = shown(&env, ["ps", "--format", "{{.Name}} {{.State}}"]);
        assert!(seen.lines().any(|line| line == "web orphaned"), "{seen}");
        assert!(shown(&env, ["status", "web"]).contains("no process holds the lock"), "{}", web.id);
    }
    // `gc` ends the members and keeps the record of a detached sandbox. Without an id it would end leaks of other tests.
    env.call(["gc", "-f", &web.id]).with_code(0);
    assert!(!env.is_running("sleep 4424"));
    assert_eq!(array(&env, ["inspect", "web"])[0]["status"], "lost");
}

#[test]
fn a_tree_shows_who_descends_from_whom_and_who_ran_off() {
    let env = TestEnv::new();
    let script = "sh -c 'sleep 4425; :' & setsid sh -c 'sleep 4425 & sleep 4425; :' & wait";
    let _web = env.detach(["--name", "web", "--", "sh", "-c", script]);
    wait_until("the members run", || env.running("sleep 4425").len() == 3);
    let found = &array(&env, ["tree", "web", "--json"])[0];
    let members = found["members"].as_array().unwrap();
    assert_eq!(members.len(), 6, "{members:?}");
    let strays = members.iter().filter(|member| member["stray"].is_string()).count();
    assert_eq!(strays, 3, "the shell in a session of its own, and those below it: {members:?}");
    assert_eq!(members[0]["parent"], serde_json::Value::Null);
    let text = shown(&env, ["tree", "web", "-p", "--full"]);
    assert_eq!(text.lines().count(), 7, "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("stray: own session")).count(), 3, "{text}");
    for member in members {
        assert!(text.contains(&format!("{} ", member["pid"])), "{text}");
    }
    assert!(text.contains("sleep 4425"), "{text}");
    assert!(!shown(&env, ["tree", "web"]).lines().skip(1).any(|line| line.contains("4425")), "names only");
}

#[test]
fn a_status_tells_word_reason_processes_and_last_lines() {
    let env = TestEnv::new();
    let script = "for i in 1 2 3 4 5; do echo line $i; done; sleep 4426";
    let web = env.detach(["--name", "web", "--", "sh", "-c", script]);
    wait_until("it has said all", || shown(&env, ["status", "web"]).contains("line 5"));
    let text = shown(&env, ["status", "web", "-n", "2"]);
    assert!(text.contains("running") && text.contains("sleep"), "{text}");
    assert!(text.contains("line 4\n  line 5") && !text.contains("line 3"), "{text}");
    assert!(!shown(&env, ["status", "web", "-n", "0"]).contains("line 5"));
    kill(&env, &web);
    let text = shown(&env, ["status", "web"]);
    assert!(text.contains("killed (137)") && text.contains("line 5"), "{text}");
}

#[test]
fn reports_are_listed_and_shown_step_by_step() {
    let env = TestEnv::new();
    let fine = env.detach(["--name", "fine", "--", "true"]);
    fine.await_end();
    let failed = env.detach(["--name", "bad", "--", "sh", "-c", "sleep 4427 & exit 3"]);
    failed.await_end();
    env.detach(["--name", "web", "--", "sleep", "4428"]);
    let of = |words: &[&str]| {
        let found = array(&env, ["report", "--json"].iter().chain(words));
        ids(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), [failed.id.as_str(), fine.id.as_str()], "the last first");
    assert_eq!(of(&["--last"]), [failed.id.as_str()]);
    assert_eq!(of(&["--failed"]), [failed.id.as_str()]);
    assert_eq!(of(&["fine"]), [fine.id.as_str()]);
    let table = shown(&env, ["report"]);
    assert!(table.lines().count() == 3 && table.contains("verified gone"), "{table}");
    let page = shown(&env, ["report", "bad"]);
    assert!(page.contains("step") && page.contains("sleep") && page.contains("ended 1 process"), "{page}");
    let none = env.call(["report", "web"]).with_code(1);
    assert!(none.err().contains("the sandbox has not ended"), "{}", none.err());
}
