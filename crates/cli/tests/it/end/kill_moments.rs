//! Events between the request of `penfold kill` and its answer.

use std::process::{Command, Stdio};

use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, shutdown,
    socket_with,
};
use serde_json::Value;

use super::standing::{Standing, answers, await_connected};
use crate::support::{ControlClient, Impostor, Running, TestEnv, has_program};

/// spec: 11.2
#[test]
fn lock_that_comes_free_while_the_supervisor_is_asked_is_no_end() {
    for flags in [&[][..], &["--on-supervisor-exit", "keep"]] {
        let env = TestEnv::new();
        let sandbox = Standing::start(&env, flags);
        sandbox.stop_supervisors();
        let killer = env.begin(["kill", &sandbox.id]);
        await_connected(&killer);
        sandbox.kill_supervisors();
        killer.finish().with_code(0);
        sandbox.assert_gone();
    }
}

/// A client reconnects after a hang-up, because supervisors take each other's place; but not for ever.
/// spec: 11.2
#[test]
fn liar_that_begins_and_hangs_up_again_and_again_holds_nobody_up() {
    if !has_program(&["python3", "--version"]) {
        return;
    }
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let path = sandbox.record.join("control.sock");
    std::fs::remove_file(&path).unwrap();
    let lie = "import json,socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen(9)
print('listens',flush=True)
while 1:
  c,_=s.accept()
  c.send(json.dumps({'hello':{'protocol':1,'id':sys.argv[2]}}).encode())
  if c.recv(9999): c.send(b'{\"ending\":\"killing\"}')
  c.close()";
    let mut liar = Command::new("python3");
    liar.args(["-c", lie]).arg(&path).arg(&sandbox.id).stdin(Stdio::null());
    let liar = Running::start(&mut liar);
    liar.hear("listens", 1);
    answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
    sandbox.assert_gone();
}

/// spec: 11.2
#[test]
fn who_speaks_for_another_sandbox_is_told_nothing() {
    let env = TestEnv::new();
    let sandbox = Standing::start(&env, &[]);
    let path = sandbox.record.join("control.sock");
    std::fs::remove_file(&path).unwrap();
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    let told: Vec<Vec<Value>> = std::thread::scope(|scope| {
        let impostor = scope.spawn(|| {
            let clients = std::iter::from_fn(|| accept(&socket).ok()).map(ControlClient::of);
            let greet = |client: &ControlClient| client.say(&Impostor::hello("0123456789ab").to_string());
            clients.inspect(greet).collect::<Vec<_>>()
        });
        answers(&env, &["kill", &sandbox.id], 0, &[&sandbox.id]);
        // Ends the wait for clients.
        shutdown(&socket, Shutdown::Both).unwrap();
        impostor.join().unwrap().iter().map(ControlClient::rest).collect()
    });
    sandbox.assert_gone();
    assert!(!told.is_empty(), "nobody came");
    assert!(told.iter().all(Vec::is_empty), "it was told {told:?}");
}
