//! Shared streams over a source in memory.

mod orders;
mod stress;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;

use axum::body::HttpBody as _;

use super::*;
use crate::App;
use crate::config::Config;

/// The longest wait for what must happen.
const DEADLINE: Duration = Duration::from_secs(30);

/// A text that grows, and what is read of it.
#[derive(Default)]
struct Text {
    written: Mutex<Vec<u8>>,
    has_ended: AtomicBool,
    reads: AtomicUsize,
    threads: Mutex<Vec<ThreadId>>,
    /// The wakes of the streams, for news.
    bells: Mutex<Vec<OwnedFd>>,
}

/// What a stream reads of a text.
struct TextSource {
    text: Arc<Text>,
    has_bell: bool,
    is_over: bool,
}

impl Text {
    fn write(&self, text: &[u8]) {
        self.written.lock().unwrap().extend_from_slice(text);
        self.ring();
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        self.ring();
    }

    fn ring(&self) {
        for bell in &*self.bells.lock().unwrap() {
            let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
        }
    }
}

impl Source for TextSource {
    type Place = usize;
    /// The longest part; 0: the follower cannot be served.
    type Form = usize;

    fn begin_look(&mut self) -> bool {
        let mut threads = self.text.threads.lock().unwrap();
        if !threads.contains(&std::thread::current().id()) {
            threads.push(std::thread::current().id());
        }
        assert!(!self.is_over, "the end has been seen");
        self.is_over = self.text.has_ended.load(Ordering::SeqCst);
        self.is_over
    }

    fn read(&mut self, place: &mut usize, form: &usize, part: &mut Vec<u8>) -> io::Result<bool> {
        if *form == 0 {
            return Err(io::Error::other("not for this one"));
        }
        self.text.reads.fetch_add(1, Ordering::SeqCst);
        let text = self.text.written.lock().unwrap();
        let end = text.len().min(place.saturating_add(*form));
        part.extend_from_slice(&text[*place..end]);
        *place = end;
        Ok(end < text.len())
    }

    fn last(&mut self, _: &usize, _: &usize, end: StreamEnd) -> io::Result<Vec<u8>> {
        match end {
            StreamEnd::Complete => Ok(b"|end".to_vec()),
            StreamEnd::Draining => Err(io::Error::other("draining")),
        }
    }

    fn ends_here(form: &usize) -> bool {
        *form == usize::MAX
    }

    fn beat(_: &usize) -> &'static [u8] {
        b""
    }

    fn wait(&mut self, wake: BorrowedFd<'_>, _: Duration) -> io::Result<()> {
        assert!(!self.is_over, "only the bodies change something");
        if !std::mem::replace(&mut self.has_bell, true) {
            self.text.bells.lock().unwrap().push(wake.try_clone_to_owned()?);
            // What was written before did not ring.
            return Ok(());
        }
        let mut fds = [rustix::event::PollFd::new(&wake, rustix::event::PollFlags::IN)];
        // No time limit: whatever is to be seen rings.
        let limit = rustix::event::Timespec { tv_sec: 30, tv_nsec: 0 };
        assert_ne!(rustix::event::poll(&mut fds, Some(&limit))?, 0, "nothing rings");
        Ok(())
    }
}

/// A server without sandboxes.
fn app() -> AppState {
    App::new(Config::of_test())
}

/// The streams of a server with one text.
struct Room {
    app: AppState,
    streams: SharedStreams<u8, TextSource>,
    text: Arc<Text>,
}

impl Room {
    fn new() -> Room {
        Room { app: app(), streams: SharedStreams::default(), text: Arc::default() }
    }

    fn follow(&self, place: usize, form: usize) -> Body {
        let source = TextSource { text: Arc::clone(&self.text), has_bell: false, is_over: false };
        self.streams.follow(&self.app, 0, source, (place, form)).unwrap()
    }

    fn is_running(&self) -> bool {
        !self.streams.lock().is_empty()
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(DEADLINE, future).await.expect("in time") })
}

/// The next part; `None` at the end, an error if the body breaks off.
async fn next(body: &mut Body) -> Option<Result<Vec<u8>, axum::Error>> {
    let frame = std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await;
    frame.map(|frame| frame.map(|frame| frame.into_data().expect("data").to_vec()))
}

/// Reads until this many bytes came.
async fn take(body: &mut Body, length: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < length {
        all.extend(next(body).await.expect("not the end").unwrap());
    }
    all
}

async fn rest(body: &mut Body) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(part) = next(body).await {
        all.extend(part.unwrap());
    }
    all
}

