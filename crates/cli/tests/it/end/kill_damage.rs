//! `penfold kill` and `stop` with an unreachable or lying supervisor, or with a damaged or missing record.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::fs::Mode;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::standing::{Standing, answers, await_sleeps, await_state, detach_script, ended, hold_lock};
use crate::support::{Impostor, Process, Running, Sandbox, TestEnv, Who, has_program, wait_until};

/// Two levels: with a leaf, and without.
const LEVELS: [&str; 2] = ["auto", "subreaper"];

/// Kills all of these with one command, and sees that nothing is left.
#[track_caller]
fn kill(env: &TestEnv, sandboxes: &[Standing]) {
    sandboxes.iter().for_each(Standing::assert_alive);
    let ids: Vec<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    answers(env, &[&["kill"], ids.as_slice()].concat(), 0, &ids);
    sandboxes.iter().for_each(Standing::assert_gone);
}

/// The same where nobody poses as a supervisor afterwards: `ps` lists none of them.
#[track_caller]
fn kill_for_good(env: &TestEnv, sandboxes: &[Standing]) {
    kill(env, sandboxes);
    assert_eq!(env.listed(&[]), Vec::<Value>::new());
}

/// One tree at each of [`LEVELS`].
#[track_caller]
fn at_two_levels(env: &TestEnv) -> [Standing; 2] {
    LEVELS.map(|level| Standing::start(env, &["--contain", level]))
}

/// One liar hangs up, the other has forged a report.
/// spec: 11.2
#[test]
fn liar_that_says_gone_is_not_believed() {
    let env = TestEnv::new();
    let sandboxes = [Standing::start(&env, &[]), Standing::start(&env, &[])];
    let lie = |sandbox: &Standing, hangs_up| {
        let outcome = Impostor::all_gone(&sandbox.id);
        let words = vec![Impostor::hello(&sandbox.id), json!({"ending": "killing"}), outcome];
        Impostor::new(&sandbox.record, words, hangs_up)
    };
    let _liars = [lie(&sandboxes[0], true), lie(&sandboxes[1], false)];
    let report = Impostor::all_gone(&sandboxes[1].id)["outcome"]["report"].to_string();
    std::fs::write(sandboxes[1].record.join("report.json"), report).unwrap();
    kill(&env, &sandboxes);
}

/// The longest wait of a test is far below a year.
/// spec: 11.2
#[test]
fn liar_that_wants_a_year_does_not_get_it() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &["--grace", "100ms"]);
    let words = vec![Impostor::hello(&sandbox.id), json!({"ending": {"stopping": 31_536_000_000_u64}})];
    let _liar = Impostor::new(&sandbox.record, words, false);
    answers(&env, &["stop", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// spec: 11.2
#[test]
fn who_speaks_for_another_sandbox_is_not_asked() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let _liar = Impostor::new(&sandbox.record, vec![Impostor::hello("0123456789ab")], false);
    kill(&env, &[sandbox]);
}

/// A stack that is larger than any address space stands for a user who may have no more threads.
/// spec: 11.2
#[test]
fn orphans_are_ended_where_no_thread_can_be_made() {
    let env = TestEnv::new();
    let sandboxes = [Standing::start(&env, &[]), Standing::start(&env, &[])];
    for sandbox in &sandboxes {
        sandbox.kill_supervisors();
    }
    sandboxes.iter().for_each(Standing::assert_alive);
    let mut kill = env.penfold(["kill", &sandboxes[0].id, &sandboxes[1].id]);
    Running::start(kill.env("RUST_MIN_STACK", (1_u64 << 62).to_string())).finish().with_code(0);
    sandboxes.iter().for_each(Standing::assert_gone);
    assert_eq!(env.listed(&[]), Vec::<Value>::new());
}

/// Nothing is left to end, and no report says so yet.
#[test]
fn orphan_whose_members_have_ended_gets_its_report_when_it_is_killed() {
    let env = TestEnv::new();
    for level in LEVELS {
        let sandbox = env.detach(["--contain", level, "--", "sleep", "1000"]);
        let leader = sandbox.leader().unwrap();
        sandbox.kill_supervisors();
        leader.signal(Signal::KILL);
        leader.await_end();
        assert!(!sandbox.has_ended(), "{level}");
        answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
        assert!(sandbox.has_ended(), "{level}: no report");
        sandbox.assert_gone(&[leader]);
    }
}

/// spec: 11.2
#[test]
fn mute_supervisor_holds_nobody_up() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let _mute = Impostor::new(&sandbox.record, Vec::new(), false);
    kill(&env, &[sandbox]);
}

