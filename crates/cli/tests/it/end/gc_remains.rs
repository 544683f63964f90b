//! `penfold gc` and `penfold doctor` on what detached sandboxes leave: ended records, names, unfinished files, supervisors
//! that nobody can ask.

use std::path::{Path, PathBuf};

use crate::support_d::{Yard, code, handle, has_ended, jailed, json, output, said, until};
use rustix::process::{Pid, Signal};
use serde_json::Value;

/// Starts a detached sandbox; gives its id.
fn detached(yard: &Yard, words: &[&str]) -> String {
    let done = output(yard.penfold(["run", "-d"]).args(words));
    assert_eq!(code(&done), 0, "{}", said(&done));
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn record(yard: &Yard, id: &str) -> PathBuf {
    yard.path("root").join("sandboxes").join(id)
}

fn there(path: impl AsRef<Path>) -> bool {
    path.as_ref().try_exists().unwrap()
}

fn ended(yard: &Yard, id: &str) {
    until("it has ended", || there(record(yard, id).join("report.json")) && supervisors(yard, id).is_empty());
}

fn state(yard: &Yard, id: &str) -> Value {
    serde_json::from_slice(&std::fs::read(record(yard, id).join("state.json")).unwrap()).unwrap()
}

/// The supervisors that live.
fn supervisors(yard: &Yard, id: &str) -> Vec<Pid> {
    let of = state(yard, id);
    let pids = of["supervisors"].as_array().unwrap().iter();
    let pids = pids.filter_map(|one| Pid::from_raw(i32::try_from(one["pid"].as_i64()?).ok()?));
    pids.filter(|&pid| crate::support_d::state(pid).is_some_and(|state| state != 'Z')).collect()
}

/// Kills both supervisors at once.
fn lose(yard: &Yard, id: &str) {
    let ours = supervisors(yard, id);
    assert_eq!(ours.len(), 2);
    let handles: Vec<_> = ours.iter().map(|&pid| handle(pid)).collect();
    for &pid in &ours {
        crate::support_d::signal(pid, Signal::STOP);
    }
    until("all are stopped", || ours.iter().all(|&pid| crate::support_d::state(pid) == Some('T')));
    for pidfd in handles.iter().rev() {
        rustix::process::pidfd_send_signal(pidfd, Signal::KILL).unwrap();
    }
    until("all are dead", || handles.iter().all(has_ended));
}

fn of<'a>(found: &'a Value, text: &str) -> Vec<&'a Value> {
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak.to_string().contains(text)).collect()
}

fn doctor(yard: &Yard) -> Value {
    json(&output(&mut yard.penfold(["doctor", "--json"])))
}

#[test]
fn ended_sandboxes_are_kept_until_they_are_old_or_named() {
    jailed(|| {
        let yard = Yard::new();
        let one = detached(&yard, &["--name", "one", "--", "sh", "-c", "echo said; exit 3"]);
        let two = detached(&yard, &["true"]);
        let living = detached(&yard, &["sleep", "3401"]);
        ended(&yard, &one);
        ended(&yard, &two);
        let found = doctor(&yard);
        assert_eq!(found["leaks"], Value::Array(Vec::new()), "{found}");
        assert_eq!(found["ended"], 2, "{found}");

        let young = output(&mut yard.penfold(["gc", "-f", "--json"]));
        assert_eq!((code(&young), of(&json(&young), &one).len()), (0, 0), "{}", said(&young));
        let named = output(&mut yard.penfold(["gc", "one", "--json"]));
        assert_eq!(of(&json(&named), &one)[0]["outcome"], "kept", "{}", said(&named));
        let other = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--kind", "cgroup,name"]));
        assert_eq!((code(&other), other.stdout.len()), (0, 0), "{}", said(&other));

        let asked = output(&mut yard.penfold(["gc", "--older-than", "0"]));
        assert_eq!(code(&asked), 2, "{}", said(&asked));
        let gone = output(&mut yard.penfold(["gc", "--older-than", "0", &one]));
        assert_eq!(code(&gone), 0, "{}", said(&gone));
        assert!(String::from_utf8_lossy(&gone.stdout).starts_with("[ok]   removed "), "{gone:?}");
        assert!(!there(record(&yard, &one)) && there(record(&yard, &two)));
        let all = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--kind", "ended", "--json"]));
        assert_eq!(of(&json(&all), &two)[0]["outcome"], "removed", "{}", said(&all));
        assert!(!there(record(&yard, &two)));

        let alive = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", &living]));
        assert_eq!(code(&alive), 2, "{}", said(&alive));
        assert_eq!(code(&output(&mut yard.penfold(["gc", "-f", &one]))), 3, "it is forgotten");
        assert_eq!(code(&output(&mut yard.penfold(["gc", "-f", ""]))), 3, "nothing means nothing");
        assert_eq!(yard.find("sleep 3401").len(), 1);
    });
}

