//! Recorded execs, through `penfold_control::execs`: their output, their end, and the death of their supervisors.

mod lingering;
mod many;

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use penfold_control::execs::{self, ExecEnd, ExecError, ExecStart, ExecStatus, ExecView, StartedExec};
use penfold_state::log::{LogEntry, LogPosition, LogWaitEnd, Stream};
use penfold_state::wire::Size;
use penfold_state::{ExitStatus, Files, Registry, StartFailure};
use penfold_teardown::Cause;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{DumpableBehavior, Signal};

use super::sandboxes::{all_live, await_end_of, await_running, everywhere, remove};
use crate::support::{Level, Process, Sandbox, TestEnv, USER, is_root, skip, wait_until};

const LONG: Duration = Duration::from_secs(20);

/// Calls the library as the user of the sandbox, in a thread of its own.
pub fn as_user<R: Send>(env: &TestEnv, sandbox: &Sandbox, call: impl FnOnce(&Files) -> R + Send) -> R {
    let ordinary = env.is_ordinary();
    let (root, id) = (env.root(), &sandbox.id);
    std::thread::scope(|scope| {
        let call = scope.spawn(move || {
            if ordinary {
                let (user, group) =
                    (rustix::process::Uid::from_raw(USER), rustix::process::Gid::from_raw(USER));
                rustix::thread::set_thread_groups(&[]).unwrap();
                rustix::thread::set_thread_res_gid(group, group, group).unwrap();
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                // The change of the user makes `/proc/self` root's.
                rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
            }
            let registry = Registry::open_existing(&root).unwrap().expect("no state root");
            call(&registry.look(id).unwrap().expect("no record"))
        });
        call.join().unwrap()
    })
}

#[track_caller]
fn start(env: &TestEnv, sandbox: &Sandbox, words: &[&str]) -> StartedExec {
    let start = ExecStart { grace: Duration::from_secs(5), ..ExecStart::new(words) };
    as_user(env, sandbox, |files| execs::start_exec(files, start)).unwrap()
}

#[track_caller]
pub fn view(env: &TestEnv, sandbox: &Sandbox, number: u32) -> ExecView {
    as_user(env, sandbox, |files| execs::find_exec(files, number)).unwrap().expect("no such exec")
}

#[track_caller]
fn wait(env: &TestEnv, sandbox: &Sandbox, number: u32) -> ExecEnd {
    let end =
        as_user(env, sandbox, |files| execs::wait_for_exec(files, number, Instant::now().checked_add(LONG)));
    end.unwrap().expect("the exec has not ended")
}

#[track_caller]
fn kill(env: &TestEnv, sandbox: &Sandbox, number: u32) -> ExecEnd {
    as_user(env, sandbox, |files| execs::kill_exec(files, number, LONG)).unwrap()
}

/// Reads the whole log, waiting for its end: standard output, standard error.
#[track_caller]
fn output(env: &TestEnv, sandbox: &Sandbox, number: u32) -> (Vec<u8>, Vec<u8>) {
    as_user(env, sandbox, |files| {
        let mut reader = execs::open_exec_log(files, number, LogPosition::Start).unwrap();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            while let Some(entry) = reader.next_entry().unwrap() {
                match entry {
                    LogEntry::Data { stream: Stream::Stdout, bytes, .. } => out.extend(bytes),
                    LogEntry::Data { bytes, .. } => err.extend(bytes),
                    other => panic!("{other:?}"),
                }
            }
            if reader.wait(|| execs::has_ended(files, number), None).unwrap() == LogWaitEnd::Ended {
                return (out, err);
            }
        }
    })
}

fn sandbox_at(env: &TestEnv, level: Level) -> Sandbox {
    env.detach(["--contain", level.word(), "--", "sleep", "4001"])
}

/// A tree that does what it can to outlive its top.
const TREE: &str =
    "trap '' TERM HUP INT; setsid sleep 4101 & (setsid sleep 4102 &); sleep 4103 & echo up; sleep 4104; :";
const SLEEPS: [&str; 4] = ["sleep 4101", "sleep 4102", "sleep 4103", "sleep 4104"];

