//! `penfold metrics`: counters that outlive events and records.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;

use crate::run::launcher::own_processes;
use crate::serve::Server;
use crate::support::{Running, TestEnv, kill_at_once, wait_until};

/// A number of `penfold metrics`, by name and labels as they are printed.
#[track_caller]
pub fn number(env: &TestEnv, series: &str) -> String {
    let numbers = read(&env.call(["metrics"]).with_code(0).out());
    numbers.get(series).unwrap_or_else(|| panic!("no `{series}`")).to_string()
}

/// The numbers of verified and of unverified ends.
#[track_caller]
pub fn ended(env: &TestEnv, mode: &str, cause: &str) -> (String, String) {
    let of = |verified| {
        let labels = format!("mode=\"{mode}\",cause=\"{cause}\",verified=\"{verified}\"");
        number(env, &format!("penfold_sandboxes_ended_total{{{labels}}}"))
    };
    (of("true"), of("false"))
}

/// Numbers as [`ended`] has them.
pub fn of(verified: u64, unverified: u64) -> (String, String) {
    (verified.to_string(), unverified.to_string())
}

/// Reads the text format of Prometheus, version 0.0.4, as strictly as its description is.
#[track_caller]
fn read(text: &str) -> BTreeMap<String, f64> {
    let mut numbers = BTreeMap::new();
    let mut families = Vec::new();
    let (mut name, mut kind) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (of, text) = help.split_once(' ').unwrap();
            assert!(!text.is_empty() && is_name(of) && !families.contains(&of), "{line}");
            families.push(of);
            let of_type = lines.next().unwrap().strip_prefix("# TYPE ").unwrap().split_once(' ').unwrap();
            assert_eq!(of_type.0, of, "{line}");
            assert!(["counter", "histogram"].contains(&of_type.1), "{line}");
            (name, kind) = (of.to_owned(), of_type.1.to_owned());
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        let of = series.split('{').next().unwrap();
        let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.iter().any(|suffix| of == format!("{name}{suffix}")), "{line} below {name}");
        assert!(kind != "counter" || of.ends_with("_total"), "{line}");
        if let Some(labels) = series.strip_prefix(of).filter(|labels| !labels.is_empty()) {
            let labels = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
            for label in labels.split(',') {
                let (key, value) = label.split_once("=\"").unwrap();
                assert!(is_name(key) && value.ends_with('"') && !value.contains('\\'), "{line}");
            }
        }
        let value: f64 = value.parse().unwrap();
        assert!(value >= 0.0 && value.is_finite(), "{line}");
        assert_eq!(numbers.insert(series.to_owned(), value), None, "twice: {series}");
    }
    let buckets: Vec<f64> = text
        .lines()
        .filter(|line| line.contains("_bucket{"))
        .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
        .collect();
    assert!(buckets.len() == 12 && buckets.is_sorted(), "{buckets:?}");
    assert_eq!(buckets.last(), numbers.get("penfold_teardown_seconds_count"));
    numbers
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}

fn has_counters(env: &TestEnv) -> bool {
    env.root().join("counters").try_exists().unwrap()
}

/// spec: 10.5
#[test]
fn the_end_of_a_detached_sandbox_counts_once_and_for_good() {
    let env = TestEnv::new();
    let before = read(&env.call(["metrics"]).with_code(0).out());
    assert!(before.len() > 90 && before.values().all(|&number| number == 0.0), "{before:?}");
    assert!(!has_counters(&env), "to look is not to count");
    env.detach(["--name", "web", "--", "sleep", "50"]);
    env.call(["exec", "web", "true"]).with_code(0);
    env.call(["stop", "web"]).with_code(0);
    env.call(["stop", "web"]).with_code(0);
    assert_eq!(ended(&env, "detached", "stop"), of(1, 0));
    assert_eq!(number(&env, "penfold_teardown_seconds_count"), "1");
    assert_ne!(number(&env, "penfold_teardown_seconds_sum"), "0");
    env.call(["rm", "web"]).with_code(0);
    fs::remove_file(env.root().join("events.jsonl")).unwrap();
    env.detach(["--", "sleep", "50"]);
    env.call(["kill", "--all", "-f"]).with_code(0);
    assert_eq!((ended(&env, "detached", "stop"), ended(&env, "detached", "kill")), (of(1, 0), of(1, 0)));
    let numbers = read(&env.call(["metrics"]).out());
    assert_eq!(
        numbers.iter().filter(|(series, number)| series.contains("_ended_") && **number > 0.0).count(),
        2,
        "{numbers:?}"
    );
}

