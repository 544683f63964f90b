//! `penfold reap --home`: what tests have left below a directory.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{
    Process, Running, Sandbox, TestEnv, USER, has_program, is_root, penfold, skip, wait_until,
};

/// The home of a test, older than a clock tick.
fn home(env: &TestEnv) -> PathBuf {
    let home = env.path("home");
    std::fs::create_dir(&home).unwrap();
    let begun = Instant::now();
    wait_until("a clock tick has passed", || begun.elapsed() > Duration::from_millis(20));
    home
}

#[track_caller]
fn start(command: &mut Command) -> Running {
    Running::spawn(command.stdout(Stdio::null()))
}

/// A shell that sleeps, with this name for its first argument: the arguments name nothing of the test.
fn sleeper(env: &TestEnv, argument: &str) -> Command {
    let mut command = env.command("sh");
    command.current_dir("/").env_remove("TMPDIR").args(["-c", "sleep 1000; true", argument]);
    command
}

#[track_caller]
fn reap(env: &TestEnv, home: &Path) -> Value {
    let done = env.call(["reap", "--json", "-t", "2s", "--home", home.to_str().unwrap()]).with_code(0);
    let found = done.json();
    assert_eq!(found["verified"], true, "{found}");
    found
}

/// The evidence that a dry run names for a process.
#[track_caller]
fn evidence(env: &TestEnv, home: &Path, pid: i32) -> Option<String> {
    let done = env.call(["reap", "-n", "--json", "--home", home.to_str().unwrap()]).with_code(0);
    let found = done.json();
    let target = found["targets"].as_array().unwrap().iter().find(|target| target["pid"] == pid)?;
    target["evidence"].as_str().map(str::to_owned)
}

/// The process is seen alive with this evidence, and then gone with its child.
#[track_caller]
fn is_swept(env: &TestEnv, home: &Path, started: &Running, expected: &str) {
    wait_until(expected, || evidence(env, home, started.pid()).as_deref() == Some(expected));
    assert!(started.is_alive());
    let found = reap(env, home);
    assert!(!started.is_alive(), "{expected}: {found}");
    let target = found["targets"].as_array().unwrap().iter().find(|one| one["pid"] == started.pid()).unwrap();
    assert_eq!(target["evidence"], expected);
    assert!(!env.is_running("sleep 1000"), "{expected}: its child");
    // Once more there is nothing to do.
    assert!(reap(env, home)["targets"].as_array().unwrap().is_empty());
}

/// spec: 3.5
#[test]
fn guard_without_tests_sweeps() {
    let env = TestEnv::new();
    let home = home(&env);
    let started = start(sleeper(&env, "x").current_dir(&home));
    wait_until("it is found", || evidence(&env, &home, started.pid()).is_some());
    env.call(["guard", "--home", home.to_str().unwrap()]).with_code(0);
    assert!(!started.is_alive());
    env.call(["guard", "--home", "x", "true"]).refused(125, "cannot be used together with");
    env.call(["guard"]).refused(125, "CMD");
}

/// spec: 3.5
#[test]
fn directory_program_and_open_files_are_evidence() {
    let env = TestEnv::new();
    let home = home(&env);
    std::fs::create_dir(home.join("below")).unwrap();
    is_swept(&env, &home, &start(sleeper(&env, "x").current_dir(home.join("below"))), "working-directory");
    std::fs::copy("/bin/sh", home.join("program")).unwrap();
    let mut command = env.command(home.join("program"));
    // The name in the arguments is another one.
    command.current_dir("/").env_remove("TMPDIR").arg0("sh").args(["-c", "sleep 1000; true"]);
    is_swept(&env, &home, &start(&mut command), "program");
    let file = std::fs::File::create(home.join("file")).unwrap();
    let held = start(sleeper(&env, "x").stdin(file.try_clone().unwrap()));
    drop(file);
    is_swept(&env, &home, &held, "open-file");
    // A file that has no name any more.
    let file = std::fs::File::create(home.join("gone")).unwrap();
    let held = start(sleeper(&env, "x").stdin(file));
    std::fs::remove_file(home.join("gone")).unwrap();
    is_swept(&env, &home, &held, "open-file");
}