#[test]
fn an_orphan_goes_with_its_name_and_its_unfinished_files_whatever_their_age() {
    jailed(|| {
        let yard = Yard::new();
        let id = detached(&yard, &["--name", "web", "--", "sh", "-c", "setsid sleep 3411 & sleep 3411"]);
        until("the members run", || yard.find("sleep 3411").len() == 2);
        lose(&yard, &id);
        std::fs::write(record(&yard, &id).join("state.json.7.new"), "{").unwrap();
        let found = doctor(&yard);
        assert_eq!(of(&found, &id).len(), 1, "{found}");
        assert_eq!(of(&found, &id)[0]["kind"], "record", "{found}");
        let done = output(&mut yard.penfold(["gc", "web", "--json"]));
        assert_eq!(code(&done), 0, "{}", said(&done));
        assert_eq!(of(&json(&done), &id)[0]["findings"]["verified"], true);
        assert!(yard.find("sleep 3411").is_empty());
        let events = std::fs::read_to_string(yard.path("root").join("events.jsonl")).unwrap();
        assert!(
            events.contains("\"kind\":\"leak\"") && events.contains("\"outcome\":\"removed\""),
            "{events}"
        );
        assert!(!there(yard.path("root").join("names/web")));
        assert!(!there(record(&yard, &id).join("state.json.7.new")));
        let kept: Value =
            serde_json::from_slice(&std::fs::read(record(&yard, &id).join("exit.json")).unwrap()).unwrap();
        assert_eq!((&kept["exit"], &kept["cause"]), (&Value::Null, &Value::from("lost")), "{kept}");
        assert_eq!(doctor(&yard)["leaks"], Value::Array(Vec::new()));
    });
}

#[test]
fn a_report_beside_a_living_member_is_not_believed() {
    jailed(|| {
        let yard = Yard::new();
        let id = detached(&yard, &["--contain", "subreaper", "--", "sleep", "3421"]);
        until("it runs", || yard.find("sleep 3421").len() == 1);
        lose(&yard, &id);
        std::fs::write(record(&yard, &id).join("report.json"), "{}").unwrap();
        assert_eq!(of(&doctor(&yard), &id)[0]["kind"], "record");
        let done = output(&mut yard.penfold(["gc", "-f", "--json"]));
        assert_eq!(code(&done), 0, "{}", said(&done));
        assert!(yard.find("sleep 3421").is_empty());
    });
}

#[test]
fn names_that_nobody_holds_go_and_others_stay() {
    jailed(|| {
        let yard = Yard::new();
        let id = detached(&yard, &["--name", "held", "--", "sleep", "3431"]);
        let names = yard.path("root").join("names");
        std::fs::write(names.join("free"), crate::support_d::fresh_id()).unwrap();
        std::fs::write(names.join("empty"), "").unwrap();
        std::os::unix::fs::symlink(yard.path("root"), names.join("link")).unwrap();
        // A name that young may be one that is just being taken.
        until("they are seen", || of(&doctor(&yard), "\"name\"").len() == 2);
        let done = output(&mut yard.penfold(["gc", "-f", "--json"]));
        assert_eq!(code(&done), 0, "{}", said(&done));
        assert!(!there(names.join("free")) && !there(names.join("empty")));
        assert!(there(names.join("held")) && names.join("link").is_symlink(), "{id}");
        assert_eq!(yard.find("sleep 3431").len(), 1);
    });
}

#[test]
fn a_supervisor_that_nobody_can_ask_is_named_and_left_alone() {
    let yard = Yard::new();
    let (lost, deaf) = (detached(&yard, &["sleep", "3441"]), detached(&yard, &["sleep", "3442"]));
    std::fs::rename(record(&yard, &lost), yard.path("elsewhere")).unwrap();
    std::fs::remove_file(record(&yard, &deaf).join("control.sock")).unwrap();
    until("both are seen", || {
        let found = doctor(&yard);
        of(&found, &lost).len() == 1 && of(&found, &deaf).len() == 1
    });
    let found = doctor(&yard);
    assert_eq!(of(&found, &lost)[0]["kind"], "socket", "{found}");
    assert_eq!(of(&found, &deaf)[0]["kind"], "unreachable", "{found}");
    let text = output(&mut yard.penfold(["doctor"]));
    let text = String::from_utf8_lossy(&text.stdout);
    assert!(text.contains(&format!("kill {lost}")) && text.contains(&format!("kill {deaf}")), "{text}");
    let done = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--json", &lost, &deaf]));
    assert!(of(&json(&done), "sleep").is_empty() && code(&done) == 0, "{}", said(&done));
    let outcomes = json(&done);
    assert!(outcomes["leaks"].as_array().unwrap().iter().all(|leak| leak["outcome"] == "kept"), "{outcomes}");
    assert_eq!((yard.find("sleep 3441").len(), yard.find("sleep 3442").len()), (1, 1));
}
