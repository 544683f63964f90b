//! A state root that is shared between pid and time namespaces: in another namespace, the pids and start times of a record
//! belong to other processes or to none.

use std::process::{Command, Stdio};

use penfold_testkit::proc;

use super::sandboxes::{all_live, await_end_of, await_running, end, none_lives};
use crate::support::{
    Finished, Process, Running, Sandbox, TestEnv, children, has_program, is_our_name, is_root, kill_at_once,
    penfold, skip, wait_until,
};

/// Ways to another view of the same processes.
const PIDS: [&str; 3] = ["unshare", "--pid", "--mount-proc"];
const TIMES: [&str; 3] = ["unshare", "--time", "--boottime=1000000"];
const TREE: &str = "setsid sleep 1052 & (setsid sleep 1053 &); exec sleep 1051";
const MEMBERS: [&str; 3] = ["sleep 1051", "sleep 1052", "sleep 1053"];

/// A namespace, for as long as this value lives.
struct Namespace {
    shell: Running,
    /// The first process in it.
    first: Process,
    flag: &'static str,
}

impl Namespace {
    fn new(way: &[&str]) -> Option<Namespace> {
        if !is_root() || !has_program(&[way, &["--fork", "true"]].concat()) {
            return None;
        }
        // Without the mark of the environment: a pid namespace ends with its first process.
        let mut command = Command::new(way[0]);
        command.args(&way[1..]).args(["--fork", "--kill-child", "sleep", "1059"]);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let shell = Running::spawn(quiet);
        let mut first = None;
        wait_until("the namespace has its first process", || {
            first = children(shell.pid()).into_iter().find_map(Process::find);
            first.as_ref().is_some_and(|process| process.command_line() == "sleep 1059 ")
        });
        let flag = if way.contains(&"--pid") { "--pid" } else { "--time" };
        Some(Namespace { shell, first: first?, flag })
    }

    /// Runs a program in it, in the working directory of the environment.
    fn command(&self, env: &TestEnv, program: &str) -> Command {
        let mut command = env.command("nsenter");
        command.arg(format!("--target={}", self.first.pid())).arg(self.flag);
        if self.flag == "--pid" {
            command.arg("--mount");
        }
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(env.path("work")).arg(program);
        command
    }

    /// Runs `penfold` in it to its end.
    fn call(&self, env: &TestEnv, words: &[&str]) -> Finished {
        let mut command = self.command(env, &penfold().display().to_string());
        Running::start(command.arg("--root").arg(env.root()).args(words)).finish()
    }

    fn detach(&self, env: &TestEnv, words: &[&str]) -> Sandbox {
        let printed = self.call(env, &[&["run", "-d"], words].concat()).with_code(0).out();
        Sandbox::printed(env, &printed)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.shell.signal(rustix::process::Signal::KILL);
        self.first.await_end();
    }
}

/// The side that a sandbox is on, and the side that looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

struct Scene {
    env: TestEnv,
    namespace: Namespace,
    sandbox: Sandbox,
    looks: Side,
    members: Vec<Process>,
    supervisors: Vec<Process>,
}

impl Scene {
    fn new(way: &[&str], lives: Side, looks: Side) -> Option<Scene> {
        let env = TestEnv::new();
        let namespace = Namespace::new(way)?;
        let words = ["--name", "web", "--contain", "cgroup", "--", "sh", "-c", TREE];
        let sandbox = match lives {
            Side::Here => env.detach(words),
            Side::There => namespace.detach(&env, &words),
        };
        let members = await_running(&env, &MEMBERS);
        let supervisors = holders(&sandbox);
        assert_eq!(supervisors.len(), 2);
        Some(Scene { env, namespace, sandbox, looks, members, supervisors })
    }

    fn call(&self, words: &[&str]) -> Finished {
        match self.looks {
            Side::Here => self.env.call(words),
            Side::There => self.namespace.call(&self.env, words),
        }
    }

    #[track_caller]
    fn assert_status(&self, expected: &str) {
        let all = self.call(&["ps", "-a", "--json"]).with_code(0).json();
        let one = all.as_array().unwrap().iter().find(|one| one["id"] == self.sandbox.id.as_str());
        assert_eq!(one.and_then(|one| one["status"].as_str()), Some(expected), "{all}");
        assert!(all_live(&self.members));
    }

    #[track_caller]
    fn end(self, words: &[&str]) {
        self.call(words).with_code(0);
        assert!(none_lives(&self.members), "{words:?}: members are alive");
        // Not even by pid can a verb on the other side wait for the supervisors.
        await_end_of(&self.supervisors);
        self.sandbox.assert_gone(&self.supervisors);
        if self.sandbox.record.try_exists().unwrap() {
            let (status, _, exit) = end(&self.env, &self.sandbox);
            assert!(
                ["killed", "lost"].contains(&status.as_str()) && exit["code"].is_null(),
                "{status} {exit}"
            );
            self.call(&["rm", &self.sandbox.id]).with_code(0);
        }
        drop(self.namespace);
        self.env.assert_nothing_left();
    }
}