/// spec: 3.5
#[test]
fn a_mapped_file_is_evidence() {
    if !has_program(&["python3", "-c", "import mmap"]) {
        return;
    }
    let env = TestEnv::new();
    let home = home(&env);
    std::fs::write(home.join("mapped"), "x").unwrap();
    let maps = "import mmap, os, sys, time; f = os.open(sys.stdin.readline().strip(), os.O_RDONLY); \
        m = mmap.mmap(f, 1, prot=mmap.PROT_READ); os.close(f); libc = m; sys.stdin.close(); \
        [os.close(n) for n in range(3, 20) if os.path.exists('/proc/self/fd/%d' % n)]; time.sleep(1000)";
    let mut command = env.command("sh");
    let script = format!("echo {}/mapped | python3 -c \"$0\"", home.display());
    command.current_dir("/").env_remove("TMPDIR").args(["-c", &script, maps]);
    // The shell names the home in its arguments: only Python is looked at.
    let shell = start(&mut command);
    let is_python = |process: &Process| process.command_line().contains("-c import mmap");
    let python = || env.processes().into_iter().find(is_python);
    wait_until("the file is mapped", || {
        python().is_some_and(|python| evidence(&env, &home, python.pid()).as_deref() == Some("mapped-file"))
    });
    let python = python().unwrap();
    reap(&env, &home);
    python.await_end();
    assert!(!shell.is_alive());
}

/// spec: 3.5
#[test]
fn arguments_are_evidence_for_a_younger_process_of_the_same_user_only() {
    let env = TestEnv::new();
    let path = env.path("home").join("x").display().to_string();
    let older = start(&mut sleeper(&env, &path));
    let begun = Instant::now();
    wait_until("a clock tick has passed", || begun.elapsed() > Duration::from_millis(20));
    let home = home(&env);
    let mut bystanders = vec![older, start(&mut sleeper(&env, &format!("{}2", home.display())))];
    if is_root() {
        bystanders.push(start(sleeper(&env, &path).uid(USER)));
    }
    let younger = start(&mut sleeper(&env, &format!("--dir={path}")));
    wait_until("it runs", || evidence(&env, &home, younger.pid()).as_deref() == Some("arguments"));
    reap(&env, &home);
    assert!(!younger.is_alive());
    for bystander in &bystanders {
        assert!(bystander.is_alive(), "{}", bystander.pid());
    }
}

/// spec: 3.5
#[test]
fn the_marker_of_a_sandbox_with_a_record_there_is_evidence() {
    let env = TestEnv::new();
    let home = home(&env);
    let root = home.join("state");
    let mut run = env.command(penfold());
    let id =
        Running::start(run.arg("--root").arg(&root).args(["run", "-d", "true"])).finish().with_code(0).out();
    let id = id.trim();
    let over = || Running::start(env.command(penfold()).arg("--root").arg(&root).args(["wait", id])).finish();
    over().with_code(0);
    let of_another = start(sleeper(&env, "x").env("PENFOLD_SANDBOX", "000000000000"));
    let marked = start(sleeper(&env, "x").env("PENFOLD_SANDBOX", format!("000000000000:{id}")));
    wait_until("it runs", || evidence(&env, &home, marked.pid()).as_deref() == Some("marker"));
    reap(&env, &home);
    assert!(!marked.is_alive());
    assert!(of_another.is_alive());
}

/// A sandbox whose state root is below the home, with a member that left it.
#[track_caller]
fn sandbox_in(env: &TestEnv, root: &Path) -> (String, Vec<Process>) {
    let mut command = env.command(penfold());
    command.current_dir("/").arg("--root").arg(root);
    command.args(["run", "-d", "sh", "-c", "setsid sleep 1000 & sleep 1001"]);
    let id = Running::start(&mut command).finish().with_code(0).out().trim().to_owned();
    let mut members = Vec::new();
    wait_until("the tree stands", || {
        members = env.running("sleep 1000");
        members.extend(env.running("sleep 1001"));
        members.len() == 2
    });
    members.extend(env.find(&format!("pf-supervisor {id}")));
    (id, members)
}

