//! `run --ipc private`: shared memory, semaphores and message queues that end with their sandbox.

use std::fs;
use std::path::PathBuf;

use super::jail::environments as jail_environments;
use crate::support::filter::denied;
use crate::support::{
    Level, Running, Sandbox, TestEnv, Who, has_program, has_terminals, is_root, json, skip, wait_until,
};

/// Root and an ordinary user.
fn environments() -> Vec<TestEnv> {
    let all = if is_root() { vec![Who::Root, Who::Delegated] } else { vec![Who::Tester] };
    let envs: Vec<TestEnv> = all.into_iter().filter_map(TestEnv::of).collect();
    let works = |env: &TestEnv| {
        let made = env.run(["--ipc", "private", "true"]);
        let is_refused = env.is_ordinary() && made.err().contains("user namespace, which this host refuses");
        assert!(is_refused || made.code() == Some(0), "{}", made.err());
        if is_refused {
            skip("users may make no user namespaces here");
        }
        !is_refused
    };
    envs.into_iter().filter(works).collect()
}

/// What a process sees of IPC, and as whom.
const DESCRIPTION: &str = "for space in ipc mnt user; do readlink /proc/self/ns/$space; done; pwd; ls -1 /dev/shm; \
    id; grep -E '^(Groups|CapEff)' /proc/self/status; for kind in shm sem msg; do cat /proc/sysvipc/$kind; done";

/// Makes one object of each kind.
const MAKE: &str = "ipcmk -M 4096 && ipcmk -S 1 && ipcmk -Q && echo x > /dev/shm/$NAME && mkdir /dev/shm/sub";

/// The keys of the objects of System V IPC that a text lists, after its first line.
fn keys(text: &str) -> Vec<String> {
    let words = text.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().next());
    words.filter(|key| key.parse::<i32>().is_ok_and(|key| key != 0)).map(str::to_owned).collect()
}

/// The objects of the host that have these names.
fn on_host(name: &str, of_sandbox: &[String]) -> Vec<String> {
    let tables =
        ["shm", "sem", "msg"].map(|kind| fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap());
    let mut found: Vec<String> = tables.iter().flat_map(|table| keys(table)).collect();
    found.retain(|key| of_sandbox.contains(key));
    found.extend(fs::exists(format!("/dev/shm/{name}")).unwrap().then(|| name.to_owned()));
    found
}

/// Starts a sandbox that makes objects, and returns the keys and the description that its command has written.
fn start(env: &TestEnv, flags: &[&str]) -> (Sandbox, Vec<String>, String) {
    let _ = fs::remove_file(env.path("work/up"));
    let script = format!(
        "({MAKE}) > made && cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg > tables && ({DESCRIPTION}) > own \
        && echo up >> $UP && exec sleep 1161"
    );
    let name = format!("NAME={}", name(env));
    let sandbox = env.detach([&["--ipc", "private", "-e", &name], flags, &["sh", "-c", &script]].concat());
    env.await_up(&["up"]);
    let keys = keys(&fs::read_to_string(env.path("work/tables")).unwrap());
    assert_eq!(keys.len(), 3, "{keys:?}");
    (sandbox, keys, fs::read_to_string(env.path("work/own")).unwrap())
}

/// A name in `/dev/shm` that no other test has.
fn name(env: &TestEnv) -> String {
    env.dir().file_name().unwrap().to_string_lossy().into_owned()
}

/// Whether a process of this sandbox's supervisors still holds its namespaces.
fn is_held(supervisors: &[crate::support::Process], own: &str) -> bool {
    let spaces: Vec<&str> =
        own.lines().filter(|line| line.ends_with(']') && !line.starts_with("user")).collect();
    let links = |pid| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let targets = supervisors.iter().filter(|one| !one.has_ended()).flat_map(|one| links(one.pid()));
    targets
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .any(|to| spaces.iter().any(|one| to == PathBuf::from(one)))
}

