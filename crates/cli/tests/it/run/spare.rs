//! `run --spare`: daemons that the end of a sandbox leaves alone.

use std::path::{Path, PathBuf};

use penfold_testkit::proc::{self, Handle};
use penfold_testkit::{Tool, ToolExit, Tree};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    DEADLINE, Level, PATIENCE, Process, Running, TestEnv, USER, Who, has_program, is_root, json, skip,
    wait_until,
};

/// A stand-in for a daemon: a shell of its own file, with a child, which ignores the polite signal.
const DAEMON: &str = "trap '' TERM; sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done; echo daemon >> $UP; exec 3<>$PIPE; while :; do read -r x <&3; done";
/// The crash points at which a daemon is being spared.
pub const POINTS: [&str; 2] = ["spared-moved", "spared-noted"];
/// Starts the daemon at `$DAEMON` and a stray.
const SCRIPT: &str = "setsid $DAEMON -c \"$SCRIPT\" > /dev/null 2>&1 & setsid sleep 2000 & \
    until grep -q daemon $UP; do sleep 0.05; done; echo lead >> $UP";

/// The levels at which processes can be spared.
fn levels(env: &TestEnv) -> Vec<Level> {
    env.levels().into_iter().filter(|level| *level != Level::Pidns).collect()
}

/// Copies a program, so that its file is one of its own.
fn copy(env: &TestEnv, of: &str, to: &str) -> PathBuf {
    let path = env.path("work").join(to);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::copy(of, &path).unwrap();
    path
}

/// `penfold` with these words, and what the scripts need.
fn command(env: &TestEnv, words: &[&str], daemon: &Path) -> std::process::Command {
    let pipe = env.path("work/pipe");
    if !pipe.try_exists().unwrap() {
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    }
    let _ = std::fs::remove_file(env.path("work/up"));
    std::fs::write(env.path("work/up"), "").unwrap();
    let mut command = env.penfold(words);
    command.env("DAEMON", daemon).env("SCRIPT", DAEMON).env("PIPE", pipe);
    command
}

/// Without output, which what is left for a moment would hold open.
fn silent(command: &mut std::process::Command) -> &mut std::process::Command {
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null())
}

/// The daemon, which must stand.
#[track_caller]
fn daemon(env: &TestEnv, daemon: &Path, context: &str) -> Process {
    let mut found = Vec::new();
    // A look misses a process that gets another parent meanwhile: its supervisor is just exiting.
    let stands = penfold_testkit::until(DEADLINE, || {
        found = env.find(daemon.to_str().unwrap());
        found.len() == 1
    });
    assert!(stands, "{context}: {} daemons", found.len());
    found.remove(0)
}

/// Checks that only the daemon lives, outside of the leaf.
#[track_caller]
fn check(env: &TestEnv, path: &Path, context: &str) -> Process {
    let spared = daemon(env, path, context);
    assert!(!env.is_running("sleep 1000"), "{context}: a child of the daemon lives");
    assert!(!env.is_running("sleep 2000"), "{context}: a stray lives");
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", spared.pid())).unwrap();
    assert!(!groups.contains("penfold-"), "{context}: {groups}");
    assert!(!notes(env).is_empty(), "{context}");
    spared
}

/// Checks that only the daemon lives and that no command takes it for a leak, below this state root and another.
#[track_caller]
fn check_all(env: &TestEnv, path: &Path, context: &str) {
    let spared = check(env, path, context);
    let ids: Vec<String> =
        notes(env).iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    for root in ["root", "other-root"] {
        let call = |words: &[&str]| {
            let mut command = env.command(crate::support::penfold());
            Running::start(command.arg("--root").arg(env.path(root)).args(words)).finish()
        };
        let doctor = call(&["doctor", "--json"]).json();
        assert!(!names(&doctor, spared.pid()), "{context} {root}: {doctor}");
        // Sandboxes of others may be listed.
        let listed = call(&["ps", "-q"]).with_code(0).out();
        assert!(ids.iter().all(|id| !listed.contains(id)), "{context} {root}: {listed}");
        call(&["gc", "-f"]).with_code(0);
        call(&["run", "true"]).with_code(0);
    }
    assert!(!spared.has_ended(), "{context}: another command ended it");
    let id = spared.id();
    let wrong = format!("{}@{}", id.pid, id.start + 1);
    env.call(["reap", "-t", "0s", "--pid", &wrong]).with_code(0);
    assert!(!spared.has_ended(), "{context}: another process was meant");
    end(env, path, context);
}