/// The processes that hold the record open, the outer supervisor first: from another namespace the record does not name
/// them.
fn holders(sandbox: &Sandbox) -> Vec<Process> {
    let penfolds = proc::all().into_iter().filter(|one| is_our_name(&one.name) && !one.is_dead());
    let holds = |pid: i32| {
        let fds = crate::support::entries(format!("/proc/{pid}/fd").as_ref()).into_iter();
        fds.filter_map(|fd| std::fs::read_link(fd).ok()).any(|link| link == sandbox.record)
    };
    let mut found: Vec<_> = penfolds.filter(|one| holds(one.id.pid)).map(|one| one.id).collect();
    found.sort_unstable_by_key(|id| id.start);
    found.into_iter().filter_map(Process::open).collect()
}

/// All ways to end it, with supervisors and without, from the other side.
fn every_end(way: &[&str], lives: Side, looks: Side) {
    let ways = [
        (false, &["kill", "web"][..]),
        (false, &["stop", "-t", "5s", "ID"]),
        (false, &["rm", "-f", "ID"]),
        (true, &["kill", "ID"]),
        (true, &["rm", "-f", "web"]),
    ];
    for (orphaned, words) in ways {
        let Some(scene) = Scene::new(way, lives, looks) else { return };
        scene.assert_status("running");
        if orphaned {
            kill_at_once(&scene.supervisors.iter().collect::<Vec<_>>());
            scene.assert_status("orphaned");
        }
        let id = scene.sandbox.id.clone();
        let words: Vec<&str> = words.iter().map(|&word| if word == "ID" { &id } else { word }).collect();
        scene.end(&words);
    }
}

/// spec: 12.12
#[test]
fn sandbox_in_a_pid_namespace_is_seen_and_ended_from_outside() {
    every_end(&PIDS, Side::There, Side::Here);
}

/// spec: 12.12
#[test]
fn sandbox_outside_is_seen_and_ended_from_a_pid_namespace() {
    every_end(&PIDS, Side::Here, Side::There);
}

/// spec: 12.12
#[test]
fn sandbox_of_another_time_since_boot_is_seen_and_ended() {
    every_end(&TIMES, Side::There, Side::Here);
}

/// spec: 12.12
#[test]
fn sandbox_is_seen_and_ended_from_another_time_since_boot() {
    every_end(&TIMES, Side::Here, Side::There);
}

/// The next pids in the namespace are those of strangers here.
/// spec: 12.12
#[test]
fn strangers_with_the_numbers_of_a_record_are_not_signalled() {
    let env = TestEnv::new();
    let Some(namespace) = Namespace::new(&PIDS) else { return };
    // Without pipes: the numbers between theirs would be those of threads of this test, which reads them.
    let stranger =
        |_| Running::spawn(env.command("sleep").arg("1058").stdout(Stdio::null()).stderr(Stdio::null()));
    let strangers: Vec<Running> = (0..12).map(stranger).collect();
    let pids: Vec<i64> = strangers.iter().map(|stranger| stranger.pid().into()).collect();
    let set_last_pid = |pid: i64| {
        let mut command = namespace.command(&env, "sh");
        command.args(["-c", &format!("echo {pid} > /proc/sys/kernel/ns_last_pid")]);
        Running::start(&mut command).finish().code() == Some(0)
    };
    let mut met = false;
    for orphaned in [false, true] {
        if !set_last_pid(pids[0] - 2) {
            skip("the next pid of a namespace cannot be chosen here");
            return;
        }
        let sandbox = namespace.detach(&env, &["--contain", "cgroup", "--", "sh", "-c", TREE]);
        let members = await_running(&env, &MEMBERS);
        let state = sandbox.file("state.json").unwrap();
        let told = state["supervisors"].as_array().into_iter().flatten().chain([&state["leader"]]);
        met |= told.filter_map(|one| one["pid"].as_i64()).any(|pid| pids.contains(&pid));
        if orphaned {
            kill_at_once(&holders(&sandbox).iter().collect::<Vec<_>>());
        }
        for words in [&["inspect", &sandbox.id][..], &["tree"], &["rm", "-f", &sandbox.id]] {
            env.call(words).with_code(0);
        }
        assert!(none_lives(&members));
        assert!(strangers.iter().all(Running::is_alive), "a stranger was hit");
    }
    assert!(met, "no stranger has a pid of the record: {pids:?}");
    drop((namespace, strangers));
    env.assert_nothing_left();
}
