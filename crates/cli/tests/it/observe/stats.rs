//! `penfold stats`, `ps --stats` and the numbers elsewhere: what a sandbox uses.

use serde_json::Value;

use crate::support::{Sandbox, TestEnv, wait_until};

/// What `stats --no-stream --json` says of a sandbox.
#[track_caller]
fn sample(env: &TestEnv, sandbox: &Sandbox) -> Value {
    let sample = sandbox.call(env, &["stats", "--no-stream", "--json", "ID"]).with_code(0).json();
    assert_eq!((&sample["schema"], &sample["id"]), (&1.into(), &sandbox.id.as_str().into()));
    sample
}

/// spec: 24.1
#[test]
fn a_busy_loop_uses_cpu_by_the_cgroup_and_by_the_processes() {
    let env = TestEnv::new();
    for level in env.levels() {
        // As root, ahead of the sessions of other programs, which may want all processors for a while: sched(7), autogroup.
        let script = "echo -15 >/proc/self/autogroup; while :; do :; done";
        let busy = env.detach(["--contain", level.word(), "--", "sh", "-c", script]);
        let idle = env.detach(["--contain", level.word(), "--", "sleep", "4501"]);
        wait_until("half of a processor is used", || {
            sample(&env, &busy)["usage"]["cpu_percent"].as_f64().unwrap() >= 50.0
        });
        let source = if busy.leaf.is_some() { "cgroup" } else { "processes" };
        let (busy, idle) = (sample(&env, &busy), sample(&env, &idle));
        for sample in [&busy, &idle] {
            assert_eq!(sample["usage"]["cpu_source"], source, "{level:?}: {sample}");
            assert_eq!(sample["usage"]["processes"], 1, "{level:?}: {sample}");
        }
        let time = |sample: &Value| sample["usage"]["cpu_us"].as_u64().unwrap();
        assert!(time(&busy) >= 100_000, "{level:?}: {busy}");
        assert!(time(&idle) < 100_000, "{level:?}: {idle}");
        assert!(idle["usage"]["cpu_percent"].as_f64().unwrap() < 50.0, "{level:?}: {idle}");
        env.call(["kill", "--all", "-f"]).with_code(0);
    }
}

/// spec: 24.1
#[test]
fn memory_is_that_of_all_processes() {
    let env = TestEnv::new();
    for level in env.levels() {
        let _ = std::fs::remove_file(env.path("work/up"));
        let script = "x=$(head -c 67108864 /dev/zero | tr '\\0' x); echo full >> $UP; sleep 4502 & wait";
        let sandbox = env.detach(["--contain", level.word(), "--", "bash", "-c", script]);
        env.await_up(&["full"]);
        wait_until("the second process is there", || sample(&env, &sandbox)["usage"]["processes"] == 2);
        let usage = sample(&env, &sandbox)["usage"].clone();
        let memory = usage["memory_bytes"].as_u64().unwrap();
        assert!((64 << 20..512 << 20).contains(&memory), "{level:?}: {usage}");
        let is_counted =
            sandbox.leaf.as_ref().is_some_and(|leaf| leaf.join("memory.current").try_exists().unwrap());
        assert_eq!(usage["memory_source"], if is_counted { "cgroup" } else { "processes" }, "{level:?}");
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
    }
}

/// spec: 24.1
#[test]
fn a_stream_has_an_object_a_second_and_ends_with_the_sandbox() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sleep", "4503"]);
    let stream = env.begin(["stats", "--json", "web"]);
    stream.hear("\"status\":\"running\"", 2);
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    let said = stream.finish().with_code(0).out();
    let samples: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, others) = samples.split_last().unwrap();
    assert_eq!((&last["status"], &last["usage"]), (&"killed".into(), &Value::Null), "{said}");
    assert!(others.iter().all(|sample| sample["usage"]["cpu_percent"].is_f64()), "{said}");
    let time = last["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z') && time.contains('T'), "{time}");
    env.call(["stats", "nothing"]).refused(3, "no sandbox is called `nothing`");
}

/// spec: 24.2
#[test]
fn other_commands_have_the_numbers_too() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--name", "web", "--", "sleep", "4504"]);
    let heading = |words: &[&str]| {
        let table = env.call(words).with_code(0).out();
        let row = table.lines().find(|line| line.contains("web")).unwrap_or_default().to_owned();
        (table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>().join(" "), row)
    };
    let (columns, row) = heading(&["stats", "--no-stream"]);
    assert_eq!(columns, "ID NAME STATUS CPU MEM PROCS LIMIT CPU TIME");
    assert!(row.contains('%'), "{row}");
    let (columns, row) = heading(&["ps", "--stats"]);
    assert_eq!(columns, "ID NAME STATUS STARTED CPU MEM PROCS COMMAND");
    assert!(row.contains('%') && row.ends_with("sleep 4504"), "{row}");
    assert!(!heading(&["ps"]).0.contains("CPU"));
    for words in [&["ps", "--stats", "--json"][..], &["status", "--json", "web"], &["inspect", "web"]] {
        let found = env.call(words).with_code(0).json();
        assert_eq!(found[0]["usage"]["processes"], 1, "{words:?}: {found}");
    }
    assert!(env.call(["status", "web"]).out().contains("1 process\n"));
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    for verb in ["status", "report"] {
        let page = env.call([verb, "web"]).with_code(0).out();
        assert!(page.lines().any(|line| line.starts_with("used ") && line.ends_with("at most")), "{page}");
    }
    assert_eq!(env.call(["status", "--json", "web"]).json()[0].get("usage"), None);
}
