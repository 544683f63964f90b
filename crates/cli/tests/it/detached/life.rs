//! The life of detached sandboxes: start, causes of the end, and the record afterwards.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::json;

use super::sandboxes::{
    all_live, await_end_of, await_log, await_running, end, exec, kill, none_lives, remove,
};
use crate::support::{
    ControlClient, Finished, Level, Prng, Running, Sandbox, Terminal, TestEnv, Who, entries, is_root, json,
    penfold, skip, wait_until,
};

/// `run -d` with these words, to its end.
#[track_caller]
fn run_detached(env: &TestEnv, words: &[&str]) -> Finished {
    env.run([&["-d"], words].concat())
}

/// The ids of all records.
fn records(env: &TestEnv) -> Vec<String> {
    let paths = entries(&env.path("root/sandboxes")).into_iter();
    paths.map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
}

#[track_caller]
fn await_no_record(env: &TestEnv) {
    wait_until("no record is left", || records(env).is_empty());
}

/// spec: 12.1
#[test]
fn id_is_printed_once_the_command_runs() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "1001"]);
    assert!(env.is_running("sleep 1001"));
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    let client = ControlClient::silent(&sandbox.record).unwrap();
    let hello = client.hear().unwrap();
    assert_eq!(hello, json!({"hello": {"protocol": 1, "id": sandbox.id, "by": true}}));
    kill(&sandbox);
    assert_eq!(end(&env, &sandbox), ("killed".into(), "kill".into(), json!({"signal": 9})));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.1
