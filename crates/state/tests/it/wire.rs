//! Messages between clients and supervisors: each is received whole.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use penfold_state::wire::{self, Answer, ReceiveResult};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// The number of messages in a row.
const MANY: usize = 20_000;
/// The longest wait for a lost message.
const LIMIT: Duration = Duration::from_secs(10);

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

/// Receives message after message while another thread sends them.
fn none_is_lost(receive: impl Fn(&OwnedFd) -> ReceiveResult<Answer>) {
    let (here, there) = pair();
    let sender = std::thread::spawn(move || {
        for number in 0..MANY {
            wire::send_message(&there, &Answer::Refused(format!("number {number}"))).unwrap();
        }
        there
    });
    for number in 0..MANY {
        let until = Instant::now() + LIMIT;
        let answer = loop {
            match receive(&here) {
                ReceiveResult::Message(answer) => break answer,
                ReceiveResult::Nothing => assert!(Instant::now() < until, "number {number} was lost"),
                ReceiveResult::End => panic!("the sender has gone before number {number}"),
            }
        };
        assert!(
            matches!(&answer, Answer::Refused(text) if *text == format!("number {number}")),
            "number {number} was lost: {answer:?}"
        );
    }
    drop(sender.join().unwrap());
    assert!(matches!(receive(&here), ReceiveResult::End));
}

/// spec: 11.8
#[test]
fn a_message_that_comes_while_somebody_looks_is_not_lost() {
    none_is_lost(|socket| wire::receive_message(socket).unwrap());
}

/// spec: 11.8
#[test]
fn nor_is_one_with_descriptors() {
    let (here, there) = pair();
    wire::send_with(&there, &Answer::Done, &[there.as_fd()]).unwrap();
    let (received, fds) = wire::receive_with::<Answer>(&here).unwrap();
    assert!(matches!(received, ReceiveResult::Message(Answer::Done)) && fds.len() == 1);
    none_is_lost(|socket| wire::receive_with(socket).unwrap().0);
}

/// spec: 11.8
#[test]
fn last_word_of_one_that_left_without_hearing_us_is_not_lost() {
    for with_descriptors in [false, true] {
        let (here, there) = pair();
        wire::send_message(&here, &Answer::Running).unwrap();
        wire::send_message(&there, &Answer::Done).unwrap();
        wire::send_message(&there, &Answer::Refused("last".to_owned())).unwrap();
        drop(there);
        let next = || -> ReceiveResult<Answer> {
            if with_descriptors {
                wire::receive_with(&here).unwrap().0
            } else {
                wire::receive_message(&here).unwrap()
            }
        };
        assert!(matches!(next(), ReceiveResult::Message(Answer::Done)));
        assert!(matches!(next(), ReceiveResult::Message(Answer::Refused(_))));
        assert!(matches!(next(), ReceiveResult::End));
    }
}
