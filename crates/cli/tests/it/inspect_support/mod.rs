//! Detached sandboxes that go with the test, asked through their sockets.

#![allow(dead_code, unreachable_pub, reason = "every test binary takes its own part of this")]

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Output;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;

use crate::support_d::{Yard, code, json, output, said, until};

/// A detached sandbox; ended with this value.
pub struct Sandbox {
    pub id: String,
    root: PathBuf,
}

impl Sandbox {
    /// Starts `penfold run -d` with these words.
    pub fn start(yard: &Yard, words: &[&str]) -> Sandbox {
        let done = output(&mut yard.penfold(["run", "-d"].iter().chain(words)));
        assert_eq!(code(&done), 0, "{}", said(&done));
        let id = String::from_utf8(done.stdout).unwrap().trim().to_owned();
        Sandbox { id, root: yard.path("root") }
    }

    /// Kills it and waits for its supervisor to be gone.
    pub fn kill(&self) {
        let Ok(connection) = self.connect() else { return };
        if rustix::net::send(&connection, b"\"kill\"", rustix::net::SendFlags::NOSIGNAL).is_ok() {
            self.finish(&connection);
        }
    }

    fn connect(&self) -> rustix::io::Result<OwnedFd> {
        let kind = SocketType::SEQPACKET;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::net::connect(
            &socket,
            &SocketAddrUnix::new(self.root.join("sandboxes").join(&self.id).join("control.sock"))?,
        )?;
        Ok(socket)
    }

    /// Waits for the end that comes by itself.
    pub fn wait(&self) {
        if let Ok(connection) = self.connect() {
            self.finish(&connection);
        }
        self.await_lock();
    }

    /// Reads until the other side is gone, and waits for the other process that looks after the sandbox.
    fn finish(&self, connection: &OwnedFd) {
        drain(connection);
        self.await_lock();
    }

    fn await_lock(&self) {
        let Ok(Some(registry)) = penfold_sandbox::Registry::open_existing(&self.root) else { return };
        until("nobody holds the lock", || match registry.look(&self.id) {
            Ok(Some(files)) => files.is_looked_after().is_ok_and(|held| !held),
            _ => true,
        });
    }
}

/// Those that are known to belong to this state root: what other tests have made an orphan of may be listed beside them.
pub fn own(mut found: Vec<Value>) -> Vec<Value> {
    found.retain(|one| one["claimed"] == true);
    found
}

/// The ids of these sandboxes that lines begin with, in the order of the lines.
pub fn of(sandboxes: &[&Sandbox], lines: &str) -> Vec<String> {
    let id = |line: &str| line.get(..12).unwrap_or_default().to_owned();
    let is_one = |id: &String| sandboxes.iter().any(|sandbox| sandbox.id == *id);
    lines.lines().map(id).filter(is_one).collect()
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads until the other side is gone; gives up after a while.
fn drain(connection: &OwnedFd) {
    const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };
    let mut buffer = vec![0_u8; 256 * 1024];
    loop {
        let ready = poll(&mut [PollFd::new(connection, PollFlags::IN)], Some(&PATIENCE));
        if ready != Ok(1) {
            return;
        }
        match rustix::net::recv(connection, &mut buffer[..], rustix::net::RecvFlags::empty()) {
            Ok((0, _)) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// The standard output of a command that succeeds.
pub fn shown<S: AsRef<std::ffi::OsStr>>(yard: &Yard, words: impl IntoIterator<Item = S>) -> String {
    let done = output(&mut yard.penfold(words));
    assert_eq!(code(&done), 0, "{}", said(&done));
    String::from_utf8(done.stdout).unwrap()
}

/// The same as JSON: an array.
pub fn array<S: AsRef<std::ffi::OsStr>>(yard: &Yard, words: impl IntoIterator<Item = S>) -> Vec<Value> {
    let done: Output = output(&mut yard.penfold(words));
    json(&done).as_array().unwrap_or_else(|| panic!("no array: {}", said(&done))).clone()
}

/// The ids in an array.
pub fn ids(found: &[Value]) -> Vec<&str> {
    found.iter().map(|one| one["id"].as_str().unwrap()).collect()
}
