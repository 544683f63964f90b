//! Failing system calls, stopped processes and changing cgroups during the start of a sandbox. strace(1) injects failures;
//! a build with debug assertions stops at the point in `PENFOLD_STOP_AT`.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::support::{
    Level, Process, Running, Sandbox, TestEnv, Who, children, entries, has_debug_assertions, has_program,
    json, skip, wait_until,
};

/// A sandbox whose leaf is made and whose leader is not: penfold is stopped.
struct Standing {
    running: Running,
    leaf: PathBuf,
}

impl Standing {
    #[track_caller]
    fn start(env: &TestEnv, words: &[&str]) -> Standing {
        let running = Running::start(env.run_command(words).env("PENFOLD_STOP_AT", "leaf-made"));
        let stopped = || running.process().state() == Some('T');
        wait_until("penfold stands", stopped);
        let is_leaf = |path: &PathBuf| path.is_dir() && path.to_string_lossy().contains("/penfold-");
        let leaf = entries(env.cgroup().unwrap()).into_iter().find(is_leaf).expect("a leaf");
        Standing { running, leaf }
    }

    fn go_on(self) -> Running {
        self.running.signal(Signal::CONT);
        self.running
    }

    /// Goes on with a leaf whose members stand still, until the leader is in it.
    #[track_caller]
    fn go_on_frozen(self) -> Running {
        std::fs::write(self.leaf.join("cgroup.freeze"), "1").unwrap();
        let members = self.leaf.join("cgroup.procs");
        let running = self.go_on();
        wait_until("the leader is in the leaf", || {
            std::fs::read_to_string(&members).is_ok_and(|text| !text.is_empty())
        });
        running
    }
}

/// Root in a cgroup of its own, and a penfold that can be stopped.
fn stoppable() -> Option<TestEnv> {
    if !has_debug_assertions() {
        skip("only a build with debug assertions stops where it is told");
        return None;
    }
    TestEnv::of(Who::Root)
}

/// Makes all other cgroups beside a threaded one invalid: nobody can join them. cgroups(7), "Creating a threaded subtree".
fn forbid_to_join(cgroup: &Path) -> PathBuf {
    let threaded = cgroup.join("threaded");
    std::fs::create_dir(&threaded).unwrap();
    std::fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    threaded
}

#[test]
fn leader_that_cannot_join_its_leaf_runs_without_one_unless_a_level_was_asked_for() {
    let Some(env) = stoppable() else { return };
    let script = "setsid -f sleep 600; echo ran; exit 3";
    for level in ["auto", "cgroup", "pidns"] {
        let words = ["--contain", level, "--report", "report.json", "--", "sh", "-c", script];
        let standing = Standing::start(&env, &words);
        let threaded = forbid_to_join(env.cgroup().unwrap());
        let finished = standing.go_on().finish();
        std::fs::remove_dir(threaded).unwrap();
        let report = json(&env.path("work/report.json")).unwrap();
        assert_eq!(report["verified"], true, "{report}");
        if level == "auto" {
            assert_eq!(finished.with_code(3).out(), "ran\n");
            assert_eq!(report["level"], "subreaper");
            assert_eq!(report["weaker"], "the command cannot join the cgroup made for it");
            assert_eq!(report["ended"].as_array().map(Vec::len), Some(1), "{report}");
        } else {
            finished.refused(125, "cannot run `sh`");
        }
        env.assert_nothing_left();
    }
}

/// spec: 1.3
#[test]
fn time_limit_ends_a_launch_that_stands_still() {
    let Some(env) = stoppable() else { return };
    for level in ["cgroup", "pidns"] {
        let words = ["--contain", level, "--timeout", "1s", "--", "sh", "-c", "echo ran"];
        let finished = Standing::start(&env, &words).go_on_frozen().finish().with_code(124);
        assert_eq!(finished.out(), "");
        env.assert_nothing_left();
    }
}

/// spec: 1.3
#[test]
fn signals_end_a_launch_that_stands_still() {
    let Some(env) = stoppable() else { return };
    let signals = [Signal::TERM, Signal::INT, Signal::KILL];
    for (level, signal) in ["cgroup", "pidns"].iter().flat_map(|level| signals.map(|signal| (level, signal)))
    {
        let words = ["--contain", level, "--", "sh", "-c", "echo ran"];
        let running = Standing::start(&env, &words).go_on_frozen();
        assert!(running.is_alive());
        running.signal(signal);
        let finished = running.finish();
        assert_eq!(finished.out(), "", "{level} {signal:?}");
        // No leader became its program, so a stop has no polite signal to send: the leader is killed, and penfold dies likewise.
        assert_eq!(finished.status.signal(), Some(9), "{level} {signal:?}: {finished:?}");
        env.assert_nothing_left();
    }
}

/// `strace` with these words before a command of penfold's: it lets calls of that process fail.
fn failing(command: &Command, words: &[&str]) -> Command {
    let mut strace = Command::new("strace");
    strace.args(["-qq", "-o", "/dev/null"]).args(words).arg(command.get_program()).args(command.get_args());
    strace.env_clear().envs(std::env::vars_os());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => strace.env(name, value),
            None => strace.env_remove(name),
        };
    }
    strace.stdin(std::process::Stdio::null()).current_dir(command.get_current_dir().unwrap());
    strace
}

fn has_strace() -> bool {
    has_program(&["strace", "-qq", "-o", "/dev/null", "-e", "inject=getpriority:error=EIO", "true"])
}