/// spec: 34.1
#[test]
fn what_members_make_is_theirs_alone_at_each_level() {
    for env in environments() {
        for level in env.levels() {
            let (sandbox, keys, own) = start(&env, &["--contain", level.word()]);
            let seen =
                sandbox.call(&env, &["exec", "ID", "sh", "-c", "cat /proc/sysvipc/*; ls /dev/shm"]).out();
            assert!(keys.iter().all(|key| seen.contains(key.as_str())), "{level:?} {keys:?}: {seen}");
            assert!(seen.ends_with(&format!("{}\nsub\n", name(&env))), "{level:?}: {seen}");
            assert_eq!(on_host(&name(&env), &keys), Vec::<String>::new(), "{level:?}");
            let supervisors = sandbox.supervisors_now();
            assert_eq!(is_held(&supervisors, &own), level != Level::Pidns, "{level:?}: {own}");
            sandbox.call(&env, &["stop", "ID"]).with_code(0);
            assert!(!is_held(&supervisors, &own), "{level:?}");
            assert_eq!(on_host(&name(&env), &keys), Vec::<String>::new(), "{level:?}");
            sandbox.call(&env, &["rm", "ID"]).with_code(0);
        }
        env.assert_nothing_left();
    }
}

/// spec: 34.1
#[test]
fn without_the_flag_members_share_what_the_host_has() {
    let env = TestEnv::new();
    let said = env.run(["sh", "-c", "readlink /proc/self/ns/ipc /proc/self/ns/mnt"]).with_code(0).out();
    let link = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
    assert_eq!(said, format!("{}\n{}\n", link("ipc"), link("mnt")));
    assert_eq!(env.run(["--ipc", "host", "readlink", "/proc/self/ns/ipc"]).out().trim(), link("ipc"));
    // A jail has its own anyway.
    for env in jail_environments() {
        for flags in [&["--profile", "jail"][..], &["--profile", "jail", "--ipc", "private"]] {
            let script = "readlink /proc/self/ns/ipc; ls -A /dev/shm";
            let done = env.run([flags, &["--", "sh", "-c", script]].concat()).with_code(0);
            let said = done.out();
            assert!(said.starts_with("ipc:[") && !said.contains(&link("ipc")), "{said}{}", done.err());
            assert_eq!(said.lines().count(), 1, "{said}");
        }
        env.assert_nothing_left();
    }
    env.assert_nothing_left();
}

/// spec: 34.1
#[test]
fn files_mounts_and_the_network_stay_those_of_the_host() {
    if !is_root() {
        return skip("only root can mount");
    }
    let env = TestEnv::new();
    let level =
        if env.run(["--contain", "cgroup", "true"]).code() == Some(0) { "cgroup" } else { "subreaper" };
    // In a mount namespace of its own, with mounts that spread.
    let script = format!(
        r#"set -e; mkdir out in; mount --make-rshared /; readlink /proc/self/ns/net > net
        id=$($PF -d --ipc private --contain {level} -- sleep 1161)
        mount -t tmpfs pf-ipc out; echo later > out/file
        p() {{ $PENFOLD --root $ROOT exec $id "$@"; }}
        p cat out/file; p readlink /proc/self/ns/net | cmp - net
        p mount -t tmpfs pf-ipc in; p touch in/theirs; p ls in; ls -A in
        umount out; p sh -c 'ls -A out'
        $PENFOLD --root $ROOT stop $id > /dev/null; $PENFOLD --root $ROOT rm $id > /dev/null"#
    );
    let done = Running::start(env.command("unshare").args(["--mount", "bash", "-c", &script])).finish();
    assert_eq!((done.out().as_str(), done.code()), ("later\ntheirs\n", Some(0)), "{}", done.err());
    env.assert_nothing_left();
}

/// spec: 34.1
#[test]
fn posix_queues_are_their_own_where_the_host_shows_them() {
    if !is_root() {
        return skip("only root can mount");
    }
    let env = TestEnv::new();
    // Each file of this file system is a queue.
    let script = r"set -e; mkdir -p /dev/mqueue; mount -t mqueue none /dev/mqueue; touch /dev/mqueue/ours
        for level in pidns subreaper; do
            $PF --ipc private --contain $level -- sh -c 'touch /dev/mqueue/theirs && ls -A /dev/mqueue'
        done; ls -A /dev/mqueue";
    let words = ["--mount", "--ipc", "bash", "-c", script];
    let done = Running::start(env.command("unshare").args(words)).finish();
    assert_eq!((done.out().as_str(), done.code()), ("theirs\ntheirs\nours\n", Some(0)), "{}", done.err());
    env.assert_nothing_left();
}

