//! `penfold inspect`, `status`, `tree` and `report`: one sandbox from all sides, also when its record is gone.

use crate::inspect_support::{Sandbox, array, ids, own, shown};
use crate::support_d::{Yard, code, handle, has_ended, output, said, skip, until};
use rustix::process::Signal;

#[test]
fn inspect_shows_what_the_record_holds() {
    let yard = Yard::new();
    let web = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4421"]);
    let found = &array(&yard, ["inspect", "web"])[0];
    assert_eq!((&found["schema"], &found["status"]), (&1.into(), &"running".into()));
    assert_eq!(found["files"]["intent"]["name"], "web");
    assert_eq!(found["files"]["state"]["word"], "running");
    assert!(found["files"]["exit"].is_null() && found["files"]["report"].is_null());
    let leader = found["leader"]["pid"].as_i64().unwrap();
    assert!(std::fs::read_to_string(format!("/proc/{leader}/cmdline")).unwrap().starts_with("sleep"));
    web.kill();
    let found = &array(&yard, ["inspect", &web.id])[0];
    assert_eq!(found["files"]["report"]["verified"], true);
    assert!(!found["files"]["report"]["steps"].as_array().unwrap().is_empty());
    assert_eq!(found["files"]["exit"]["exit"]["signal"], 9);
    assert_eq!(shown(&yard, ["inspect", &web.id, "--format", "{{.State}} {{.Cause}}"]), "killed kill\n");
}

#[test]
fn a_damaged_file_is_named_and_no_error() {
    let yard = Yard::new();
    let web = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4422"]);
    std::fs::write(yard.path("root/sandboxes").join(&web.id).join("state.json"), "{").unwrap();
    for verb in ["inspect", "status", "tree"] {
        assert_eq!(code(&output(&mut yard.penfold([verb, "web"]))), 0, "{verb}");
    }
    let found = &array(&yard, ["inspect", "web"])[0];
    assert_eq!(found["status"], "running");
    assert!(
        found["files"]["state"].is_null() && found["damage"][0].as_str().unwrap().starts_with("state.json")
    );
    assert!(shown(&yard, ["status", "web"]).contains("state.json"));
    assert!(shown(&yard, ["ps"]).contains("(damaged)"));
}

#[test]
fn a_living_sandbox_whose_record_is_gone_is_an_orphan_with_its_name() {
    let yard = Yard::new();
    let web = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4423"]);
    let found = &array(&yard, ["inspect", "web"])[0];
    if found["leaf"].is_null() {
        return skip("no cgroup2 to write to: nothing knows the name");
    }
    let record = yard.path("root/sandboxes").join(&web.id);
    let aside = yard.path("aside");
    std::fs::rename(&record, &aside).unwrap();
    for word in ["web", &web.id, &web.id[..10]] {
        let found = &array(&yard, ["inspect", word])[0];
        assert_eq!((&found["status"], &found["name"]), (&"orphaned".into(), &"web".into()), "{word}");
        let evidence = found["evidence"].to_string();
        assert!(evidence.contains("cgroup") && evidence.contains("control socket"), "{evidence}");
    }
    assert_eq!(ids(&own(array(&yard, ["ps", "--json"]))), [web.id.as_str()]);
    assert!(shown(&yard, ["tree", "web"]).contains("sleep"));
    std::fs::rename(&aside, &record).unwrap();
    assert_eq!(array(&yard, ["inspect", "web"])[0]["status"], "running");
}

#[test]
fn a_sandbox_that_lost_both_supervisors_is_an_orphan_until_it_is_dead() {
    let yard = Yard::new();
    let web =
        Sandbox::start(&yard, &["--name", "web", "--", "sh", "-c", "setsid sleep 4424 & exec sleep 4424"]);
    until("the members run", || yard.find("sleep 4424").len() == 2);
    let found = &array(&yard, ["inspect", "web"])[0];
    let pids: Vec<_> =
        found["supervisors"].as_array().unwrap().iter().map(|it| it["pid"].as_i64().unwrap()).collect();
    let handles: Vec<_> = pids
        .iter()
        .map(|&pid| handle(rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()))
        .collect();
    // Stopped first, so that neither can act on the end of the other; the younger first, whose death wakes nobody then.
    for signal in [Signal::STOP, Signal::KILL] {
        for pidfd in handles.iter().rev() {
            rustix::process::pidfd_send_signal(pidfd, signal).unwrap();
        }
    }
    until("both are dead", || handles.iter().all(has_ended));
    let alive = yard.find("sleep 4424").len();
    if alive > 0 {
        let seen = shown(&yard, ["ps", "--format", "{{.Name}} {{.State}}"]);
        assert!(seen.lines().any(|line| line == "web orphaned"), "{seen}");
        assert!(shown(&yard, ["status", "web"]).contains("nobody holds the lock"), "{}", web.id);
    }
    // What is left is ended by the next `gc`, which keeps the record of a detached sandbox.
    output(&mut yard.penfold(["gc", "-f"]));
    assert_eq!(yard.find("sleep 4424").len(), 0);
    assert_eq!(array(&yard, ["inspect", "web"])[0]["status"], "lost");
}

