//! `penfold gc` on what killed supervisors left, and on what only looks like it.

use std::path::Path;

use crate::support_d::{
    Directory, Started, Yard, children, code, fresh_id, jailed, json, output, said, skip, until,
};
use rustix::process::Pid;
use serde_json::Value;

/// Runs a sandbox and kills all of penfold's processes at the same time; gives the id.
///
/// They are stopped first, so that none can act on the end of another.
fn lose_supervisors(yard: &Yard, root: &Path, contain: &str, seconds: &str) -> String {
    let mut command = yard.command(env!("CARGO_BIN_EXE_penfold"));
    command.arg("--root").arg(root).args(["run", "--contain", contain, "--", "sh", "-c"]);
    command
        .arg(format!("setsid sleep {seconds} & sleep {seconds}; true"))
        .stderr(std::process::Stdio::null());
    let front = Started::of(&mut command);
    until("the members run", || yard.find(&format!("sleep {seconds}")).len() == 2);
    let member = yard.find(&format!("sleep {seconds}"))[0];
    let environment = std::fs::read(format!("/proc/{}/environ", member.as_raw_pid())).unwrap();
    let marker = environment.split(|&byte| byte == 0).find_map(|text| text.strip_prefix(b"PENFOLD_SANDBOX="));
    let id = String::from_utf8(marker.unwrap().to_vec()).unwrap();
    let outer = children(front.pid())[0];
    let inner = children(outer)[0];
    let ours: Vec<Pid> = vec![front.pid(), outer, inner];
    crate::support_d::kill_at_once(&ours);
    id
}

fn alive(yard: &Yard, seconds: &str) -> usize {
    yard.find(&format!("sleep {seconds}")).len()
}

fn of<'a>(found: &'a Value, id: &str) -> Vec<&'a Value> {
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak["id"] == id).collect()
}

#[test]
fn a_record_without_supervisors_is_found_and_ended() {
    jailed(|| {
        for (contain, seconds) in [("auto", "3301"), ("subreaper", "3302")] {
            let yard = Yard::new();
            let mut bystander =
                Started::of(yard.command("sleep").arg("3303").env("PENFOLD_SANDBOX", "not an id"));
            let id = lose_supervisors(&yard, &yard.path("root"), contain, seconds);
            assert_eq!(alive(&yard, seconds), 2, "{contain}");

            let seen = output(&mut yard.penfold(["doctor", "--json"]));
            assert_eq!(code(&seen), 1);
            assert_eq!(of(&json(&seen), &id)[0]["kind"], "record", "{contain}");

            let refused = output(&mut yard.penfold(["gc"]));
            assert_eq!(code(&refused), 2, "nobody to ask: {}", said(&refused));
            assert!(said(&refused).contains("gc -f"), "{}", said(&refused));
            let dry = output(&mut yard.penfold(["gc", "-n", "--json"]));
            assert_eq!(code(&dry), 0);
            assert_eq!(of(&json(&dry), &id)[0]["outcome"], "would remove");
            assert_eq!(alive(&yard, seconds), 2, "{contain}: nothing was touched");

            let done = output(&mut yard.penfold(["gc", "-f", "--json"]));
            assert_eq!(code(&done), 0, "{contain}: {}", said(&done));
            let found = json(&done);
            assert_eq!(of(&found, &id)[0]["outcome"], "removed", "{found}");
            assert_eq!(of(&found, &id)[0]["findings"]["verified"], true, "{found}");
            assert_eq!(alive(&yard, seconds), 0, "{contain}");
            assert!(bystander.is_alive());
            let after = json(&output(&mut yard.penfold(["doctor", "--json"])));
            assert!(of(&after, &id).is_empty(), "{after}");
        }
    });
}

