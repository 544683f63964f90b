//! `run --user`, `exec --user`: a command as another user.

use crate::support::{Level, Running, TestEnv, USER, Who, is_root, skip, wait_until};

const NOT_ROOT: &str = "only root can become another user";

/// What a command says of itself.
const WHO: &str = "echo $(id -ru) $(id -rg) $(id -G) $HOME $USER; grep -E 'CapEff|CapPrm' /proc/self/status";

/// spec: 5.20
#[test]
fn command_runs_as_the_user_and_all_of_it_ends() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    let user = format!("{USER}:{USER}");
    for level in Level::ALL {
        let flags = ["--contain", level.word(), "-u"];
        let done = env.run([&flags[..], &["nobody", "sh", "-c", WHO]].concat()).with_code(0);
        let said = done.out();
        assert!(said.starts_with("65534 65534 65534 /nonexistent nobody\n"), "{level:?}: {said}");
        assert_eq!(said.matches("0000000000000000").count(), 2, "{level:?}: {said}");
        let script = "setsid sleep 1000 & (setsid sleep 2000 &); echo $$ $(id -u); exit 5";
        let done = env.run([&flags[..], &[&user, "--report", "r.json", "sh", "-c", script]].concat());
        let done = done.with_code(5);
        assert!(done.out().ends_with(&format!(" {USER}\n")), "{level:?}: {}", done.out());
        let report = crate::support::json(&env.path("work/r.json")).unwrap();
        assert_eq!(report["command"][0], "sh", "{report}");
        assert_eq!(report["verified"], true, "{report}");
        env.assert_nothing_left();
        env.run([&flags[..], &[&user, "/no/such/program"]].concat()).with_code(127);
        let killed = env.run([&flags[..], &[&user, "--timeout", "200ms", "sleep", "1000"]].concat());
        killed.with_code(124);
    }
    env.assert_nothing_left();
}

/// spec: 5.20
#[test]
fn detached_sandboxes_and_execs_have_users_too() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    let user = format!("{USER}:{USER}");
    let sandbox = env.detach(["-u", &user, "sh", "-c", "sleep 1000 & exec sleep 1001"]);
    wait_until("it runs", || env.is_running("sleep 1001") && env.is_running("sleep 1000"));
    let owner = |pid: i32| {
        use std::os::unix::fs::MetadataExt as _;
        std::fs::metadata(format!("/proc/{pid}")).unwrap().uid()
    };
    assert_eq!(owner(sandbox.leader().unwrap().pid()), USER);
    let exec = |words: &[&str]| sandbox.call(&env, &[&["exec"], words].concat());
    assert_eq!(exec(&["-u", "nobody", "ID", "id", "-u"]).with_code(0).out(), "65534\n");
    assert_eq!(exec(&["ID", "id", "-u"]).with_code(0).out(), "0\n");
    assert_eq!(exec(&["-u", "nobody", "-e", "HOME=/x", "ID", "sh", "-c", "echo $HOME"]).out(), "/x\n");
    sandbox.call(&env, &["stop", "-t", "2s", "ID"]).with_code(0);
    assert!(!env.is_running("sleep 1000"));
    // Both supervisors killed: the leaf still has them.
    let sandbox = env.detach(["-u", &user, "sh", "-c", "sleep 1000 & exec sleep 1001"]);
    wait_until("it runs", || env.is_running("sleep 1001") && env.is_running("sleep 1000"));
    sandbox.kill_supervisors();
    env.call(["gc", "-f", &sandbox.id]).with_code(0);
    assert!(!env.is_running("sleep 1000") && !env.is_running("sleep 1001"));
    env.call(["rm", "-f", "--all"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 5.20
#[test]
fn scratch_directory_is_the_users() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    let script = "pwd; echo $TMPDIR; touch file $TMPDIR/other && ls; mkdir -p a/b && chmod 0 a; ls .. 2>&1; rm -rf ../x; exit 0";
    let done = env.run(["-u", "nobody", "--scratch", "sh", "-c", script]).with_code(0);
    let said = done.out();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].ends_with("/user") && lines[0] == lines[1], "{said}");
    assert_eq!(&lines[2..4], ["file", "other"], "{said}");
    assert!(lines[4].contains("Permission denied"), "{said}");
    env.assert_nothing_left();
}

/// spec: 5.20
#[test]
fn unknown_users_and_ordinary_callers_are_refused() {
    let env = TestEnv::new();
    env.run(["-u", "no-such-user", "true"]).refused(125, "there is no user `no-such-user`");
    env.run(["-u", "root:no-such-group", "true"]).refused(125, "there is no group `no-such-group`");
    env.run(["-u", "4294967290", "true"]).refused(125, "there is no user `4294967290`");
    for flag in ["--workspace=w", "--sockets"] {
        env.run(["-u", "root", flag, "true"]).refused(125, "`--user` cannot be used together with");
    }
    if is_root() {
        let Some(env) = TestEnv::of(Who::Plain) else { return };
        env.run(["-u", "root", "true"]).refused(125, "only root can run a command as user `root`");
        let own = format!("{USER}:{USER}");
        let mut command = env.run_command(["-u", &own, "id", "-u"]);
        assert_eq!(Running::start(&mut command).finish().with_code(0).out(), format!("{USER}\n"));
    }
    env.assert_nothing_left();
}
