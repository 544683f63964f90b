//! `exec` in a sandbox with `--profile jail`: in the jail, with no more rights than the command.

use std::fs;

use rustix::process::Signal;

use crate::run::jail::environments;
use crate::support::{Level, Process, Sandbox, TestEnv, has_program, has_terminals, is_root, wait_until};

/// What a process has of its jail: place, namespaces, rights, files.
pub const DESCRIPTION: &str = r#"
    pwd; echo "$TMPDIR"; stat -c '%d %i' /; ls -1A /run /tmp /var/tmp /dev
    for space in mnt pid ipc uts cgroup net user; do readlink /proc/self/ns/$space; done
    grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp:)' /proc/self/status"#;

/// The same, and the descriptors.
fn description() -> String {
    format!("{DESCRIPTION}\nfor fd in /proc/$$/fd/*; do [ -e $fd ] && echo fd ${{fd##*/}}; done; :")
}

/// Starts a jail whose command says first, in a file, what it has.
pub fn jail(env: &TestEnv, flags: &[&str]) -> Sandbox {
    let script =
        format!("({DESCRIPTION}) > described; ({}) > own; echo up >> $UP; exec sleep 1000", description());
    let words = [&["--profile", "jail"], flags, &["--", "sh", "-c", &script]].concat();
    let sandbox = env.detach(words);
    env.await_up(&["up"]);
    fs::remove_file(env.path("work/up")).unwrap();
    sandbox
}