/// Starts [`TREE`].
#[track_caller]
fn tree(env: &TestEnv, sandbox: &Sandbox) -> (u32, Vec<Process>) {
    let number = start(env, sandbox, &["bash", "-c", TREE]).number;
    (number, await_running(env, &SLEEPS))
}

/// spec: 13.9
#[test]
fn output_and_exit_are_on_disk_without_a_client() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let script = "echo begun; head -c 1048576 /dev/zero; head -c 100000 /dev/zero >&2; exit 7";
        let started = start(env, &sandbox, &["sh", "-c", script]);
        let case = format!("{:?} {level:?}", env.who);
        let (out, err) = output(env, &sandbox, started.number);
        assert_eq!((out.len(), err.len()), (6 + (1 << 20), 100_000), "{case}");
        let view = view(env, &sandbox, started.number);
        assert_eq!(
            (view.status, view.exit, view.cause),
            (ExecStatus::Ended, Some(ExitStatus::Code(7)), Some(Cause::Exit)),
            "{case}"
        );
        assert!(view.report.is_some_and(|report| report.findings.verified), "{case}");
        assert_eq!(sandbox.file(&format!("execs/{}/exit.json", started.number)).unwrap()["exit"]["code"], 7);
        remove(env, &sandbox);
    });
}

/// spec: 13.9
#[test]
fn pid_is_that_of_the_command_in_our_namespace() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let started = start(env, &sandbox, &["sleep", "4101"]);
        let pids: Vec<i32> = await_running(env, &["sleep 4101"]).iter().map(Process::pid).collect();
        assert_eq!(pids, [started.pid.unwrap()], "{:?} {level:?}", env.who);
        assert_eq!(view(env, &sandbox, started.number).leader_pid, started.pid);
        remove(env, &sandbox);
    });
}

/// spec: 13.10
#[test]
fn kill_ends_the_tree_and_nothing_else() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        start(env, &sandbox, &["sleep", "4002"]);
        let others = await_running(env, &["sleep 4001", "sleep 4002"]);
        let (number, tree) = tree(env, &sandbox);
        assert!(all_live(&tree));
        let end = kill(env, &sandbox, number);
        let case = format!("{:?} {level:?}", env.who);
        assert!(tree.iter().all(Process::has_ended), "{case}");
        assert_eq!((end.exit, end.cause), (Some(ExitStatus::Signal(9)), Some(Cause::Kill)), "{case}");
        assert!(end.report.is_some(), "{case}");
        assert!(all_live(&others), "{case}");
        let running = as_user(env, &sandbox, execs::list_execs).unwrap();
        let status: Vec<ExecStatus> = running.iter().map(|view| view.status).collect();
        assert_eq!(status, [ExecStatus::Running, ExecStatus::Ended], "{case}");
        remove(env, &sandbox);
    });
}

/// spec: 13.10
#[test]
fn stop_gives_the_grace_and_sends_the_signal() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let script = "trap 'echo polite; sleep 0.2; exit 5' USR1; echo ready; while :; do sleep 0.05; done";
        let number = start(env, &sandbox, &["bash", "-c", script]).number;
        wait_until("the handler is set", || {
            as_user(env, &sandbox, |files| {
                let mut reader = execs::open_exec_log(files, number, LogPosition::Start).unwrap();
                matches!(reader.next_entry(), Ok(Some(_)))
            })
        });
        let end = as_user(env, &sandbox, |files| {
            execs::stop_exec(files, number, Some(Signal::USR1.as_raw()), Some(LONG), LONG * 2)
        });
        let end = end.unwrap();
        let case = format!("{:?} {level:?}", env.who);
        assert_eq!((end.exit, end.cause), (Some(ExitStatus::Code(5)), Some(Cause::Stop)), "{case}");
        assert_eq!(output(env, &sandbox, number).0, b"ready\npolite\n", "{case}");
        // A deaf tree is killed after the grace.
        let (number, tree) = tree(env, &sandbox);
        let end = as_user(env, &sandbox, |files| {
            execs::stop_exec(files, number, None, Some(Duration::from_millis(50)), LONG)
        });
        assert!(end.unwrap().report.is_some(), "{case}");
        assert!(tree.iter().all(Process::has_ended), "{case}");
        remove(env, &sandbox);
    });
}

