//! `--log`: the events of a sandbox, written to a file or to journald too.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::jail::jailed;
use crate::support::{
    DEADLINE, Level, PATIENCE, Process, Running, TestEnv, USER, Who, entries, is_root, json, kill_at_once,
    penfold, wait_until,
};

/// Leaves a process behind, once that process has its name and its words.
const STRAY: &str =
    "setsid sleep 4451 & until grep -q sleep /proc/$!/comm && grep -q 4451 /proc/$!/cmdline; do :; done";

fn log(env: &TestEnv) -> (PathBuf, String) {
    let path = env.path("work/events.log");
    let flag = format!("--log={}", path.display());
    (path, flag)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The number of lines; none without the file.
fn count(path: &Path) -> usize {
    if path.try_exists().unwrap() { lines(path).len() } else { 0 }
}

fn kinds(path: &Path) -> Vec<String> {
    lines(path).iter().map(|event| event["kind"].as_str().unwrap().to_owned()).collect()
}

/// spec: 28.1
#[test]
fn a_file_has_the_lines_that_events_prints() {
    for who in [Who::Tester, Who::Delegated, Who::Plain] {
        let Some(env) = TestEnv::of(who) else { continue };
        let (path, flag) = log(&env);
        let sandbox = env.detach(["--name", "web", "-l", "job=17", &flag, "sleep", "4450"]);
        assert_eq!(kinds(&path), ["start"], "the sandbox is alive");
        env.call(["exec", "web", "true"]).with_code(0);
        env.call(["stop", "web"]).with_code(0);
        sandbox.assert_gone(&[]);
        let printed = env.call(["events", "--no-follow", "--json"]).out();
        assert_eq!(fs::read_to_string(&path).unwrap(), printed);
        assert_eq!(kinds(&path), ["start", "exec", "stop", "exit"]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    }
}

/// spec: 28.2
#[test]
fn a_foreground_run_writes_one_line_if_it_left_something() {
    let env = TestEnv::new();
    let (path, flag) = log(&env);
    for level in env.levels() {
        let before = count(&path);
        env.run([&flag, "--contain", level.word(), "sh", "-c", "exit 3"]).with_code(3);
        assert_eq!(lines(&path).len(), before, "{level:?}: a run that left nothing");
        env.run([&flag, "--contain", level.word(), "--name", "leaky", "sh", "-c", STRAY]).with_code(0);
        let lines = lines(&path);
        assert_eq!(lines.len(), before + 1, "{level:?}: {lines:?}");
        let leak = &lines[before];
        assert_eq!(
            (&leak["kind"], &leak["name"], &leak["outcome"]),
            (&"leak".into(), &"leaky".into(), &"ended".into())
        );
        assert!(leak["what"].as_str().unwrap().starts_with("sleep"), "{level:?}: {leak}");
    }
    // Tests are sandboxes in the foreground.
    let before = lines(&path).len();
    env.call(["guard", &flag, "--grace", "0s", "--", "sh", "-c", STRAY]).with_code(123);
    assert_eq!(lines(&path).len(), before + 1);
    // Without a record the launcher and the supervisor know the file.
    fs::write(env.path("work/file"), "no directory").unwrap();
    let mut command = env.command(penfold());
    command.arg("--root").arg(env.path("work/file/root")).args(["run", &flag, "sh", "-c", STRAY]);
    Running::start(&mut command).finish().with_code(0);
    assert_eq!(lines(&path).len(), before + 2);
    env.assert_nothing_left();
}

/// What is killed while the command runs.
#[derive(Debug, Clone, Copy)]
enum Killed {
    Launcher,
    Supervisor,
    Both,
}

/// spec: 28.2
#[test]
fn who_is_left_writes_the_line_once() {
    let env = TestEnv::new();
    let (path, flag) = log(&env);
    for level in env.levels() {
        for killed in [Killed::Launcher, Killed::Supervisor, Killed::Both] {
            let context = format!("{level:?} {killed:?}");
            let before = count(&path);
            let script = format!("{STRAY}; exec sleep 4452");
            let mut command = env.run_command([&flag, "--contain", level.word(), "sh", "-c", &script]);
            let running = Running::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
            wait_until("the command runs", || env.is_running("sleep 4452") && env.is_running("sleep 4451"));
            let launcher = Process::find(running.pid()).unwrap();
            let supervisor = env.find("pf-supervisor").into_iter().next().unwrap();
            match killed {
                Killed::Launcher => launcher.signal(Signal::KILL),
                Killed::Supervisor => supervisor.signal(Signal::KILL),
                Killed::Both => kill_at_once(&[&launcher, &supervisor]),
            }
            drop(running.finish());
            if matches!(killed, Killed::Both) {
                env.run(["true"]).with_code(0);
            }
            wait_until("the sandbox has ended", || {
                !env.is_running("sleep 4451") && !env.is_running("sleep 4452") && env.left().is_empty()
            });
            // With the supervisor, the kernel ends the whole namespace: nothing is left.
            let is_left = level != Level::Pidns || matches!(killed, Killed::Launcher);
            let expected = before + usize::from(is_left);
            wait_until(&format!("{context}: the event is written"), || count(&path) >= expected);
            env.assert_nothing_left();
            assert_eq!(count(&path), expected, "{context}");
        }
    }
}

/// spec: 28.2
#[test]
fn what_is_not_gone_is_one_line_also_when_it_is_gone_later() {
    if !is_root() {
        return;
    }
    jailed(|| {
        let env = TestEnv::new();
        let (path, flag) = log(&env);
        let script = format!("{STRAY}; exec sleep 4457");
        let words = ["run", &flag, "--contain", "cgroup", "--patience", PATIENCE, "sh", "-c", &script];
        let running = env.begin(words);
        wait_until("the command runs", || env.is_running("sleep 4457"));
        let [record] = <[PathBuf; 1]>::try_from(entries(&env.path("root/sandboxes"))).unwrap();
        let intent = json(&record.join("intent.json")).unwrap();
        let held = PathBuf::from(intent["leaf"].as_str().unwrap()).join("held");
        fs::create_dir(&held).unwrap();
        mount("none", &held, "tmpfs", MountFlags::empty(), None).unwrap();
        env.running("sleep 4457")[0].signal(Signal::KILL);
        running.finish().with_code(120);
        let told = lines(&path);
        assert_eq!((told.len(), &told[0]["outcome"]), (1, &"not gone".into()), "{told:?}");
        unmount(&held, UnmountFlags::empty()).unwrap();
        wait_until("it is gone", || env.left().is_empty());
        env.assert_nothing_left();
        assert_eq!(count(&path), 1);
    });
}

/// spec: 28.1
#[test]
fn recovery_writes_that_a_sandbox_was_lost() {
    let env = TestEnv::new();
    let (path, flag) = log(&env);
    let sandbox = env.detach([&flag, "sleep", "4453"]);
    let members = sandbox.members(&env);
    assert_eq!(members.len(), 1);
    sandbox.kill_supervisors();
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    sandbox.assert_gone(&members);
    assert_eq!(kinds(&path), ["start", "lost"]);
}

/// spec: 28.1
#[test]
fn writers_at_once_do_not_mix_their_lines() {
    let env = TestEnv::new();
    let (path, flag) = log(&env);
    let sandboxes: Vec<_> = (0..4).map(|_| env.detach([&flag, "sleep", "4454"])).collect();
    let running: Vec<Running> = sandboxes
        .iter()
        .map(|sandbox| {
            let script =
                format!("for i in 1 2 3 4 5 6 7 8; do $PENFOLD --root $ROOT exec {} true; done", sandbox.id);
            env.shell(&script)
        })
        .collect();
    for running in running {
        running.finish().with_code(0);
    }
    // A program that rotates logs renames the file.
    fs::rename(&path, env.path("work/events.1")).unwrap();
    env.call(["kill", "--all", "-f"]).with_code(0);
    assert_eq!(lines(&env.path("work/events.1")).len(), 4 * 9);
    assert_eq!(kinds(&path).iter().filter(|kind| *kind == "exit").count(), 4);
    for sandbox in &sandboxes {
        sandbox.assert_gone(&[]);
    }
}

/// spec: 28.4
#[test]
fn what_is_no_file_of_this_user_is_refused_before_anything_starts() {
    let env = TestEnv::new();
    let (file, link, directory, pipe) =
        (env.path("work/file"), env.path("work/link"), env.path("work/directory"), env.path("work/pipe"));
    fs::write(&file, "precious").unwrap();
    symlink(&file, &link).unwrap();
    fs::create_dir(&directory).unwrap();
    mkfifoat(CWD, &pipe, Mode::RWXU).unwrap();
    let mut cases = vec![
        (link, "it is a link"),
        (directory, "it is a directory"),
        (pipe, "it is no regular file"),
        (env.path("work/missing/file"), "No such file"),
    ];
    if is_root() {
        let others = env.path("work/others");
        fs::write(&others, "").unwrap();
        std::os::unix::fs::chown(&others, Some(USER), None).unwrap();
        cases.push((others, "it belongs to user"));
    }
    for (path, why) in cases {
        let flag = format!("--log={}", path.display());
        for words in [&["run"][..], &["run", "-d"], &["guard"]] {
            let refused = env.call([words, &[&flag, "sh", "-c", "echo up >> $UP"]].concat());
            refused.refused(125, why);
        }
    }
    env.call(["run", "--log=", "true"]).refused(125, "names no file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(!env.path("work/up").try_exists().unwrap() && env.left().is_empty());
}

/// spec: 28.5
#[test]
fn the_configuration_names_the_log_of_all() {
    let env = TestEnv::new();
    let (path, flag) = log(&env);
    let config = env.path("work/config.toml");
    fs::write(&config, format!("log = \"{}\"\n", env.path("work/of-config").display())).unwrap();
    let run = |words: &[&str]| Running::start(env.penfold(words).env("PENFOLD_CONFIG", &config)).finish();
    run(&["run", "sh", "-c", STRAY]).with_code(0);
    run(&["guard", "--grace", "0s", "--", "sh", "-c", STRAY]).with_code(123);
    assert_eq!(kinds(&env.path("work/of-config")), ["leak", "leak"]);
    run(&["run", &flag, "sh", "-c", STRAY]).with_code(0);
    assert_eq!((lines(&env.path("work/of-config")).len(), lines(&path).len()), (2, 1));
    env.assert_nothing_left();
}

/// spec: 28.4
#[test]
fn a_full_disk_changes_nothing_and_garbles_one_line_at_most() {
    if !is_root() {
        return;
    }
    jailed(|| {
        let env = TestEnv::new();
        let disk = env.path("work/disk");
        fs::create_dir(&disk).unwrap();
        mount("none", &disk, "tmpfs", MountFlags::empty(), Some(c"size=8k")).unwrap();
        let path = disk.join("events.log");
        let flag = format!("--log={}", path.display());
        // The event does not fit into the rest of the first page, and the filler takes the second.
        fs::write(&path, format!("{}\n", "x".repeat(4050))).unwrap();
        let mut filler = fs::File::create(disk.join("filler")).unwrap();
        while filler.write_all(&[0; 512]).is_ok() {}
        env.run([&flag, "sh", "-c", &format!("{STRAY}; exit 3")]).with_code(3);
        assert_eq!(fs::metadata(&path).unwrap().len(), 4096, "the line was cut");
        drop(filler);
        fs::remove_file(disk.join("filler")).unwrap();
        env.run([&flag, "sh", "-c", STRAY]).with_code(0);
        let text = fs::read_to_string(&path).unwrap();
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((text.lines().count(), &last["kind"]), (3, &"leak".into()));
        unmount(&disk, UnmountFlags::empty()).unwrap();
        env.assert_nothing_left();
    });
}

/// The next datagram, as fields.
fn fields(journald: &UnixDatagram) -> Vec<(String, String)> {
    let mut buffer = vec![0; 64 << 10];
    let length = journald.recv(&mut buffer).unwrap();
    let text = String::from_utf8(buffer[..length].to_vec()).unwrap();
    let field =
        |line: &str| line.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned())).unwrap();
    text.lines().map(field).collect()
}

/// spec: 28.3, 28.4
#[test]
fn journald_gets_fields_and_delays_nobody() {
    jailed(|| {
        let env = TestEnv::new();
        mount("none", "/run/systemd", "tmpfs", MountFlags::empty(), None).unwrap();
        env.run(["--log=journald", "true"]).refused(125, "journald does not listen");
        fs::create_dir("/run/systemd/journal").unwrap();
        let journald = UnixDatagram::bind("/run/systemd/journal/socket").unwrap();
        journald.set_read_timeout(Some(DEADLINE)).unwrap();
        let sandbox = env.detach(["--log=journald", "--name", "web", "sleep", "4455"]);
        let started = fields(&journald);
        env.call(["kill", "web"]).with_code(0);
        let expected = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let (id, message) = (&sandbox.id, format!("sandbox {} (web) has started: sleep 4455", sandbox.id));
        let printed = env.call(["events", "--no-follow", "--json"]).out();
        assert_eq!(
            started,
            [
                expected("MESSAGE", &message),
                expected("PRIORITY", "6"),
                expected("SYSLOG_IDENTIFIER", "penfold"),
                expected("PENFOLD_ID", id),
                expected("PENFOLD_NAME", "web"),
                expected("PENFOLD_EVENT", "start"),
                expected("PENFOLD_JSON", printed.lines().next().unwrap()),
            ]
        );
        let messages: Vec<String> = (0..2).map(|_| fields(&journald).swap_remove(0).1).collect();
        assert_eq!(messages[0], format!("sandbox {id} (web) is being killed by penfold kill"));
        assert_eq!(messages[1], format!("sandbox {id} (web) has ended: its command died of signal 9"));
        env.run(["--log=journald", "sh", "-c", STRAY]).with_code(0);
        let leak = fields(&journald);
        assert!(leak[0].1.contains("left processes, and penfold ended them: sleep"), "{leak:?}");
        assert_eq!(leak[1], expected("PRIORITY", "4"));
        // Nobody reads any more.
        let filler = UnixDatagram::unbound().unwrap();
        filler.connect("/run/systemd/journal/socket").unwrap();
        filler.set_nonblocking(true).unwrap();
        while filler.send(b"X=1\n").map_err(|error| error.kind()) != Err(ErrorKind::WouldBlock) {}
        env.run(["--log=journald", "sh", "-c", &format!("{STRAY}; exit 3")]).with_code(3);
        env.detach(["--log=journald", "--name", "mute", "sleep", "4456"]);
        env.call(["kill", "mute"]).with_code(0);
        env.call(["rm", "web", "mute"]).with_code(0);
        env.assert_nothing_left();
    });
}