#[test]
fn supervisors_show_their_role_and_their_sandbox() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().map(Level::word) {
        let sandbox = env.detach(["--contain", level, "--name", "web", "--", "sleep", "1003"]);
        let id = &sandbox.id;
        let shown: Vec<String> =
            sandbox.supervisors_now().iter().map(|one| one.command_line().trim().to_owned()).collect();
        assert_eq!(shown, [format!("penfold standby {id} web"), format!("pf-supervisor {id}")], "{level}");
        kill(&sandbox);
        sandbox.await_end();
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.1
#[test]
fn command_that_cannot_start_leaves_nothing() {
    // The leaves of this test alone are in a cgroup of its own.
    let env = if is_root() { TestEnv::of(Who::Root) } else { None }.unwrap_or_else(TestEnv::new);
    let holder = env.detach(["--name", "web", "--", "sleep", "1002"]);
    let before = env.left();
    run_detached(&env, &["--scratch", "--", "no-such-program"]).refused(127, "no-such-program");
    run_detached(&env, &["--scratch", "--", "/etc/passwd"]).refused(126, "/etc/passwd");
    run_detached(&env, &["-w", "/no/such/directory", "--", "true"]).refused(125, "/no/such/directory");
    run_detached(&env, &["--name", "web", "--", "touch", "ran"]).refused(125, "");
    for nowhere in ["/proc/penfold", "/dev/null"] {
        let words = ["--root", nowhere, "run", "-d", "--", "touch", "ran"];
        Running::start(env.command(penfold()).args(words)).finish().refused(125, "");
    }
    assert!(!env.path("work/ran").try_exists().unwrap(), "a refused command has run");
    wait_until("only the record and the leaf of the holder are left", || env.left() == before);
    assert_eq!(entries(&env.path("root/names")), [env.path("root/names/web")]);
    wait_until("no refused command is left", || env.running("touch ran").is_empty());
    kill(&holder);
    remove(&env, &holder);
    env.assert_nothing_left();
}

/// A file system with room for a number of files and pages, mounted on the state root until this is dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(env: &TestEnv, files: u32, pages: u32) -> Option<SmallDisk> {
        let options = std::ffi::CString::new(format!("size={}k,nr_inodes={files}", pages * 4)).unwrap();
        mount("none", env.root(), "tmpfs", MountFlags::empty(), options.as_c_str()).ok()?;
        Some(SmallDisk(env.root()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// spec: 12.1
#[test]
fn full_disk_leaves_nothing_or_a_sandbox_that_can_be_ended() {
    if !is_root() {
        return;
    }
    let (mut refused, mut ran) = (0, 0);
    for (files, pages) in (2..=16).map(|files| (files, 64)).chain((1..=6).map(|pages| (64, pages))) {
        let env = TestEnv::new();
        let Some(disk) = SmallDisk::mount(&env, files, pages) else {
            return skip("no tmpfs can be mounted here");
        };
        let run = run_detached(&env, &["--name", "web", "--", "sleep", "1003"]);
        let case = format!("{files} files, {pages} pages: {}", run.err());
        if run.code() == Some(0) {
            ran += 1;
            let sandbox = Sandbox::printed(&env, &run.out());
            let members = env.running("sleep 1003");
            assert_eq!(members.len(), 1, "{case}");
            kill(&sandbox);
            sandbox.assert_gone(&members);
        } else {
            refused += 1;
            run.refused(125, "");
            await_no_record(&env);
        }
        wait_until(&case, || env.running("sleep 1003").is_empty());
        drop(disk);
        env.assert_nothing_left();
    }
    assert!(refused > 0 && ran > 0, "{refused} refused, {ran} ran");
}

/// The death of the caller closes its link, as the exec of the command does: the supervisor must tell one from the other.
/// spec: 12.1
#[test]
fn caller_killed_while_the_command_is_looked_for_leaves_nothing() {
    let env = TestEnv::new();
    // Each part is a file that is not there: the search takes a tenth of a second.
    let path = format!("PATH={}", ":".repeat(100_000));
    let mut caught = 0;
    for _ in 0..5 {
        let caller = Running::start(&mut env.run_command(["-d", "-e", &path, "--", "nosuch"]));
        let is_created = || {
            let ids = records(&env);
            let state = ids.first().map(|id| env.path("root/sandboxes").join(id).join("state.json"));
            state.and_then(|file| std::fs::read_to_string(file).ok()).is_some_and(|state| {
                // The supervisor may be writing it.
                state.contains("created")
            })
        };
        wait_until("the record says `created`, or the search is over", || is_created() || !caller.is_alive());
        caller.signal(Signal::KILL);
        caught += usize::from(caller.finish().signal() == Some(9));
        await_no_record(&env);
    }
    assert!(caught > 0, "a tenth of a second is too short on this machine");
    env.assert_nothing_left();
}

/// spec: 12.1
#[test]
fn caller_killed_at_any_moment_leaves_a_listed_sandbox_or_nothing() {
    const CALLERS: usize = 60;
    let env = TestEnv::new();
    let (mut prng, seed) = Prng::fresh();
    let begun = Instant::now();
    let first = run_detached(&env, &["--rm", "--", "sleep", "1004"]).with_code(0);
    let usual = u64::try_from(begun.elapsed().as_micros()).unwrap();
    let mut printed = BTreeSet::from([first.out().trim().to_owned()]);
    for _ in 0..CALLERS {
        let caller = Running::start(&mut env.run_command(["-d", "--rm", "--", "sleep", "1004"]));
        let moment = Duration::from_micros(prng.below(usual * 3 / 2));
        penfold_testkit::until(moment, || false);
        caller.signal(Signal::KILL);
        let finished = caller.finish();
        if finished.out().ends_with('\n') {
            printed.insert(finished.out().trim().to_owned());
        }
    }
    // A sandbox whose id was not printed ends, or runs and is listed.
    let mut found = (Vec::new(), 0);
    let is_settled = || {
        let ids = records(&env);
        let state = |id: &String| json(&env.path("root/sandboxes").join(id).join("state.json"));
        let all_run = ids.iter().all(|id| state(id).is_some_and(|state| state["word"] == "running"));
        // No process may be on its way to become a sandbox: each has two supervisors and the command.
        let no_other = env.processes().len() == 3 * ids.len();
        found = (ids, env.running("sleep 1004").len());
        all_run && no_other && found.0.len() == found.1 && found.1 == env.listed(&[]).len()
    };
    let settled = penfold_testkit::until(crate::support::DEADLINE, is_settled);
    assert!(settled, "seed {seed}: {} records, {} processes", found.0.len(), found.1);
    let records: BTreeSet<String> = found.0.into_iter().collect();
    let lost: Vec<_> = printed.difference(&records).collect();
    assert!(lost.is_empty(), "seed {seed}: printed and not there: {lost:?}");
    assert!(records.len() <= CALLERS, "no caller was killed before the command ran");
    for id in records {
        let sandbox = Sandbox::printed(&env, &format!("{id}\n"));
        kill(&sandbox);
        sandbox.assert_gone(&[]);
    }
    await_no_record(&env);
    env.assert_nothing_left();
}

/// The session of a process, its group, and the number of its terminal.
fn place(pid: i32) -> [i32; 3] {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // After the name: state, parent, group, session, terminal.
    let mut fields = stat.rsplit(") ").next().unwrap().split(' ').skip(2).map(|field| field.parse().unwrap());
    let mut next = || fields.next().unwrap();
    let (group, session, terminal) = (next(), next(), next());
    [session, group, terminal]
}

/// spec: 12.1
#[test]
fn sandbox_outlives_the_terminal_it_was_started_from() {
    let env = TestEnv::new();
    let Some(terminal) = Terminal::open(&env) else { return };
    // All processes that stay in the group of the caller get the three signals.
    let run = "$PF -d -- sh -c 'sleep 1006 & exec sleep 1005'";
    terminal.line(&format!(
        "bash -c \"trap : INT HUP TERM; {run}; read x; kill -INT 0; kill -HUP 0; kill -TERM 0; echo asked\""
    ));
    let members = await_running(&env, &["sleep 1006", "sleep 1005"]);
    wait_until("the supervisors and the leader are recorded", || {
        let ids = records(&env);
        let [id] = ids.as_slice() else { return false };
        let sandbox = Sandbox::printed(&env, &format!("{id}\n"));
        sandbox.supervisors.len() == 2 && sandbox.leader().is_some()
    });
    let sandbox = Sandbox::printed(&env, &format!("{}\n", records(&env)[0]));
    let [shell] = env.running("bash --norc --noprofile").try_into().unwrap();
    let [session, _, number] = place(shell.pid());
    assert_ne!(number, 0, "the shell has no terminal");
    // A terminal sends its hangup and the signals of its keys to processes of its own session only.
    for process in members.iter().chain(&sandbox.supervisors) {
        let [its_session, group, terminal] = place(process.pid());
        let line = process.command_line();
        assert!(
            its_session != session && terminal == 0,
            "`{line}`: session {its_session}, group {group}, terminal {terminal}"
        );
    }
    terminal.line("go");
    terminal.shows("asked");
    drop(terminal);
    shell.await_end();
    // A supervisor that answers has handled all signals that were sent to it before.
    exec(&env, &sandbox, &["true"]).with_code(0);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    assert!(all_live(&members));
    kill(&sandbox);
    assert_eq!(end(&env, &sandbox), ("killed".into(), "kill".into(), json!({"signal": 9})));
    sandbox.assert_gone(&members);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// Starts a shell that starts a sandbox and stays, and kills the shell.
fn sandbox_with_dead_owner(env: &TestEnv, options: &str) -> (Sandbox, Vec<crate::support::Process>) {
    let command = "sh -c 'trap \"exit 9\" TERM; setsid sleep 1008 & sleep 1007 & while :; do wait; done'";
    let script = format!("$PF -d {options} -- {command}; cat");
    let mut bash = env.command("bash");
    let owner = Running::start(bash.args(["-c", &script]).stdin(Stdio::piped()));
    owner.hear("\n", 1);
    let sandbox = Sandbox::printed(env, &owner.heard());
    let members = await_running(env, &["sleep 1007", "sleep 1008"]);
    owner.signal(Signal::KILL);
    owner.process().await_end();
    (sandbox, members)
}

/// spec: 12.3
#[test]
fn owner_s_death_does_what_was_asked_for() {
    for (option, exit) in [("kill", json!({"signal": 9})), ("stop", json!({"code": 9}))] {
        let env = TestEnv::new();
        let (sandbox, members) =
            sandbox_with_dead_owner(&env, &format!("--grace 5s --on-owner-exit {option}"));
        assert_eq!(end(&env, &sandbox), ("killed".into(), "owner".into(), exit));
        sandbox.assert_gone(&members);
        remove(&env, &sandbox);
        env.assert_nothing_left();
    }
    let env = TestEnv::new();
    let (sandbox, members) = sandbox_with_dead_owner(&env, "");
    // A supervisor that answers twice has looked at everything that was ready before the first answer.
    for _ in 0..2 {
        exec(&env, &sandbox, &["true"]).with_code(0);
    }
    assert!(all_live(&members));
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    kill(&sandbox);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// [`super::promptness`] has the lengths of leases.
/// spec: 12.3
#[test]
fn lease_ends_the_sandbox_unless_it_is_renewed() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--ttl", "1s", "--", "sh", "-c", "setsid sleep 1009 & exec sleep 1010"]);
    let expires = || sandbox.file("state.json").unwrap()["expires_at_ms"].as_u64().unwrap();
    let first = expires();
    let client = ControlClient::connect(&sandbox.record).unwrap();
    client.say("{\"extend\":60000}");
    assert_eq!(client.hear(), Some(json!("done")));
    assert!(expires() > first + 50_000);
    let members = await_running(&env, &["sleep 1009", "sleep 1010"]);
    // A sandbox with the first lease, begun later, ends earlier.
    let witness = env.detach(["--ttl", "1s", "--", "sleep", "1010"]);
    assert_eq!(end(&env, &witness), ("killed".into(), "ttl".into(), json!({"signal": 15})));
    exec(&env, &sandbox, &["true"]).with_code(0);
    assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
    assert!(all_live(&members));
    client.say("{\"extend\":100}");
    assert_eq!(end(&env, &sandbox), ("killed".into(), "ttl".into(), json!({"signal": 15})));
    sandbox.assert_gone(&members);
    remove(&env, &sandbox);
    remove(&env, &witness);
    env.assert_nothing_left();
}

/// spec: 12.3
#[test]
fn idle_sandbox_ends_and_a_busy_one_does_not() {
    let env = TestEnv::new();
    // The lines take longer than the sandbox may be idle.
    let script = "for i in 1 2 3 4 5 6; do echo line $i; sleep 0.2; done; exec sleep 1011";
    let sandbox = env.detach(["--idle-timeout", "1s", "--", "sh", "-c", script]);
    let (status, cause, _) = end(&env, &sandbox);
    assert_eq!((status.as_str(), cause.as_str()), ("killed", "idle"));
    let log = sandbox.call(&env, &["logs", "ID"]).with_code(0).out();
    assert!(log.ends_with("line 6\n"), "ended while there was output: {log}");
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.3
#[test]
fn sandbox_to_be_forgotten_leaves_no_record() {
    let env = TestEnv::new();
    env.detach(["--rm", "--", "sh", "-c", "exit 3"]);
    let sandbox = env.detach(["--rm", "--", "sh", "-c", "sleep 1012; :"]);
    let members = await_running(&env, &["sleep 1012"]);
    kill(&sandbox);
    sandbox.assert_gone(&members);
    await_no_record(&env);
    env.assert_nothing_left();
}

/// spec: 12.2
#[test]
fn name_belongs_to_one_living_sandbox() {
    let env = TestEnv::new();
    let winner = || {
        let command = || env.run_command(["-d", "--name", "web", "--", "sleep", "1013"]);
        let callers: Vec<Running> = (0..12).map(|_| Running::start(&mut command())).collect();
        let (winners, losers): (Vec<_>, Vec<_>) =
            callers.into_iter().map(Running::finish).partition(|finished| finished.code() == Some(0));
        let [winner] = winners.as_slice() else { panic!("{} have the name", winners.len()) };
        for loser in losers {
            loser.refused(125, "web");
        }
        // Killed supervisors leave the command of the last round to the next command.
        wait_until("one command runs", || env.running("sleep 1013").len() == 1);
        Sandbox::printed(&env, &winner.out())
    };
    let killed = winner();
    kill(&killed);
    let orphaned = winner();
    orphaned.kill_supervisors();
    let last = winner();
    last.kill_supervisors();
    env.run(["true"]).with_code(0);
    for sandbox in [killed, orphaned, last] {
        sandbox.await_end();
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.4
#[test]
fn exit_code_is_the_command_s_own_and_the_cause_is_told() {
    let env = TestEnv::new();
    let ends = [
        ("exit 0", "exited", "exit", json!({"code": 0})),
        ("exit 143", "exited", "exit", json!({"code": 143})),
        ("exit 137", "exited", "exit", json!({"code": 137})),
        ("kill -TERM $$", "exited", "signal", json!({"signal": 15})),
        ("kill -KILL $$", "exited", "signal", json!({"signal": 9})),
        ("setsid sleep 1014 & exit 7", "exited", "exit", json!({"code": 7})),
    ];
    for (script, status, cause, exit) in ends {
        let sandbox = env.detach(["--", "sh", "-c", script]);
        assert_eq!(end(&env, &sandbox), (status.into(), cause.into(), exit), "{script}");
        remove(&env, &sandbox);
    }
    let script = "trap 'exit 143' TERM; echo up; sleep 1015 & while :; do wait; done";
    let sandbox = env.detach(["--", "sh", "-c", script]);
    await_log(&env, &sandbox, "up");
    let client = ControlClient::connect(&sandbox.record).unwrap();
    client.say("{\"stop\":{\"signal\":15}}");
    client.rest();
    assert_eq!(end(&env, &sandbox), ("killed".into(), "stop".into(), json!({"code": 143})));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 12.4
#[test]
fn kill_at_the_moment_of_the_exit_invents_no_code() {
    let env = TestEnv::new();
    let (mut prng, seed) = Prng::fresh();
    let mut sandboxes = Vec::new();
    for round in 0..20 {
        let sandbox = env.detach(["--", "sh", "-c", "setsid sleep 1016 & sleep 0.02; exit 7"]);
        penfold_testkit::until(Duration::from_micros(prng.below(25_000)), || false);
        if let Some(client) = ControlClient::connect(&sandbox.record) {
            client.say("\"kill\"");
            client.rest();
        }
        let report = sandbox.await_end();
        let (exit, cause) = (&report["exit"], report["cause"].as_str().unwrap());
        let fits = match cause {
            "exit" => *exit == json!({"code": 7}),
            // The leader may have exited just before the kill.
            "kill" => *exit == json!({"signal": 9}) || *exit == json!({"code": 7}),
            _ => false,
        };
        assert!(fits, "seed {seed}, round {round}: {cause} with {exit}");
        let told = sandbox.file("exit.json").unwrap();
        assert_eq!((&told["exit"], sandbox.cause().as_deref()), (exit, Some(cause)));
        sandboxes.push(sandbox.id);
    }
    env.call(["rm".to_owned()].into_iter().chain(sandboxes)).with_code(0);
    env.assert_nothing_left();
}

const TREE: &str = "setsid sleep 1018 & (setsid sleep 1019 &); exec sleep 1017";
const MEMBERS: [&str; 3] = ["sleep 1017", "sleep 1018", "sleep 1019"];

/// [`super::promptness`] has how soon.
/// spec: 12.5
#[test]
fn death_of_either_supervisor_ends_the_sandbox() {
    let env = TestEnv::new();
    for level in env.levels() {
        for killed in [0, 1] {
            let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", TREE]);
            let members = await_running(&env, &MEMBERS);
            sandbox.supervisors[killed].signal(Signal::KILL);
            let expected = ("killed".into(), "supervisor".into(), json!({"signal": 9}));
            assert_eq!(end(&env, &sandbox), expected, "{level:?} {killed}");
            sandbox.assert_gone(&members);
            remove(&env, &sandbox);
        }
    }
    env.assert_nothing_left();
}

/// spec: 12.5
#[test]
fn kept_sandbox_goes_on_under_the_other_supervisor() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().filter(|&level| level != Level::Pidns) {
        for killed in [0, 1] {
            let go = env.path("work/go");
            let script = "setsid sleep 1020 & until [ -e go ]; do sleep 0.05; done; exit 42";
            let sandbox = env.detach([
                "--contain",
                level.word(),
                "--on-supervisor-exit",
                "keep",
                "--",
                "sh",
                "-c",
                script,
            ]);
            let members = await_running(&env, &["sleep 1020"]);
            sandbox.supervisors[killed].signal(Signal::KILL);
            sandbox.supervisors[killed].await_end();
            let client = ControlClient::connect(&sandbox.record).expect("no supervisor has taken over");
            assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
            assert!(all_live(&members), "{level:?}: ended with supervisor {killed}");
            std::fs::write(&go, "").unwrap();
            assert!(client.rest().iter().any(|answer| answer.get("outcome").is_some()));
            let expected = ("exited".into(), "exit".into(), json!({"code": 42}));
            assert_eq!(end(&env, &sandbox), expected, "{level:?} {killed}");
            sandbox.assert_gone(&members);
            remove(&env, &sandbox);
            std::fs::remove_file(&go).unwrap();
        }
    }
    env.assert_nothing_left();
}

/// spec: 2.4, 12.5
#[test]
fn death_of_both_supervisors_is_cleaned_up_by_the_next_command() {
    let env = TestEnv::new();
    for level in env.levels() {
        let sandbox = env.detach(["--contain", level.word(), "--", "sh", "-c", TREE]);
        let members = await_running(&env, &MEMBERS);
        sandbox.kill_supervisors();
        if level == Level::Pidns {
            // The init of the namespace holds the lock of the record until it dies, and its members die after that.
            await_end_of(&members);
        } else {
            assert!(all_live(&members), "{level:?}");
            assert_eq!(sandbox.status(&env).as_deref(), Some("orphaned"));
        }
        env.run(["true"]).with_code(0);
        assert_eq!(end(&env, &sandbox), ("lost".into(), "lost".into(), json!(null)), "{level:?}");
        sandbox.assert_gone(&members);
        // The report has the steps of the next command as it has those of a supervisor.
        let report = sandbox.file("report.json").unwrap();
        assert!(report["steps"].as_array().is_some_and(|steps| !steps.is_empty()), "{level:?}: {report}");
        remove(&env, &sandbox);
    }
    env.assert_nothing_left();
}

/// spec: 12.5
#[test]
fn kept_sandbox_without_supervisors_is_left_alone_by_the_next_command() {
    let env = TestEnv::new();
    let kept = env.detach(["--on-supervisor-exit", "keep", "--", "sh", "-c", TREE]);
    let members = await_running(&env, &MEMBERS);
    kept.kill_supervisors();
    // The next command has this one to clean up.
    let orphan = env.detach(["--", "sleep", "1021"]);
    let others = await_running(&env, &["sleep 1021"]);
    orphan.kill_supervisors();
    env.run(["true"]).with_code(0);
    await_end_of(&others);
    orphan.await_end();
    wait_until("no penfold process runs", || env.find(&penfold().display().to_string()).is_empty());
    assert!(all_live(&members), "ended by the next command");
    assert_eq!(kept.status(&env).as_deref(), Some("orphaned"));
    kept.call(&env, &["kill", "ID"]).with_code(0);
    assert!(none_lives(&members));
    assert_eq!(end(&env, &kept), ("lost".into(), "lost".into(), json!(null)));
    remove(&env, &kept);
    remove(&env, &orphan);
    env.assert_nothing_left();
}
