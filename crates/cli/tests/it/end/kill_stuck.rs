//! `penfold kill` where a member cannot end: the member is named, and its end is noticed.

use penfold_testkit::FrozenFs;
use rustix::process::Signal;

use super::standing::{answers, await_state_d, await_verified, detach_script, frozen, write_to};
use crate::support::{PATIENCE, Process, Running, Sandbox, TestEnv};

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
    assert!(waited.contains("would not end") && !waited.contains("is over"), "{waited}");
    drop(frozen);
    await_verified(&sandbox);
    answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone(&[leader]);
    assert_eq!(sandbox.status(&env).as_deref(), Some("killed"));
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

    /// Every client is told which member is left. A supervisor stays, and reports the end.
    #[track_caller]
    fn is_told_until_it_ends(self, frozen: FrozenFs, cause: &str) {
        let Hanging { env, sandbox, member, .. } = &self;
        answers(env, &["wait", "--timeout", "30s", &sandbox.id], 120, &["120"]);
        assert_eq!(sandbox.status(env).as_deref(), Some("unkillable"));
        for command in ["kill", "stop"].map(|verb| self.begin(verb)) {
            let said = command.finish().with_code(5).err();
            let named = format!("{}  not gone: pid {} ", sandbox.id, member.pid());
            assert!(said.starts_with(&named) && said.contains("state D"), "{said}");
        }
        assert!(!sandbox.supervisors[0].has_ended(), "no supervisor is left");
        drop(frozen);
        await_verified(sandbox);
        let report = sandbox.file("report.json").unwrap();
        assert_eq!(report["cause"], cause, "{report}");
        assert_eq!(sandbox.status(env).as_deref(), Some("killed"));
        answers(env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    }
}

#[test]
fn member_in_state_d_is_told_by_who_takes_the_place_of_a_killed_supervisor() {
    let Some(frozen) = frozen() else { return };
    let hanging = Hanging::started(&frozen);
    hanging.kill_inner();
    hanging.is_told_until_it_ends(frozen, "supervisor");
}

#[test]
fn adopted_member_in_state_d_is_told_by_who_takes_the_place_of_a_killed_supervisor() {
    let Some(frozen) = frozen() else { return };
    let hanging = Hanging::adopted(&frozen);
    hanging.kill_inner();
    let first = hanging.begin("kill");
    hanging.is_told_until_it_ends(frozen, "supervisor");
    drop(first);
}

#[test]
fn adopted_member_in_state_d_is_told_again_to_whoever_asks_again() {
    let Some(frozen) = frozen() else { return };
    let hanging = Hanging::adopted(&frozen);
    let first = hanging.begin("kill");
    hanging.is_told_until_it_ends(frozen, "kill");
    first.finish().with_code(5);
}