/// Ends the daemon as the summary says; then `gc` removes its note.
#[track_caller]
fn end(env: &TestEnv, path: &Path, context: &str) {
    let spared = daemon(env, path, context);
    let id = spared.id();
    env.call(["reap", "-t", "0s", "--pid", &format!("{}@{}", id.pid, id.start)]).with_code(0);
    spared.await_end();
    env.call(["gc", "-f"]).with_code(0);
    assert_eq!(notes(env), Vec::<PathBuf>::new(), "{context}: notes are left");
}

/// Whether a process is named anywhere in an answer.
fn names(answer: &Value, pid: i32) -> bool {
    match answer {
        Value::Object(fields) => {
            fields.get("pid") == Some(&pid.into()) || fields.values().any(|one| names(one, pid))
        }
        Value::Array(all) => all.iter().any(|one| names(one, pid)),
        _ => false,
    }
}

fn notes(env: &TestEnv) -> Vec<PathBuf> {
    crate::support::entries(&env.path("root/spared"))
}

/// spec: 23.1, 23.2, 23.4
#[test]
fn daemon_lives_on_outside_of_the_leaf_and_its_children_end() {
    let env = TestEnv::new();
    let path = copy(&env, "/bin/sh", "agent");
    for level in levels(&env) {
        let rules = [path.to_str().unwrap(), "agent", "agent:-c", "./agent"];
        let rules = if level == Level::Subreaper { &rules[..1] } else { &rules[..] };
        for &rule in rules {
            let words =
                ["run", "--contain", level.word(), "--spare", rule, "--report", "r.json", "sh", "-c", SCRIPT];
            let done = Running::start(&mut command(&env, &words, &path)).finish().with_code(0);
            let context = format!("{level:?} {rule}");
            let report = json(&env.path("work/r.json")).unwrap();
            assert_eq!(report["verified"], true, "{report}");
            let pid = daemon(&env, &path, &context).pid();
            assert_eq!(report["spared"][0]["pid"], pid, "{context}: {report}");
            assert_eq!(report["spared"].as_array().map(Vec::len), Some(1));
            let is_ended = |ended: &Value| ended["pid"] == pid;
            assert!(!report["ended"].as_array().unwrap().iter().any(is_ended), "{context}: {report}");
            assert!(done.err().contains("spared: "), "{context}: {}", done.err());
            assert!(done.err().contains(&format!("`penfold reap --pid {pid}@")), "{context}: {}", done.err());
            if rule == rules[0] {
                check_all(&env, &path, &context);
            } else {
                check(&env, &path, &context);
                end(&env, &path, &context);
            }
        }
    }
    env.assert_nothing_left();
}

/// spec: 23.1
#[test]
fn look_alikes_end() {
    let env = TestEnv::new();
    let named = copy(&env, "/bin/sleep", "a/agent");
    let other = copy(&env, "/bin/sleep", "b/agent");
    let link = env.path("work/c");
    std::fs::create_dir(&link).unwrap();
    std::os::unix::fs::symlink("/bin/sleep", link.join("agent")).unwrap();
    let link = link.join("agent");
    for level in levels(&env) {
        let ends = |rule: &str, program: &str| {
            // What it runs at the end is the program itself.
            let script = format!(
                "setsid {program} 3000 > /dev/null 2>&1 & until tr '\\0' ' ' < /proc/$!/cmdline | grep -q '^[^ ]*agent 3000'; \
                 do sleep 0.02; done"
            );
            let words =
                ["--contain", level.word(), "--spare", rule, "--report", "r.json", "sh", "-c", &script];
            env.run(words).with_code(0);
            let report = json(&env.path("work/r.json")).unwrap();
            assert_eq!(report["ended"].as_array().map(Vec::len), Some(1), "{rule} {program}: {report}");
            assert!(report.get("spared").is_none(), "{rule} {program}: {report}");
            assert!(
                !env.processes().iter().any(|process| process.command_line().contains("3000")),
                "{program}"
            );
        };
        // The same name and content, another file.
        ends(named.to_str().unwrap(), other.to_str().unwrap());
        // The same comm and first word, another executable.
        ends("agent", link.to_str().unwrap());
        // The word is not there.
        ends("agent:300", named.to_str().unwrap());
        if is_root() {
            let user = crate::support::USER;
            ends("agent", &format!("setpriv --reuid {user} --clear-groups {}", named.display()));
        }
    }
    env.assert_nothing_left();
}

