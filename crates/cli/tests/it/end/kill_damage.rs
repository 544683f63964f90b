//! `penfold kill` and `stop` where the supervisor cannot be asked, lies, or its record is damaged or gone.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support_control::{Fold, Impostor, Sandbox, all_gone, hello, holder, read};
use crate::support_d::{Started, code, handle, has_ended, json, output, said, until};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;

/// Kills, and sees that nothing is left and that it is not listed any more.
#[track_caller]
fn kill(fold: &Fold, sandbox: &Sandbox) {
    sandbox.assert_alive();
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// The same where nobody poses as its supervisor afterwards.
#[track_caller]
fn kill_for_good(fold: &Fold, sandbox: &Sandbox) {
    kill(fold, sandbox);
    fold.expect_none_listed(&[]);
}

#[test]
fn liar_that_says_gone_is_not_believed() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let words = vec![hello(&sandbox.id), json!({"ending": "killing"}), all_gone(&sandbox.id)];
    let _liar = Impostor::new(&sandbox, words, true);
    kill(&fold, &sandbox);
}

#[test]
fn liar_with_a_forged_report_is_not_believed() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let words = vec![hello(&sandbox.id), json!({"ending": "killing"}), all_gone(&sandbox.id)];
    let _liar = Impostor::new(&sandbox, words, false);
    let report = all_gone(&sandbox.id)["outcome"]["report"].clone();
    std::fs::write(sandbox.record.join("report.json"), report.to_string()).unwrap();
    kill(&fold, &sandbox);
}

#[test]
fn liar_that_wants_a_year_does_not_get_it() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&["--grace", "100ms"]);
    let words = vec![hello(&sandbox.id), json!({"ending": {"stopping": 31_536_000_000_u64}})];
    let _liar = Impostor::new(&sandbox, words, false);
    let begun = Instant::now();
    fold.expect(&["stop", &sandbox.id], 0, &[&sandbox.id]);
    assert!(begun.elapsed() < Duration::from_secs(20));
    sandbox.assert_gone();
}

#[test]
fn who_speaks_for_another_sandbox_is_not_asked() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let _liar = Impostor::new(&sandbox, vec![hello("0123456789ab")], false);
    kill(&fold, &sandbox);
}

/// A stack that is larger than any address space stands for a user who may have no more threads.
#[test]
fn orphans_are_ended_where_no_thread_can_be_made() {
    let fold = Fold::new();
    let sandboxes = [fold.start_tree(&[]), fold.start_tree(&[])];
    sandboxes.iter().for_each(Sandbox::kill_supervisors);
    sandboxes.iter().for_each(Sandbox::assert_alive);
    let mut command = fold.yard.penfold(["kill", &sandboxes[0].id, &sandboxes[1].id]);
    let done = output(command.env("RUST_MIN_STACK", (1_u64 << 62).to_string()));
    assert_eq!(code(&done), 0, "{}", said(&done));
    sandboxes.iter().for_each(Sandbox::assert_gone);
    fold.expect_none_listed(&[]);
}

#[test]
fn mute_supervisor_holds_nobody_up() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let _mute = Impostor::new(&sandbox, Vec::new(), false);
    let begun = Instant::now();
    kill(&fold, &sandbox);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn stopped_supervisors_hold_nobody_up() {
    for flags in [&[][..], &["--contain", "subreaper"]] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(flags);
        sandbox.stop_supervisors();
        kill_for_good(&fold, &sandbox);
    }
}

