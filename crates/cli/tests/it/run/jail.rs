//! `penfold run --profile jail`: what a command in a jail sees, and that nothing of it is left.

use std::fs;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;

use crate::support::{Process, Running, Sandbox, TestEnv, Who, has_program, skip, wait_until};

/// Environments of root and of an ordinary user; none where bubblewrap does not work.
pub fn environments() -> Vec<TestEnv> {
    if !has_program(&["bwrap", "--ro-bind", "/", "/", "true"]) {
        return Vec::new();
    }
    let user = TestEnv::of(Who::Plain);
    user.into_iter().chain([TestEnv::new()]).collect()
}

const JAIL: [&str; 2] = ["--profile", "jail"];

/// The words of a run in a jail.
fn jail<'a>(words: &[&'a str]) -> Vec<&'a str> {
    JAIL.into_iter().chain(words.iter().copied()).collect()
}

/// spec: 19.1
#[test]
fn the_command_sees_and_writes_its_workspace_only() {
    for env in environments() {
        let script = r#"
            cat /proc/sys/kernel/hostname; id -u; pwd
            for file in /etc/pf-test /usr/pf-test /pf-test /sys/pf-test; do
                (echo > $file) 2>/dev/null && echo "wrote $file"
            done
            echo > ../pf-test
            touch mine /tmp/mine && rm /tmp/mine && echo wrote
            ls -A /run /tmp; ls /sys/class/net >/dev/null; cat /proc/net/dev | grep -c :
            ls /proc | grep -c '^[0-9]'; grep -E '^(NoNewPrivs|CapEff):' /proc/self/status; echo $TMPDIR"#;
        let secret = fs::read_dir("/run").unwrap().count();
        assert!(secret > 0, "the host has something in /run");
        let done = env.run(jail(&["--", "sh", "-c", script])).with_code(0);
        let said = done.out();
        let lines: Vec<&str> = said.lines().collect();
        let user = if env.is_ordinary() { "65534" } else { "0" };
        let work = env.path("work").display().to_string();
        assert_eq!(&lines[1..4], [user, &work, "wrote"], "{said}{}", done.err());
        // Of the host's /run, only penfold's program; of its /tmp, only the path to the workspace.
        let below =
            env.path("work").strip_prefix("/tmp").unwrap().iter().next().unwrap().display().to_string();
        let listed = format!("/run:\npenfold-jail\n\n/tmp:\n{below}\n");
        assert!(said.contains(&listed), "no {listed:?} in {said}");
        // Only the loopback device, and a handful of processes.
        let counts: Vec<u32> = lines.iter().filter_map(|line| line.parse().ok()).skip(1).collect();
        assert!(counts[0] == 1 && counts[1] < 10, "{said}");
        assert!(said.contains("NoNewPrivs:\t1\n") && said.contains("CapEff:\t0000000000000000\n"), "{said}");
        assert!(said.ends_with("/tmp\n"), "{said}");
        assert!(env.path("work/mine").try_exists().unwrap() && !env.path("pf-test").try_exists().unwrap());
        env.assert_nothing_left();
    }
}

/// Only asks whether a file may be written: a jail with a hole must not harm the host.
/// spec: 19.1
#[test]
fn no_setting_of_the_host_may_be_written() {
    for env in environments() {
        let script = r"find /proc /sys -path '/proc/[0-9]*' -prune -o -path '/proc/*self' -prune -o -path '/proc/pressure*' -prune \
            -o -type f -writable -print 2>/dev/null";
        if !env.is_ordinary() {
            let outside = Running::start(env.command("sh").args(["-c", script])).finish().out();
            assert!(outside.contains("/proc/sys/kernel/"), "the search finds nothing: {outside}");
        }
        let done = env.run(jail(&["--", "sh", "-c", script]));
        assert_eq!(done.out(), "", "{}", done.err());
        env.assert_nothing_left();
    }
}

/// On a busy host, the init of bubblewrap is still there when the command's end is known.
/// spec: 1.1.1, 19.3
#[test]
fn a_jail_that_ends_is_no_leak_on_a_busy_host() {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..=std::thread::available_parallelism().map_or(2, NonZero::get) {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _over = Over(&is_over);
        for env in environments() {
            for (words, rounds) in [
                (&["--fail-on-leak", "--profile", "jail", "true"][..], 4),
                (&["--fail-on-leak", "bwrap", "--dev-bind", "/", "/", "--unshare-pid", "true"], 2),
            ] {
                for _ in 0..rounds {
                    let done = env.run(words).with_code(0);
                    assert_eq!(done.err(), "", "{words:?}");
                }
            }
            env.assert_nothing_left();
        }
    });
}