/// spec: 11.2
#[test]
fn stopped_supervisors_hold_nobody_up_and_members_without_the_marker_end() {
    let env = TestEnv::new();
    let sandboxes = at_two_levels(&env);
    let script = "env -i UP=$UP sh -c 'sleep 1001 & echo $! > $UP; wait' & sleep 1000";
    let other = detach_script(&env, &["--contain", "subreaper"], script);
    let mut hidden = None;
    wait_until("the hidden one runs", || {
        let noted = std::fs::read_to_string(env.path("work/up")).unwrap_or_default();
        hidden = noted.trim().parse().ok().and_then(Process::find);
        hidden.as_ref().is_some_and(|hidden| hidden.command_line() == "sleep 1001 ")
    });
    let hidden = hidden.unwrap();
    for sandbox in &sandboxes {
        sandbox.stop_supervisors();
    }
    other.stop_supervisors();
    sandboxes.iter().for_each(Standing::assert_alive);
    assert!(!hidden.has_ended());
    let ids = [&sandboxes[0].id, &sandboxes[1].id, &other.id].map(String::as_str);
    answers(&env, &[&["kill"], ids.as_slice()].concat(), 0, &ids);
    sandboxes.iter().for_each(Standing::assert_gone);
    other.assert_gone(&[hidden]);
    assert_eq!(env.listed(&[]), Vec::<Value>::new());
}