#[test]
fn stopped_supervisors_do_not_make_a_stop_a_kill() {
    let fold = Fold::new();
    let said = fold.yard.path("said");
    let script = format!(
        "trap 'echo polite > {}; exit' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done",
        said.display()
    );
    let sandbox = fold.start(&[], &script);
    fold.yard.await_up(&["lead"]);
    sandbox.stop_supervisors();
    fold.expect(&["stop", "-t", "5s", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
    assert_eq!(std::fs::read_to_string(said).unwrap(), "polite\n");
}

#[test]
fn killed_supervisors_leave_nothing_that_kill_does_not_end() {
    for flags in [&[][..], &["--contain", "subreaper"]] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(flags);
        sandbox.kill_supervisors();
        assert_eq!(fold.status(&sandbox.id), "orphaned");
        kill_for_good(&fold, &sandbox);
        let exited = read(&sandbox.record.join("exit.json"));
        assert_eq!((&exited["exit"], &exited["cause"]), (&json!(null), &json!("lost")), "invented");
    }
}

#[test]
fn members_that_hide_from_the_marker_end_with_stopped_supervisors() {
    let fold = Fold::new();
    let note = fold.yard.path("hidden");
    let script = format!("env -i sh -c 'sleep 1001 & echo $! > {}; wait' & sleep 1000", note.display());
    let sandbox = fold.start(&["--contain", "subreaper"], &script);
    let mut pid = None;
    until("the hidden one runs", || {
        pid = std::fs::read_to_string(&note).ok().and_then(|text| text.trim().parse().ok());
        pid.is_some()
    });
    let hidden = handle(rustix::process::Pid::from_raw(pid.unwrap()).unwrap());
    sandbox.stop_supervisors();
    assert!(!has_ended(&hidden));
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    assert!(has_ended(&hidden));
    sandbox.assert_gone();
}

#[test]
fn stranger_in_a_forged_state_is_never_signalled() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let mut stranger = Started::of(std::process::Command::new("sleep").arg("1002"));
    let path = sandbox.record.join("state.json");
    let mut state = read(&path);
    let identity = {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", stranger.pid().as_raw_pid())).unwrap();
        let began: u64 = stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap();
        json!({"pid": stranger.pid().as_raw_pid(), "start": began})
    };
    state["supervisors"] = json!([identity, identity]);
    state["leader"] = identity;
    sandbox.stop_supervisors();
    std::fs::write(&path, state.to_string()).unwrap();
    kill_for_good(&fold, &sandbox);
    assert!(stranger.is_alive());
}

#[test]
fn who_only_looks_at_a_record_is_no_supervisor() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    // It has the directory open, and a lock of another: what it holds is not the lock of the sandbox.
    let mut command = fold.yard.command("sleep");
    command.env_remove("PENFOLD_TEST_YARD").arg("1003").stdin(std::fs::File::open(&sandbox.record).unwrap());
    let mut reader = Started::of(&mut command);
    sandbox.stop_supervisors();
    kill_for_good(&fold, &sandbox);
    assert!(reader.is_alive());
}

#[test]
fn lost_socket_or_intent_or_state_hides_nothing() {
    for lost in ["control.sock", "intent.json", "state.json"] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(&["--name", "web"]);
        std::fs::remove_file(sandbox.record.join(lost)).unwrap();
        kill_for_good(&fold, &sandbox);
    }
}

#[test]
fn garbage_in_the_place_of_any_file_hides_nothing() {
    for damaged in ["control.sock", "intent.json", "state.json", "exit.json", "report.json"] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(&[]);
        let path = sandbox.record.join(damaged);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, "\0\0{garbage").unwrap();
        kill_for_good(&fold, &sandbox);
    }
}

#[test]
fn sandbox_whose_record_is_gone_is_ended_by_its_id() {
    for flags in [&[][..], &["--contain", "subreaper"]] {
        for stopped in [false, true] {
            let fold = Fold::new();
            let sandbox = fold.start_tree(flags);
            if stopped {
                sandbox.stop_supervisors();
            }
            remove_record(&sandbox);
            kill_for_good(&fold, &sandbox);
        }
    }
}

fn remove_record(sandbox: &Sandbox) {
    std::fs::remove_file(sandbox.record.join("intent.json")).unwrap();
    // Where it has a leaf.
    let _ = std::fs::remove_file(sandbox.record.join("leaf"));
    for entry in ["control.sock", "state.json", "log"] {
        let path = sandbox.record.join(entry);
        let removed = std::fs::remove_file(&path);
        if removed.is_err() {
            let all: Vec<_> = std::fs::read_dir(&path).unwrap().map(|one| one.unwrap().path()).collect();
            for one in all {
                std::fs::remove_file(one).unwrap();
            }
            std::fs::remove_dir(&path).unwrap();
        }
    }
    std::fs::remove_dir(&sandbox.record).unwrap();
}

