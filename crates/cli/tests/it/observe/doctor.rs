//! `penfold doctor`: what it says of this host, and that it takes nothing living for a leak.

use crate::support_d::{Directory, Started, Yard, code, fresh_id, jailed, json, output, said, skip, until};
use serde_json::Value;

fn doctor(yard: &Yard) -> (i32, Value) {
    let done = output(&mut yard.penfold(["doctor", "--json"]));
    (code(&done), json(&done))
}

fn leaks_named<'a>(found: &'a Value, text: &str) -> Vec<&'a Value> {
    found["leaks"].as_array().unwrap().iter().filter(|leak| leak.to_string().contains(text)).collect()
}

#[test]
fn every_ability_has_a_state_and_a_meaning_and_nothing_is_left_of_the_tries() {
    let yard = Yard::new();
    let (code, found) = doctor(&yard);
    assert_eq!(found["schema"], 1);
    assert_eq!(code, i32::from(found["clean"] != Value::Bool(true)), "{found}");
    let abilities = found["abilities"].as_array().unwrap();
    for name in ["kernel", "cgroup", "v1-freezer", "pid-namespace", "pid-max", "proc", "state"] {
        let ability = abilities.iter().find(|ability| ability["name"] == name);
        let ability = ability.unwrap_or_else(|| panic!("no {name}: {found}"));
        assert!(["ok", "warn", "fail"].contains(&ability["state"].as_str().unwrap()), "{ability}");
        assert!(!ability["meaning"].as_str().unwrap().is_empty(), "{ability}");
    }
    assert!(abilities.iter().all(|ability| ability["name"] != "leaf-left"), "{found}");
    let levels = found["levels"].as_array().unwrap();
    assert_eq!(
        levels.iter().map(|level| &level["level"]).collect::<Vec<_>>(),
        ["cgroup", "pidns", "subreaper"]
    );
    assert_eq!(levels[2]["available"], true);
    assert!(yard.marked().is_empty(), "the tries have ended");
    assert!(!yard.path("root").try_exists().unwrap(), "looking makes no state");
}

#[test]
fn text_has_a_line_for_each_and_is_readable_without_colour() {
    let yard = Yard::new();
    let done = output(&mut yard.penfold(["doctor"]));
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(
        text.lines().all(|line| ["[ok]   ", "[warn] ", "[fail] ", "       "].contains(&&line[..7])),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'), "{text}");
    assert_eq!(said(&done), "");
}

#[test]
fn an_ordinary_user_gets_the_same_with_other_answers() {
    let yard = Yard::new();
    let mut command = match yard.penfold_as_user(&["doctor", "--json"]) {
        Ok(command) => command,
        Err(reason) => return skip(reason),
    };
    let done = output(&mut command);
    let found = json(&done);
    let state = |name: &str| {
        let abilities = found["abilities"].as_array().unwrap();
        abilities.iter().find(|ability| ability["name"] == name).map(|ability| ability["state"].clone())
    };
    assert_eq!(state("state"), Some("warn".into()), "a root that cannot be made: {found}");
    assert_eq!(code(&done), 1);
}

#[test]
fn a_living_sandbox_is_no_leak_even_to_who_cannot_see_its_record() {
    jailed(|| {
        let yard = Yard::new();
        let stateless = yard.path("file");
        std::fs::write(&stateless, "").unwrap();
        for root in [yard.path("elsewhere"), stateless] {
            let mut command = yard.command(env!("CARGO_BIN_EXE_penfold"));
            command.arg("--root").arg(&root).args([
                "run",
                "--scratch",
                "--",
                "sh",
                "-c",
                "env -i sleep 3201 & sleep 3202",
            ]);
            let mut front = Started::of(command.stderr(std::process::Stdio::null()));
            until("the sandbox runs", || !yard.find("sleep 3202").is_empty());
            let member = yard.find("sleep 3202")[0];
            let environment = std::fs::read(format!("/proc/{}/environ", member.as_raw_pid())).unwrap();
            let marker =
                environment.split(|&byte| byte == 0).find_map(|text| text.strip_prefix(b"PENFOLD_SANDBOX="));
            let id = String::from_utf8(marker.unwrap().to_vec()).unwrap();
            let (_, found) = doctor(&yard);
            assert!(leaks_named(&found, &id).is_empty(), "{id}: {found}");
            let collected = output(&mut yard.penfold(["gc", "-f", "--older-than", "0", "--json"]));
            assert!(leaks_named(&json(&collected), &id).is_empty(), "{id}");
            assert!(front.is_alive(), "{}", root.display());
            assert!(!yard.find("sleep 3202").is_empty());
            crate::support_d::signal(front.pid(), rustix::process::Signal::TERM);
            until("the sandbox ends", || !front.is_alive());
        }
    });
}

#[test]
fn a_cgroup_and_a_directory_without_a_record_are_leaks() {
    let yard = Yard::new();
    let id = fresh_id();
    let directory = Directory::make(yard.path("tmp").join(format!("penfold-{id}"))).unwrap();
    let near = Directory::make(yard.path("tmp").join(format!("penfold-{id}0"))).unwrap();
    let (code, found) = doctor(&yard);
    assert_eq!(code, 1);
    let leaks = leaks_named(&found, &id);
    assert_eq!(leaks.len(), 1, "{found}");
    assert_eq!(leaks[0]["path"], directory.path().display().to_string());
    drop((directory, near));
    let Ok(place) = penfold_cgroup::Place::find_here() else { return skip("no cgroup2 to write to") };
    let cgroup = Directory::make(place.path().join(format!("penfold-{id}"))).unwrap();
    let (code, found) = doctor(&yard);
    assert_eq!(code, 1);
    assert_eq!(leaks_named(&found, &id).len(), 1, "{found}");
    assert!(cgroup.path().try_exists().unwrap(), "looking changes nothing");
}

#[test]
fn inside_a_pid_namespace_of_a_sandbox_its_members_are_no_leaks() {
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a pid namespace that easily");
    }
    let yard = Yard::new();
    let script = "sleep 3211 & setsid sleep 3212 & exec \"$PF\" --root \"$ROOT\" doctor --json";
    let inside = ["run", "--", "unshare", "--pid", "--fork", "--mount-proc", "sh", "-c"];
    let mut command = yard.penfold(inside);
    command.arg(format!("sh -c '{script}'; true")).env("PF", env!("CARGO_BIN_EXE_penfold"));
    let done = output(command.env("ROOT", yard.path("elsewhere")));
    let found = json(&done);
    let ours = |leak: &&Value| leak["processes"].to_string().contains("sleep");
    assert!(found["leaks"].as_array().unwrap().iter().find(ours).is_none(), "{found}");
}
