//! An event reaches who follows in no time.

#[test]
fn an_event_reaches_a_follower_within_milliseconds() {
    let behind = crate::events_support::latencies(200, || {});
    assert!(behind[behind.len() / 2] < 5000, "{behind:?}");
}
