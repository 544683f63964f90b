//! Supervisors of older builds obey: what is said on a control socket, and what is in a record, only grows.
//!
//! The old supervisor is this test program again, with another test: it is kept in `old/` as it was.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::old_supervisor::NAME;
use crate::support_e2::{DEADLINE, Ended, Pen, Talk, eventually, penfold};

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
    supervisor: Child,
    /// Another one each time: who ends a sandbox over its head looks for its marker everywhere.
    id: String,
    pen: Pen,
}

impl Old {
    fn new(protocol: u32) -> Old {
        let pen = Pen::new();
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap().trim()[24..].to_owned();
        let mut command = pen.command(std::env::current_exe().unwrap());
        command.arg("old-supervisor").stdout(Stdio::null());
        command.env(PROTOCOL, protocol.to_string()).env(ID, &id).env(ROOT, pen.path("root"));
        let old = Old { supervisor: command.spawn().unwrap(), id, pen };
        let stands = || MEMBERS.iter().all(|member| old.pen.is_running(member));
        assert!(eventually(DEADLINE, stands), "the tree does not stand");
        let said = old.pen.path("root/sandboxes").join(&old.id).join("state.json");
        assert!(eventually(DEADLINE, || said.is_file()));
        old
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.pen.command(penfold());
        command.arg("--root").arg(self.pen.path("root")).args(words);
        command
    }

    #[track_caller]
    fn call(&self, words: &[&str]) -> Ended {
        Talk::start(&mut self.command(words)).end()
    }

    fn heard(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.pen.path("heard")).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn assert_alive(&self) {
        let missing: Vec<_> = MEMBERS.iter().filter(|member| !self.pen.is_running(member)).collect();
        assert!(missing.is_empty(), "not running: {missing:?}");
    }

    #[track_caller]
    fn assert_gone(&mut self) {
        let alive: Vec<_> = MEMBERS.iter().filter(|member| self.pen.is_running(member)).collect();
        assert!(alive.is_empty(), "said to be gone and running: {alive:?}");
        assert!(eventually(DEADLINE, || self.supervisor.try_wait().unwrap().is_some()), "it has not exited");
    }
}

impl Drop for Old {
    fn drop(&mut self) {
        let _ = self.supervisor.kill();
        let _ = self.supervisor.wait();
    }
}

fn status(old: &Old) -> String {
    let inspected = old.call(&["inspect", &old.id]).with_code(0).out();
    let all: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    all[0]["status"].as_str().unwrap().to_owned()
}

#[test]
fn supervisor_of_protocol_1_obeys_every_verb_and_the_words_are_those_of_then() {
    let mut old = Old::new(1);
    assert_eq!(status(&old), "running");
    old.call(&["extend", NAME, "1m"]).with_code(0);
    old.call(&["extend", &old.id, "0"]).with_code(0);
    old.call(&["kill", "-s", "HUP", NAME]).with_code(0);
    assert!(eventually(DEADLINE, || old.pen.path("heard.told").is_file()), "the leader was not told");
    let waiter = Talk::start(&mut old.command(&["wait", &old.id]));
    old.assert_alive();
    assert_eq!(old.call(&["stop", "-t", "200ms", NAME]).with_code(0).out(), format!("{}\n", old.id));
    old.assert_gone();
    let stopped = r#"{"stop":{"signal":0,"spared_group":null,"grace_ms":200}}"#;
    assert_eq!(old.heard(), [r#"{"extend":60000}"#, r#"{"extend":0}"#, r#"{"forward":1}"#, stopped]);
    let code = waiter.end();
    assert_eq!(code.out(), format!("{}\n", code.code().unwrap()));
    assert_eq!(status(&old), "killed");
    old.call(&["report", NAME]).with_code(0);
    old.call(&["rm", &old.id]).with_code(0);
}

#[test]
fn supervisor_of_protocol_1_kills_and_is_forgotten() {
    let mut old = Old::new(1);
    assert_eq!(old.call(&["kill", NAME]).with_code(0).out(), format!("{}\n", old.id));
    old.assert_gone();
    assert_eq!(old.heard(), ["\"kill\""]);
    old.call(&["wait", &old.id]).with_code(137);
    old.call(&["rm", &old.id]).with_code(0);
    let mut old = Old::new(1);
    old.call(&["rm", "-f", &old.id]).with_code(0);
    old.assert_gone();
    old.call(&["inspect", &old.id]).with_code(3);
}

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

#[test]
fn supervisor_that_knows_nothing_but_kill_is_stopped_over_its_head() {
    let mut old = Old::new(0);
    assert_eq!(status(&old), "running");
    old.call(&["kill", &old.id]).with_code(0);
    old.assert_gone();
    assert_eq!(old.heard(), ["\"kill\""]);
    old.call(&["rm", &old.id]).with_code(0);
    let mut old = Old::new(0);
    old.call(&["stop", "-t", "200ms", NAME]).with_code(0);
    old.assert_gone();
    assert!(matches!(status(&old).as_str(), "killed" | "lost"));
    old.call(&["rm", &old.id]).with_code(0);
}