/// spec: 13.12
#[test]
fn killed_exec_supervisor_leaves_a_lost_exec() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let others = await_running(env, &["sleep 4001"]);
        let (number, tree) = tree(env, &sandbox);
        let supervisors = sandbox.exec_supervisors();
        assert_eq!(supervisors.len(), 1);
        supervisors[0].signal(Signal::KILL);
        let case = format!("{:?} {level:?}", env.who);
        let has_leaf = sandbox.leaf.is_some();
        let end = wait(env, &sandbox, number);
        assert_eq!((end.exit, end.cause), (None, Some(Cause::Lost)), "{case}");
        assert!(all_live(&others), "{case}");
        if has_leaf {
            assert!(end.report.is_some(), "{case}");
            await_end_of(&tree);
            assert_eq!(view(env, &sandbox, number).status, ExecStatus::Ended, "{case}");
        } else {
            // Without a leaf, the members end with the sandbox.
            assert!(end.report.is_none() && !end.remaining.is_empty(), "{case}");
            sandbox.call(env, &["kill", "ID"]).with_code(0);
            await_end_of(&tree);
            let view = view(env, &sandbox, number);
            assert_eq!((view.status, view.exit), (ExecStatus::Ended, None), "{case}");
            assert!(view.report.is_some() && view.remaining.is_empty(), "{case}");
        }
        remove(env, &sandbox);
    });
}

/// spec: 13.11
#[test]
fn every_exec_has_an_end_after_that_of_the_sandbox() {
    everywhere(|env, level| {
        for verb in ["kill", "stop"] {
            let words = ["--contain", level.word(), "--grace", "0.3", "--", "sleep", "4001"];
            let sandbox = env.detach(words);
            let done = start(env, &sandbox, &["sh", "-c", "exit 3"]).number;
            wait(env, &sandbox, done);
            let (deaf, members) = tree(env, &sandbox);
            let meek = start(env, &sandbox, &["sleep", "4105"]).number;
            let members: Vec<Process> =
                members.into_iter().chain(await_running(env, &["sleep 4105"])).collect();
            sandbox.call(env, &[verb, "ID"]).with_code(0);
            let case = format!("{:?} {level:?} {verb}", env.who);
            assert!(members.iter().all(Process::has_ended), "{case}");
            let views = as_user(env, &sandbox, execs::list_execs).unwrap();
            let numbers: Vec<u32> = views.iter().map(|view| view.number).collect();
            assert_eq!(numbers, [done, deaf, meek], "{case}");
            for view in &views {
                assert_eq!(view.status, ExecStatus::Ended, "{case} {view:?}");
                assert!(
                    view.report.as_ref().is_some_and(|report| report.findings.verified),
                    "{case} {view:?}"
                );
                assert!(sandbox.file(&format!("execs/{}/exit.json", view.number)).is_some(), "{case}");
            }
            assert_eq!(views[0].exit, Some(ExitStatus::Code(3)), "{case}");
            assert!(views[1].cause != Some(Cause::Exit), "{case} {:?}", views[1].cause);
            remove(env, &sandbox);
        }
    });
}