/// spec: 3.6
#[test]
fn sandboxes_are_ended_by_their_records_and_those_of_other_roots_live() {
    let env = TestEnv::new();
    let home = home(&env);
    // A real sandbox that works in the home.
    let other = env.detach(["-w", home.to_str().unwrap(), "sleep", "1002"]);
    std::fs::create_dir(home.join("a")).unwrap();
    let (id, members) = sandbox_in(&env, &home.join("a/state"));
    let listed = env.call(["reap", "-n", "--home", home.to_str().unwrap()]).with_code(0);
    assert!(listed.out().contains(&format!("sandbox {id} below")), "{}", listed.out());
    assert!(members.iter().all(|member| !member.has_ended()));
    let found = reap(&env, &home);
    assert_eq!(
        (&found["sandboxes"][0]["id"], &found["sandboxes"][0]["outcome"]),
        (&id.into(), &"gone".into())
    );
    assert!(members.iter().all(Process::has_ended));
    assert!(env.is_running("sleep 1002"), "{found}");
    let left_out = found["left_out"].as_array().unwrap();
    assert!(left_out.iter().any(|one| one["name"] == "sleep"), "{found}");
    assert!(reap(&env, &home)["sandboxes"].as_array().unwrap().is_empty());
    end(&env, &other);
}

/// As after the end of a container with everything in it: no process is left, and a cgroup and a directory are.
///
/// spec: 3.6
#[test]
fn what_is_left_of_a_sandbox_without_a_process_is_removed() {
    let env = TestEnv::new();
    let home = home(&env);
    for level in env.levels() {
        for flags in [&["-d", "--scratch"][..], &["--scratch"]] {
            let context = format!("{level:?} {flags:?}");
            let mut command = env.command(penfold());
            command
                .arg("--root")
                .arg(home.join("state"))
                .args(["run", "--contain", level.word()])
                .args(flags);
            command.args(["sh", "-c", "echo up > $UP; exec sleep 1005"]);
            let mut running = Some(Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null())));
            env.await_up(&["up"]);
            wait_until("the tree stands", || env.is_running("sleep 1005"));
            if flags.contains(&"-d") {
                // The start goes on for a moment after the command runs.
                running.take().map(Running::finish).unwrap().with_code(0);
            }
            let all = env.processes();
            crate::support::kill_at_once(&all.iter().collect::<Vec<_>>());
            drop(running.map(Running::finish));
            assert!(env.processes().is_empty(), "{context}");
            let left: Vec<PathBuf> =
                crate::support::entries(&env.path("tmp")).into_iter().chain(leaves(&home)).collect();
            assert!(!left.is_empty(), "{context}: nothing is left to be removed");
            let listed = env.call(["reap", "-n", "--home", home.to_str().unwrap()]).with_code(0).out();
            assert!(listed.contains("sandbox "), "{context}: {listed}");
            assert!(left.iter().all(|path| is_there(path)), "{context}: the look has changed something");
            let found = reap(&env, &home);
            assert_eq!(found["sandboxes"][0]["outcome"], "gone", "{context}: {found}");
            assert!(!left.iter().any(|path| is_there(path)), "{context}: {left:?}");
            assert!(reap(&env, &home)["sandboxes"].as_array().unwrap().is_empty(), "{context}: twice");
            std::fs::remove_file(env.path("work/up")).unwrap();
        }
    }
}

fn is_there(path: &Path) -> bool {
    path.try_exists().unwrap()
}

/// The leaves that the records of a home name, and that exist.
fn leaves(home: &Path) -> Vec<PathBuf> {
    let leaf = |record: PathBuf| {
        let intent = crate::support::json(&record.join("intent.json"))?;
        Some(PathBuf::from(intent["leaf"].as_str()?)).filter(|leaf| is_there(leaf))
    };
    crate::support::entries(&home.join("state/sandboxes")).into_iter().filter_map(leaf).collect()
}

#[track_caller]
fn end(env: &TestEnv, sandbox: &Sandbox) {
    env.call(["kill", &sandbox.id]).with_code(0);
}

/// spec: 3.6
#[test]
fn a_sandbox_that_has_lost_its_record_and_its_home_is_ended() {
    let env = TestEnv::new();
    let home = home(&env);
    let (_, members) = sandbox_in(&env, &home.join("state"));
    assert!(members.len() >= 3);
    #[expect(clippy::disallowed_methods, reason = "our own directory")]
    std::fs::remove_dir_all(&home).unwrap();
    reap(&env, &home);
    for member in &members {
        member.await_end();
    }
    // A home that was never there has nothing.
    env.call(["reap", "--home", env.path("never").to_str().unwrap()]).with_code(0);
}