/// spec: 34.2, 13.1
#[test]
fn each_exec_probe_and_stop_command_is_where_the_command_is() {
    for env in environments() {
        for level in env.levels() {
            let has_stop = level != Level::Pidns;
            let name = format!("NAME={}", name(&env));
            let probe = format!("cmd:test -e own && ({DESCRIPTION}) > probe");
            let stop = format!("({DESCRIPTION}) > stop; touch go");
            let script = format!(
                "({MAKE}) > made; ({DESCRIPTION}) > new; mv new own; until [ -e go ]; do sleep 0.05; done"
            );
            let flags = ["--ipc", "private", "--contain", level.word(), "-e", &name, "--ready", &probe];
            let stop = if has_stop { vec!["--stop-command", &stop, "--grace", "20s"] } else { Vec::new() };
            let sandbox = env.detach([&flags[..], &stop, &["--", "sh", "-c", &script]].concat());
            let read = |name: &str| fs::read_to_string(env.path("work").join(name)).unwrap();
            assert_eq!(read("probe"), read("own"), "{level:?}");
            let with_terminal = has_terminals().then_some(&["-t"][..]);
            for flags in [&[][..]].into_iter().chain(with_terminal) {
                let said = sandbox.call(&env, &[&["exec"], flags, &["ID", "sh", "-c", DESCRIPTION]].concat());
                assert_eq!(said.out().replace('\r', ""), read("own"), "{level:?} {flags:?}: {}", said.err());
            }
            let elsewhere = sandbox.call(&env, &["exec", "-w", "/dev/shm", "ID", "ls"]).with_code(0).out();
            assert!(elsewhere.ends_with("\nsub\n"), "{elsewhere}");
            if is_root() && !env.is_ordinary() {
                let words = ["exec", "-u", "nobody", "ID", "sh", "-c", "id -u; readlink /proc/self/ns/ipc"];
                let said = sandbox.call(&env, &words).with_code(0).out();
                let space = read("own").lines().next().unwrap().to_owned();
                assert_eq!(said, format!("65534\n{space}\n"), "{level:?}");
            }
            if has_stop {
                sandbox.call(&env, &["stop", "ID"]).with_code(0);
                assert_eq!(read("stop"), read("own"), "{level:?}");
                fs::remove_file(env.path("work/go")).unwrap();
            } else {
                sandbox.call(&env, &["kill", "ID"]).with_code(0);
            }
            fs::remove_file(env.path("work/own")).unwrap();
            sandbox.call(&env, &["rm", "ID"]).with_code(0);
        }
        env.assert_nothing_left();
    }
}

/// spec: 34.2
#[test]
fn execs_find_the_namespaces_after_a_takeover() {
    for env in environments() {
        let (sandbox, keys, own) =
            start(&env, &["--contain", "subreaper", "--on-supervisor-exit", "keep", "--unit", "none"]);
        take_over(&sandbox);
        let said = sandbox.call(&env, &["exec", "ID", "sh", "-c", DESCRIPTION]);
        assert_eq!(said.out(), own, "{}", said.err());
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
        assert_eq!(on_host(&name(&env), &keys), Vec::<String>::new());
        sandbox.call(&env, &["rm", "ID"]).with_code(0);
        env.assert_nothing_left();
    }
}

/// Kills the supervisor, and waits until the standby has its place.
fn take_over(sandbox: &Sandbox) {
    let [standby, supervisor] = &sandbox.supervisors_now()[..] else { panic!("two supervisors") };
    supervisor.signal(rustix::process::Signal::KILL);
    supervisor.await_end();
    wait_until("the standby has taken over", || {
        let now = sandbox.supervisors_now();
        now.len() == 1 && now[0].pid() == standby.pid()
    });
}

