//! `penfold kill` and what happens between its question and its deed.

use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use crate::support_control::{Fold, hello};
use crate::support_d::{Started, code, has_ended, said, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, pidfd_send_signal};

/// Waits until a command of ours has reached a supervisor.
fn asks(command: &Child) {
    until("it asks", || {
        let fds = std::fs::read_dir(format!("/proc/{}/fd", command.id())).into_iter().flatten().flatten();
        let mut links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.any(|link| link.to_string_lossy().starts_with("socket:"))
    });
}

#[test]
fn lock_that_comes_free_while_the_supervisor_is_asked_is_no_end() {
    for flags in [&[][..], &["--on-supervisor-exit", "keep"]] {
        let fold = Fold::new();
        let sandbox = fold.start_tree(flags);
        sandbox.stop_supervisors();
        let killer = fold.begin(&["kill", &sandbox.id]);
        asks(&killer);
        sandbox.kill_supervisors();
        let done = killer.wait_with_output().unwrap();
        assert_eq!(code(&done), 0, "{}", said(&done));
        sandbox.assert_gone();
    }
}

/// Who is left says that it may take longer than anybody but a supervisor is believed.
#[test]
fn supervisor_that_lost_the_other_is_given_the_time_that_it_wants() {
    for connects_before in [true, false] {
        let fold = Fold::new();
        let flags = ["--on-supervisor-exit", "keep", "--grace", "90s"];
        let (said_file, go) = (fold.yard.path("said"), fold.yard.path("go"));
        let script = format!(
            "trap 'echo asked >> {}' TERM; echo lead >> $UP; until [ -e {} ]; do sleep 0.05; done; exit 9",
            said_file.display(),
            go.display()
        );
        let sandbox = fold.start(&flags, &script);
        fold.yard.await_up(&["lead"]);
        let (outer, handle) = &sandbox.supervisors[0];
        let stopper = if connects_before {
            sandbox.stop_supervisors();
            let stopper = fold.begin(&["stop", &sandbox.id]);
            asks(&stopper);
            pidfd_send_signal(handle, Signal::KILL).unwrap();
            stopper
        } else {
            pidfd_send_signal(handle, Signal::KILL).unwrap();
            until("it is dead", || has_ended(handle));
            let path = sandbox.record.join("control.sock");
            until("the other listens in its own name", || listener(&path) != *outer);
            assert_eq!(listener(&path), sandbox.supervisors[1].0);
            fold.begin(&["stop", &sandbox.id])
        };
        let said_so_far = || std::fs::read_to_string(&said_file).unwrap_or_default();
        until("it is asked to end", || !said_so_far().is_empty());
        // Longer than an answer may take.
        let moment = Timespec { tv_sec: 1, tv_nsec: 200_000_000 };
        poll(&mut [], Some(&moment)).unwrap();
        assert_eq!(said_so_far(), "asked\n", "it was asked by another, too");
        std::fs::write(&go, "").unwrap();
        let done = stopper.wait_with_output().unwrap();
        assert_eq!(code(&done), 0, "{}", said(&done));
        fold.expect(&["wait", &sandbox.id], 9, &["9"]);
    }
}

/// Supervisors take each other's place, but not for ever.
#[test]
fn liar_that_begins_and_hangs_up_again_and_again_holds_nobody_up() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let path = sandbox.record.join("control.sock");
    std::fs::remove_file(&path).unwrap();
    let lie = "import json,socket,sys
s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)
s.bind(sys.argv[1])
s.listen(9)
while 1:
  c,_=s.accept()
  c.send(json.dumps({'hello':{'protocol':1,'id':sys.argv[2]}}).encode())
  if c.recv(9999): c.send(b'{\"ending\":\"killing\"}')
  c.close()";
    let _liar = Started::of(Command::new("python3").args(["-c", lie]).arg(&path).arg(&sandbox.id));
    until("it listens", || path.try_exists().unwrap());
    let mut killer = fold.begin(&["kill", &sandbox.id]);
    until("it is done", || killer.try_wait().unwrap().is_some());
    let done = killer.wait_with_output().unwrap();
    assert_eq!(code(&done), 0, "{}", said(&done));
    sandbox.assert_gone();
}

/// Who listens, as the kernel tells clients.
fn listener(path: &std::path::Path) -> Pid {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::sockopt::socket_peercred(&socket).unwrap().pid
}

#[test]
fn who_speaks_for_another_sandbox_is_told_nothing() {
    let fold = Fold::new();
    let sandbox = fold.start_tree(&[]);
    let path = sandbox.record.join("control.sock");
    std::fs::remove_file(&path).unwrap();
    let kind = SocketType::SEQPACKET;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let mut killer = fold.begin(&["kill", &sandbox.id]);
    let mut clients: Vec<OwnedFd> = Vec::new();
    while killer.try_wait().unwrap().is_none() {
        let moment = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        if poll(&mut [PollFd::new(&listener, PollFlags::IN)], Some(&moment)).unwrap() > 0 {
            let client = rustix::net::accept(&listener).unwrap();
            let words = serde_json::to_vec(&hello("0123456789ab")).unwrap();
            // It may have passed us over by now.
            let _ = rustix::net::send(&client, &words, SendFlags::NOSIGNAL);
            clients.push(client);
        }
    }
    sandbox.assert_gone();
    assert!(!clients.is_empty(), "nobody came");
    for client in clients {
        let mut buffer = [0_u8; 256];
        let (length, _) = rustix::net::recv(&client, &mut buffer, RecvFlags::empty()).unwrap_or((0, 0));
        assert_eq!(length, 0, "it was told {:?}", String::from_utf8_lossy(&buffer[..length]));
    }
}
