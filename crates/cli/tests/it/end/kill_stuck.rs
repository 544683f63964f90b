//! `penfold kill` with a member that cannot end: penfold names the member and notices its later end.

use std::fs;

use penfold_testkit::FrozenFs;
use rustix::process::Signal;

use super::standing::{answers, await_state_d, await_verified, detach_script, frozen, write_to};
use crate::support::{PATIENCE, Process, Running, Sandbox, TestEnv, skip, wait_until};

/// spec: 2.3, 11.6
#[test]
fn member_in_state_d_is_named_and_gone_once_it_is_let_go() {
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    let script = format!("echo lead >> $UP; {}; sleep 1000", write_to(&frozen));
    let sandbox = detach_script(&env, &["--patience", PATIENCE], &script);
    let leader = sandbox.leader().unwrap();
    await_state_d(&leader);
    let done = answers(&env, &["kill", &sandbox.id], 5, &[]);
    let named = format!("{}  not gone: pid {} (sh) state D", sandbox.id, leader.pid());
    assert!(done.err().starts_with(&named), "{}", done.err());
    assert_eq!(sandbox.status(&env).as_deref(), Some("unkillable"));
    // `wait` says that the sandbox will not end soon, and not that its command has ended.
    let waited = answers(&env, &["wait", &sandbox.id], 120, &["120"]).err();
    assert!(waited.contains("are not gone") && !waited.contains("has ended"), "{waited}");
    drop(frozen);
    await_verified(&sandbox);
    answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone(&[leader]);
    assert_eq!(sandbox.status(&env).as_deref(), Some("killed"));
}

/// spec: 12.13
#[test]
fn pause_with_a_member_in_state_d_lets_all_members_go_on() {
    let count = "i=0; while :; do i=$((i + 1)); echo $i > count; sleep 0.01; done";
    // The kernel says of a cgroup that it is frozen as soon as its own members are, or those below, which are execs here.
    for (stuck, counting) in [("command", "command"), ("command", "exec"), ("exec", "command")] {
        let Some(frozen) = frozen() else { return };
        let env = TestEnv::new();
        let hang = format!("{}; sleep 1000", write_to(&frozen));
        let script = match (stuck, counting) {
            ("command", "command") => format!("(setsid sh -c '{count}' &); {hang}"),
            ("command", _) => hang.clone(),
            _ => count.to_owned(),
        };
        let sandbox = detach_script(&env, &["--patience", PATIENCE], &script);
        if sandbox.leaf.is_none() {
            return skip("no cgroup can be made here");
        }
        let mut members = vec![sandbox.leader().unwrap()];
        let exec = |script: &str| env.call(["exec", "-d", &sandbox.id, "sh", "-c", script]).with_code(0);
        if stuck == "exec" {
            exec(&format!("echo $$ > hanging; {hang}"));
            let pid = || fs::read_to_string(env.path("work/hanging")).unwrap_or_default().trim().parse().ok();
            wait_until("the exec runs", || pid().is_some());
            members.extend(pid().and_then(Process::find));
        } else if counting == "exec" {
            exec(count);
        }
        await_state_d(members.last().unwrap());
        let counted = || fs::read_to_string(env.path("work/count")).unwrap_or_default().trim().parse::<u64>();
        wait_until("it counts", || counted().is_ok());
        env.call(["pause", &sandbox.id])
            .refused(1, "not all members were frozen within 300 ms, and all go on");
        assert_eq!(sandbox.status(&env).as_deref(), Some("running"));
        let before = counted().unwrap_or(0);
        wait_until("it goes on", || counted().is_ok_and(|now| now > before));
        drop(frozen);
        answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
        sandbox.assert_gone(&members);
        env.call(["rm", &sandbox.id]).with_code(0);
        env.assert_nothing_left();
    }
}

/// The one test that waits for the default patience, of ten seconds.
/// spec: 7.2
#[test]
fn member_in_state_d_is_named_when_nobody_says_how_soon() {
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    let sandbox = detach_script(&env, &[], &write_to(&frozen));
    let leader = sandbox.leader().unwrap();
    await_state_d(&leader);
    assert_eq!(sandbox.file("intent.json").unwrap()["patience_ms"], 10_000);
    let said = answers(&env, &["kill", &sandbox.id], 5, &[]).err();
    assert!(
        said.starts_with(&format!("{}  not gone: pid {} (sh) state D", sandbox.id, leader.pid())),
        "{said}"
    );
    drop(frozen);
    await_verified(&sandbox);
}

