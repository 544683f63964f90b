//! `penfold run --scratch`: the directory is private to the command, and removed at the end whatever its contents.

use std::path::PathBuf;

use crate::support::{Finished, Running, TestEnv, entries, is_root};

fn scratch(env: &TestEnv, level: &str, script: &str) -> Finished {
    let finished = env.run(["--contain", level, "--scratch", "bash", "-c", script]);
    assert_eq!(entries(&env.path("tmp")), Vec::<PathBuf>::new(), "after {script}: {}", finished.err());
    finished
}

#[test]
fn directory_is_private_empty_and_current() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "[ $PWD = $TMPDIR ] && [ -z \"$(ls -A)\" ] && stat -c '%a %U' . && pwd";
        let finished = scratch(&env, level.word(), script).with_code(0);
        let user = env.script("id -un").out();
        let out = finished.out();
        let mut lines = out.lines();
        assert_eq!(lines.next(), Some(format!("700 {}", user.trim()).as_str()));
        assert!(lines.next().unwrap().starts_with(env.path("tmp").to_str().unwrap()));
    }
    env.assert_nothing_left();
}

/// spec: 1.6
#[test]
fn odd_contents_go() {
    let env = TestEnv::new();
    std::fs::write(env.path("work/precious"), "").unwrap();
    let work = env.path("work");
    for script in [
        "mkdir -p a/b/c; touch a/b/c/f; chmod 000 a/b/c a/b a .",
        "touch -- -rf '*' ' ' $'a\\nb' $'\\xff\\xfe'; mkfifo pipe; ln -s / root; ln -s nowhere dangling",
        &format!("ln -s {0} link; mkdir d; ln -s {0}/precious d/link", work.display()),
        "for i in $(seq 1000); do : > file-with-a-name-that-is-not-so-short-$i; done; mkdir d{1..100}",
        "rm -rf \"$TMPDIR\"",
        &format!("rm -rf \"$TMPDIR\"; ln -s {} \"$TMPDIR\"", work.display()),
        "rm -rf \"$TMPDIR\"; echo > \"$TMPDIR\"",
        "mv \"$TMPDIR\" \"$TMPDIR.moved\"",
        "umask 777; mkdir locked; (sleep 600 &); exit 0",
    ] {
        scratch(&env, "auto", script).with_code(0);
        assert!(env.path("work/precious").try_exists().unwrap(), "{script}");
    }
    env.assert_nothing_left();
}

/// spec: 1.6
#[test]
fn deep_directories_go() {
    let env = TestEnv::new();
    // 600 deep: a path that is longer than PATH_MAX, and more directories than penfold may have descriptors.
    let script = "printf -v deep 'dddddddd/%.0s' {1..100}; \
        for i in {1..6}; do mkdir -p $deep && cd -P $deep; done 2>/dev/null; : > file || exit 9";
    for script in [script, &format!("{script}; chmod 000 .")] {
        let mut command = env.command("bash");
        command.args(["-c", "ulimit -n 128; exec $PF --scratch bash -c \"$SCRIPT\""]).env("SCRIPT", script);
        let finished = Running::start(&mut command).finish().with_code(0);
        assert_eq!(entries(&env.path("tmp")), Vec::<PathBuf>::new(), "{}", finished.err());
    }
    env.assert_nothing_left();
}

/// spec: 1.6
#[test]
fn contents_in_use_by_a_stray_go() {
    let env = TestEnv::new();
    for level in env.levels() {
        let script = "setsid -f bash -c 'trap \"\" TERM HUP; mkfifo g; while :; do echo x >> log; read -r -t 0.01 <> g; done'; \
            while [ ! -s log ]; do :; done; exit 3";
        scratch(&env, level.word(), script).with_code(3);
    }
    env.assert_nothing_left();
}

/// spec: 1.6
#[test]
fn mounts_inside_go_and_what_is_mounted_stays() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    std::fs::create_dir_all(env.path("work/precious/dir")).unwrap();
    std::fs::write(env.path("work/precious/dir/file"), "precious").unwrap();
    let precious = env.path("work/precious");
    let safe = || std::fs::read(precious.join("dir/file")).is_ok_and(|text| text == b"precious");
    for level in env.levels() {
        for script in [
            "mkdir m; mount -t tmpfs none m; mkdir m/d; echo > m/d/f".to_owned(),
            format!("mkdir m; mount --bind {} m", precious.display()),
            format!(
                "mkdir -p m/a; mount -t tmpfs none m; mkdir m/b; mount --bind {} m/b; chmod 000 m",
                precious.display()
            ),
            format!("mkdir m; mount --bind {} m; mount -t tmpfs none m/dir", precious.display()),
            format!("mount --bind {} .", precious.display()),
            format!("mkdir m; mount --bind {} m; cd m; sleep 600 & exit 0", precious.display()),
            format!(": > f; mount --bind {}/dir/file f", precious.display()),
        ] {
            scratch(&env, level.word(), &script).with_code(0);
            assert!(safe(), "{script}");
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            assert!(!mounts.contains(env.path("tmp").to_str().unwrap()), "{script}");
        }
    }
    env.assert_nothing_left();
}

/// spec: 1.6
#[test]
fn limits_and_stops_take_it_away_too() {
    let env = TestEnv::new();
    for level in env.levels() {
        let words = ["--contain", level.word(), "--scratch", "--timeout", "0.3", "--grace", "0.1"];
        env.run(words.iter().chain(&["bash", "-c", "trap '' TERM; : > f; sleep 600; sleep 600; :"]))
            .with_code(124);
        env.run(["--contain", level.word(), "--scratch", "no-such-command"]).with_code(127);
    }
    env.assert_nothing_left();
}