/// spec: 23.2
#[test]
fn command_itself_is_never_spared() {
    let env = TestEnv::new();
    for level in levels(&env) {
        let words = ["--contain", level.word(), "--spare", "sleep", "--timeout", "200ms", "sleep", "1000"];
        env.run(words).with_code(124);
        let running = env.begin([&["run"], &words[..4], &["sleep", "1000"]].concat());
        wait_until("it runs", || env.is_running("sleep 1000"));
        let ours: Vec<Process> =
            env.processes().into_iter().filter(|one| !one.command_line().starts_with("sleep")).collect();
        crate::support::kill_at_once(&ours.iter().collect::<Vec<_>>());
        drop(running);
        env.run(["true"]).with_code(0);
        wait_until("it is ended", || !env.is_running("sleep 1000"));
    }
    wait_until("the notes are gone", || notes(&env).is_empty());
    env.assert_nothing_left();
}

/// The causes of an end that another process brings about.
#[derive(Debug, Clone, Copy)]
enum Cause {
    Limit,
    Term,
    Owner,
    Supervisor,
    Launcher,
    Both,
}

/// spec: 23.2, 23.3
#[test]
fn every_end_of_a_foreground_sandbox_spares() {
    let env = TestEnv::new();
    let path = copy(&env, "/bin/sh", "agent");
    let script = format!("{SCRIPT}; exec sleep 4000");
    for level in levels(&env) {
        for cause in
            [Cause::Limit, Cause::Term, Cause::Owner, Cause::Supervisor, Cause::Launcher, Cause::Both]
        {
            let context = format!("{level:?} {cause:?}");
            let limit = if matches!(cause, Cause::Limit) { "1s" } else { "0" };
            let (level, limit) = (format!("--contain={}", level.word()), format!("--timeout={limit}"));
            let words = ["run", &level, "--spare=agent", "--grace=300ms", &limit, "sh", "-c", &script];
            let mut command = command(&env, &words, &path);
            let running = if matches!(cause, Cause::Owner) {
                let mut shell = env.command("sh");
                shell
                    .args(["-c", "\"$@\"; exit $?", "sh"])
                    .arg(command.get_program())
                    .args(command.get_args());
                for (key, value) in command.get_envs() {
                    if let Some(value) = value {
                        shell.env(key, value);
                    }
                }
                Running::spawn(silent(&mut shell))
            } else {
                Running::spawn(silent(&mut command))
            };
            env.await_up(&["daemon", "lead"]);
            let named = |name: &str| {
                let found = env.processes().into_iter().find(|one| one.command_line().starts_with(name));
                found.unwrap_or_else(|| panic!("{context}: no {name}"))
            };
            let launcher = || Process::find(running.pid()).unwrap();
            match cause {
                Cause::Limit => {}
                Cause::Term => running.signal(Signal::TERM),
                Cause::Owner | Cause::Launcher => launcher().signal(Signal::KILL),
                Cause::Supervisor => named("pf-supervisor").signal(Signal::KILL),
                Cause::Both => crate::support::kill_at_once(&[&launcher(), &named("pf-supervisor")]),
            }
            drop(running.finish());
            if matches!(cause, Cause::Both) {
                env.run(["true"]).with_code(0);
            }
            wait_until("the sandbox has ended", || {
                !env.is_running("sleep 4000") && !env.is_running("sleep 2000")
            });
            wait_until("its record is gone", || env.left().is_empty());
            check(&env, &path, &context);
            end(&env, &path, &context);
        }
    }
    env.assert_nothing_left();
}