/// Ends the load, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// spec: 19.2
#[test]
fn exit_codes_are_those_of_the_command() {
    for env in environments() {
        for (words, code) in [
            (&["sh", "-c", "exit 42"][..], 42),
            (&["true"], 0),
            (&["sh", "-c", "kill -9 $$"], 137),
            (&["no-such-program"], 127),
            (&["/etc/passwd"], 126),
            (&["sh", "-c", "echo said; cat"], 0),
        ] {
            env.run(jail(words)).with_code(code);
        }
        let report = env.path("work/report.json");
        env.run(jail(&["--report", report.to_str().unwrap(), "sh", "-c", "exit 3"])).with_code(3);
        let report = crate::support::json(&report).unwrap();
        assert_eq!(report["command"], serde_json::json!(["sh", "-c", "exit 3"]));
        assert!(env.run(jail(&["no-such-program"])).err().contains("no-such-program"));
        env.assert_nothing_left();
    }
}

/// The command handles the polite signal, although bubblewrap does not.
/// spec: 19.2
#[test]
fn the_polite_signal_reaches_the_command() {
    for env in environments() {
        let script = "trap 'echo polite; exit 7' TERM INT; echo up >> $UP; while :; do sleep 0.05; done";
        for signal in [Signal::TERM, Signal::INT] {
            let running = Running::start(&mut env.run_command(jail(&["--", "sh", "-c", script])));
            env.await_up(&["up"]);
            running.signal(signal);
            let done = running.finish();
            assert_eq!((done.out().as_str(), done.code()), ("polite\n", Some(7)), "{}", done.err());
            fs::remove_file(env.path("work/up")).unwrap();
        }
        // Without a handler, the command dies of the signal within the grace.
        let plain = Running::start(&mut env.run_command(jail(&[
            "--",
            "sh",
            "-c",
            "echo up >> $UP; exec sleep 1000",
        ])));
        env.await_up(&["up"]);
        plain.signal(Signal::TERM);
        plain.finish().with_code(143);
        env.assert_nothing_left();
    }
}

/// spec: 19.3
#[test]
fn each_ending_takes_a_jail_with_a_daemon() {
    for env in environments() {
        for ending in ["exits", "stop", "kill", "rm", "supervisor dies", "both die"] {
            println!("{ending}");
            let script =
                "trap '' HUP; (setsid sleep 1000 &); echo up >> $UP; until [ -e go ]; do sleep 0.05; done";
            let mut words = jail(&["--grace", "200ms", "--", "sh", "-c", script]);
            words.insert(0, "-d");
            let sandbox = Sandbox::printed(&env, &env.run(&words).with_code(0).out());
            env.await_up(&["up"]);
            wait_until("the daemon runs", || env.running("sleep 1000").len() == 1);
            let members = sandbox.members(&env);
            assert!(members.iter().any(
                |one| one.command_line().starts_with("bwrap ") || one.command_line().contains("/bwrap ")
            ));
            let supervisors: Vec<&Process> = sandbox.supervisors.iter().collect();
            match ending {
                "exits" => {
                    fs::write(env.path("work/go"), "").unwrap();
                    sandbox.await_end();
                }
                "supervisor dies" => {
                    supervisors.last().unwrap().signal(Signal::KILL);
                    sandbox.await_end();
                }
                "both die" => {
                    sandbox.kill_supervisors();
                    // The kernel ends the jail, without penfold.
                    members.iter().for_each(Process::await_end);
                    env.call(["gc", "-f"]).with_code(0);
                }
                "rm" => drop(sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0)),
                verb => drop(sandbox.call(&env, &[verb, "ID"]).with_code(0)),
            }
            sandbox.assert_gone(&members);
            env.call(["rm", "-f", &sandbox.id]);
            for file in ["work/go", "work/up"] {
                let _ = fs::remove_file(env.path(file));
            }
            env.assert_nothing_left();
        }
    }
}