/// The namespaces of a leader of another user could have mounts that deceive root.
/// spec: 34.2
#[test]
fn execs_do_not_follow_a_command_to_namespaces_of_its_own() {
    let unshare = ["unshare", "--user", "--map-root-user", "--mount", "true"];
    let Some(env) = TestEnv::of(Who::Root) else { return skip("only root becomes another user") };
    if env.run([&["-u", "nobody"][..], &unshare].concat()).code() != Some(0) {
        return skip("users may make no user namespaces here");
    }
    let describe = "readlink /proc/self/ns/user /proc/self/ns/ipc /proc/self/ns/mnt";
    let script = format!(
        "{describe}; exec unshare --user --map-root-user --mount --ipc sh -c '{describe}; echo up; exec sleep 1161'"
    );
    let flags =
        ["--ipc", "private", "-u", "nobody", "--contain", "subreaper", "--on-supervisor-exit", "keep"];
    let sandbox = env.detach([&flags[..], &["--unit", "none", "sh", "-c", &script]].concat());
    let mut said = String::new();
    wait_until("it has left", || {
        said = env.call(["logs", &sandbox.id]).out();
        said.ends_with("up\n")
    });
    let lines: Vec<&str> = said.lines().collect();
    assert!((0..3).all(|line| lines[line] != lines[line + 3]), "{said}");
    for is_taken_over in [false, true] {
        if is_taken_over {
            take_over(&sandbox);
        }
        for user in [&[][..], &["-u", "root"]] {
            let words = [&["exec"], user, &["ID", "sh", "-c", describe]].concat();
            let found = sandbox.call(&env, &words).with_code(0).out();
            assert_eq!(found.lines().collect::<Vec<_>>(), lines[..3], "{is_taken_over} {user:?}");
        }
    }
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// The kernel counts: of two IPC namespaces at a time, the second is refused.
/// spec: 34.3
#[test]
fn the_namespace_is_destroyed_once_the_sandbox_is_gone() {
    if !has_program(&["unshare", "--user", "--map-root-user", "true"]) {
        return;
    }
    let env = TestEnv::new();
    let script = r"
        echo 1 > /proc/sys/user/max_ipc_namespaces || exit 10
        for level in pidns subreaper; do
            for end in stop kill; do
                id=$($PF -d --ipc private --contain $level -- sleep 1161) || exit 11
                $PENFOLD --root $ROOT exec -d $id sleep 1162 || exit 12
                $PF --ipc private --contain $level -- true 2>error; [ $? = 125 ] || exit 13
                grep -q 'No space left' error || exit 14
                $PENFOLD --root $ROOT $end $id >/dev/null || exit 15
                $PF --ipc private --contain $level -- true || exit 16
                $PENFOLD --root $ROOT rm $id >/dev/null || exit 17
            done
            $PF --ipc private --contain $level --timeout 50ms -- sleep 1161 2>/dev/null; [ $? = 124 ] || exit 18
            $PF --ipc private --contain $level --report r.json -- sh -c 'setsid sleep 1162 & exit 0' || exit 19
            $PF --ipc private --contain $level -- true || exit 20
        done";
    let words = ["--user", "--map-root-user", "bash", "-c", script];
    let done = Running::start(env.command("unshare").args(words)).finish();
    assert_eq!(done.code(), Some(0), "{}{}", done.out(), done.err());
    let report = json(&env.path("work/r.json")).unwrap();
    assert_eq!(report["verified"], true, "{report}");
    assert!(report["ended"].to_string().contains("sleep 1162"), "{report}");
    env.assert_nothing_left();
}

/// spec: 34.3
#[test]
fn each_life_has_namespaces_of_its_own() {
    let env = TestEnv::new();
    if !is_root() && environments().is_empty() {
        return;
    }
    let script = "ls /dev/shm >> lives; echo end >> lives; touch /dev/shm/mine; [ $(grep -c end lives) -lt 3 ] && exit 3; exec sleep 1161";
    let words = ["--ipc", "private", "--restart", "on-failure", "--name", "web", "--", "sh", "-c", script];
    env.detach(words);
    wait_until("the third life runs", || env.is_running("sleep 1161"));
    assert_eq!(fs::read_to_string(env.path("work/lives")).unwrap(), "end\nend\nend\n");
    env.call(["kill", "web"]).with_code(0);
    env.call(["rm", "web"]).with_code(0);
    env.assert_nothing_left();
}

/// A mount namespace has copies of the mounts, and keeps them.
/// spec: 34.3
#[test]
fn the_namespaces_are_closed_before_other_resources_are_released() {
    if !is_root() {
        return skip("resources need root");
    }
    let env = TestEnv::new();
    let files = env.path("work/files");
    fs::create_dir(&files).unwrap();
    let mount = format!("--mount=type=tmpfs,target={}", files.display());
    let (sandbox, _, own) =
        start(&env, &["--contain", "subreaper", "--unit", "none", &mount, "--patience", "60s"]);
    sandbox.call(&env, &["exec", "ID", "touch", "files/theirs"]).with_code(0);
    let supervisors = sandbox.supervisors_now();
    assert!(is_held(&supervisors, &own), "{own}");
    // The release of the mount waits for this file.
    let busy = fs::File::open(files.join("theirs")).unwrap();
    let stop = env.begin(["kill", "--patience", "60s", &sandbox.id]);
    wait_until("they are closed", || !is_held(&supervisors, &own));
    assert!(supervisors.len() == 2 && supervisors.iter().all(|one| !one.has_ended()));
    drop(busy);
    stop.finish().with_code(0);
    sandbox.call(&env, &["rm", "ID"]).with_code(0);
    env.assert_nothing_left();
}

/// spec: 34.4
#[test]
fn a_user_stays_the_same_user() {
    let users = environments().into_iter().filter(TestEnv::is_ordinary);
    for env in users.chain(TestEnv::of(Who::Plain)) {
        for level in env.levels() {
            let script = "id -u; id -g; touch mine; stat -c %u mine; rm mine; grep CapEff /proc/self/status";
            let done =
                env.run(["--ipc", "private", "--contain", level.word(), "sh", "-c", script]).with_code(0);
            let capabilities = "CapEff:\t0000000000000000\n";
            assert_eq!(done.out(), format!("65534\n65534\n65534\n{capabilities}"), "{level:?}");
            assert_eq!(done.err(), "", "{level:?}");
        }
        env.assert_nothing_left();
    }
}

/// Without the flag a command may start in a directory that is closed to it.
/// spec: 34.4
#[test]
fn a_directory_that_is_closed_to_the_user_is_a_clear_error() {
    let Some(env) = TestEnv::of(Who::Plain) else { return skip("only root has closed directories") };
    let closed = env.path("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let run = |words: &[&str]| {
        // setpriv is still root when it starts there.
        let user = crate::support::USER.to_string();
        let mut command = env.command("setpriv");
        command.current_dir(&closed).args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
        command.arg(crate::support::penfold()).arg("--root").arg(env.root());
        Running::start(command.args(["run", "--contain", "subreaper", "--ipc", "private"]).args(words))
            .finish()
    };
    run(&["true"]).refused(125, "cannot enter the working directory: Permission denied");
    assert_eq!(run(&["-w", "/", "pwd"]).with_code(0).out(), "/\n");
    env.assert_nothing_left();
}

/// spec: 34.4
#[test]
fn a_host_that_refuses_the_namespaces_is_a_clear_error() {
    const EPERM: i32 = 1;
    let env = TestEnv::new();
    let words = ["run", "--contain", "subreaper", "--ipc", "private", "--", "touch", "ran"];
    let Some(mut command) = denied(&env, &[("clone3", EPERM), ("unshare", EPERM)], &words) else { return };
    let sentence = if is_root() {
        "cannot make an IPC namespace: Operation not permitted"
    } else {
        "an IPC namespace needs a user namespace, which this host refuses: Operation not permitted"
    };
    Running::start(&mut command).finish().refused(125, sentence);
    if let Some(env) = TestEnv::of(Who::Plain) {
        let mut command = denied(&env, &[("clone3", EPERM)], &words).unwrap();
        std::os::unix::process::CommandExt::uid(&mut command, crate::support::USER);
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        let sentence =
            "an IPC namespace needs a user namespace, which this host refuses: Operation not permitted";
        Running::start(&mut command).finish().refused(125, sentence);
        env.assert_nothing_left();
    }
    assert!(!env.path("work/ran").try_exists().unwrap());
    env.assert_nothing_left();
}

/// spec: 34.5
#[test]
fn what_the_command_would_not_see_is_refused() {
    let env = TestEnv::new();
    let base = format!("/dev/shm/{}", name(&env));
    if fs::create_dir(&base).is_err() {
        return skip("the user has no `/dev/shm` to write to");
    }
    std::os::unix::fs::symlink(&base, env.path("work/link")).unwrap();
    let workspace = format!("{base}/new/workspace");
    let linked = env.path("work/link/workspace").display().to_string();
    let refused = |flags: &[&str], temporary: Option<&str>, part: &str| {
        let mut command = env.run_command([&["--ipc", "private"], flags, &["touch", "ran"]].concat());
        if let Some(temporary) = temporary {
            command.env("TMPDIR", temporary);
        }
        Running::start(&mut command).finish().refused(125, part);
    };
    refused(&["--workspace", &workspace], None, &workspace);
    refused(&["--workspace", &linked], None, &linked);
    refused(&[&format!("--sockets={base}/sockets")], None, "/sockets");
    refused(&["--scratch"], Some(&base), &base);
    assert!(!env.path("work/ran").try_exists().unwrap());
    assert_eq!(fs::read_dir(&base).unwrap().count(), 0);
    fs::remove_dir(&base).unwrap();
    env.assert_nothing_left();
}