/// spec: 19.6
#[test]
fn each_exec_has_what_the_command_has() {
    for env in environments() {
        for level in env.levels() {
            let sandbox = jail(&env, &["--contain", level.word()]);
            let own = fs::read_to_string(env.path("work/own")).unwrap();
            assert!(own.contains("NoNewPrivs:\t1\n") && own.contains("Seccomp:\t2\n"), "{own}");
            let host = fs::read_link("/proc/self/ns/pid").unwrap().display().to_string();
            assert!(!own.contains(&host), "{own}");
            let script = description();
            let with_terminal = has_terminals().then_some(&["-t"][..]);
            for flags in [&[][..], &["-i"]].into_iter().chain(with_terminal) {
                let said = sandbox.call(&env, &[&["exec"], flags, &["ID", "sh", "-c", &script]].concat());
                assert_eq!(said.out().replace('\r', ""), own, "{level:?} {flags:?}: {}", said.err());
            }
            // In the background, nobody is there to read: a file of the workspace has it.
            let script = format!("({script}) > other; mv other done");
            sandbox.call(&env, &["exec", "-d", "ID", "sh", "-c", &script]).with_code(0);
            wait_until("it is done", || env.path("work/done").try_exists().unwrap());
            assert_eq!(fs::read_to_string(env.path("work/done")).unwrap(), own, "{level:?}");
            fs::remove_file(env.path("work/done")).unwrap();
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
            sandbox.call(&env, &["rm", "ID"]).with_code(0);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.6
#[test]
fn probes_and_stop_commands_run_in_the_jail() {
    for env in environments() {
        let probe = format!("cmd:test -e own && ({DESCRIPTION}) > probe");
        let stop = format!("({DESCRIPTION}) > stop; touch go");
        let script = format!("({DESCRIPTION}) > new; mv new own; until [ -e go ]; do sleep 0.05; done");
        let words = ["--profile", "jail", "--ready", &probe, "--stop-command", &stop, "--grace", "20s"];
        let sandbox = env.detach([&words[..], &["--", "sh", "-c", &script]].concat());
        let read = |name: &str| fs::read_to_string(env.path("work").join(name)).unwrap();
        assert_eq!(read("probe"), read("own"));
        sandbox.call(&env, &["stop", "ID"]).with_code(0);
        assert_eq!(read("stop"), read("own"));
        for name in ["go", "own"] {
            fs::remove_file(env.path("work").join(name)).unwrap();
        }
        env.call(["rm", &sandbox.id]).with_code(0);
        env.assert_nothing_left();
    }
}

/// Each line tries one way out, and says so if it is open. Nothing here harms a host whose jail has a hole.
const WAYS_OUT: &str = r#"
    for place in / /etc /usr /sys /proc/sys/kernel/hostname; do [ -w $place ] && echo "may write $place"; done
    touch mine /tmp/mine && rm mine /tmp/mine || echo "the workspace is closed"
    kill -0 $HOST 2>/dev/null && echo "sees $HOST"
    for number in $(ls /proc | grep '^[0-9]'); do
        [ -e /proc/$number/root/etc ] && ls -A /proc/$number/root/run | grep -v '^penfold-jail$'
    done
    [ "$(grep -c : /proc/net/dev)" = 1 ] || echo "has a network"
    mount -t pf-none none /mnt 2>&1 | grep 'unknown filesystem'
    chroot /proc/1/root true 2>/dev/null && echo "changes its root"
    unshare -Ur true 2>/dev/null && echo "makes a user namespace"; unshare -m true 2>/dev/null && echo "makes a mount namespace"
    nsenter -t $$ -m true 2>/dev/null && echo "enters namespaces"
    mknod node b 8 0 2>/dev/null && echo "makes devices"; touch file; chown 12345 file 2>/dev/null && echo "gives files away"
    hostname "$(hostname)" 2>/dev/null && echo "names the host"
    find /proc /sys -path '/proc/[0-9]*' -prune -o -path '/proc/*self' -prune -o -path '/proc/pressure*' -prune \
        -o -type f -writable -print 2>/dev/null
    for fd in /proc/$$/fd/*; do
        [ -d $fd ] && [ "$(readlink $fd)" != "/proc/$$/fd" ] && echo "has a directory: $(readlink $fd)"
    done
    true"#;

/// spec: 19.6
#[test]
fn each_way_out_is_closed_for_execs() {
    for env in environments() {
        let sandbox = jail(&env, &[]);
        let host = format!("HOST={}", std::process::id());
        let exec = |words: &[&str]| {
            sandbox.call(&env, &[&["exec", "-e", &host, "ID", "sh", "-c", WAYS_OUT], words].concat())
        };
        let done = exec(&[]);
        assert_eq!((done.out().as_str(), done.code()), ("", Some(0)), "{}", done.err());
        // The same beside the jail finds something: the test is no blank.
        let beside = sandbox.call(
            &env,
            &[
                "exec",
                "--beside",
                "ID",
                "sh",
                "-c",
                "kill -0 $0 && ls /proc | grep -c '^[0-9]'",
                &std::process::id().to_string(),
            ],
        );
        assert!(env.is_ordinary() || beside.out().trim().parse::<u32>().unwrap() > 10, "{}", beside.out());
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
        sandbox.call(&env, &["rm", "ID"]).with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 19.6, 19.5
#[test]
fn the_filter_of_system_calls_holds_for_execs() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let probe = "import ctypes, os, platform, socket\n\
        libc = ctypes.CDLL(None, use_errno=True); x86 = platform.machine() == 'x86_64'\n\
        def call(one, other, *words):\n\
        \x20   ctypes.set_errno(0); libc.syscall(one if x86 else other, *words); return ctypes.get_errno()\n\
        print(call(308, 268, -1, 0), call(321, 280, -1, 0, 0), call(250, 219, 0, -1, 0), call(435, 435, 0, 0), call(165, 40, 0, 0, 0, 0, 0))";
    for env in environments() {
        let sandbox = jail(&env, &[]);
        let exec = |sandbox: &Sandbox| {
            sandbox.call(&env, &["exec", "ID", "python3", "-c", probe]).with_code(0).out()
        };
        assert_eq!(exec(&sandbox), "1 1 1 38 1\n");
        sandbox.call(&env, &["kill", "ID"]).with_code(0);
        sandbox.call(&env, &["rm", "ID"]).with_code(0);
        let open = jail(&env, &["--no-seccomp"]);
        assert_ne!(exec(&open), "1 1 1 38 1\n");
        open.call(&env, &["kill", "ID"]).with_code(0);
        open.call(&env, &["rm", "ID"]).with_code(0);
        env.assert_nothing_left();
    }
}

/// spec: 19.6, 13.2
#[test]
fn the_tree_of_an_exec_ends_with_its_command_and_with_its_client() {
    for env in environments() {
        for level in env.levels() {
            let sandbox = jail(&env, &["--contain", level.word()]);
            let script = "setsid sleep 2001 & (setsid sleep 2002 &); echo up >> $UP; until [ -e go ]; do sleep 0.05; done; exit 7";
            let words = |script| ["exec", &sandbox.id, "sh", "-c", script].map(str::to_owned);
            let lives = || env.is_running("sleep 2001") && env.is_running("sleep 2002");
            let left = || env.is_running("sleep 2001") || env.is_running("sleep 2002");
            // Without a leaf, the tree of an exec that has lost its supervisor ends with the sandbox.
            let endings = ["exits", "client dies", "supervisor dies"];
            for ending in &endings[..if level == Level::Cgroup { 3 } else { 2 }] {
                let running = env.begin(words(script));
                env.await_up(&["up"]);
                wait_until("the daemons run", lives);
                match *ending {
                    "exits" => {
                        fs::write(env.path("work/go"), "").unwrap();
                        let done = running.finish().with_code(7);
                        assert!(done.err().contains("sleep 2001"), "{level:?}: {}", done.err());
                        // The answer comes after the proof.
                        assert!(!left(), "{level:?}");
                        fs::remove_file(env.path("work/go")).unwrap();
                    }
                    "client dies" => {
                        running.signal(Signal::KILL);
                        wait_until("the daemons are gone", || !left());
                    }
                    _ => {
                        sandbox.exec_supervisors().iter().for_each(|one| one.signal(Signal::KILL));
                        running.finish();
                        wait_until("the daemons are gone", || !left());
                    }
                }
                fs::remove_file(env.path("work/up")).unwrap();
            }
            sandbox.call(&env, &["kill", "ID"]).with_code(0);
            assert!(!left(), "{level:?}");
            sandbox.call(&env, &["rm", "ID"]).with_code(0);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.6
#[test]
fn an_exec_that_cannot_enter_the_jail_does_not_start() {
    for env in environments() {
        // The command is bubblewrap that waits before it makes the jail, and not a jail at all.
        let sandbox = jail(&env, &[]);
        let exec = |words: &[&str]| sandbox.call(&env, &[&["exec"], words].concat());
        exec(&["-w", "sub", "ID", "touch", "ran"]).refused(125, "sub");
        if !env.is_ordinary() && is_root() {
            exec(&["-u", "nobody", "ID", "touch", "ran"]).refused(125, "`--user` needs `--beside`");
            let uid = exec(&["--beside", "-u", "nobody", "ID", "id", "-u"]).with_code(0).out();
            assert_eq!(uid, "65534\n");
        }
        exec(&["ID", "no-such-program"]).with_code(127);
        // A stopped bubblewrap keeps the jail; a killed one ends it.
        let members = sandbox.members(&env);
        sandbox.leader().unwrap().signal(Signal::KILL);
        // An exec that is sooner than this has the end of the jail's members.
        members.iter().for_each(Process::await_end);
        let late = exec(&["ID", "touch", "ran"]);
        assert_eq!(late.code(), Some(125), "{}", late.err());
        sandbox.await_end();
        sandbox.assert_gone(&members);
        assert!(!env.path("work/ran").try_exists().unwrap());
        env.call(["rm", &sandbox.id]).with_code(0);
        env.assert_nothing_left();
    }
}

/// An exec right after the start waits until bubblewrap has made the jail.
///
/// spec: 19.6
#[test]
fn an_exec_right_after_the_start_is_in_the_jail() {
    for env in environments() {
        for _ in 0..5 {
            let sandbox = env.detach(["--profile", "jail", "--", "sleep", "1000"]);
            let said =
                sandbox.call(&env, &["exec", "ID", "sh", "-c", "ls -A /run; readlink /proc/self/ns/pid"]);
            let own = fs::read_link("/proc/self/ns/pid").unwrap().display().to_string();
            let (run, space) =
                said.out().split_once('\n').map(|(one, other)| (one.to_owned(), other.to_owned())).unwrap();
            assert!(run == "penfold-jail" && space.trim() != own, "{}{}", said.out(), said.err());
            sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
        }
        env.assert_nothing_left();
    }
}

/// spec: 19.7
#[test]
fn a_record_names_its_profile() {
    for env in environments() {
        let jail = env.detach(["--profile", "jail", "--", "sleep", "1000"]);
        let plain = env.detach(["--", "sleep", "1001"]);
        for (sandbox, profile) in [(&jail, serde_json::json!("jail")), (&plain, serde_json::Value::Null)] {
            for verb in ["inspect", "status"] {
                let words = if verb == "status" { vec![verb, "--json", "ID"] } else { vec![verb, "ID"] };
                assert_eq!(sandbox.call(&env, &words).json()[0]["profile"], profile, "{verb}");
            }
        }
        // A record of an earlier version has no such field.
        let intent = plain.record.join("intent.json");
        assert!(!fs::read_to_string(intent).unwrap().contains("profile"));
        env.call(["rm", "-f", &jail.id, &plain.id]).with_code(0);
        env.assert_nothing_left();
    }
}