/// spec: 19.1
#[test]
fn a_root_directory_takes_the_place_of_that_of_the_host() {
    if !fs::symlink_metadata("/bin").unwrap().is_symlink() {
        return skip("`/usr` is no root directory here");
    }
    for env in environments() {
        let script = "ls /; [ -e /etc/passwd ] || echo no users; touch /new /bin/new 2>/dev/null || echo read-only; touch mine";
        let said = env.run(jail(&["--rootfs", "/usr", "--", "/bin/sh", "-c", script])).with_code(0).out();
        for line in ["bin", "lib", "proc", "tmp", "no users", "read-only"] {
            assert!(said.lines().any(|one| one == line), "no {line} in {said}");
        }
        assert!(said.lines().all(|line| !["home", "usr", "var"].contains(&line)), "{said}");
        assert!(env.path("work/mine").try_exists().unwrap());
        env.assert_nothing_left();
    }
}

/// spec: 19.1
#[test]
fn the_network_is_none_host_or_new() {
    for env in environments() {
        let own = fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
        let seen = |words: &[&str]| {
            let words =
                [words, &["--", "sh", "-c", "readlink /proc/self/ns/net; grep -c : /proc/net/dev"]].concat();
            env.run(jail(&words)).with_code(0).out()
        };
        let none = seen(&["--network", "none"]);
        assert!(!none.contains(&own) && none.ends_with("\n1\n"), "{none}");
        assert!(seen(&["--network", "host"]).contains(&own));
        if !env.is_ordinary() && crate::resources::can_make() {
            for words in [&["--network", "new", "--tap"][..], &["--netns", "--tap"]] {
                let said = seen(words);
                assert!(
                    !said.contains(&own) && said.ends_with("\n2\n"),
                    "no tap beside the loopback device: {said}"
                );
            }
            env.run(jail(&["--network", "none", "--netns", "--", "touch", "ran"]))
                .refused(125, "--network none");
        }
        assert!(!env.path("work/ran").try_exists().unwrap());
        env.assert_nothing_left();
    }
}

/// spec: 19.1
#[test]
fn a_jail_that_cannot_be_made_is_refused() {
    for env in environments() {
        for (words, why) in [
            (&["--workdir=/"][..], "writable"),
            (&["--workdir=/proc"], "/proc"),
            (&["--rootfs=/no/such"], "/no/such"),
        ] {
            let words = [words, &["touch", "ran"]].concat();
            env.run(jail(&words)).refused(125, why);
        }
        env.run(["--network", "none", "touch", "ran"]).refused(125, "--profile");
        let mut command = env.run_command(["--profile", "jail", "/usr/bin/touch", "ran"]);
        let done = Running::start(command.env("PATH", "/no/such")).finish();
        assert!(done.err().contains("install bubblewrap"), "{}", done.err());
        done.refused(125, "bwrap");
        assert!(!env.path("work/ran").try_exists().unwrap());
        env.assert_nothing_left();
    }
}

/// spec: 19.4, 19.5
#[test]
fn a_file_describes_a_jail() {
    for env in environments() {
        let text = "command = ['sh', '-c', 'readlink /proc/self/ns/net; touch /etc/pf-test']\nprofile = 'jail'\n[jail]\nnetwork = 'host'\n";
        fs::write(env.path("work/box.toml"), text).unwrap();
        let done = env.run(["--spec", "box.toml"]);
        let own = fs::read_link("/proc/self/ns/net").unwrap().display().to_string();
        assert_eq!(done.out().trim_end(), own);
        assert_eq!(done.code(), Some(1), "{}", done.err());
        let text = "command = ['grep', 'Seccomp:', '/proc/self/status']\nprofile = 'jail'\n";
        for (setting, mode) in [("", 2), ("[jail]\nseccomp = true\n", 2), ("[jail]\nseccomp = false\n", 0)] {
            fs::write(env.path("work/box.toml"), format!("{text}{setting}")).unwrap();
            assert_eq!(env.run(["--spec", "box.toml"]).out(), format!("Seccomp:\t{mode}\n"), "{setting}");
        }
        fs::write(env.path("work/box.toml"), "command = ['true']\n[jail]\nnetwork = 'all'\n").unwrap();
        env.run(["--spec", "box.toml"]).refused(125, "all");
        env.assert_nothing_left();
    }
}

/// The variable is for the command. penfold's own processes at the ends of the jail run here.
///
/// spec: 19.1
#[test]
fn a_command_in_a_jail_may_have_the_address_of_a_server() {
    for env in environments() {
        let words = ["-e", "PENFOLD_HOST=unix:/no/such", "sh", "-c", "echo $PENFOLD_HOST"];
        let done = env.run(jail(&words));
        assert_eq!((done.code(), done.out().as_str()), (Some(0), "unix:/no/such\n"), "{}", done.err());
        env.assert_nothing_left();
    }
}
