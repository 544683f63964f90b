//! Supervisors of older builds obey: what is said on a control socket, and what is in a record, only grows.
//!
//! The old supervisor is a program in this test binary: [`old_supervisor`](super::old_supervisor) is kept as it was.

use std::path::PathBuf;
use std::process::Stdio;

use super::old_supervisor::NAME;
use crate::support::{Finished, Process, Running, TestEnv, fresh_id, wait_until};

const PROTOCOL: &str = "OLD_SUPERVISOR_PROTOCOL";
const ID: &str = "OLD_SUPERVISOR_ID";
const ROOT: &str = "OLD_SUPERVISOR_ROOT";
const MEMBERS: [&str; 3] = ["sleep 1041", "sleep 1042", "sleep 1043"];

/// The program `old-supervisor`.
#[expect(clippy::disallowed_methods, reason = "a program is told by its environment what to be")]
pub fn supervisor() {
    let wish = |name: &str| std::env::var(name).ok();
    let (Some(protocol), Some(id), Some(root)) = (wish(PROTOCOL), wish(ID), wish(ROOT)) else { return };
    let root = PathBuf::from(root);
    super::old_supervisor::supervise(protocol.parse().unwrap(), &id, &root, &root.with_file_name("heard"));
}

/// A sandbox with an old supervisor.
struct Old {
    supervisor: Running,
    /// Another one each time: without an answer, penfold looks for the marker of the sandbox on the whole host.
    id: String,
    members: Vec<Process>,
    env: TestEnv,
}

impl Old {
    fn new(protocol: u32) -> Old {
        let env = TestEnv::new();
        let id = fresh_id();
        let mut command = env.command(std::env::current_exe().unwrap());
        command.arg("old-supervisor").stdout(Stdio::null()).stderr(Stdio::inherit());
        command.env(PROTOCOL, protocol.to_string()).env(ID, &id).env(ROOT, env.root());
        let supervisor = Running::spawn(&mut command);
        let state = env.root().join("sandboxes").join(&id).join("state.json");
        wait_until("the tree stands", || {
            state.is_file() && MEMBERS.iter().all(|member| env.is_running(member))
        });
        let members = MEMBERS.iter().flat_map(|member| env.running(member)).collect();
        Old { supervisor, id, members, env }
    }

    #[track_caller]
    fn call(&self, words: &[&str]) -> Finished {
        self.env.call(words)
    }

    fn heard(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.env.path("heard")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_alive(&self) {
        assert!(!self.members.iter().any(Process::has_ended), "members have ended");
    }

    #[track_caller]
    fn assert_gone(&self) {
        // One of them is started again and again.
        let alive: Vec<_> = MEMBERS.iter().filter(|member| self.env.is_running(member)).collect();
        assert!(alive.is_empty(), "said to be gone and running: {alive:?}");
        self.supervisor.process().await_end();
    }
}

fn status(old: &Old) -> String {
    old.call(&["inspect", &old.id]).with_code(0).json()[0]["status"].as_str().unwrap().to_owned()
}

/// spec: 12.10
#[test]
fn supervisor_of_protocol_1_obeys_every_verb_and_the_words_are_those_of_then() {
    let old = Old::new(1);
    assert_eq!(status(&old), "running");
    old.call(&["extend", NAME, "1m"]).with_code(0);
    old.call(&["extend", &old.id, "0"]).with_code(0);
    old.call(&["kill", "-s", "HUP", NAME]).with_code(0);
    wait_until("the leader has got HUP", || old.env.path("heard.told").is_file());
    let waiter = old.env.begin(["wait", &old.id]);
    old.assert_alive();
    assert_eq!(old.call(&["stop", "-t", "200ms", NAME]).with_code(0).out(), format!("{}\n", old.id));
    old.assert_gone();
    let stopped = r#"{"stop":{"signal":0,"spared_group":null,"grace_ms":200}}"#;
    assert_eq!(old.heard(), [r#"{"extend":60000}"#, r#"{"extend":0}"#, r#"{"forward":1}"#, stopped]);
    let code = waiter.finish();
    assert_eq!(code.out(), format!("{}\n", code.code().unwrap()));
    assert_eq!(status(&old), "killed");
    old.call(&["report", NAME]).with_code(0);
    old.call(&["rm", &old.id]).with_code(0);
}

/// spec: 12.10, 2.6
#[test]
fn supervisor_of_protocol_1_kills_and_is_forgotten() {
    let old = Old::new(1);
    assert_eq!(old.call(&["kill", NAME]).with_code(0).out(), format!("{}\n", old.id));
    old.assert_gone();
    assert_eq!(old.heard(), ["\"kill\""]);
    old.call(&["wait", &old.id]).with_code(137);
    old.call(&["rm", &old.id]).with_code(0);
    let old = Old::new(1);
    old.call(&["rm", "-f", &old.id]).with_code(0);
    old.assert_gone();
    assert_eq!(old.heard(), ["\"kill\""], "a supervisor that does not say so hears no verb");
    old.call(&["inspect", &old.id]).with_code(3);
}

/// spec: 12.10
#[test]
fn what_an_old_supervisor_does_not_know_it_refuses_kindly() {
    for protocol in [0, 1] {
        let old = Old::new(protocol);
        let said = old.call(&["exec", NAME, "true"]).with_code(125).err();
        assert!(said.contains("does not know that request"), "{said}");
        old.assert_alive();
        if protocol == 0 {
            let said = old.call(&["extend", NAME, "1m"]).with_code(1).err();
            assert!(said.contains("does not know that request"), "{said}");
        }
        old.call(&["kill", &old.id]).with_code(0);
    }
}

/// spec: 12.10
#[test]
fn supervisor_that_knows_nothing_but_kill_is_stopped_over_its_head() {
    let old = Old::new(0);
    assert_eq!(status(&old), "running");
    old.call(&["kill", &old.id]).with_code(0);
    old.assert_gone();
    assert_eq!(old.heard(), ["\"kill\""]);
    old.call(&["rm", &old.id]).with_code(0);
    let old = Old::new(0);
    old.call(&["stop", "-t", "200ms", NAME]).with_code(0);
    old.assert_gone();
    assert!(matches!(status(&old).as_str(), "killed" | "lost"));
    old.call(&["rm", &old.id]).with_code(0);
}