/// spec: 11.2
#[test]
fn stopped_supervisors_do_not_make_a_stop_a_kill() {
    let env = TestEnv::new();
    let script =
        "trap 'echo polite >> $UP; exit' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let sandbox = detach_script(&env, &[], script);
    env.await_up(&["lead"]);
    await_sleeps(&env, 1);
    sandbox.stop_supervisors();
    answers(&env, &["stop", "-t", "30s", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone(&[]);
    assert_eq!(std::fs::read_to_string(env.path("work/up")).unwrap(), "lead\npolite\n");
}

/// spec: 11.2
#[test]
fn killed_supervisors_leave_nothing_that_kill_does_not_end() {
    let env = TestEnv::new();
    let sandboxes = at_two_levels(&env);
    for sandbox in &sandboxes {
        sandbox.kill_supervisors();
        assert_eq!(sandbox.status(&env).as_deref(), Some("orphaned"));
    }
    kill_for_good(&env, &sandboxes);
    for sandbox in &sandboxes {
        let exited = sandbox.file("exit.json").unwrap();
        assert_eq!((&exited["exit"], &exited["cause"]), (&Value::Null, &json!("lost")), "invented");
    }
}

/// The process, as a record names one.
fn named(process: &Process) -> Value {
    json!({"pid": process.pid(), "start": process.id().start})
}

/// Changes `state.json` of a record.
fn forge_state(sandbox: &Sandbox, change: impl FnOnce(&mut Value)) {
    let mut state = sandbox.file("state.json").unwrap();
    change(&mut state);
    std::fs::write(sandbox.record.join("state.json"), state.to_string()).unwrap();
}

/// One stranger is named by a record, the other has opened one and has not locked it.
/// spec: 11.3
#[test]
fn stranger_in_a_forged_state_or_with_an_open_record_is_never_signalled() {
    let env = TestEnv::new();
    let sandboxes = [Standing::start(&env, &[]), Standing::start(&env, &[])];
    let record = std::fs::File::open(&sandboxes[1].record).unwrap();
    let strangers = [
        Running::start(Command::new("sleep").arg("1002").stdin(Stdio::null())),
        Running::start(Command::new("sleep").arg("1003").stdin(record)),
    ];
    for sandbox in &sandboxes {
        sandbox.stop_supervisors();
    }
    forge_state(&sandboxes[0], |state| {
        let stranger = named(strangers[0].process());
        state["supervisors"] = json!([stranger, stranger]);
        state["leader"] = stranger;
    });
    kill_for_good(&env, &sandboxes);
    assert!(strangers.iter().all(Running::is_alive));
}

/// spec: 11.2
#[test]
fn lost_socket_or_intent_or_state_hides_nothing() {
    for lost in ["control.sock", "intent.json", "state.json"] {
        let env = TestEnv::new();
        let sandbox = Standing::start(&env, &["--name", "web"]);
        std::fs::remove_file(sandbox.record.join(lost)).unwrap();
        kill_for_good(&env, &[sandbox]);
    }
}

/// spec: 11.2
#[test]
fn garbage_in_the_place_of_any_file_hides_nothing() {
    let env = TestEnv::new();
    let files = ["control.sock", "intent.json", "state.json", "exit.json", "report.json"];
    let sandboxes = files.map(|_| Standing::start(&env, &[]));
    for (damaged, sandbox) in files.into_iter().zip(&sandboxes) {
        let path = sandbox.record.join(damaged);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, "\0\0{garbage").unwrap();
    }
    kill_for_good(&env, &sandboxes);
}

/// spec: 11.2
#[test]
fn sandbox_whose_record_is_gone_is_ended_by_its_id() {
    for stopped in [false, true] {
        let env = TestEnv::new();
        let sandboxes = at_two_levels(&env);
        for sandbox in &sandboxes {
            if stopped {
                sandbox.stop_supervisors();
            }
            remove_record(sandbox);
        }
        kill_for_good(&env, &sandboxes);
    }
}

/// Removes the files of a record and its directory.
fn close_record(sandbox: &Sandbox) {
    std::fs::set_permissions(&sandbox.record, std::fs::Permissions::from_mode(0o000)).unwrap();
}

/// spec: 5.2
#[test]
fn an_orphan_whose_record_is_closed_is_ended_by_its_name_and_by_its_id() {
    for (who, level) in [(Who::Delegated, "cgroup"), (Who::Plain, "subreaper")] {
        let Some(env) = TestEnv::of(who) else { return };
        for (verb, named) in
            [(&["kill"][..], true), (&["kill"], false), (&["rm", "-f"], true), (&["rm", "-f"], false)]
        {
            let sandbox = Standing::start(&env, &["--contain", level, "--name", "closed"]);
            sandbox.kill_supervisors();
            close_record(&sandbox);
            sandbox.assert_alive();
            let word = if named { "closed" } else { sandbox.id.as_str() };
            env.call([verb, &[word]].concat()).with_code(0);
            sandbox.assert_gone();
            if verb == ["kill"] {
                env.call(["rm", sandbox.id.as_str()]).with_code(0);
            }
            assert!(!sandbox.record.try_exists().unwrap(), "{verb:?} {named}");
        }
        env.assert_nothing_left();
    }
}

/// spec: 5.2
#[test]
fn a_sandbox_whose_record_is_closed_and_that_has_its_supervisors_is_ended_too() {
    for (who, level) in [(Who::Delegated, "cgroup"), (Who::Plain, "subreaper")] {
        let Some(env) = TestEnv::of(who) else { return };
        let sandbox = Standing::start(&env, &["--contain", level, "--name", "closed"]);
        close_record(&sandbox);
        sandbox.assert_alive();
        env.call(["rm", "-f", "closed"]).with_code(0);
        sandbox.assert_gone();
        assert!(!sandbox.record.try_exists().unwrap());
        env.assert_nothing_left();
    }
}

#[expect(clippy::disallowed_methods, reason = "the record is the test's own")]
fn remove_record(sandbox: &Sandbox) {
    std::fs::remove_file(sandbox.record.join("intent.json")).unwrap();
    std::fs::remove_dir_all(&sandbox.record).unwrap();
}

/// A supervisor that lies is given two seconds to exit. A command that cleans up gets the time that it needs.
/// spec: 11.4
#[test]
fn another_command_at_the_same_work_gets_its_time() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.kill_supervisors();
    // The liar does not hold the lock.
    let _liar = Impostor::new(&sandbox.record, vec![Impostor::hello("0123456789ab")], false);
    let other = hold_lock(&sandbox, "exec sleep 2.5");
    kill(&env, &[sandbox]);
    other.finish().with_code(0);
}

