//! Whatever ends a sandbox, everything that it owns is gone.

use rustix::process::Signal;

use super::{assert_all_there, assert_none_there, can_make, flags};
use crate::support::{Process, Sandbox, TestEnv, kill_at_once, remove_dir, wait_until};

/// What ends a sandbox with all [`flags`].
#[derive(Debug, Clone, Copy)]
pub enum Ending {
    Exits,
    Stop,
    Kill,
    Rm,
    SupervisorDies,
    StandbyDies,
    BothDie,
    RecordIsLost,
}

const ENDINGS: [Ending; 8] = [
    Ending::Exits,
    Ending::Stop,
    Ending::Kill,
    Ending::Rm,
    Ending::SupervisorDies,
    Ending::StandbyDies,
    Ending::BothDie,
    Ending::RecordIsLost,
];

impl Ending {
    /// Ends the sandbox, and waits for the end.
    pub fn apply(self, env: &TestEnv, sandbox: &Sandbox) {
        let supervisors: Vec<&Process> = sandbox.supervisors.iter().collect();
        match self {
            Ending::Exits => {
                std::fs::write(env.path("work/go"), "").unwrap();
                sandbox.await_end();
            }
            Ending::Stop => drop(sandbox.call(env, &["stop", "ID"]).with_code(0)),
            Ending::Kill => drop(sandbox.call(env, &["kill", "ID"]).with_code(0)),
            Ending::Rm => drop(sandbox.call(env, &["rm", "-f", "ID"]).with_code(0)),
            Ending::SupervisorDies => {
                supervisors.last().unwrap().signal(Signal::KILL);
                sandbox.await_end();
            }
            Ending::StandbyDies => {
                supervisors.first().unwrap().signal(Signal::KILL);
                sandbox.await_end();
            }
            Ending::BothDie => {
                kill_at_once(&supervisors);
                assert_all_there(env, &sandbox.id);
                // In a pid namespace, the dying init holds the lock a moment longer than the supervisors.
                wait_until("no supervisor is seen", || sandbox.status(env).as_deref() != Some("running"));
                env.call(["gc", "-f"]).with_code(0);
            }
            Ending::RecordIsLost => {
                remove_dir(&sandbox.record);
                sandbox.call(env, &["kill", "ID"]).with_code(0);
            }
        }
    }
}

/// spec: 18.1
#[test]
fn each_ending_takes_everything() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    for ending in ENDINGS {
        println!("{ending:?}");
        let mut words = flags(&env);
        let script = "cd ..; trap '' HUP; setsid sleep 1000 & (cd files; exec sleep 1000) & until [ -e go ]; do sleep 0.05; done";
        words.extend(["--grace", "100ms", "--", "sh", "-c", script].map(str::to_owned));
        let sandbox = env.detach(words.iter().map(String::as_str));
        wait_until("all run", || env.running("sleep 1000").len() == 2);
        assert_all_there(&env, &sandbox.id);
        ending.apply(&env, &sandbox);
        assert_none_there(&env, &sandbox.id);
        assert!(env.running("sleep 1000").is_empty(), "{ending:?}");
        let _ = std::fs::remove_file(env.path("work/go"));
        env.call(["rm", "-f", &sandbox.id]);
    }
    env.assert_nothing_left();
}