/// What lets the launcher of `run -d` fail before and after its fork.
const FAULTS: [&str; 12] = [
    "pidfd_open:error=ENOMEM:when=1",
    "pidfd_open:error=ENOMEM:when=2",
    "pidfd_open:error=EMFILE:when=3",
    "pidfd_open:error=EPERM:when=1+",
    "ppoll:error=ENOMEM:when=1",
    "ppoll:error=EINVAL:when=1+",
    "rt_sigprocmask:error=EINVAL:when=1",
    "rt_sigprocmask:error=EINVAL:when=2",
    "rt_sigprocmask:error=EINVAL:when=3",
    "signalfd4:error=ENOMEM:when=1",
    "recvfrom:error=EIO:when=1",
    "recvfrom:error=ENOMEM:when=1+",
];

/// spec: 12.1
#[test]
fn launcher_of_a_detached_sandbox_that_fails_ends_it_or_prints_its_id() {
    if !has_strace() {
        return;
    }
    let env = TestEnv::new();
    for fault in FAULTS {
        let words =
            ["-d", "--patience", "300ms", "--", "sh", "-c", "setsid sleep 600 & echo up >> $UP; wait"];
        let inject = format!("inject={fault}");
        let finished = Running::start(&mut failing(&env.run_command(words), &["-e", &inject])).finish();
        if finished.code() == Some(0) {
            let sandbox = Sandbox::printed(&env, &finished.out());
            let leader = sandbox.leader().expect("a leader");
            assert!(!leader.has_ended(), "{fault}");
            sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
        } else {
            assert!(matches!(finished.code(), Some(120 | 125)), "{fault}: {finished:?}");
            assert_eq!(finished.out(), "", "{fault}");
        }
        let none = || env.processes().is_empty();
        wait_until("no process is left", || none() && none());
        // Only 125 says that nothing was started.
        if finished.code() != Some(120) {
            assert_eq!(env.left(), Vec::<String>::new(), "{fault}");
        }
        env.call(["rm", "--all", "-f"]);
    }
    env.assert_nothing_left();
}

/// spec: 12.1
#[test]
fn detached_sandbox_whose_id_cannot_be_written_is_ended() {
    let env = TestEnv::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = env.run_command(["-d", "--", "sh", "-c", "setsid sleep 600 & wait"]);
    command.stdout(full).stderr(std::process::Stdio::piped());
    let finished = Running::spawn(&mut command).finish().with_code(125);
    assert!(finished.err().contains("cannot write to standard output"), "{}", finished.err());
    env.assert_nothing_left();
}

/// Our init says half a second late that the command runs.
/// spec: 1.2
#[test]
fn stop_before_the_supervisor_sees_the_command_run_gives_the_grace() {
    if !has_strace() {
        return;
    }
    let env = TestEnv::new();
    if !env.levels().contains(&Level::Pidns) {
        return;
    }
    let script = "trap 'exit 7' TERM; touch up; while :; do sleep 0.1; done";
    let words = ["--contain", "pidns", "--grace", "60s", "--", "sh", "-c", script];
    let late = "inject=sendto:delay_enter=500000:when=3";
    let running = Running::start(&mut failing(&env.run_command(words), &["-f", "-e", late]));
    wait_until("the command runs", || env.path("work/up").is_file());
    let launcher = children(running.pid()).into_iter().find_map(Process::find).expect("a launcher");
    launcher.signal(Signal::TERM);
    running.finish().with_code(7);
    env.assert_nothing_left();
}

/// spec: 8.2
#[test]
fn lost_word_of_our_init_makes_no_exit_code() {
    if !has_strace() {
        return;
    }
    let env = TestEnv::new();
    if !env.levels().contains(&Level::Pidns) {
        return;
    }
    for time in ["1", "2", "3", "4", "1+", "2+", "3+", "4+"] {
        let inject = format!("inject=recvfrom:error=ECONNRESET:when={time}");
        let words = ["--contain", "pidns", "--", "sh", "-c", "exit 3"];
        let mut command = failing(&env.run_command(words), &["-f", "-e", &inject]);
        let finished = Running::start(&mut command).finish();
        assert!(matches!(finished.code(), Some(3 | 120 | 125)), "{time}: {finished:?}");
        env.assert_nothing_left();
    }
}

/// spec: 1.3
#[test]
fn request_to_stop_is_sent_again_where_the_kernel_has_no_memory_for_it() {
    if !has_strace() {
        return;
    }
    let env = TestEnv::new();
    for errno in ["ENOBUFS", "ENOMEM"] {
        let inject = format!("inject=sendto:error={errno}:when=1..3");
        let words =
            ["--grace", "300ms", "--", "sh", "-c", "setsid sleep 600 & echo up >> $UP; exec sleep 601"];
        let running = Running::start(&mut failing(&env.run_command(words), &["-e", &inject]));
        env.await_up(&["up"]);
        let launcher = children(running.pid()).into_iter().find_map(Process::find).expect("a launcher");
        launcher.signal(Signal::TERM);
        launcher.await_end();
        running.finish().with_code(143);
        env.assert_nothing_left();
        std::fs::remove_file(env.path("work/up")).unwrap();
    }
}

/// spec: 12.1
#[test]
fn exec_without_an_answer_is_120() {
    if !has_strace() {
        return;
    }
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "600"]);
    let exec = |fault: &str| {
        let command = env.penfold(["exec", &sandbox.id, "--", "sh", "-c", "exit 3"]);
        Running::start(&mut failing(&command, &["-e", fault])).finish()
    };
    // The first call takes the greeting, before anything is asked for.
    let codes: Vec<_> =
        (1..=6).map(|time| exec(&format!("inject=recvfrom:error=EIO:when={time}+")).code()).collect();
    assert!(codes.iter().all(|code| matches!(code, Some(3 | 120 | 125))), "{codes:?}");
    assert_eq!((codes[0], codes.contains(&Some(120))), (Some(125), true), "{codes:?}");
    sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    env.assert_nothing_left();
}