/// spec: 13.11
#[test]
fn execs_go_on_after_a_takeover() {
    everywhere(|env, level| {
        if level == Level::Pidns {
            // The namespace ends with its supervisor, so it refuses `keep`.
            return;
        }
        let words = ["--on-supervisor-exit", "keep", "--contain", level.word(), "--", "sleep", "4001"];
        let sandbox = env.detach(words);
        let script = "while ! test -e go; do sleep 0.05; done; echo later; exec sleep 4105";
        let talks = start(env, &sandbox, &["sh", "-c", script]).number;
        let (deaf, members) = tree(env, &sandbox);
        let case = format!("{:?} {level:?}", env.who);
        let [standby, supervisor] = &sandbox.supervisors[..] else { panic!("supervisors") };
        supervisor.signal(Signal::KILL);
        wait_until("the standby has taken over", || {
            sandbox.supervisors_now().last().is_some_and(|process| process.id() == standby.id())
        });
        assert!(all_live(&members), "{case}");
        std::fs::write(env.path("work/go"), "").unwrap();
        await_running(env, &["sleep 4105"]);
        let running = as_user(env, &sandbox, execs::list_execs).unwrap();
        assert!(running.iter().all(|view| view.status == ExecStatus::Running), "{case}");
        let end = kill(env, &sandbox, deaf);
        assert!(end.report.is_some() && members.iter().all(Process::has_ended), "{case}");
        let end = kill(env, &sandbox, talks);
        assert_eq!(end.cause, Some(Cause::Kill), "{case}");
        assert_eq!(output(env, &sandbox, talks).0, b"later\n", "{case}");
        // A number is never used twice.
        let next = start(env, &sandbox, &["true"]).number;
        assert!(next > deaf, "{case}");
        assert_eq!(wait(env, &sandbox, next).exit, Some(ExitStatus::Code(0)), "{case}");
        std::fs::remove_file(env.path("work/go")).unwrap();
        remove(env, &sandbox);
    });
}

/// spec: 13.12
#[test]
fn supervisor_and_exec_supervisor_killed_together_leave_a_lost_exec() {
    let env = TestEnv::new();
    for level in env.levels().into_iter().filter(|level| *level != Level::Pidns) {
        for keep in ["keep", "kill"] {
            let words = ["--on-supervisor-exit", keep, "--contain", level.word(), "--", "sleep", "4001"];
            let sandbox = env.detach(words);
            let (number, members) = tree(&env, &sandbox);
            let mut both = sandbox.exec_supervisors();
            both.push(Process::open(sandbox.supervisors[1].id()).unwrap());
            assert!(all_live(&members));
            for process in &both {
                process.signal(Signal::KILL);
            }
            if keep == "kill" {
                sandbox.await_end();
            }
            let end = wait(&env, &sandbox, number);
            assert_eq!(end.exit, None, "{level:?} {keep}");
            assert!(matches!(end.cause, Some(Cause::Lost | Cause::Supervisor)), "{level:?} {keep} {end:?}");
            if level == Level::Cgroup || keep == "kill" {
                assert!(end.report.is_some(), "{level:?} {keep}");
                await_end_of(&members);
            }
            remove(&env, &sandbox);
            await_end_of(&members);
        }
    }
    env.assert_nothing_left();
}

/// spec: 13.13
#[test]
fn forged_files_are_not_believed() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let ended = start(env, &sandbox, &["true"]).number;
        wait(env, &sandbox, ended);
        let (number, members) = tree(env, &sandbox);
        let (old, new) = (format!("execs/{ended}"), format!("execs/{number}"));
        let case = format!("{:?} {level:?}", env.who);
        for name in ["report.json", "exit.json", "exec.json"] {
            std::fs::copy(sandbox.record.join(&old).join(name), sandbox.record.join(&new).join(name))
                .unwrap();
            let made = sandbox.record.join(&new).join(name);
            if env.is_ordinary() {
                std::os::unix::fs::chown(made, Some(USER), Some(USER)).unwrap();
            }
        }
        let view_now = view(env, &sandbox, number);
        assert_eq!((view_now.status, view_now.exit), (ExecStatus::Running, None), "{case}");
        let past = as_user(env, &sandbox, |files| execs::wait_for_exec(files, number, Some(Instant::now())));
        assert_eq!(past.unwrap(), None, "{case}");
        let forget = as_user(env, &sandbox, |files| execs::remove_exec_record(files, number));
        assert!(matches!(forget, Err(ExecError::Refused(_))), "{case} {forget:?}");
        assert!(all_live(&members), "{case}");
        let end = kill(env, &sandbox, number);
        assert_eq!((end.exit, end.cause), (Some(ExitStatus::Signal(9)), Some(Cause::Kill)), "{case}");
        assert!(members.iter().all(Process::has_ended), "{case}");
        as_user(env, &sandbox, |files| execs::remove_exec_record(files, number)).unwrap();
        assert_eq!(as_user(env, &sandbox, |files| execs::find_exec(files, number)).unwrap(), None, "{case}");
        remove(env, &sandbox);
    });
}

