//! How soon: these run alone.

use std::time::{Duration, Instant};

use crate::control::{LIMIT, Place as Sandbox};
use penfold_control::{SupervisorClient, SupervisorClientError};
use rustix::net::SocketType;

/// spec: 11.8
#[test]
fn silence_is_waited_for_no_longer_than_asked() {
    let place = Sandbox::new();
    let _listener = place.listen(SocketType::SEQPACKET);
    let begun = Instant::now();
    let silent = SupervisorClient::connect(place.record.files(), LIMIT);
    assert!(matches!(silent, Err(SupervisorClientError::Silent { .. })));
    assert!(begun.elapsed() >= LIMIT && begun.elapsed() < LIMIT * 10);
    // A client that is not accepted, because the socket's queue is full, waits for its limit and no longer.
    let short = Duration::from_millis(20);
    for _ in 0..13 {
        let begun = Instant::now();
        let silent = SupervisorClient::connect(place.record.files(), short);
        let took = begun.elapsed();
        assert!(matches!(silent, Err(SupervisorClientError::Silent { .. })), "{silent:?}");
        assert!(took >= short && took < LIMIT, "{took:?}");
    }
}
