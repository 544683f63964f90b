//! The messages between penfold's processes, and the values in the files of a record.
#![no_main]

use std::os::fd::OwnedFd;

use libfuzzer_sys::fuzz_target;
use penfold_state::wire::{self, Answer, ReceiveResult, Request};
use penfold_state::{Intent, Report, outcome::ExitStatus, state::State};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What is read is written, and read back as the same text.
fn reads_back<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else { return };
    let text = serde_json::to_string(&value).expect("a value can be written");
    let again = serde_json::from_str::<T>(&text).expect("what was written can be read");
    assert_eq!(serde_json::to_string(&again).expect("a value can be written"), text);
}

/// A damaged message is nothing, and never the end of the peer.
fn received<T: DeserializeOwned>(ours: &OwnedFd, theirs: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(theirs, bytes, rustix::net::SendFlags::NOSIGNAL).expect("there is room");
    match wire::receive_message::<T>(ours).expect("a socket can be read") {
        ReceiveResult::Message(_) => assert!(serde_json::from_slice::<T>(bytes).is_ok()),
        ReceiveResult::Nothing => assert!(serde_json::from_slice::<T>(bytes).is_err()),
        ReceiveResult::End => panic!("the peer is there"),
    }
}

fuzz_target!(|data: &[u8]| {
    reads_back::<Request>(data);
    reads_back::<Answer>(data);
    reads_back::<Intent>(data);
    reads_back::<State>(data);
    reads_back::<Report>(data);
    reads_back::<ExitStatus>(data);
    if (1..=100_000).contains(&data.len()) {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.expect("there are descriptors");
        received::<Request>(&ours, &theirs, data);
        received::<Answer>(&ours, &theirs, data);
    }
});