#[test]
fn another_command_at_the_same_work_gets_its_time() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    sandbox.kill_supervisors();
    // Who was asked and does not answer is not who holds the lock.
    let _mute = Impostor::new(&sandbox, Vec::new(), false);
    let mut other = holder(&sandbox, "exec sleep 7");
    kill(&fold, &sandbox);
    assert!(other.child.wait().unwrap().success(), "it was killed");
}

/// Its main thread exits, with the file that is descriptor 3, once `$HELD` is gone; another thread half a second later.
const EXITS_SLOWLY: &str = r#"
import ctypes,os,platform,threading,time
libc=ctypes.CDLL(None)
alone=threading.Event()
def linger():
  libc.unshare(0x400)
  os.close(3)
  alone.set()
  while open("/proc/self/stat").read().rsplit(")")[-1].split()[0]!="Z": time.sleep(.001)
  time.sleep(.5)
  os._exit(0)
threading.Thread(target=linger).start()
alone.wait()
while os.path.exists(os.environ["HELD"]): time.sleep(.001)
libc.syscall(60 if platform.machine()=="x86_64" else 93,0)"#;

/// The kernel frees the locks of a process a moment before that has ended: here the main thread exits with the lock while
/// another goes on for half a second.
#[test]
fn who_looked_after_it_has_ended_when_it_is_said_to_be_gone() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    sandbox.kill_supervisors();
    let held = fold.yard.path("held");
    std::fs::write(&held, "").unwrap();
    let script = format!("HELD={} exec python3 -c '{EXITS_SLOWLY}' 3<&0 </dev/null", held.display());
    let mut other = holder(&sandbox, &script);
    let killer = fold.begin(&["kill", &sandbox.id]);
    until("the members are gone", || sandbox.members.iter().all(has_ended));
    std::fs::remove_file(&held).unwrap();
    let done = killer.wait_with_output().unwrap();
    assert_eq!(code(&done), 0, "{}", said(&done));
    assert!(has_ended(&handle(other.pid())), "it runs still");
    assert!(other.child.wait().unwrap().success());
    sandbox.assert_gone();
}

#[test]
fn supervisor_of_what_is_over_has_ended_when_it_is_said_to_be_gone() {
    // With its report; with that and a leaf in which nobody is; with neither.
    let leaf_is_back = |sandbox: &Sandbox| {
        let intent = read(&sandbox.record.join("intent.json"));
        let Some(leaf) = intent["leaf"].as_str() else { return };
        std::fs::create_dir(leaf).unwrap();
    };
    let end_is_lost = |sandbox: &Sandbox| {
        for file in ["report.json", "exit.json"] {
            std::fs::remove_file(sandbox.record.join(file)).unwrap();
        }
    };
    let changes: [&dyn Fn(&Sandbox); 3] = [&|_| (), &leaf_is_back, &end_is_lost];
    for (number, change) in changes.into_iter().enumerate() {
        let fold = Fold::new();
        let sandbox = fold.start(&[], "true");
        until("it is over", || fold.status(&sandbox.id) == "exited");
        until("its own are gone", || sandbox.supervisors.iter().all(|(_, handle)| has_ended(handle)));
        let held = fold.yard.path("held");
        std::fs::write(&held, "").unwrap();
        let mut command = fold.yard.command("bash");
        command.args(["-c", &format!("exec python3 -c '{EXITS_SLOWLY}' 3</dev/null")]).env("HELD", &held);
        let mut last = Started::of(&mut command);
        let path = sandbox.record.join("state.json");
        let mut state = read(&path);
        let pid = last.pid().as_raw_pid();
        let start = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let start = start.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().to_owned();
        state["supervisors"] = json!([{"pid": pid, "start": start.parse::<u64>().unwrap()}]);
        std::fs::write(&path, state.to_string()).unwrap();
        change(&sandbox);
        std::fs::remove_file(&held).unwrap();
        until("it exits", || crate::support_d::state(last.pid()) == Some('Z'));
        fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
        assert!(has_ended(&handle(last.pid())), "{number}: it runs still");
        assert!(last.child.wait().unwrap().success());
    }
}