#[test]
fn a_tree_shows_who_descends_from_whom_and_who_ran_off() {
    let yard = Yard::new();
    let script = "sh -c 'sleep 4425; :' & setsid sh -c 'sleep 4425 & sleep 4425; :' & wait";
    let _web = Sandbox::start(&yard, &["--name", "web", "--", "sh", "-c", script]);
    until("the members run", || yard.find("sleep 4425").len() == 3);
    let found = &array(&yard, ["tree", "web", "--json"])[0];
    let members = found["members"].as_array().unwrap();
    assert_eq!(members.len(), 6, "{members:?}");
    let strays = members.iter().filter(|member| member["stray"].is_string()).count();
    assert_eq!(strays, 3, "the shell in a session of its own, and those below it: {members:?}");
    assert_eq!(members[0]["parent"], serde_json::Value::Null);
    let text = shown(&yard, ["tree", "web", "-p", "--full"]);
    assert_eq!(text.lines().count(), 7, "{text}");
    assert_eq!(text.lines().filter(|line| line.contains("stray: own session")).count(), 3, "{text}");
    for member in members {
        assert!(text.contains(&format!("{} ", member["pid"])), "{text}");
    }
    assert!(text.contains("sleep 4425"), "{text}");
    assert!(!shown(&yard, ["tree", "web"]).lines().skip(1).any(|line| line.contains("4425")), "names only");
}

#[test]
fn a_status_tells_word_reason_processes_and_last_lines() {
    let yard = Yard::new();
    let script = "for i in 1 2 3 4 5; do echo line $i; done; sleep 4426";
    let web = Sandbox::start(&yard, &["--name", "web", "--", "sh", "-c", script]);
    until("it has said all", || shown(&yard, ["status", "web"]).contains("line 5"));
    let text = shown(&yard, ["status", "web", "-n", "2"]);
    assert!(text.contains("running") && text.contains("sleep"), "{text}");
    assert!(text.contains("line 4\n  line 5") && !text.contains("line 3"), "{text}");
    assert!(!shown(&yard, ["status", "web", "-n", "0"]).contains("line 5"));
    web.kill();
    let text = shown(&yard, ["status", "web"]);
    assert!(text.contains("killed (kill)") && text.contains("line 5"), "{text}");
}

#[test]
fn reports_are_listed_and_shown_step_by_step() {
    let yard = Yard::new();
    let fine = Sandbox::start(&yard, &["--name", "fine", "--", "true"]);
    fine.wait();
    let failed = Sandbox::start(&yard, &["--name", "bad", "--", "sh", "-c", "sleep 4427 & exit 3"]);
    failed.wait();
    let running = Sandbox::start(&yard, &["--name", "web", "--", "sleep", "4428"]);
    let of = |words: &[&str]| {
        let found = array(&yard, ["report", "--json"].iter().chain(words));
        ids(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), [failed.id.as_str(), fine.id.as_str()], "the last first");
    assert_eq!(of(&["--last"]), [failed.id.as_str()]);
    assert_eq!(of(&["--failed"]), [failed.id.as_str()]);
    assert_eq!(of(&["fine"]), [fine.id.as_str()]);
    let table = shown(&yard, ["report"]);
    assert!(table.lines().count() == 3 && table.contains("verified gone"), "{table}");
    let page = shown(&yard, ["report", "bad"]);
    assert!(page.contains("step") && page.contains("sleep") && page.contains("ended 1 process"), "{page}");
    let none = output(&mut yard.penfold(["report", "web"]));
    assert_eq!(code(&none), 1);
    assert!(said(&none).contains("it has not ended"), "{}", said(&none));
    drop(running);
}