#[test]
fn what_has_no_record_must_be_old_enough() {
    jailed(|| {
        for (contain, seconds) in [("auto", "3311"), ("subreaper", "3312")] {
            let yard = Yard::new();
            let stateless = yard.path("file");
            std::fs::write(&stateless, "").unwrap();
            let id = lose_supervisors(&yard, &stateless, contain, seconds);
            assert_eq!(alive(&yard, seconds), 2, "{contain}");

            let young = output(&mut yard.penfold(["gc", "-f", "--json"]));
            assert_eq!(code(&young), 0, "{}", said(&young));
            let found = json(&young);
            assert!(!of(&found, &id).is_empty(), "{contain}: {found}");
            assert!(of(&found, &id).iter().all(|leak| leak["outcome"] == "kept"), "{found}");
            assert_eq!(alive(&yard, seconds), 2, "{contain}");

            let mut old = yard.penfold(["gc", "-f", "--json", "--older-than", "0"]);
            if contain == "subreaper" {
                // Nothing tells whose it is.
                old.arg(&id);
            }
            let done = output(&mut old);
            assert_eq!(code(&done), 0, "{}", said(&done));
            assert_eq!(alive(&yard, seconds), 0, "{contain}: {}", json(&done));
            let after = json(&output(&mut yard.penfold(["doctor", "--json"])));
            assert!(of(&after, &id).is_empty(), "{after}");
        }
    });
}

#[test]
fn cgroups_and_directories_without_a_record_go() {
    jailed(|| {
        let yard = Yard::new();
        let id = fresh_id();
        let directory = Directory::make(yard.path("tmp").join(format!("penfold-{id}"))).unwrap();
        std::fs::create_dir(directory.path().join("deep")).unwrap();
        std::fs::write(directory.path().join("deep/file"), "").unwrap();
        let outside = yard.path("outside");
        std::fs::write(&outside, "").unwrap();
        std::os::unix::fs::symlink(&outside, directory.path().join("link")).unwrap();
        let place = penfold_cgroup::Place::find_here();
        let cgroup = place
            .as_ref()
            .ok()
            .map(|place| Directory::make(place.path().join(format!("penfold-{id}"))).unwrap());
        if cgroup.is_none() {
            skip("no cgroup2 to write to; the directory alone is tried");
        }
        let stranger = yard.path("tmp").join(format!("penfold-{}", fresh_id()));
        std::fs::write(&stranger, "a file, and no directory").unwrap();

        let done = output(&mut yard.penfold(["gc", "-f", "--json", "--older-than", "0"]));
        let found = json(&done);
        assert!(of(&found, &id).iter().all(|leak| leak["outcome"] == "removed"), "{found}");
        assert!(!directory.path().try_exists().unwrap());
        assert!(cgroup.is_none_or(|cgroup| !cgroup.path().try_exists().unwrap()));
        assert!(outside.try_exists().unwrap() && stranger.try_exists().unwrap());
    });
}

#[test]
fn a_directory_that_somebody_stands_in_stays() {
    jailed(|| {
        let yard = Yard::new();
        let id = fresh_id();
        let directory = Directory::make(yard.path("tmp").join(format!("penfold-{id}"))).unwrap();
        let _inside = Started::of(yard.command("sleep").arg("3321").current_dir(directory.path()));
        let done = output(&mut yard.penfold(["gc", "-f", "--json", "--older-than", "0"]));
        assert!(of(&json(&done), &id).is_empty(), "{}", said(&done));
        assert!(directory.path().try_exists().unwrap());
    });
}

#[test]
fn with_nothing_to_do_nobody_is_asked() {
    jailed(|| {
        let yard = Yard::new();
        // What others have left on this host is older than no time at all, and younger than this.
        let done = output(&mut yard.penfold(["gc", "--older-than", "10000d"]));
        assert_eq!(code(&done), 0, "{}", said(&done));
        assert!(done.stdout.is_empty());
    });
}

#[test]
fn an_unreadable_state_root_keeps_all_that_has_no_record() {
    jailed(|| {
        let yard = Yard::new();
        let id = fresh_id();
        let directory = Directory::make(yard.path("tmp").join(format!("penfold-{id}"))).unwrap();
        std::fs::create_dir(yard.path("root")).unwrap();
        std::os::unix::fs::symlink("/nonexistent", yard.path("root").join("sandboxes")).unwrap();
        let done = output(&mut yard.penfold(["gc", "-f", "--json", "--older-than", "0"]));
        assert_eq!(code(&done), 5, "{}", said(&done));
        let found = json(&done);
        assert_eq!(found["complete"], false, "{found}");
        assert_eq!(of(&found, &id)[0]["outcome"], "kept", "{found}");
        assert!(directory.path().try_exists().unwrap());
    });
}
