//! What cannot be ended is named by `penfold kill` in time, and ended once that is possible.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::support_control::{Fold, read};
use crate::support_d::{Started, code, frozen, handle, has_ended, said, until};
use penfold_testkit::FrozenFs;
use rustix::process::{Pid, Signal, pidfd_send_signal};

/// The patience of the supervisor, and what it takes to look again.
const BOUND: Duration = Duration::from_secs(20);
/// Less than the patience: who is told what is stuck already does not wait for that again.
const AT_ONCE: Duration = Duration::from_secs(8);

#[test]
fn member_in_state_d_is_named_and_gone_once_it_is_let_go() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let file = frozen.path().join("file");
    let script = format!("echo lead >> $UP; echo text > {}; sleep 1000", file.display());
    let sandbox = fold.start(&[], &script);
    fold.yard.await_up(&["lead"]);
    until("it is stuck", || crate::support_d::state(sandbox.leader) == Some('D'));
    let begun = Instant::now();
    let done = fold.expect(&["kill", &sandbox.id], 5, &[]);
    assert!(begun.elapsed() < BOUND, "{:?}", begun.elapsed());
    let named = format!("{}  not gone: pid {} (sh) state D", sandbox.id, sandbox.leader.as_raw_pid());
    assert!(said(&done).starts_with(&named), "{}", said(&done));
    assert_eq!(fold.status(&sandbox.id), "unkillable");
    // Who waits hears that it will not be over soon, and not that its command is.
    let waited = fold.expect(&["wait", &sandbox.id], 120, &["120"]);
    assert!(
        said(&waited).contains("would not end") && !said(&waited).contains("is over"),
        "{}",
        said(&waited)
    );
    drop(frozen);
    until("it is over", || fold.status(&sandbox.id) == "killed");
    fold.expect(&["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// A sandbox whose only member hangs on a frozen file system.
struct Hanging<'a> {
    fold: &'a Fold,
    id: String,
    record: PathBuf,
    member: Pid,
    /// The outer one first.
    supervisors: Vec<OwnedFd>,
}

impl Hanging<'_> {
    fn started<'a>(fold: &'a Fold, frozen: &FrozenFs) -> Hanging<'a> {
        let sandbox = fold.start(&[], &format!("echo text > {}/file", frozen.path().display()));
        let (id, record, member) = (sandbox.id, sandbox.record, sandbox.leader);
        let supervisors = sandbox.supervisors.into_iter().map(|(_, handle)| handle).collect();
        until("it is stuck", || crate::support_d::state(member) == Some('D'));
        Hanging { fold, id, record, member, supervisors }
    }

    fn adopted<'a>(fold: &'a Fold, frozen: &FrozenFs) -> (Hanging<'a>, Started) {
        let stray = fold.yard.shell(&format!("echo text > {}/file", frozen.path().display()));
        let member = stray.pid();
        until("it is stuck", || crate::support_d::state(member) == Some('D'));
        let done = fold.call(&["adopt", &member.as_raw_pid().to_string()]);
        assert_eq!(code(&done), 0, "{}", said(&done));
        let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        let record = fold.yard.path("root/sandboxes").join(&id);
        let state = read(&record.join("state.json"));
        let numbers = state["supervisors"].as_array().unwrap().iter().map(|one| one["pid"].as_i64().unwrap());
        let pids = numbers.map(|number| Pid::from_raw(i32::try_from(number).unwrap()).unwrap());
        (Hanging { fold, id, record, member, supervisors: pids.map(handle).collect() }, stray)
    }

    fn kill_inner(&self) {
        pidfd_send_signal(&self.supervisors[1], Signal::KILL).unwrap();
        until("it is dead", || has_ended(&self.supervisors[1]));
    }

    /// All who ask are told what is left; who looks after it stays, and tells of the end.
    #[track_caller]
    fn is_told_until_it_ends(&self, frozen: FrozenFs, cause: &str) {
        self.fold.expect(&["wait", "--timeout", "20s", &self.id], 120, &["120"]);
        assert_eq!(self.fold.status(&self.id), "unkillable");
        for verb in ["kill", "stop"] {
            let begun = Instant::now();
            let done = self.fold.expect(&[verb, &self.id], 5, &[]);
            let named = format!("{}  not gone: pid {} ", self.id, self.member.as_raw_pid());
            assert!(said(&done).starts_with(&named) && said(&done).contains("state D"), "{}", said(&done));
            assert!(begun.elapsed() < AT_ONCE, "{verb}: {:?}", begun.elapsed());
            assert!(!has_ended(&self.supervisors[0]), "nobody looks after it after {verb}");
        }
        drop(frozen);
        until("it is over", || self.fold.status(&self.id) == "killed");
        let report = read(&self.record.join("report.json"));
        assert!(report["cause"] == cause && report["verified"] == true, "{report}");
        until("its supervisors are gone", || self.supervisors.iter().all(has_ended));
        self.fold.expect(&["kill", &self.id], 0, &[&self.id]);
    }
}

#[test]
fn member_in_state_d_is_told_by_who_takes_the_place_of_a_killed_supervisor() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let hanging = Hanging::started(&fold, &frozen);
    hanging.kill_inner();
    hanging.is_told_until_it_ends(frozen, "supervisor");
}

#[test]
fn adopted_member_in_state_d_is_told_by_who_takes_the_place_of_a_killed_supervisor() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let (hanging, stray) = Hanging::adopted(&fold, &frozen);
    hanging.kill_inner();
    hanging.is_told_until_it_ends(frozen, "supervisor");
    drop(stray);
}

#[test]
fn adopted_member_in_state_d_is_told_again_to_whoever_asks_again() {
    let Some(frozen) = frozen() else { return };
    let fold = Fold::new();
    let (hanging, stray) = Hanging::adopted(&fold, &frozen);
    fold.expect(&["kill", &hanging.id], 5, &[]);
    hanging.is_told_until_it_ends(frozen, "kill");
    drop(stray);
}