/// spec: 15.16
#[test]
fn each_follower_gets_everything_from_its_place_on_once_and_one_thread_reads() {
    let room = Room::new();
    block_on(async {
        let mut bodies: Vec<_> = (0..20).map(|_| (0, room.follow(0, 7))).collect();
        let mut written = Vec::new();
        for round in 0..50_u32 {
            let line = format!("line {round}\n").repeat(3);
            written.extend_from_slice(line.as_bytes());
            room.text.write(line.as_bytes());
            // They come while the text grows: from its start, from its middle, from its end.
            let place = [0, written.len() / 2, written.len()][usize::try_from(round % 3).unwrap()];
            bodies.push((place, room.follow(place, 7)));
        }
        room.text.end();
        for (place, body) in &mut bodies {
            let expected = [&written[*place..], b"|end"].concat();
            assert_eq!(rest(body).await, expected);
        }
    });
    assert_eq!(room.text.threads.lock().unwrap().len(), 1);
}

/// spec: 15.16
#[test]
fn followers_at_one_place_are_served_by_one_read() {
    let room = Room::new();
    block_on(async {
        let mut bodies: Vec<_> = (0..100).map(|_| room.follow(0, 1000)).collect();
        room.text.write(b"up");
        for body in &mut bodies {
            assert_eq!(take(body, 2).await, b"up");
        }
        let before = room.text.reads.load(Ordering::SeqCst);
        room.text.write(b"news");
        for body in &mut bodies {
            assert_eq!(take(body, 4).await, b"news");
        }
        let reads = room.text.reads.load(Ordering::SeqCst) - before;
        assert!(reads < 50, "{reads} reads for 100 followers");
    });
}

/// spec: 15.16
#[test]
fn a_follower_that_takes_nothing_holds_up_nobody_and_gets_everything_later() {
    let room = Room::new();
    block_on(async {
        let (mut slow, mut quick) = (room.follow(0, 10), room.follow(0, 10));
        for _ in 0..100 {
            room.text.write(b"0123456789");
            assert_eq!(take(&mut quick, 10).await, b"0123456789");
        }
        room.text.end();
        assert_eq!(rest(&mut quick).await, b"|end");
        assert_eq!(rest(&mut slow).await, [b"0123456789".repeat(100), b"|end".to_vec()].concat());
    });
}

/// spec: 15.16
#[test]
fn the_last_follower_to_go_frees_the_thread_and_its_place() {
    let room = Room::new();
    let free = room.app.engine.free_followers();
    let mut bodies: Vec<_> = (0..10).map(|_| room.follow(0, 10)).collect();
    assert_eq!(room.app.engine.free_followers(), free - 1);
    assert!(room.is_running());
    // The thread has begun, and waits.
    for text in [&b"up"[..], b"more"] {
        room.text.write(text);
        for body in &mut bodies {
            assert_eq!(block_on(take(body, text.len())), text);
        }
    }
    drop(bodies);
    let deadline = Instant::now() + DEADLINE;
    while room.app.engine.free_followers() < free {
        assert!(Instant::now() < deadline, "the thread goes on");
        std::thread::yield_now();
    }
    assert!(!room.is_running());
    // The next follower gets a stream of its own.
    assert_eq!(block_on(take(&mut room.follow(0, 10), 6)), b"upmore");
}

/// spec: 15.16
#[test]
fn a_follower_after_the_end_joins_no_stream_that_has_ended() {
    let room = Room::new();
    block_on(async {
        let mut slow = room.follow(0, 1);
        room.text.write(&[b'x'; 100]);
        room.text.end();
        assert_eq!(take(&mut slow, 50).await, [b'x'; 50]);
        let mut other = room.follow(100, 10);
        assert_eq!(rest(&mut other).await, b"|end");
        // As after a restart of the sandbox.
        room.text.has_ended.store(false, Ordering::SeqCst);
        let mut next_life = room.follow(100, 10);
        room.text.write(b"second");
        assert_eq!(take(&mut next_life, 6).await, b"second");
        room.text.write(b"third");
        assert_eq!(take(&mut next_life, 5).await, b"third");
        assert_eq!(rest(&mut slow).await, [&[b'x'; 50][..], b"secondthird|end"].concat());
    });
}

/// spec: 15.5, 15.16
#[test]
fn a_stream_that_cannot_go_on_breaks_off_and_the_others_go_on() {
    let room = Room::new();
    block_on(async {
        let mut good = room.follow(0, 10);
        let mut bad = room.follow(0, 0);
        assert!(next(&mut bad).await.unwrap().is_err());
        room.text.write(b"more");
        assert_eq!(take(&mut good, 4).await, b"more");
        room.app.drain.begin();
        room.text.ring();
        assert!(next(&mut good).await.unwrap().is_err());
    });
}

/// spec: 15.16
#[test]
fn a_follower_that_wants_what_there_is_gets_an_end() {
    let room = Room::new();
    room.text.write(b"all");
    assert_eq!(block_on(rest(&mut room.follow(0, usize::MAX))), b"all|end");
}