/// spec: 3.5
#[test]
fn a_removed_home_is_swept_too() {
    let env = TestEnv::new();
    let home = home(&env);
    let inside = start(sleeper(&env, "x").current_dir(&home));
    wait_until("it runs", || evidence(&env, &home, inside.pid()).is_some());
    std::fs::remove_dir(&home).unwrap();
    reap(&env, &home);
    assert!(!inside.is_alive());
}

/// spec: 3.5
#[test]
fn a_sweep_spares_itself_its_ancestors_and_its_own_sandbox() {
    let env = TestEnv::new();
    let home = home(&env);
    let script = format!(
        "sleep 1000 & sleep 1001 & \"$PENFOLD\" reap --json -t 2s --home {}; echo code $?",
        home.display()
    );
    let flags = ["-w", home.to_str().unwrap(), "--contain", "subreaper", "bash", "-c", &script];
    let done = env.run(flags).with_code(0);
    let text = done.out();
    assert!(text.ends_with("code 0\n"), "{text} {}", done.err());
    let found: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(found["ended"].as_array().unwrap().len(), 2, "{found}");
    assert!(found["left_out"].as_array().unwrap().iter().any(|one| one["name"] == "bash"), "{found}");
    // No stray was left for the sandbox to end.
    assert_eq!(done.err(), "");
    env.assert_nothing_left();
}

/// spec: 3.5.1
#[test]
fn what_is_surely_a_mistake_is_refused() {
    let env = TestEnv::new();
    let home = home(&env);
    let inside = start(sleeper(&env, "x").current_dir(&home));
    std::os::unix::fs::symlink(&home, env.path("link")).unwrap();
    std::fs::write(env.path("file"), "").unwrap();
    let link = env.path("link").display().to_string();
    let refused = |path: &str, why: &str| {
        let mut command = env.penfold(["reap", "--home", path]);
        let done = Running::start(command.env("HOME", env.path("work"))).finish();
        done.refused(2, why);
    };
    refused(&link, "is a symbolic link");
    refused(&format!("{link}/"), "is a symbolic link");
    refused(env.path("file").to_str().unwrap(), "is no directory");
    refused("/", "is the root of the file system");
    refused("/tmp", "is shared by all users");
    refused("/tmp/.", "is shared by all users");
    refused(env.path("work").to_str().unwrap(), "is your home directory");
    refused("", "`--home` needs a value");
    refused(&format!("{}/../home", env.path("work").display()), "is a path with `..`");
    assert!(inside.is_alive());
}

/// spec: 3.5.1
#[test]
fn a_mount_point_with_files_of_others_is_refused_and_one_of_ours_is_not() {
    if !is_root() {
        return skip("only root can mount");
    }
    let env = TestEnv::new();
    let home = home(&env);
    let script = "mount -t tmpfs none \"$0\" && \"$PENFOLD\" -q reap --home \"$0\" && touch \"$0/x\" && chown $1 \"$0/x\" \
        && exec \"$PENFOLD\" reap --home \"$0\"";
    let mut command = env.command("unshare");
    command.args(["-m", "sh", "-c", script, home.to_str().unwrap(), &USER.to_string()]);
    Running::start(&mut command).finish().refused(2, "is a mount point with files of other users");
}

/// spec: 3.5
#[test]
fn the_same_path_in_another_mount_namespace_is_no_evidence() {
    if !is_root() {
        return skip("only root can make a mount namespace");
    }
    let env = TestEnv::new();
    let home = home(&env);
    let inside = |mount: &str, seconds: u32| {
        let script = format!("{mount} cd \"$0\" && exec sleep {seconds}");
        let mut command = env.command("unshare");
        command.current_dir("/").env_remove("TMPDIR");
        start(command.args(["-m", "sh", "-c", &script, home.to_str().unwrap()]))
    };
    let other = inside("mount -t tmpfs none \"$0\" &&", 1003);
    let same = inside("", 1004);
    wait_until("both run", || env.is_running("sleep 1003") && env.is_running("sleep 1004"));
    reap(&env, &home);
    assert!(other.is_alive());
    assert!(!same.is_alive());
}
