//! A stream and its bodies, in every order of their steps with a few preemptions: no order loses a wake.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::*;
use crate::shared_stream::schedule::{self, Sign, run_all_orders};

/// A source with this many parts of one byte each.
struct Parts {
    count: u8,
    /// Whether more may come.
    is_open: bool,
}

impl Source for Parts {
    type Place = u8;
    type Form = ();

    fn begin_look(&mut self) -> bool {
        !self.is_open
    }

    fn read(&mut self, place: &mut u8, (): &(), part: &mut Vec<u8>) -> io::Result<bool> {
        if *place < self.count {
            part.push(*place);
            *place += 1;
        }
        Ok(*place < self.count)
    }

    fn last(&mut self, _: &u8, (): &(), _: StreamEnd) -> io::Result<Vec<u8>> {
        Ok(vec![u8::MAX])
    }

    fn ends_here((): &()) -> bool {
        false
    }

    fn beat((): &()) -> &'static [u8] {
        b""
    }

    fn wait(&mut self, wake: BorrowedFd<'_>, _: Duration) -> io::Result<()> {
        // No time limit: a lost wake is a wait without end.
        schedule::await_readable(wake);
        Ok(())
    }
}

/// Reads this many bytes, or to the end, and drops the body.
fn read(mut body: Body, most: usize) -> Vec<u8> {
    let sign = Arc::new(Sign::default());
    let mut all = Vec::new();
    while all.len() < most {
        let waker = sign.waker();
        match Pin::new(&mut body).poll_frame(&mut Context::from_waker(&waker)) {
            Poll::Pending => schedule::await_sign(&sign),
            Poll::Ready(Some(frame)) => all.extend(frame.unwrap().into_data().unwrap()),
            Poll::Ready(None) => break,
        }
    }
    all
}

/// The threads of an order.
type Threads = Vec<Box<dyn FnOnce() + Send>>;

/// A stream with a follower for each place and number of bytes, and its threads.
fn stream(
    app: &AppState,
    (count, is_open): (u8, bool),
    followers: &[(u8, usize)],
) -> (SharedStreams<u8, Parts>, Threads) {
    let wake = Arc::new(Wake::new().unwrap());
    let (mut joining, mut threads) = (Vec::new(), Threads::new());
    for (place, most) in followers.iter().copied() {
        let (follower, body) = follower::pair::<Parts>(place, (), &wake);
        joining.push(follower);
        let expected: Vec<u8> = (place..count).chain([u8::MAX]).take(most).collect();
        threads.push(Box::new(move || assert_eq!(read(body, most), expected)));
    }
    let entrance = Arc::new(Entrance { joining: Mutex::new(joining), wake });
    let streams = SharedStreams::default();
    streams.lock().insert(0, Arc::clone(&entrance));
    let registration = Registration { streams: streams.clone(), key: 0, entrance };
    let stream = Stream::new(registration, Parts { count, is_open }, AppState::clone(app));
    threads.push(Box::new(move || stream.run()));
    (streams, threads)
}

/// Runs a stream in all orders, and returns their number.
fn all_orders(preemptions: usize, source: (u8, bool), followers: &[(u8, usize)]) -> usize {
    let app = app();
    run_all_orders(preemptions, || stream(&app, source, followers).1)
}

/// spec: 15.16
#[test]
fn a_body_gets_everything_in_every_order_of_steps() {
    let orders = all_orders(2, (4, false), &[(0, usize::MAX)]);
    assert!(orders > 100, "{orders} orders");
}

/// spec: 15.16
#[test]
fn a_body_that_goes_away_ends_the_thread_in_every_order_of_steps() {
    for most in 0..4 {
        all_orders(2, (4, true), &[(0, most)]);
    }
}

/// spec: 15.16
#[test]
fn two_bodies_at_their_places_get_everything_in_every_order_of_steps() {
    all_orders(1, (2, false), &[(0, usize::MAX), (1, usize::MAX)]);
    all_orders(1, (3, true), &[(0, 3), (0, 1)]);
}

/// spec: 15.16
#[test]
fn a_body_that_joins_while_the_last_one_goes_gets_everything_in_every_order_of_steps() {
    let app = app();
    let joined = Arc::new(AtomicUsize::new(0));
    let orders = run_all_orders(1, || {
        let (streams, mut threads) = stream(&app, (3, true), &[(0, 1)]);
        let joined = Arc::clone(&joined);
        threads.push(Box::new(move || {
            let locked = streams.lock();
            // Without an entrance, the stream has ended: the follower gets a stream of its own.
            let Some(entrance) = locked.get(&0).map(Arc::clone) else { return };
            let body = entrance.join(locked, (1, ()));
            joined.fetch_add(1, Ordering::SeqCst);
            assert_eq!(read(body, 2), [1, 2]);
        }));
        threads
    });
    let joined = joined.load(Ordering::SeqCst);
    // In some orders the stream has ended before, and in others not.
    assert!(joined > 0 && joined < orders, "{joined} of {orders} orders");
}

/// spec: 15.16
#[test]
fn a_wake_that_can_be_lost_is_found() {
    // The thread looks, and clears the ring that came after the look.
    let lost = std::panic::catch_unwind(|| {
        run_all_orders(2, || {
            let (wake, has_room) = (Arc::new(Wake::new().unwrap()), Arc::new(AtomicBool::new(false)));
            let (other_wake, other_room) = (Arc::clone(&wake), Arc::clone(&has_room));
            let thread = move || {
                while !has_room.load(Ordering::SeqCst) {
                    wake.clear();
                    wake.wait().unwrap();
                }
            };
            let body = move || {
                other_room.store(true, Ordering::SeqCst);
                other_wake.ring();
            };
            vec![Box::new(thread), Box::new(body)]
        })
    });
    assert!(lost.is_err());
}