/// spec: 10.5
#[test]
fn a_foreground_sandbox_counts_only_if_something_went_wrong() {
    let env = TestEnv::new();
    env.run(["--", "true"]).with_code(0);
    env.run(["--timeout", "50ms", "--", "sleep", "50"]).with_code(124);
    assert!(!has_counters(&env));
    let running = env.begin(["run", "--", "sh", "-c", "echo ready; sleep 50; :"]);
    running.hear("ready", 1);
    let own = own_processes(running.pid());
    let supervisor = own.iter().find(|process| process.pid() != running.pid()).unwrap();
    supervisor.signal(Signal::KILL);
    running.finish();
    assert_eq!(ended(&env, "foreground", "supervisor"), of(1, 0));
}

/// spec: 10.5
#[test]
fn a_recovered_sandbox_counts_as_lost_and_as_a_leak() {
    let env = TestEnv::new();
    let detached = env.detach(["--", "sleep", "50"]);
    detached.kill_supervisors();
    env.call(["gc", "-f"]).with_code(0);
    let running = env.begin(["run", "--", "sh", "-c", "echo ready; sleep 50; :"]);
    running.hear("ready", 1);
    let own = own_processes(running.pid());
    kill_at_once(&own.iter().collect::<Vec<_>>());
    env.call(["gc", "-f"]).with_code(0);
    running.finish();
    assert_eq!(ended(&env, "detached", "lost"), of(1, 0));
    assert_eq!(ended(&env, "foreground", "lost"), of(1, 0));
    for name in ["found", "mended"] {
        assert_eq!(number(&env, &format!("penfold_leaks_{name}_total{{kind=\"record\"}}")), "2", "{name}");
    }
    let orphan = env.detach(["--", "sleep", "50"]);
    orphan.kill_supervisors();
    env.call(["gc", "-n"]).with_code(0);
    assert_eq!(number(&env, "penfold_leaks_found_total{kind=\"record\"}"), "2", "a dry run counts nothing");
    env.call(["gc", "-f"]).with_code(0);
}

/// spec: 10.5
#[test]
fn what_survives_several_recoveries_counts_once() {
    let env = TestEnv::new();
    let orphan = env.detach(["--contain", "subreaper", "--", "sleep", "50"]);
    // A process that has nothing but the marker is not ended.
    let script = format!("PENFOLD_SANDBOX={} sleep 3791; :", orphan.id);
    let parent = Running::start(env.command("sh").args(["-c", &script]));
    wait_until("the copy runs", || env.is_running("sleep 3791"));
    orphan.kill_supervisors();
    for _ in 0..2 {
        env.call(["gc", "-f"]).with_code(5);
    }
    assert_eq!(ended(&env, "detached", "lost"), of(0, 1));
    let leaks = |what: &str| number(&env, &format!("penfold_leaks_{what}_total{{kind=\"record\"}}"));
    assert_eq!((leaks("found").as_str(), leaks("mended").as_str()), ("1", "0"));
    env.running("sleep 3791")[0].signal(Signal::KILL);
    parent.finish();
    env.call(["gc", "-f"]).with_code(0);
    assert_eq!(ended(&env, "detached", "lost"), of(0, 1));
    assert_eq!((leaks("found").as_str(), leaks("mended").as_str()), ("1", "1"));
}

/// spec: 10.5
#[test]
fn damage_is_told_and_counted_and_changes_nothing_else() {
    let env = TestEnv::new();
    let end = || {
        let sandbox = env.detach(["--", "sleep", "50"]);
        env.call(["kill", &sandbox.id]).with_code(0);
    };
    end();
    fs::write(env.root().join("counters"), "garbage").unwrap();
    let told = env.call(["metrics"]).with_code(0);
    assert!(told.err().contains("are damaged, and begin again with zero"), "{}", told.err());
    assert!(read(&told.out()).values().all(|&number| number == 0.0));
    assert_eq!(env.call(["metrics", "--json"]).json()["damaged"], true);
    end();
    assert_eq!(ended(&env, "detached", "kill"), of(1, 0));
    assert_eq!(number(&env, "penfold_counters_damaged_total"), "1");
    assert_eq!(env.call(["metrics"]).err(), "");
    // A file that cannot be written disturbs no end.
    fs::remove_file(env.root().join("counters")).unwrap();
    fs::create_dir(env.root().join("counters")).unwrap();
    end();
    env.call(["metrics"]).refused(7, "cannot open");
}

