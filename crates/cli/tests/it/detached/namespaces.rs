//! A state root that is shared between pid and time namespaces: the numbers and times of birth in a record mean others
//! on the other side, or nobody.

#![allow(clippy::disallowed_methods, reason = "what these tests remove is their own")]

use std::process::{Child, Command, Output};

use crate::support_detach::{leaf, over};
use crate::support_e2::{DEADLINE, Pen, eventually, penfold, skip, tool};
use crate::support_f::{Sandbox, said, until, word};
use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;

/// Ways to another view of the same processes; what is started there goes on when the first process there ends.
const PIDS: [&str; 3] = ["unshare", "--pid", "--mount-proc"];
const TIMES: [&str; 3] = ["unshare", "--time", "--boottime=1000000"];
const TREE: &str = "setsid sleep 1052 & (setsid sleep 1053 &); exec sleep 1051";
const DAEMONS: [&str; 3] = ["sleep 1051", "sleep 1052", "sleep 1053"];

/// A place beside this one, for as long as this value lives.
struct Beside {
    shell: Child,
    /// The first process in it.
    first: Handle,
    flag: &'static str,
}

impl Beside {
    fn new(pen: &Pen, way: &[&str]) -> Option<Beside> {
        if !crate::support_e2::root() || !tool(&[way, &["--fork", "true"]].concat()) {
            return None;
        }
        let mut command = pen.command(way[0]);
        // A pid namespace ends with its first process, which must not be one of ours.
        command.env_remove(crate::support_e2::MARK).args(&way[1..]).args([
            "--fork",
            "--kill-child",
            "sleep",
            "1059",
        ]);
        let shell = command.spawn().unwrap();
        let own = i32::try_from(shell.id()).unwrap();
        let mut first = None;
        let stands = eventually(DEADLINE, || {
            let sleeps = proc::all().into_iter().find(|one| one.parent == own && one.name == "sleep");
            first = sleeps.and_then(|one| Handle::open(one.id).unwrap());
            first.is_some()
        });
        assert!(stands, "{way:?}");
        let flag = if way.contains(&"--pid") { "--pid" } else { "--time" };
        Some(Beside { shell, first: first.unwrap(), flag })
    }

    /// `penfold` over there.
    fn command(&self, pen: &Pen, words: &[&str]) -> Command {
        let mut command = pen.command("nsenter");
        command.arg(format!("--target={}", self.first.id.pid)).arg(self.flag);
        if self.flag == "--pid" {
            command.arg("--mount");
        }
        command.args(["sh", "-c", "cd \"$0\" && exec \"$@\""]).arg(pen.path("work"));
        command.arg(penfold()).arg("--root").arg(pen.path("root")).args(words);
        command
    }

    fn output(&self, pen: &Pen, words: &[&str]) -> Output {
        self.command(pen, words).output().unwrap()
    }

    fn detach(&self, pen: &Pen, words: &[&str]) -> Sandbox {
        let done = self.output(pen, &[&["run", "-d"], words].concat());
        assert!(done.status.success(), "{}", said(&done));
        Sandbox::printed(&pen.path("root"), &String::from_utf8_lossy(&done.stdout)).unwrap()
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        // It dies a moment after the one above it, and holds the output of the test until then.
        self.first.wait(Some(DEADLINE));
    }
}

/// Which side a sandbox is on, and which side looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Here,
    There,
}

struct Scene {
    pen: Pen,
    beside: Beside,
    sandbox: Sandbox,
    looks: Side,
    members: Vec<Handle>,
    supervisors: Vec<Handle>,
}

impl Scene {
    fn new(way: &[&str], lives: Side, looks: Side) -> Option<Scene> {
        let pen = Pen::new();
        let beside = Beside::new(&pen, way)?;
        let words = ["--name", "web", "--contain", "cgroup", "--", "sh", "-c", TREE];
        let sandbox = match lives {
            Side::Here => crate::support_detach::detach(&pen, &words),
            Side::There => beside.detach(&pen, &words),
        };
        assert!(eventually(DEADLINE, || DAEMONS.iter().all(|command| pen.is_running(command))));
        let members = DAEMONS.iter().flat_map(|command| pen.running(command));
        let members = members.filter_map(|pid| Handle::open(proc::stat(pid)?.id).ok()?).collect();
        let supervisors = holders(&sandbox);
        assert_eq!(supervisors.len(), 2);
        Some(Scene { pen, beside, sandbox, looks, members, supervisors })
    }

    fn output(&self, words: &[&str]) -> Output {
        match self.looks {
            Side::Here => crate::support_detach::output(&self.pen, words),
            Side::There => self.beside.output(&self.pen, words),
        }
    }

    #[track_caller]
    fn assert_status(&self, expected: &str) {
        let output = self.output(&["ps", "-a", "--json"]);
        assert_eq!(word(&output, &self.sandbox.id).as_deref(), Some(expected), "{}", said(&output));
        assert!(self.members.iter().all(|member| !member.has_ended()));
    }

