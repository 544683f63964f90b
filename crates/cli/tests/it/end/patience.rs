//! `--patience`: the time after which penfold reports an unsuccessful kill.

use std::process::{Command, Stdio};

use super::standing::{Standing, answers, await_state_d, detach_script, frozen, write_to};
use crate::support::{PATIENCE, Running, TestEnv, has_program};

/// The kill that was begun first has not answered when those with a short patience have: each waits as long as is wanted.
/// spec: 2.3, 7.2
#[test]
fn kill_reports_after_its_own_patience_or_that_of_the_sandbox() {
    let Some(frozen) = frozen() else { return };
    let env = TestEnv::new();
    let script = write_to(&frozen);
    let flags: [&[&str]; 3] = [&[], &[], &["--patience", PATIENCE]];
    let [long, short, made_short] = flags.map(|flags| detach_script(&env, flags, &script));
    let patience_of =
        |sandbox: &crate::support::Sandbox| sandbox.file("intent.json").unwrap()["patience_ms"].clone();
    assert_eq!((patience_of(&short), patience_of(&made_short)), (10_000.into(), 300.into()));
    let members = [&long, &short, &made_short].map(|sandbox| sandbox.leader().unwrap());
    members.iter().for_each(await_state_d);

    let first = env.begin(["kill", &long.id]);
    let own = env.begin(["kill", "--patience", PATIENCE, &short.id]);
    let inherited = env.begin(["kill", &made_short.id]);
    for (command, sandbox, member) in [(own, &short, &members[1]), (inherited, &made_short, &members[2])] {
        let said = command.finish().with_code(5).err();
        assert!(said.starts_with(&format!("{}  not gone: pid {} ", sandbox.id, member.pid())), "{said}");
        assert_eq!(sandbox.status(&env).as_deref(), Some("unkillable"));
    }
    assert!(first.is_alive(), "the usual patience is no longer than the others");
    drop(frozen);
    first.finish().with_code(0);
    long.assert_gone(&members[..1]);
}

/// Passes on all but `patience`, which it refuses as a supervisor does that does not know the word.
const OLD_SUPERVISOR: &str = r#"
import socket,sys
def seqpacket(): return socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)
listener,real=seqpacket(),seqpacket()
listener.bind(sys.argv[1])
listener.listen(9)
print("listens",flush=True)
client,_=listener.accept()
real.connect(sys.argv[2])
client.send(real.recv(1<<18))
while 1:
  word=client.recv(1<<18)
  print(word.decode(),flush=True)
  if b"patience" not in word: break
  client.send(b'{"refused":"this supervisor does not know that request"}')
real.send(word)
while 1:
  answer=real.recv(1<<18)
  if not answer: break
  client.send(answer)"#;

/// spec: 11.2
#[test]
fn supervisor_that_does_not_know_patience_is_still_asked_and_obeyed() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let requests = [("kill", r#""kill""#), ("stop", r#"{"stop":{"signal":0,"spared_group":null}}"#)];
    for (verb, request) in requests {
        let env = TestEnv::new();
        let sandbox = Standing::start(&env, &["--grace", "100ms"]);
        let (socket, moved) = (sandbox.record.join("control.sock"), env.path("real.sock"));
        std::fs::rename(&socket, &moved).unwrap();
        let mut old = Command::new("python3");
        let old =
            Running::start(old.args(["-c", OLD_SUPERVISOR]).arg(&socket).arg(&moved).stdin(Stdio::null()));
        old.hear("listens", 1);
        answers(&env, &[verb, "--patience", "30s", &sandbox.id], 0, &[&sandbox.id]);
        sandbox.assert_gone();
        let heard = old.finish().with_code(0).out();
        assert_eq!(heard.lines().collect::<Vec<_>>(), ["listens", r#"{"patience":30000}"#, request]);
        // A kill without the supervisor would have another cause.
        assert_eq!(sandbox.cause().as_deref(), Some(verb));
    }
}
