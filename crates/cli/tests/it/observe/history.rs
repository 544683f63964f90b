//! `penfold report` after foreground sandboxes: which reports are kept, how they are found, and that they change nothing else.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, SystemTime};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    Level, PATIENCE, Process, Running, TestEnv, USER, entries, fresh_id, has_program, is_root, kill_at_once,
    skip, wait_until,
};

/// Leaves a process behind, once that process runs.
const STRAY: &str = "sleep 4431 & until grep -q sleep /proc/$!/comm; do :; done";

fn directory(env: &TestEnv) -> PathBuf {
    env.root().join("history")
}

/// The files of the history.
fn kept(env: &TestEnv) -> Vec<PathBuf> {
    entries(&directory(env))
}

/// The files of whole reports: another process may be writing one.
fn written(env: &TestEnv) -> usize {
    kept(env).iter().filter(|path| path.extension().is_none()).count()
}

#[track_caller]
fn reports(env: &TestEnv, words: &[&str]) -> Vec<Value> {
    let words = ["report", "--json"].iter().chain(words);
    env.call(words).with_code(0).json().as_array().unwrap().clone()
}

#[track_caller]
fn last(env: &TestEnv) -> Value {
    let found = reports(env, &["--last"]);
    let [last] = found.as_slice() else { panic!("{found:?}") };
    last.clone()
}

fn id(report: &Value) -> &str {
    report["id"].as_str().unwrap()
}

/// spec: 26.1
#[test]
fn foreground_runs_that_failed_or_left_something_are_kept() {
    let env = TestEnv::new();
    for level in env.levels() {
        let run = |words: &[&str]| env.run([&["--contain", level.word()], words].concat());
        let before = kept(&env).len();
        run(&["true"]).with_code(0);
        assert_eq!(kept(&env).len(), before, "a clean run is not kept");
        let cases: [(&[&str], i32, &str, Value); 5] = [
            (&["sh", "-c", "exit 3"], 3, "exit", json!({"code": 3})),
            (&["sh", "-c", "kill -9 $$"], 137, "signal", json!({"signal": 9})),
            (&["--timeout", "200ms", "sleep", "4430"], 124, "timeout", json!({"signal": 15})),
            (&["no-such-command"], 127, "start-failed", Value::Null),
            (&["sh", "-c", STRAY], 0, "exit", json!({"code": 0})),
        ];
        for (words, code, cause, exit) in cases {
            run(words).with_code(code);
            let report = last(&env);
            assert_eq!((&report["cause"], &report["exit"]), (&json!(cause), &exit), "{words:?}: {report}");
            assert_eq!(report["level"], level.word(), "{words:?}: {report}");
            assert_eq!(report["verified"], true, "{words:?}: {report}");
            let command: Vec<&Value> = report["command"].as_array().unwrap().iter().collect();
            assert_eq!(command.last().unwrap().as_str(), words.last().copied(), "{words:?}: {report}");
        }
        let strays =
            last(&env)["ended"].as_array().unwrap().iter().filter(|one| one["stray"] == true).count();
        assert_eq!(strays, 1);
        assert_eq!(kept(&env).len(), before + 5);
    }
    let mode = |path: &PathBuf| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&directory(&env)), 0o700);
    assert!(kept(&env).iter().all(|path| mode(path) == 0o600));
    env.assert_nothing_left();
}