#[test]
fn stopped_command_at_the_same_work_is_let_go_on() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    sandbox.kill_supervisors();
    let mut other = holder(&sandbox, "kill -STOP $$");
    until("it is stopped", || crate::support_d::state(other.pid()) == Some('T'));
    kill_for_good(&fold, &sandbox);
    assert!(other.child.wait().unwrap().success(), "it was killed");
}

#[test]
fn command_that_has_let_go_of_a_record_is_nobody_any_more() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    sandbox.kill_supervisors();
    let fifo = fold.yard.path("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
    let script = format!("exec 3<>{}; read -t 1 -u 3; exec </dev/null; read -u 3", fifo.display());
    let mut other = holder(&sandbox, &script);
    remove_record(&sandbox);
    kill_for_good(&fold, &sandbox);
    assert!(other.is_alive(), "it was killed");
}

/// Starts a tree with a scratch directory and takes its supervisors and what tells of the directory away.
fn bereft(fold: &Fold, contain: &str, lost: &str) -> (Sandbox, PathBuf) {
    let sandbox = fold.start_tree(&["--scratch", "--contain", contain]);
    let scratch = fold.yard.path("tmp").join(format!("penfold-{}", sandbox.id));
    assert!(scratch.is_dir());
    sandbox.kill_supervisors();
    match lost {
        "record" => remove_record(&sandbox),
        file => std::fs::remove_file(sandbox.record.join(file)).unwrap(),
    }
    (sandbox, scratch)
}

#[test]
fn scratch_directory_of_a_lost_record_goes_with_the_sandbox() {
    for contain in ["auto", "subreaper"] {
        for lost in ["record", "intent.json"] {
            let fold = Fold::new();
            let (sandbox, scratch) = bereft(&fold, contain, lost);
            kill(&fold, &sandbox);
            assert!(!scratch.try_exists().unwrap(), "{contain} {lost}");
        }
    }
}

#[test]
fn scratch_directory_of_a_lost_intent_is_collected_with_the_record() {
    for contain in ["auto", "subreaper"] {
        for alive in [true, false] {
            let fold = Fold::new();
            let (sandbox, scratch) = bereft(&fold, contain, "intent.json");
            if !alive {
                for member in &sandbox.members {
                    pidfd_send_signal(member, Signal::KILL).unwrap();
                }
                until("all are dead", || sandbox.members.iter().all(has_ended));
            }
            fold.expect(&["gc", "-f", "--older-than", "0", "--kind", "record,directory", "-q"], 0, &[]);
            sandbox.assert_gone();
            assert!(!scratch.try_exists().unwrap(), "{contain} {alive}");
        }
    }
}

#[test]
fn two_killers_at_once_both_succeed() {
    for stopped in [false, true] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(&[]);
        if stopped {
            sandbox.stop_supervisors();
        }
        let killers: Vec<_> = (0..4).map(|_| fold.begin(&["kill", &sandbox.id])).collect();
        for killer in killers {
            let done = killer.wait_with_output().unwrap();
            assert_eq!(code(&done), 0, "{}", said(&done));
        }
        sandbox.assert_gone();
    }
}

#[test]
fn stopped_killer_holds_nobody_up() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let first = Started { child: fold.begin(&["stop", "-t", "30s", &sandbox.id]) };
    until("the first is at work", || fold.status(&sandbox.id) == "stopping");
    crate::support_d::signal(first.pid(), Signal::STOP);
    assert!(sandbox.members.iter().any(|handle| !has_ended(handle)), "nothing is left to kill");
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

#[test]
fn foreground_sandbox_is_stopped_politely_and_its_caller_told() {
    let fold = Fold::new();
    let script = "trap 'exit 7' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let mut command = fold.yard.penfold(["run", "--", "sh", "-c", script]);
    let front = command.env("UP", fold.yard.path("up")).spawn().unwrap();
    fold.yard.await_up(&["lead"]);
    let listed = json(&output(&mut fold.yard.penfold(["ps", "--json"])));
    let own = listed.as_array().unwrap().iter().find(|one| one["claimed"] == true).unwrap();
    let id = own["id"].as_str().unwrap().to_owned();
    fold.expect(&["stop", &id], 0, &[&id]);
    assert_eq!(front.wait_with_output().unwrap().status.code(), Some(7));
    fold.expect_none_listed(&["-a"]);
}
