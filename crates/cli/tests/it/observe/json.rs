//! `docs/json.md` has every field that penfold prints.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::support::{Running, TestEnv, wait_until};

/// Objects with keys of users, and the files of records, whose fields are penfold's own.
const LEAVES: [&str; 2] = ["labels", "files"];

/// Adds the paths of all fields of a value.
fn fields(value: &Value, above: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
                found.insert(path.clone());
                if !LEAVES.contains(&key.as_str()) {
                    fields(value, &path, found);
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|one| fields(one, above, found)),
        _ => {}
    }
}

/// The fields that a section of the page names.
fn documented(page: &str, section: &str) -> BTreeSet<String> {
    let title = format!("## {section}\n");
    let text = page.split(&title).nth(1).unwrap_or_else(|| panic!("no section {section}"));
    let rows = text.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    let cells = rows.map(|row| row.split('|').nth(1).unwrap());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

/// Starts a sandbox with an exec and a lease, one that has ended with a stray, and one that was stopped; returns their ids.
fn sandboxes(env: &TestEnv) -> [String; 3] {
    let living = env.detach([
        "--name",
        "living",
        "-l",
        "a=b",
        "--ttl",
        "1h",
        "sh",
        "-c",
        "sleep 1000 & exec sleep 1001",
    ]);
    living.call(env, &["exec", "-d", "ID", "sleep", "1002"]).with_code(0);
    wait_until("all run", || env.is_running("sleep 1000") && env.is_running("sleep 1002"));
    let over = env.detach(["--name", "over", "sh", "-c", "setsid sleep 1003 & echo line; exit 3"]);
    over.await_end();
    let stopped = env.detach(["sleep", "1004"]);
    stopped.call(env, &["stop", "ID"]).with_code(0);
    [living.id.clone(), over.id.clone(), stopped.id.clone()]
}

/// spec: 8.17
#[test]
fn every_field_is_documented() {
    let env = TestEnv::new();
    let [living, over, stopped] = &sandboxes(&env);
    let guard =
        ["guard", "-t", "0s", "--report", "guard.json", "--", "sh", "-c", "setsid sleep 1005 & exit 0"];
    env.call(guard).with_code(123);
    env.run(["--report", "run.json", "/no/such/program"]).with_code(127);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/json.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (living, over, stopped) = (living.as_str(), over.as_str(), stopped.as_str());
    let mut missing = Vec::new();
    let mut check = |section: &str, what: &str, text: &str| {
        let known = documented(&page, section);
        let mut found = BTreeSet::new();
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        values.for_each(|value| fields(&value.unwrap(), "", &mut found));
        assert!(found.len() > 3, "{what}: {text}");
        found.remove("schema");
        // What a leak and a virtual machine are made of differs by their kinds.
        let is_known = |path: &String| {
            known.contains(path)
                || ["leaks.", "foreign.vms."].iter().any(|start| path.starts_with(start))
                    && section.starts_with("Doctor")
        };
        missing
            .extend(found.into_iter().filter(|path| !is_known(path)).map(|path| format!("{what}: {path}")));
    };
    for words in [
        &["ps", "-a", "--stats", "--json"][..],
        &["inspect", living, over],
        &["status", "--json", living, over],
        &["tree", "--json", living],
        &["stats", "--no-stream", "--json", living],
    ] {
        check("Sandbox", words[0], &env.call(words).with_code(0).out());
    }
    check("Report", "report", &env.call(["report", "--json", over, stopped]).with_code(0).out());
    for file in ["guard.json", "run.json"] {
        check("Report", file, &std::fs::read_to_string(env.path("work").join(file)).unwrap());
    }
    let victim = Running::start(env.command("sleep").arg("1006"));
    let reap = env.call(["reap", "--json", "-t", "0s", "--pid", &victim.pid().to_string()]).with_code(0);
    check("Report", "reap", &reap.out());
    check("Event", "events", &env.call(["events", "--no-follow", "--json", "--steps"]).with_code(0).out());
    check("Log", "logs", &env.call(["logs", "--json", over]).with_code(0).out());
    check("Log", "logs of several", &env.call(["logs", "--json", over, stopped]).with_code(0).out());
    check("Doctor and gc", "doctor", &env.call(["doctor", "--json", "--foreign"]).out());
    check("Doctor and gc", "gc", &env.call(["gc", "-n", "--json"]).out());
    assert!(missing.is_empty(), "docs/json.md lacks:\n{}", missing.join("\n"));
    env.call(["rm", "-f", "--all"]).with_code(0);
}