/// spec: 26.2
#[test]
fn a_kept_report_is_found_by_id_prefix_name_and_time() {
    let env = TestEnv::new();
    env.run(["--name", "first", "sh", "-c", "exit 3"]).with_code(3);
    let first = last(&env);
    env.run(["--name", "second", "sh", "-c", "exit 4"]).with_code(4);
    let second = last(&env);
    let detached = env.detach(["--name", "third", "--", "sh", "-c", "exit 5"]);
    detached.await_end();
    assert_eq!(id(&last(&env)), detached.id, "the detached one ended last");
    env.run(["--name", "second", "sh", "-c", STRAY]).with_code(0);
    let stray = last(&env);
    assert_ne!(id(&stray), detached.id, "the one in the foreground ended last");
    let failed = reports(&env, &["--failed"]);
    let order: Vec<&str> = failed.iter().map(id).collect();
    assert_eq!(order, [id(&stray), detached.id.as_str(), id(&second), id(&first)], "the newest first");
    assert_eq!(reports(&env, &[]), failed);

    let one = |word: &str| {
        let found = reports(&env, &[word]);
        let [one] = found.as_slice() else { panic!("{word}: {found:?}") };
        one.clone()
    };
    assert_eq!(one(id(&first)), first);
    assert_eq!(one("first"), first);
    assert_eq!(one("second"), stray, "the newest with this name");
    assert_eq!(id(&one("third")), detached.id);
    // A shorter prefix may be that of a sandbox of another test.
    assert_eq!(one(&id(&first)[..11]), first);
    env.call(["report", "no-such-name"]).refused(3, "no sandbox is called `no-such-name`");
    env.call(["report", ""]).with_code(3);

    let page = env.call(["report", "first"]).with_code(0).out();
    assert!(page.contains("exit 3") && page.contains("verified gone") && page.contains("step"), "{page}");
    let table = env.call(["report", "--failed"]).with_code(0).out();
    let row = table.lines().nth(1).unwrap();
    assert!(row.starts_with(id(&stray)) && row.contains("sleep 4431"), "{table}");
    assert!(table.lines().nth(4).unwrap().contains("exit 3"), "{table}");
    env.call(["rm", "third"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 26.2
#[test]
fn a_prefix_of_two_sandboxes_is_refused() {
    let env = TestEnv::new();
    env.run(["sh", "-c", "exit 3"]).with_code(3);
    let report = last(&env);
    let mut other = report.clone();
    let twin = format!("{}{}", &id(&report)[..11], if id(&report).ends_with('0') { "1" } else { "0" });
    other["id"] = json!(twin);
    fs::write(directory(&env).join(&twin), other.to_string()).unwrap();
    env.call(["report", &twin[..11]]).refused(4, &twin);
    env.call(["report", &twin]).with_code(0);
    // A file that calls itself otherwise is none of ours.
    fs::rename(directory(&env).join(&twin), directory(&env).join("0123456789ab")).unwrap();
    env.call(["report", "0123456789ab"]).with_code(3);
    assert_eq!(reports(&env, &[]).len(), 1);
    env.assert_nothing_left();
}

/// Makes files of the history, the oldest first, all older than a day.
fn plant(env: &TestEnv, count: u64) -> Vec<PathBuf> {
    fs::create_dir_all(directory(env)).unwrap();
    fs::set_permissions(directory(env), fs::Permissions::from_mode(0o700)).unwrap();
    let day_ago = SystemTime::now() - Duration::from_hours(24);
    let make = |number: u64| {
        let path = directory(env).join(format!("{number:012x}"));
        let file = fs::File::create(&path).unwrap();
        file.set_modified(day_ago - Duration::from_secs(count - number)).unwrap();
        path
    };
    (0..count).map(make).collect()
}

/// spec: 26.3
#[test]
fn the_oldest_beyond_two_hundred_are_removed() {
    let env = TestEnv::new();
    let planted = plant(&env, 230);
    let other = |name: &str| {
        let path = directory(&env).join(name);
        let file = fs::File::create(&path).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(200_000)).unwrap();
        path
    };
    let unfinished = other(&format!("{}.1.new", fresh_id()));
    let foreign = other("notes.txt");
    env.run(["true"]).with_code(0);
    assert_eq!(kept(&env).len(), 232);
    env.run(["sh", "-c", "exit 3"]).with_code(3);
    let is_kept = |path: &PathBuf| kept(&env).contains(path);
    assert!(is_kept(&foreign) && !is_kept(&unfinished));
    assert_eq!(kept(&env).len(), 200 + 1);
    let (old, young) = planted.split_at(31);
    assert!(old.iter().all(|path| !is_kept(path)), "the oldest go");
    assert!(young.iter().all(is_kept), "the youngest stay");
    assert_eq!(last(&env)["exit"]["code"], 3);
    env.assert_nothing_left();
}

/// spec: 26.3
#[test]
fn writers_at_once_lose_nothing() {
    let env = TestEnv::new();
    plant(&env, 195);
    let script = "for i in 1 2 3 4 5; do $PF sh -c \"exit 3\" || :; done";
    let writers: Vec<Running> = (0..6).map(|_| env.shell(script)).collect();
    for writer in writers {
        assert_eq!(writer.finish().with_code(0).err(), "");
    }
    assert_eq!(kept(&env).len(), 200);
    let found = reports(&env, &[]);
    assert_eq!(found.len(), 30, "each of the new ones is kept, and whole");
    env.assert_nothing_left();
}

/// spec: 26.3
#[test]
fn a_large_report_is_cut_and_says_so() {
    let env = TestEnv::new();
    let script = "for i in $(seq 300); do sleep 4432 & done; for p in $(jobs -p); do \
        until grep -q sleep /proc/$p/comm; do :; done; done; exit 3";
    let long = "x".repeat(100_000);
    env.run(["--report", "r.json", "bash", "-c", script, "bash", &long]).with_code(3);
    let whole = crate::support::json(&env.path("work/r.json")).unwrap();
    assert_eq!(whole["ended"].as_array().map(Vec::len), Some(300));
    assert!(whole.get("omitted").is_none(), "only the history cuts");
    let [file] = <[PathBuf; 1]>::try_from(kept(&env)).unwrap();
    assert!(fs::metadata(&file).unwrap().len() <= 20 << 10);
    let report = last(&env);
    let listed = report["ended"].as_array().unwrap().len();
    assert!((1..300).contains(&listed), "{report}");
    assert_eq!(report["omitted"], json!({"ended": 300 - listed, "strays": 300 - listed, "survivors": 0}));
    assert_eq!(report["verified"], true);
    let table = env.call(["report", "--failed"]).with_code(0).out();
    assert!(table.lines().nth(1).unwrap().contains("   300   "), "{table}");
    env.assert_nothing_left();
}

/// What is killed while the command runs.
#[derive(Debug, Clone, Copy)]
enum Killed {
    Launcher,
    Supervisor,
    Both,
}

/// spec: 26.1
#[test]
fn who_is_left_writes_the_report() {
    let env = TestEnv::new();
    for level in env.levels() {
        for (killed, cause) in
            [(Killed::Launcher, "owner"), (Killed::Supervisor, "supervisor"), (Killed::Both, "lost")]
        {
            let context = format!("{level:?} {killed:?}");
            let before = written(&env);
            let mut command = env.run_command(["--contain", level.word(), "sleep", "4433"]);
            let running = Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
            wait_until("the command runs", || env.is_running("sleep 4433"));
            let launcher = Process::find(running.pid()).unwrap();
            let supervisor = env.find("pf-supervisor").into_iter().next().unwrap();
            match killed {
                Killed::Launcher => launcher.signal(Signal::KILL),
                Killed::Supervisor => supervisor.signal(Signal::KILL),
                Killed::Both => kill_at_once(&[&launcher, &supervisor]),
            }
            drop(running.finish());
            if matches!(killed, Killed::Both) {
                // The next command leaves alone what has a supervisor.
                supervisor.await_end();
                env.run(["true"]).with_code(0);
            }
            wait_until("the sandbox has ended", || {
                !env.is_running("sleep 4433") && env.left().is_empty() && written(&env) > before
            });
            let report = last(&env);
            assert_eq!(report["cause"], cause, "{context}: {report}");
            assert_eq!(report["command"], json!(["sleep", "4433"]), "{context}");
            assert_eq!(written(&env), before + 1, "{context}: once");
        }
    }
    env.assert_nothing_left();
}

/// spec: 26.1
#[test]
fn what_is_left_is_in_the_history_until_it_is_gone() {
    if !is_root() {
        return skip("only root may mount");
    }
    let env = TestEnv::new();
    if !env.levels().contains(&Level::Cgroup) {
        return;
    }
    let running = env.begin(["run", "--contain", "cgroup", "--patience", PATIENCE, "sleep", "4434"]);
    wait_until("the command runs", || env.is_running("sleep 4434"));
    let [record] = <[PathBuf; 1]>::try_from(entries(&env.path("root/sandboxes"))).unwrap();
    let intent = crate::support::json(&record.join("intent.json")).unwrap();
    let held = PathBuf::from(intent["leaf"].as_str().unwrap()).join("held");
    fs::create_dir(&held).unwrap();
    mount("none", &held, "tmpfs", MountFlags::empty(), None).unwrap();
    let mounted = Mounted(held);
    env.running("sleep 4434")[0].signal(Signal::KILL);
    running.finish().with_code(120);
    let report = last(&env);
    assert_eq!((&report["verified"], &report["survivors"][0]["kind"]), (&json!(false), &json!("resource")));
    let page = env.call(["report", id(&report)]).with_code(0).out();
    assert!(page.contains("not gone"), "{page}");
    drop(mounted);
    wait_until("the end is verified", || last(&env)["verified"] == true);
    assert_eq!((id(&last(&env)), kept(&env).len()), (id(&report), 1));
    wait_until("nothing is left", || env.left().is_empty());
    env.assert_nothing_left();
}

/// spec: 26.4
#[test]
fn a_history_that_cannot_be_written_changes_nothing() {
    let env = TestEnv::new();
    let fails = |context: &str| {
        let done = env.run(["sh", "-c", &format!("{STRAY}; exit 3")]).with_code(3);
        assert!(done.err().contains("exited with 3") && done.err().contains("verified gone"), "{context}");
        assert_eq!(done.err().lines().count(), 3, "{context}: {}", done.err());
        assert_eq!(env.left(), Vec::<String>::new(), "{context}");
    };
    let path = directory(&env);
    fs::write(&path, "not a directory").unwrap();
    fails("a file");
    assert_eq!(fs::read(&path).unwrap(), b"not a directory");
    fs::remove_file(&path).unwrap();

    let elsewhere = env.path("work/elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    fails("a link");
    assert_eq!(entries(&elsewhere), Vec::<PathBuf>::new());
    fs::remove_file(&path).unwrap();

    if is_root() {
        fs::create_dir(&path).unwrap();
        chown(&path, Some(USER), None).unwrap();
        fails("the directory of another user");
        assert_eq!(kept(&env), Vec::<PathBuf>::new());
        let refused = env.call(["report", "--failed"]);
        assert!(refused.code() != Some(0) && refused.err().contains("history"), "{}", refused.err());
        chown(&path, Some(0), None).unwrap();
        // Damage is left out.
        fs::write(path.join(fresh_id()), "{").unwrap();
        assert_eq!(reports(&env, &["--failed"]), Vec::<Value>::new());
        fails("a damaged file");
        assert_eq!(reports(&env, &["--failed"]).len(), 1);
    }
    env.assert_nothing_left();
}

/// A mounted file system.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// spec: 26.4
#[test]
fn a_full_disk_changes_nothing() {
    if !is_root() {
        return skip("only root can mount a small file system");
    }
    let env = TestEnv::new();
    fs::create_dir(directory(&env)).unwrap();
    if mount("none", directory(&env), "tmpfs", MountFlags::empty(), c"size=4k,mode=700").is_err() {
        return skip("no tmpfs can be mounted here");
    }
    let _mounted = Mounted(directory(&env));
    fs::write(directory(&env).join("full"), [b'x'; 4096]).unwrap();
    let done = env.run(["sh", "-c", "exit 3"]).with_code(3);
    assert_eq!(done.err(), "");
    assert_eq!(kept(&env), [directory(&env).join("full")], "no part of a report is left");
    env.assert_nothing_left();
}

/// spec: 26.4
#[test]
fn the_history_is_no_leak() {
    let env = TestEnv::new();
    env.run(["sh", "-c", &format!("{STRAY}; exit 3")]).with_code(3);
    let before = kept(&env);
    assert_eq!(before.len(), 1);
    let found = env.call(["gc", "-n", "--json"]).with_code(0).out();
    assert!(!found.contains("history"), "{found}");
    env.call(["gc", "-f"]).with_code(0);
    let doctor = env.call(["doctor", "--json"]).out();
    assert!(!doctor.contains("history"), "{doctor}");
    assert_eq!(env.listed_ids(&["-a"]), Vec::<String>::new());
    assert_eq!(kept(&env), before);
    env.assert_nothing_left();
}

/// spec: 26.5
#[test]
fn a_clean_run_makes_no_call_for_the_history() {
    if !has_program(&["strace", "-V"]) {
        return;
    }
    let env = TestEnv::new();
    let calls = |level: Level, code: i32| {
        let log = env.path("calls");
        let mut command = env.command("strace");
        command.args(["-f", "-o", log.to_str().unwrap()]).arg(crate::support::penfold());
        command.arg("--root").arg(env.root()).args(["run", "--contain", level.word()]);
        command.args(["sh", "-c", &format!("exit {code}")]);
        Running::start(&mut command).finish().with_code(code);
        fs::read_to_string(log).unwrap()
    };
    for level in env.levels() {
        assert!(calls(level, 3).contains("\"history\""), "the search finds nothing");
        let clean = calls(level, 0);
        assert!(clean.contains("execve") && !clean.contains("\"history"), "{level:?}");
    }
    env.assert_nothing_left();
}