/// spec: 23.2, 23.3
#[test]
fn every_end_of_a_detached_sandbox_spares() {
    let env = TestEnv::new();
    let path = copy(&env, "/bin/sh", "agent");
    let script = format!("{SCRIPT}; exec sleep 4000");
    for level in levels(&env) {
        for way in ["stop", "kill", "rm -f", "forced kill", "lost", "takeover"] {
            let context = format!("{level:?} {way}");
            let words = ["run", "-d", "--contain", level.word(), "--spare", "agent", "--grace", "300ms"];
            let mut command = command(&env, &[&words[..], &["sh", "-c", &script]].concat(), &path);
            let out = Running::start(&mut command).finish().with_code(0).out();
            let sandbox = crate::support::Sandbox::printed(&env, &out);
            env.await_up(&["daemon", "lead"]);
            match way {
                "forced kill" => {
                    sandbox.stop_supervisors();
                    env.call(["kill", &sandbox.id]).with_code(0);
                }
                "lost" => {
                    sandbox.kill_supervisors();
                    env.call(["gc", "-f", &sandbox.id]).with_code(0);
                }
                "takeover" => {
                    let supervisors = sandbox.supervisors_now();
                    let supervisor = supervisors.iter().find(|one| one.command_line().starts_with("pf-"));
                    supervisor.unwrap().signal(Signal::KILL);
                    sandbox.await_end();
                }
                verb => drop(env.call(verb.split(' ').chain([sandbox.id.as_str()])).with_code(0)),
            }
            if matches!(way, "stop" | "kill" | "takeover") {
                let report = env.call(["report", &sandbox.id]);
                assert!(report.out().contains("spared"), "{context}: {}", report.out());
            }
            drop(env.call(["rm", "-f", &sandbox.id]));
            check(&env, &path, &context);
            end(&env, &path, &context);
        }
    }
    env.assert_nothing_left();
}

/// spec: 23.3
#[test]
fn both_processes_killed_in_the_middle_of_the_end_change_nothing() {
    if !crate::support::has_debug_assertions() {
        return skip("the binary has no crash points");
    }
    let env = TestEnv::new();
    let path = copy(&env, "/bin/sh", "agent");
    for level in levels(&env) {
        for point in [&POINTS[..], &["killed", "releasing"]].concat() {
            let words = ["run", "--contain", level.word(), "--spare", "agent", "sh", "-c", SCRIPT];
            let mut command = command(&env, &words, &path);
            drop(Running::spawn(silent(command.env("PENFOLD_CRASH_AT", point))).finish());
            wait_until("the record is gone", || {
                drop(env.run(["true"]).with_code(0));
                env.left().is_empty()
            });
            check(&env, &path, &format!("{level:?} {point}"));
            end(&env, &path, &format!("{level:?} {point}"));
        }
    }
    env.assert_nothing_left();
}

/// spec: 23.2
#[test]
fn rules_of_a_nested_sandbox_do_not_bind_the_enclosing_one() {
    let env = TestEnv::new();
    let path = copy(&env, "/bin/sh", "agent");
    for level in levels(&env) {
        let script = "$PF --spare agent sh -c \"$INNER\"; [ -z \"$(grep lead $UP)\" ] || echo inner >> $UP";
        for (outer, lives) in [(None, false), (Some("agent"), true)] {
            let rules: Vec<&str> = outer.iter().flat_map(|rule| ["--spare", rule]).collect();
            let words = [&["run", "--contain", level.word()], &rules[..], &["sh", "-c", script]].concat();
            let mut command = command(&env, &words, &path);
            let done = Running::start(command.env("INNER", SCRIPT)).finish().with_code(0);
            env.await_up(&["daemon", "lead", "inner"]);
            assert!(done.err().contains("spared: "), "{}", done.err());
            assert_eq!(!env.find(path.to_str().unwrap()).is_empty(), lives, "{level:?}: {}", done.err());
            if lives {
                check(&env, &path, &format!("{level:?}"));
                end(&env, &path, &format!("{level:?}"));
            }
        }
    }
    env.call(["gc", "-f"]).with_code(0);
    assert_eq!(notes(&env), Vec::<PathBuf>::new());
    env.assert_nothing_left();
}

/// spec: 23.1
#[test]
fn agent_of_ssh_is_spared_for_each_user() {
    if !has_program(&["sh", "-c", "command -v ssh-agent"]) {
        return;
    }
    for who in [Who::Tester, Who::Delegated, Who::Plain] {
        let Some(env) = TestEnv::of(who) else { continue };
        let done = env.run(["--spare", "ssh-agent", "ssh-agent", "-a", "agent.sock"]).with_code(0);
        let is_agent = |stat: &proc::Stat| stat.name == "ssh-agent";
        let agent = proc::all().into_iter().filter(is_agent).find_map(|stat| {
            let process = Process::open(stat.id)?;
            process.command_line().contains("agent.sock").then_some(process)
        });
        let agent = agent.unwrap_or_else(|| panic!("{who:?}: {}", done.err()));
        assert!(done.err().contains("spared: ssh-agent -a agent.sock"), "{who:?}: {}", done.err());
        env.call(["gc", "-f"]).with_code(0);
        assert!(!agent.has_ended(), "{who:?}");
        agent.signal(Signal::KILL);
        agent.await_end();
        env.assert_nothing_left();
    }
}

