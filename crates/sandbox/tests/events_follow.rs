//! An event reaches who follows in no time.

mod events_support;

#[test]
fn an_event_reaches_a_follower_within_milliseconds() {
    let behind = events_support::latencies(200, || {});
    assert!(behind[behind.len() / 2] < 5000, "{behind:?}");
}
