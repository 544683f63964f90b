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
    assert_eq!(exec(&["ID", "id", "-u"]).with_code(0).out(), format!("{USER}\n"));
    assert_eq!(exec(&["-u", "root", "ID", "id", "-u"]).with_code(0).out(), "0\n");
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

/// spec: 5.20, 13.1
#[test]
fn execs_have_the_user_the_groups_and_the_directory_of_their_sandbox() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    let describe =
        format!("{WHO}; echo $LOGNAME $SHELL $TMPDIR; pwd; echo x > $TMPDIR/x; echo said >> /dev/stdout");
    for level in Level::ALL {
        // The user may go to the workspace, and the leader says first what it has.
        let probe = format!("cmd:({describe}) > $TMPDIR/probe");
        let stop = format!("({describe}) > $OUT/stop; touch $TMPDIR/go");
        let script = format!("({describe}) > $TMPDIR/own; until [ -e $TMPDIR/go ]; do sleep 0.05; done");
        let out = env.path("work/out");
        std::fs::create_dir(&out).unwrap();
        std::os::unix::fs::chown(&out, Some(65534), Some(65534)).unwrap();
        std::fs::set_permissions(env.dir(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
        let of_out = format!("OUT={}", out.display());
        let flags = ["-u", "nobody", "--scratch", "-e", &of_out, "--contain", level.word(), "--grace", "20s"];
        let has_stop = level != Level::Pidns;
        let stop = if has_stop { vec!["--stop-command", &stop] } else { Vec::new() };
        let words = [&["--ready", &probe], &stop[..], &["--", "sh", "-c", &script]].concat();
        let sandbox = env.detach([&flags[..], &words].concat());
        let exec = |words: &[&str]| sandbox.call(&env, &[&["exec"], words].concat());
        for flags in [&[][..], &["-i"], &["-t"]] {
            let said = exec(&[flags, &["ID", "sh", "-c", &describe]].concat());
            let text = said.out().replace('\r', "");
            assert!(
                text.starts_with("65534 65534 65534 /nonexistent nobody\n"),
                "{level:?}: {text}{}",
                said.err()
            );
            assert_eq!(text.matches("0000000000000000").count(), 2, "{level:?}: {text}");
            assert!(text.ends_with("/user\nsaid\n"), "{level:?}: {text}{}", said.err());
        }
        let root = exec(&["-u", "root", "ID", "sh", "-c", "id -u; echo $HOME"]).with_code(0).out();
        assert!(root.starts_with("0\n/"), "{root}");
        exec(&["ID", "mkdir", "sub"]).with_code(0);
        assert!(exec(&["-w", "sub", "ID", "pwd"]).with_code(0).out().ends_with("/user/sub\n"));
        exec(&["-w", "/root", "ID", "true"]).refused(125, "/root");
        let own = exec(&["ID", "sh", "-c", "cat $TMPDIR/own"]).with_code(0).out();
        assert_eq!(exec(&["ID", "sh", "-c", "cat $TMPDIR/probe"]).out(), own, "{level:?}");
        if has_stop {
            sandbox.call(&env, &["stop", "ID"]).with_code(0);
            assert_eq!(std::fs::read_to_string(out.join("stop")).unwrap(), own, "{level:?}");
        } else {
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
        }
        sandbox.call(&env, &["rm", "ID"]).with_code(0);
        crate::support::remove_dir(&out);
    }
    env.assert_nothing_left();
}

/// spec: 5.20
#[test]
fn execs_have_the_user_after_a_restart_and_a_takeover() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    let flags = ["-u", "nobody", "--name", "web", "--on-supervisor-exit", "keep", "--", "sleep", "1001"];
    let sandbox = env.detach(flags);
    let who = |name: &str| env.call(["exec", name, "id", "-u"]).with_code(0).out();
    sandbox.supervisors.last().unwrap().signal(rustix::process::Signal::KILL);
    wait_until("the standby has taken over", || env.call(["exec", "web", "true"]).code() == Some(0));
    assert_eq!(who("web"), "65534\n");
    env.call(["restart", "web"]).with_code(0);
    assert_eq!(who("web"), "65534\n");
    env.call(["rm", "-f", "web"]).with_code(0);
    env.call(["rm", "-f", "--all"]);
    env.assert_nothing_left();
}

/// spec: 5.20
#[test]
fn the_user_can_open_the_pipes_and_the_terminal_of_a_detached_sandbox() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    for flags in [&["-u", "nobody"][..], &["-u", "nobody", "-t"]] {
        let script = "echo said > /dev/stdout && echo again > /dev/stderr";
        let sandbox = env.detach([flags, &["--", "sh", "-c", script]].concat());
        sandbox.await_end();
        let said = env.call(["logs", &sandbox.id]);
        let all = format!("{}{}", said.out(), said.err());
        assert!(all.contains("said") && all.contains("again"), "{flags:?}: {all}");
        env.call(["rm", &sandbox.id]).with_code(0);
    }
    env.assert_nothing_left();
}

/// spec: 5.20
#[test]
fn the_user_can_open_the_terminal_of_an_exec() {
    if !is_root() {
        return skip(NOT_ROOT);
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["-u", "nobody", "--", "sleep", "4003"]);
    let script = "echo said > $(tty) && stat -c %U $(tty)";
    let said = sandbox.call(&env, &["exec", "-t", "ID", "sh", "-c", script]).with_code(0);
    assert_eq!(said.out().replace('\r', ""), "said\nnobody\n");
    // That of root is another one.
    let said = sandbox.call(&env, &["exec", "-t", "-u", "root", "ID", "sh", "-c", script]).with_code(0);
    assert_eq!(said.out().replace('\r', ""), "said\nroot\n");
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
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
    if is_root() {
        for flag in ["--workspace=w", "--sockets"] {
            env.run(["-u", "root", flag, "true"]).refused(125, "`--user` cannot be used together with");
        }
        let Some(env) = TestEnv::of(Who::Plain) else { return };
        env.run(["-u", "root", "true"]).refused(125, "only root can run a command as user `root`");
        let own = format!("{USER}:{USER}");
        let mut command = env.run_command(["-u", &own, "id", "-u"]);
        assert_eq!(Running::start(&mut command).finish().with_code(0).out(), format!("{USER}\n"));
    }
    env.assert_nothing_left();
}