/// spec: 23.5
#[test]
fn other_survivors_are_named_beside_spared_ones() {
    if !is_root() || !has_program(&["setpriv", "--version"]) {
        return;
    }
    let Some(env) = TestEnv::of(Who::Plain) else { return };
    let path = copy(&env, "/bin/sleep", "agent");
    let script = format!(
        "setsid {} 1000 > /dev/null 2>&1 & until grep -q agent /proc/$!/comm; do sleep 0.01; done; exec \"$@\"",
        path.display()
    );
    let (program, root) = (crate::support::penfold().display().to_string(), env.root().display().to_string());
    let words = [
        &program,
        "--root",
        &root,
        "run",
        "--contain",
        "subreaper",
        "--patience",
        PATIENCE,
        "--spare",
        "agent",
    ];
    let words = [&words[..], &["sh", "-c", &script, "sh", "{cmd}"]].concat();
    // An ordinary user cannot signal a member that became root.
    let tree = Tree::spawn(&Tool::new(words).user(USER), "setuid-root").unwrap();
    tree.assert_alive();
    let member = tree.members()[1];
    tree.tell_leader_to_exit().unwrap();
    assert_eq!(tree.await_tool_exit(DEADLINE), Some(ToolExit::Code(120)), "{}", tree.stderr());
    let said = tree.stderr();
    assert!(said.contains("not gone: ") && said.contains("not permitted"), "{said}");
    assert!(said.contains("spared: ") && said.contains("reap --pid"), "{said}");
    Handle::open(member).unwrap().unwrap().signal(Signal::KILL).unwrap();
    let all = proc::all().into_iter().filter_map(|stat| Process::open(stat.id));
    let spared: Vec<Process> =
        all.filter(|one| one.command_line().starts_with(path.to_str().unwrap())).collect();
    let [spared] = spared.as_slice() else { panic!("{} daemons: {said}", spared.len()) };
    spared.signal(Signal::KILL);
    spared.await_end();
    assert!(tree.await_gone(DEADLINE).is_empty());
    tree.end().unwrap();
}

/// spec: 23.1
#[test]
fn namespaces_and_texts_that_are_no_rules_are_refused() {
    let env = TestEnv::new();
    for (words, why) in [
        (
            ["--contain", "pidns", "--spare", "x", "true"],
            "`--spare` cannot be used together with `--contain pidns`",
        ),
        (
            ["--profile", "jail", "--spare", "x", "true"],
            "`--spare` cannot be used together with `--profile jail`",
        ),
        (["--contain", "auto", "--spare", "java:", "true"], "a rule is the name or path"),
    ] {
        env.run(words).refused(125, why);
    }
    std::fs::write(env.path("work/box.toml"), "command = ['true']\nspare = ['a:']\n").unwrap();
    env.run(["--spec", "box.toml"]).refused(125, "a rule is the name or path");
    env.assert_nothing_left();
}

/// spec: 23.6
#[test]
fn run_without_rules_makes_no_call_for_them() {
    if !has_program(&["strace", "-V"]) {
        return;
    }
    let env = TestEnv::new();
    let calls = |words: &[&str]| {
        let log = env.path("calls");
        let mut command = env.command("strace");
        command
            .args(["-f", "-o", log.to_str().unwrap()])
            .arg(crate::support::penfold())
            .arg("--root")
            .arg(env.root());
        command.arg("run").args(words).args(["sh", "-c", "sleep 1000 & sleep 0.1"]);
        Running::start(&mut command).finish().with_code(0);
        std::fs::read_to_string(log).unwrap()
    };
    let made = ["\"spared\"", "/exe\", "];
    let some = calls(&["--spare", "no-such-daemon"]);
    assert!(made.iter().all(|call| some.contains(call)), "the search finds nothing");
    let none = calls(&[]);
    assert!(none.contains("execve"));
    let is_made =
        |line: &&str| made.iter().any(|call| line.contains(call)) && !line.contains("/proc/self/exe");
    let found: Vec<&str> = none.lines().filter(is_made).collect();
    assert!(found.is_empty(), "{found:?}");
}