/// The main thread exits, with the file that is descriptor 3, once `$HELD` is gone; another thread half a second later.
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
/// spec: 11.1
#[test]
fn who_looked_after_it_has_ended_when_it_is_said_to_be_gone() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.kill_supervisors();
    let held = env.path("held");
    std::fs::write(&held, "").unwrap();
    let script = format!("HELD={} exec python3 -c '{EXITS_SLOWLY}' 3<&0 </dev/null", held.display());
    let other = hold_lock(&sandbox, &script);
    let killer = env.begin(["kill", &sandbox.id]);
    sandbox.members.iter().for_each(Process::await_end);
    std::fs::remove_file(&held).unwrap();
    killer.finish().with_code(0);
    assert!(!other.is_alive(), "it runs still");
    other.finish().with_code(0);
    sandbox.assert_gone();
}

/// What was changed in the record of a sandbox that has ended.
#[derive(Debug, Clone, Copy)]
enum Change {
    Nothing,
    /// There is an empty leaf again.
    LeafIsBack,
    /// Neither report nor exit is written.
    EndIsLost,
}

impl Change {
    fn act(self, sandbox: &Sandbox) {
        match (self, &sandbox.leaf) {
            (Change::LeafIsBack, Some(leaf)) => std::fs::create_dir(leaf).unwrap(),
            (Change::EndIsLost, _) => {
                for file in ["report.json", "exit.json"] {
                    std::fs::remove_file(sandbox.record.join(file)).unwrap();
                }
            }
            _ => {}
        }
    }
}

/// spec: 11.1
#[test]
fn supervisor_of_what_is_over_has_ended_when_it_is_said_to_be_gone() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let changes = [Change::Nothing, Change::LeafIsBack, Change::EndIsLost];
    let held = env.path("held");
    std::fs::write(&held, "").unwrap();
    let all = changes.map(|change| {
        let sandbox = ended(&env, &[], "true");
        let mut last = env.command("bash");
        last.args(["-c", &format!("exec python3 -c '{EXITS_SLOWLY}' 3</dev/null")]).env("HELD", &held);
        let last = Running::start(&mut last);
        forge_state(&sandbox, |state| state["supervisors"] = json!([named(last.process())]));
        change.act(&sandbox);
        (sandbox, last)
    });
    std::fs::remove_file(&held).unwrap();
    for (_, last) in &all {
        await_state(last.process(), 'Z');
    }
    let ids = all.each_ref().map(|(sandbox, _)| sandbox.id.as_str());
    answers(&env, &[&["kill"], ids.as_slice()].concat(), 0, &ids);
    for ((_, last), change) in all.iter().zip(changes) {
        assert!(!last.is_alive(), "{change:?}: it runs still");
    }
    for (_, last) in all {
        last.finish().with_code(0);
    }
}

/// spec: 11.4
#[test]
fn stopped_command_at_the_same_work_is_let_go_on() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.kill_supervisors();
    let other = hold_lock(&sandbox, "kill -STOP $$");
    await_state(other.process(), 'T');
    kill_for_good(&env, &[sandbox]);
    other.finish().with_code(0);
}

