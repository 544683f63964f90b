//! `penfold kill` and what happens between its question and its deed.

mod support_control;
mod support_d;

use std::os::fd::OwnedFd;
use std::process::Child;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use support_control::{Fold, hello};
use support_d::{code, said, until};

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
            rustix::net::send(&client, &words, SendFlags::NOSIGNAL).unwrap();
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
