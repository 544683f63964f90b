//! What a command inherits is the same with and without `penfold run`: signals, limits, group, terminal, ids.

use std::collections::BTreeMap;

use crate::support::{Level, Running, TestEnv, has_program};

/// Prints, one to a line, what a process inherits from its parent.
const SHOW: &str = r#"
    grep -E '^(SigPnd|SigBlk|SigIgn|SigCgt|ShdPnd|Umask|NoNewPrivs|Seccomp|Uid|Gid|Groups|Cap|Cpus_allowed|Speculation)' \
        /proc/self/status
    cat /proc/self/limits /proc/self/oom_score_adj /proc/self/coredump_filter /proc/self/timerslack_ns 2>&1
    pwd
    stat=$(cat /proc/$$/stat); set -- ${stat##*) }
    echo "session $4 tty $5 foreground $6 flags-nice ${17}"
    [ "$3" = "$WANTED_GROUP" ] && echo "group is the caller's" || echo "group is another"
    ls -l /proc/self/ns | grep -vE ' (pid|mnt|user|cgroup|pid_for_children) ->' | sed 's/.* //'
    readlink /proc/self/root
    env | grep -vE '^(PENFOLD_SANDBOX|_|SHLVL|OLDPWD)=' | sort
"#;

/// Runs [`SHOW`] after `setting`, with and without penfold.
#[track_caller]
fn compare(setting: &str) {
    let env = TestEnv::new();
    let start = |with: &str| {
        let script = format!(
            "{setting} export WANTED_GROUP=$(cut -d' ' -f5 /proc/$$/stat); exec {with} sh -c \"$SHOW\""
        );
        let finished =
            Running::start(env.command("bash").args(["-c", &script]).env("SHOW", SHOW)).finish().with_code(0);
        let out = finished.out();
        assert!(out.contains("SigIgn") && out.contains("group is the caller's"), "{out}\n{}", finished.err());
        out.lines().map(without_internal_signals).collect::<Vec<_>>().join("\n")
    };
    let without = start("");
    for level in env.levels() {
        let with = start(&format!("$PF --contain {} --", level.word()));
        let differences: BTreeMap<&str, &str> =
            without.lines().zip(with.lines()).filter(|(a, b)| a != b && !inside(level, a)).collect();
        assert!(differences.is_empty(), "`{setting}` at {level:?}: {differences:#?}");
        assert_eq!(without.lines().count(), with.lines().count(), "{without}\n{with}");
    }
    env.assert_nothing_left();
}

/// Clears the bits of signals 32 and 33, which C libraries keep for themselves: musl ignores both in what it spawns, and
/// glibc has a handler for 33 in a process with threads.
fn without_internal_signals(line: &str) -> String {
    let set = line.strip_prefix("Sig").and_then(|line| line.split_once(":\t"));
    match set.and_then(|(name, mask)| Some((name, u64::from_str_radix(mask, 16).ok()?))) {
        Some((name, mask)) => format!("Sig{name}:\t{:016x}", mask & !(0b11 << 31)),
        None => line.to_owned(),
    }
}

/// A pid namespace shows its own numbers, and processes outside of it as 0. That of an ordinary user is below a user namespace, where
/// the bounding set is full: `user_namespaces(7)`.
fn inside(level: Level, line: &str) -> bool {
    let is_full = !rustix::process::geteuid().is_root() && line.starts_with("CapBnd:");
    level == Level::Pidns && (line.starts_with("session ") || line.starts_with("group is") || is_full)
}

/// spec: 8.1
#[test]
fn plain() {
    compare("");
}

#[test]
fn mask_directory_and_niceness() {
    compare("umask 027; cd /usr; renice -n 5 -p $$ >/dev/null;");
}

/// spec: 8.1
#[test]
fn limits() {
    compare("ulimit -Sn 100; ulimit -Hn 200; ulimit -c 5; ulimit -Ss 1024; ulimit -t 1000;");
}

/// spec: 8.1
#[test]
fn ignored_signals() {
    compare("trap '' HUP INT QUIT PIPE CHLD TERM USR1 USR2 TSTP TTIN TTOU WINCH RTMIN RTMIN+6 RTMAX;");
}

/// spec: 8.1
#[test]
fn ignored_hangup_as_of_nohup() {
    compare("trap '' HUP;");
}

#[test]
fn ignored_pipe_and_child() {
    compare("trap '' PIPE;");
    compare("trap '' CHLD;");
}

/// bash cannot block signals, env(1) of coreutils can.
/// spec: 8.1
#[test]
fn blocked_signals() {
    if !has_program(&["env", "--block-signal=USR1", "true"]) {
        return;
    }
    let env = TestEnv::new();
    for what in
        ["--block-signal=USR1", "--block-signal=TERM,CHLD,INT,HUP", "--block-signal", "--default-signal"]
    {
        let script = format!(
            "show='grep -E ^Sig[BIC] /proc/self/status'; env {what} $show > without; env {what} $PF $show > with; cmp with without"
        );
        env.script(&script).with_code(0);
    }
    env.assert_nothing_left();
}

#[test]
fn blocked_signals_do_not_keep_the_command_from_ending() {
    if !has_program(&["env", "--block-signal=USR1", "true"]) {
        return;
    }
    let env = TestEnv::new();
    env.script("env --block-signal $PF sh -c 'sleep 600 & exit 3'").with_code(3);
    env.script("env --block-signal $PF --timeout 0.2 --grace 0.2 sleep 600").with_code(124);
    env.script("env --ignore-signal $PF --timeout 0.2 --grace 0.2 sleep 600").with_code(124);
    env.assert_nothing_left();
}