/// spec: 11.4
#[test]
fn command_that_has_let_go_of_a_record_is_nobody_any_more() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    sandbox.kill_supervisors();
    let fifo = env.path("fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let script = format!("exec 3<>{}; read -u 3; exec </dev/null; read -u 3", fifo.display());
    let other = hold_lock(&sandbox, &script);
    remove_record(&sandbox);
    let killer = env.begin(["kill", &sandbox.id]);
    // The lock was seen to be held before the members were ended.
    sandbox.members.iter().for_each(Process::await_end);
    std::fs::write(&fifo, "go\n").unwrap();
    killer.finish().with_code(0);
    sandbox.assert_gone();
    assert_eq!(env.listed(&[]), Vec::<Value>::new());
    assert!(other.is_alive(), "it was killed");
}

/// Starts a tree with a scratch directory, kills its supervisors, and removes what tells of the directory.
#[track_caller]
fn bereft(env: &TestEnv, contain: &str, lost: &str) -> (Standing, PathBuf) {
    let sandbox = Standing::start(env, &["--scratch", "--contain", contain]);
    let scratch = env.path("tmp").join(format!("penfold-{}", sandbox.id));
    assert!(scratch.is_dir());
    sandbox.kill_supervisors();
    match lost {
        "record" => remove_record(&sandbox),
        file => std::fs::remove_file(sandbox.record.join(file)).unwrap(),
    }
    (sandbox, scratch)
}

/// spec: 11.2
#[test]
fn scratch_directory_of_a_lost_record_goes_with_the_sandbox() {
    for lost in ["record", "intent.json"] {
        let env = TestEnv::new();
        for contain in LEVELS {
            let (sandbox, scratch) = bereft(&env, contain, lost);
            kill(&env, &[sandbox]);
            assert!(!scratch.try_exists().unwrap(), "{contain} {lost}");
        }
    }
}

/// spec: 11.2
#[test]
fn scratch_directory_of_a_lost_intent_is_collected_with_the_record() {
    let env = TestEnv::new();
    for contain in LEVELS {
        for alive in [true, false] {
            let (sandbox, scratch) = bereft(&env, contain, "intent.json");
            if !alive {
                sandbox.members.iter().for_each(|member| member.signal(Signal::KILL));
                sandbox.members.iter().for_each(Process::await_end);
            }
            let words = ["gc", "-f", "--older-than", "0", "--kind", "record,directory", "-q"];
            answers(&env, &words, 0, &[]);
            sandbox.assert_gone();
            assert!(!scratch.try_exists().unwrap(), "{contain} {alive}");
        }
    }
}

/// spec: 11.4
#[test]
fn two_killers_at_once_both_succeed() {
    let env = TestEnv::new();
    let sandboxes = [Standing::start(&env, &[]), Standing::start(&env, &[])];
    sandboxes[1].stop_supervisors();
    let killers = sandboxes.each_ref().map(|sandbox| [0; 4].map(|_| env.begin(["kill", &sandbox.id])));
    for killer in killers.into_iter().flatten() {
        killer.finish().with_code(0);
    }
    sandboxes.iter().for_each(Standing::assert_gone);
}

/// spec: 11.4
#[test]
fn stopped_killer_holds_nobody_up() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let first = env.begin(["stop", "-t", "10m", &sandbox.id]);
    wait_until("the first is at work", || sandbox.status(&env).as_deref() == Some("stopping"));
    first.process().stop();
    assert!(sandbox.members.iter().any(|member| !member.has_ended()), "nothing is left to kill");
    answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// spec: 11.2
#[test]
fn foreground_sandbox_is_stopped_politely_and_its_caller_told() {
    let env = TestEnv::new();
    let script = "trap 'exit 7' TERM; echo lead >> $UP; while :; do sleep 1000 & wait; done";
    let launcher = env.begin(["run", "--", "sh", "-c", script]);
    env.await_up(&["lead"]);
    await_sleeps(&env, 1);
    let id = env.listed(&[])[0]["id"].as_str().unwrap().to_owned();
    answers(&env, &["stop", &id], 0, &[&id]);
    launcher.finish().with_code(7);
    assert_eq!(env.listed(&["-a"]), Vec::<Value>::new());
}