/// A sandbox with a member that hangs on a frozen file system.
struct Hanging {
    env: TestEnv,
    sandbox: Sandbox,
    member: Process,
    /// The shell that a test has started itself, where it was adopted.
    _stray: Option<Running>,
}

impl Hanging {
    #[track_caller]
    fn started(frozen: &FrozenFs) -> Hanging {
        let env = TestEnv::new();
        let sandbox = detach_script(&env, &["--patience", PATIENCE], &write_to(frozen));
        let member = sandbox.leader().unwrap();
        await_state_d(&member);
        Hanging { env, sandbox, member, _stray: None }
    }

    #[track_caller]
    fn adopted(frozen: &FrozenFs) -> Hanging {
        let env = TestEnv::new();
        let stray = env.shell(&write_to(frozen));
        await_state_d(stray.process());
        let adopt = env.call(["adopt", &stray.pid().to_string()]).with_code(0);
        let sandbox = Sandbox::printed(&env, &adopt.out());
        let member = Process::find(stray.pid()).unwrap();
        Hanging { env, sandbox, member, _stray: Some(stray) }
    }

    #[track_caller]
    fn kill_inner(&self) {
        let inner = &self.sandbox.supervisors[1];
        inner.signal(Signal::KILL);
        inner.await_end();
    }

    /// Begins a `kill` or `stop` of the sandbox.
    fn begin(&self, verb: &str) -> Running {
        self.env.begin([verb, "--patience", PATIENCE, &self.sandbox.id])
    }

    /// Begins all that is told which member is left.
    #[track_caller]
    fn ask(&self) -> [Running; 2] {
        answers(&self.env, &["wait", "--timeout", "30s", &self.sandbox.id], 120, &["120"]);
        assert_eq!(self.sandbox.status(&self.env).as_deref(), Some("unkillable"));
        ["kill", "stop"].map(|verb| self.begin(verb))
    }

    #[track_caller]
    fn is_told(&self, asked: impl IntoIterator<Item = Running>) {
        for command in asked {
            let said = command.finish().with_code(5).err();
            let named = format!("{}  not gone: pid {} ", self.sandbox.id, self.member.pid());
            assert!(said.starts_with(&named) && said.contains("state D"), "{said}");
        }
        assert!(!self.sandbox.supervisors[0].has_ended(), "no supervisor is left");
    }

    #[track_caller]
    fn has_ended(&self, cause: &str) {
        await_verified(&self.sandbox);
        let report = self.sandbox.file("report.json").unwrap();
        assert_eq!(report["cause"], cause, "{report}");
        assert_eq!(self.sandbox.status(&self.env).as_deref(), Some("killed"));
        answers(&self.env, &["kill", &self.sandbox.id], 0, &[&self.sandbox.id]);
    }
}

/// Every client is told which member is left, by the one supervisor that is left, too. A supervisor stays until the end.
/// spec: 2.3
#[test]
fn member_in_state_d_is_told_to_all_who_ask_also_after_a_takeover_and_if_it_was_adopted() {
    let Some(frozen) = frozen() else { return };
    let (taken_over, adopted) = (Hanging::started(&frozen), Hanging::adopted(&frozen));
    let adopted_and_taken_over = Hanging::adopted(&frozen);
    taken_over.kill_inner();
    adopted_and_taken_over.kill_inner();
    // The patience of an adopted tree is the usual one, unless a client wants less.
    let first = [adopted.begin("kill"), adopted_and_taken_over.begin("kill")];
    let all = [(taken_over, "supervisor"), (adopted, "kill"), (adopted_and_taken_over, "supervisor")];
    let asked = all.each_ref().map(|(hanging, _)| hanging.ask());
    for ((hanging, _), asked) in all.iter().zip(asked) {
        hanging.is_told(asked);
    }
    for first in first {
        first.finish().with_code(5);
    }
    drop(frozen);
    for (hanging, cause) in &all {
        hanging.has_ended(cause);
    }
}