/// spec: 10.5
#[test]
fn a_file_is_replaced_as_a_whole() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "50"]);
    env.call(["kill", &sandbox.id]).with_code(0);
    let directory = env.path("collector");
    fs::create_dir(&directory).unwrap();
    let file = directory.join("penfold.prom");
    fs::write(&file, "old").unwrap();
    let old = fs::File::open(&file).unwrap();
    let word = file.to_str().unwrap();
    assert_eq!(env.call(["metrics", "-o", word]).with_code(0).out(), "");
    assert_eq!(std::io::read_to_string(old).unwrap(), "old");
    assert_eq!(fs::read_to_string(&file).unwrap(), env.call(["metrics"]).out());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    // A link stays, and so does a pipe.
    let link = directory.join("link");
    std::os::unix::fs::symlink("penfold.prom", &link).unwrap();
    fs::write(&file, "old").unwrap();
    env.call(["metrics", "-o", link.to_str().unwrap()]).with_code(0);
    assert!(link.is_symlink());
    assert_eq!(fs::read_to_string(&file).unwrap(), env.call(["metrics"]).out());
    fs::remove_file(link).unwrap();
    assert_eq!(env.call(["metrics", "-o", "/dev/stdout"]).with_code(0).out(), env.call(["metrics"]).out());
    let pipe = directory.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    env.call(["metrics", "-o", pipe.to_str().unwrap()]).refused(1, "cannot write");
    fs::remove_file(pipe).unwrap();
    let none = directory.join("none/penfold.prom");
    env.call(["metrics", "-o", none.to_str().unwrap()]).refused(1, "cannot write");
    env.call(["metrics", "-o", directory.to_str().unwrap()]).refused(1, "cannot write");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    let beside = fs::read_dir(directory.parent().unwrap()).unwrap().flatten();
    assert!(!beside.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with(".collector")));
}

/// spec: 10.5
#[test]
fn json_has_the_same_numbers() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "50"]);
    env.call(["kill", &sandbox.id]).with_code(0);
    let answer = env.call(["metrics", "--json"]).with_code(0).json();
    assert_eq!((&answer["schema"], &answer["damaged"]), (&1.into(), &false.into()));
    let numbers = read(&env.call(["metrics"]).out());
    let shown = answer["counters"].as_array().unwrap();
    assert_eq!(shown.len(), numbers.len());
    for one in shown {
        let name = one["name"].as_str().unwrap();
        let value = one["value"].as_f64().unwrap();
        let labels = one["labels"].as_object().unwrap();
        let is_it = |series: &str| {
            series.split('{').next() == Some(name)
                && labels.iter().all(|(key, value)| series.contains(&format!("{key}={value}")))
        };
        let same: Vec<f64> =
            numbers.iter().filter(|(series, _)| is_it(series)).map(|(_, &number)| number).collect();
        assert_eq!(same, [value], "{one}");
    }
}

/// spec: 10.5
#[test]
fn a_server_has_the_same_counters() {
    let env = TestEnv::new();
    let server = Server::start(&env, &[]);
    let sandbox = env.detach(["--", "sleep", "50"]);
    env.call(["kill", &sandbox.id]).with_code(0);
    let numbers = read(&env.call(["metrics"]).out());
    let text = server.get("/metrics", "").body;
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    for line in ["# TYPE penfold_sandboxes_ended counter", "# TYPE penfold_teardown_seconds histogram"] {
        assert!(text.contains(line), "no `{line}`");
    }
    let lines: Vec<(&str, f64)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.rsplit_once(' ').unwrap())
        .map(|(series, number)| (series, number.parse().unwrap()))
        .collect();
    for (series, number) in &numbers {
        // A float in OpenMetrics has a decimal point.
        let is_same = |&&(other, _): &&(&str, f64)| other.replace(".0\"", "\"") == *series;
        let found: Vec<f64> = lines.iter().filter(is_same).map(|(_, number)| *number).collect();
        assert_eq!(found, [*number], "{series}");
    }
    fs::write(env.root().join("counters"), "garbage").unwrap();
    assert_eq!(server.get("/metrics", "").status, 200);
    wait_until("the server lives", || server.get("/healthz", "").status == 200);
    server.end();
}