    /// Kills both supervisors at once, by handle.
    fn lose_supervisors(&self) {
        lose(&self.supervisors);
        // It lets go of its files first, and of the locks that it took through them a moment later.
        assert!(until(DEADLINE, || self.supervisors.iter().all(Handle::has_ended)));
    }

    #[track_caller]
    fn end(self, words: &[&str]) {
        let done = self.output(words);
        assert!(done.status.success(), "{words:?}: {}", said(&done));
        assert!(self.members.iter().all(Handle::has_ended), "{words:?}: said to be gone and alive");
        assert_eq!(leaf(&self.sandbox), None);
        if self.sandbox.record.exists() {
            let (status, _, exit) = over(&self.pen, &self.sandbox);
            assert!(
                ["killed", "lost"].contains(&status.as_str()) && exit["code"].is_null(),
                "{status} {exit}"
            );
            assert!(self.output(&["rm", &self.sandbox.id]).status.success());
        }
        let Scene { pen, beside, .. } = self;
        drop(beside);
        pen.assert_nothing_left();
    }
}

/// Who holds the lock of a record, the outer one first: the only way to know them from here.
fn holders(sandbox: &Sandbox) -> Vec<Handle> {
    let penfolds = proc::all().into_iter().filter(|one| one.name == "penfold" && !one.is_dead());
    let holds = |pid: i32| {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|link| link == sandbox.record)
    };
    let mut found: Vec<_> = penfolds.filter(|one| holds(one.id.pid)).map(|one| one.id).collect();
    found.sort_unstable_by_key(|id| id.start);
    found.into_iter().filter_map(|id| Handle::open(id).ok()?).collect()
}

/// Kills both; the death of the outer one would wake the other.
fn lose(both: &[Handle]) {
    for supervisor in both {
        supervisor.signal(Signal::STOP).unwrap();
    }
    for supervisor in both.iter().rev() {
        supervisor.signal(Signal::KILL).unwrap();
    }
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
    for (lost, words) in ways {
        let Some(scene) = Scene::new(way, lives, looks) else { return };
        scene.assert_status("running");
        if lost {
            scene.lose_supervisors();
            scene.assert_status("orphaned");
        }
        let id = scene.sandbox.id.clone();
        let words: Vec<&str> = words.iter().map(|&word| if word == "ID" { &id } else { word }).collect();
        scene.end(&words);
    }
}

#[test]
fn sandbox_in_a_pid_namespace_is_seen_and_ended_from_outside() {
    every_end(&PIDS, Side::There, Side::Here);
}

#[test]
fn sandbox_outside_is_seen_and_ended_from_a_pid_namespace() {
    every_end(&PIDS, Side::Here, Side::There);
}

#[test]
fn sandbox_of_another_time_since_boot_is_seen_and_ended() {
    every_end(&TIMES, Side::There, Side::Here);
}

#[test]
fn sandbox_is_seen_and_ended_from_another_time_since_boot() {
    every_end(&TIMES, Side::Here, Side::There);
}

/// The numbers in its record are made those of strangers here.
#[test]
fn strangers_with_the_numbers_of_a_record_are_not_signalled() {
    let pen = Pen::new();
    let Some(beside) = Beside::new(&pen, &PIDS) else { return };
    let mut strangers: Vec<Child> =
        (0..12).map(|_| Command::new("sleep").arg("1058").spawn().unwrap()).collect();
    let numbers: Vec<i64> = strangers.iter().map(|stranger| stranger.id().into()).collect();
    let last = |number: i64| {
        let mut command = pen.command("nsenter");
        command.arg(format!("--target={}", beside.first.id.pid)).args(["--pid", "--mount", "sh", "-c"]);
        let script = format!("echo {} > /proc/sys/kernel/ns_last_pid", number - 2);
        command.arg(script).status().is_ok_and(|status| status.success())
    };
    let mut met = false;
    for lost in [false, true] {
        if !last(numbers[0]) {
            skip("the next number of a process cannot be chosen here");
            break;
        }
        let sandbox = beside.detach(&pen, &["--contain", "cgroup", "--", "sh", "-c", TREE]);
        let state = sandbox.file("state.json").unwrap();
        let told = state["supervisors"].as_array().into_iter().flatten().chain([&state["leader"]]);
        met |= told.filter_map(|one| one["pid"].as_i64()).any(|pid| numbers.contains(&pid));
        if lost {
            lose(&holders(&sandbox));
        }
        for words in [&["inspect", &sandbox.id][..], &["tree"], &["rm", "-f", &sandbox.id]] {
            let done = crate::support_detach::output(&pen, words);
            assert!(done.status.success(), "{words:?}: {}", said(&done));
        }
        assert!(DAEMONS.iter().all(|command| !pen.is_running(command)));
        assert!(strangers.iter_mut().all(|one| one.try_wait().unwrap().is_none()), "a stranger was hit");
    }
    for stranger in &mut strangers {
        let _ = stranger.kill();
        let _ = stranger.wait();
    }
    assert!(met, "no stranger has a number of the record: {numbers:?}");
    drop(beside);
    pen.assert_nothing_left();
}