/// spec: 13.13
#[test]
fn report_forged_for_a_killed_exec_supervisor_is_replaced() {
    let env = TestEnv::new();
    let Some(level) = env.levels().into_iter().find(|level| *level == Level::Cgroup) else { return };
    let sandbox = sandbox_at(&env, level);
    let ended = start(&env, &sandbox, &["true"]).number;
    wait(&env, &sandbox, ended);
    let (number, members) = tree(&env, &sandbox);
    for name in ["report.json", "exit.json"] {
        let of = |number: u32| sandbox.record.join(format!("execs/{number}/{name}"));
        std::fs::copy(of(ended), of(number)).unwrap();
    }
    sandbox.exec_supervisors()[0].signal(Signal::KILL);
    await_end_of(&members);
    wait_until("the report is replaced", || view(&env, &sandbox, number).cause == Some(Cause::Lost));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.13
#[test]
fn link_in_place_of_a_directory_is_not_followed() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let (number, members) = tree(&env, &sandbox);
    let (directory, elsewhere) = (sandbox.record.join(format!("execs/{number}")), env.path("elsewhere"));
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(&directory, env.path("away")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &directory).unwrap();
    assert!(as_user(&env, &sandbox, |files| execs::find_exec(files, number)).is_err());
    assert!(as_user(&env, &sandbox, execs::list_execs).unwrap().is_empty());
    // Its number stays taken.
    let next = start(&env, &sandbox, &["true"]).number;
    assert!(next > number);
    wait(&env, &sandbox, next);
    assert!(all_live(&members));
    remove(&env, &sandbox);
    await_end_of(&members);
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    // The directory of all execs may be a link too.
    let sandbox = env.detach(["--", "sleep", "4001"]);
    std::os::unix::fs::symlink(&elsewhere, sandbox.record.join("execs")).unwrap();
    let refused = as_user(&env, &sandbox, |files| execs::start_exec(files, ExecStart::new(["true"])));
    assert!(matches!(refused, Err(ExecError::Refused(_))), "{refused:?}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    remove(&env, &sandbox);
    env.assert_nothing_left();
}

/// spec: 13.9
#[test]
fn command_that_cannot_run_is_told_and_recorded() {
    everywhere(|env, level| {
        let sandbox = sandbox_at(env, level);
        let failed =
            as_user(env, &sandbox, |files| execs::start_exec(files, ExecStart::new(["no-such-program"])));
        let Err(ExecError::StartFailed { number, failure: StartFailure::NotFound }) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(wait(env, &sandbox, number).cause, Some(Cause::StartFailed));
        remove(env, &sandbox);
    });
}

/// spec: 13.9
#[test]
fn input_terminal_and_signals_reach_the_command() {
    everywhere(|env, level| {
        let case = format!("{:?} {level:?}", env.who);
        let sandbox = sandbox_at(env, level);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut cat = ExecStart::new(["cat"]);
        cat.stdin = Some(OwnedFd::from(theirs));
        let cat = as_user(env, &sandbox, |files| execs::start_exec(files, cat)).unwrap().number;
        (&ours).write_all(b"typed").unwrap();
        drop(ours);
        assert_eq!(output(env, &sandbox, cat).0, b"typed", "{case}");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut shell = ExecStart::new([
            "sh",
            "-c",
            "trap 'stty size; exit 4' WINCH; stty size; read x; echo got $x; while :; do sleep 0.05; done",
        ]);
        shell.stdin = Some(OwnedFd::from(theirs));
        shell.terminal = Some(Size { rows: 11, columns: 22 });
        let shell = as_user(env, &sandbox, |files| execs::start_exec(files, shell)).unwrap().number;
        let logged = |text: &str| {
            as_user(env, &sandbox, |files| {
                let mut reader = execs::open_exec_log(files, shell, LogPosition::Start).unwrap();
                let mut all = Vec::new();
                while let Ok(Some(LogEntry::Data { bytes, .. })) = reader.next_entry() {
                    all.extend(bytes);
                }
                String::from_utf8(all).unwrap().contains(text)
            })
        };
        (&ours).write_all(b"line\n").unwrap();
        wait_until("the line is read", || logged("got line"));
        as_user(env, &sandbox, |files| execs::resize_exec(files, shell, Size { rows: 33, columns: 44 }))
            .unwrap();
        assert_eq!(wait(env, &sandbox, shell).exit, Some(ExitStatus::Code(4)), "{case}");
        assert!(logged("11 22") && logged("33 44"), "{case}");
        let number = start(env, &sandbox, &["sleep", "4101"]).number;
        as_user(env, &sandbox, |files| execs::signal_exec(files, number, Signal::USR1.as_raw())).unwrap();
        assert_eq!(wait(env, &sandbox, number).exit, Some(ExitStatus::Signal(10)), "{case}");
        let refused = as_user(env, &sandbox, |files| execs::signal_exec(files, number, 99));
        assert!(matches!(refused, Err(ExecError::Refused(_))), "{case}");
        remove(env, &sandbox);
    });
}

/// spec: 13.13
#[test]
fn end_on_a_full_disk_is_written_once_there_is_room() {
    if !is_root() {
        return;
    }
    let env = TestEnv::new();
    if mount("none", env.root(), "tmpfs", MountFlags::empty(), c"size=256k,nr_inodes=64").is_err() {
        return skip("no tmpfs can be mounted here");
    }
    let sandbox = env.detach(["--", "sleep", "4001"]);
    let script = "while ! test -e go; do sleep 0.05; done; echo done; exit 7";
    let number = start(&env, &sandbox, &["sh", "-c", script]).number;
    let command = Process::find(view(&env, &sandbox, number).leader_pid.unwrap()).unwrap();
    let filler = env.path("root/filler");
    let mut file = std::fs::File::create(&filler).unwrap();
    while file.write_all(&[1; 512]).is_ok() {}
    let refused = as_user(&env, &sandbox, |files| execs::start_exec(files, ExecStart::new(["true"])));
    assert!(matches!(refused, Err(ExecError::Refused(_))), "{refused:?}");
    assert!(!command.has_ended());
    std::fs::write(env.path("work/go"), "").unwrap();
    command.await_end();
    wait_until("the exec supervisor has exited", || {
        sandbox.exec_supervisors().iter().all(Process::has_ended)
    });
    // The supervisor answers with the end that it cannot write.
    let end = wait(&env, &sandbox, number);
    assert_eq!((end.exit, end.cause), (Some(ExitStatus::Code(7)), Some(Cause::Exit)));
    assert_eq!(view(&env, &sandbox, number).status, ExecStatus::Ended);
    let report = sandbox.record.join(format!("execs/{number}/report.json"));
    assert!(!report.try_exists().unwrap());
    std::fs::remove_file(&filler).unwrap();
    drop(file);
    wait_until("the end is on disk", || report.try_exists().unwrap());
    let end = wait(&env, &sandbox, number);
    assert_eq!((end.exit, end.cause), (Some(ExitStatus::Code(7)), Some(Cause::Exit)));
    assert!(end.report.is_some());
    remove(&env, &sandbox);
    unmount(env.root(), UnmountFlags::DETACH).unwrap();
    env.assert_nothing_left();
}

/// spec: 13.11
#[test]
fn idle_time_does_not_pass_while_a_recorded_exec_runs() {
    let env = TestEnv::new();
    let sandbox = env.detach(["--idle-timeout", "0.2", "--", "sleep", "4001"]);
    let number = start(&env, &sandbox, &["sleep", "0.7"]).number;
    assert_eq!(wait(&env, &sandbox, number).exit, Some(ExitStatus::Code(0)));
    sandbox.await_end();
    assert_eq!(sandbox.cause().as_deref(), Some("idle"));
    remove(&env, &sandbox);
    env.assert_nothing_left();
}
