//! How soon: these run alone.

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::log_support::{Place, Read, latencies, wait};
use penfold_state::log::{LogError, LogPosition, LogReader, LogWaitEnd, LogWriter, Stream, USUAL_LIMIT};
use rustix::event::PollFlags;
use rustix::fs::inotify::{CreateFlags, init};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// spec: 9.4
#[test]
fn a_line_reaches_a_follower_within_milliseconds() {
    let behind = latencies(&Place::new(), 300, || ());
    // The shortest delays show the log, the longest a busy machine.
    assert!(behind[behind.len() / 2] < 5000, "{behind:?}");
}

/// spec: 9.4
#[test]
fn a_follower_hears_of_the_end_at_once() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), USUAL_LIMIT).unwrap();
    let over = AtomicBool::new(false);
    let mut reader = place.read(LogPosition::Start);
    std::thread::scope(|scope| {
        let follower = scope.spawn(|| {
            let mut read = Read::default();
            loop {
                while read.take(&mut reader) {}
                if reader.wait(|| over.load(Ordering::SeqCst), None).unwrap() == LogWaitEnd::Ended {
                    return (read.all, Instant::now());
                }
            }
        });
        let (clock, _held) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        // Long enough for the follower to reach its longest interval.
        wait(&clock, PollFlags::IN, Some(Duration::from_millis(1300)));
        writer.append(Stream::Stdout, b"the last words");
        over.store(true, Ordering::SeqCst);
        let end = Instant::now();
        drop(writer);
        let (all, at) = follower.join().unwrap();
        assert_eq!(all, b"the last words");
        assert!(at.saturating_duration_since(end) < Duration::from_millis(300));
    });
}

/// spec: 10.3
#[test]
fn an_event_reaches_a_follower_within_milliseconds() {
    let behind = crate::events_support::latencies(200, || {});
    assert!(behind[behind.len() / 2] < 5000, "{behind:?}");
}

/// spec: 9.4
#[test]
fn a_log_follower_without_inotify_keeps_up_by_looking() {
    let usual = getrlimit(Resource::Nofile);
    let behind = latencies(&Place::new(), 60, || {
        // The limit is the lowest free descriptor: open files stay open, and no more can be opened.
        let free = std::fs::File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&free);
        let limit = Rlimit { current: u64::try_from(number).ok(), ..usual };
        setrlimit(Resource::Nofile, limit).unwrap();
        drop(free);
        assert!(rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC).is_err());
    });
    setrlimit(Resource::Nofile, usual).unwrap();
    assert!(behind[behind.len() / 2] < 60_000, "{behind:?}");
}

/// This user has no inotify instance left: the kernel counts them for each user.
const USER: u32 = 64_213;

/// spec: 10.3
#[test]
fn an_events_follower_without_inotify_keeps_up_by_looking() {
    if rustix::process::geteuid().as_raw() == USER {
        return by_looking();
    }
    penfold_testkit::run_test_as(USER, "promptness::an_events_follower_without_inotify_keeps_up_by_looking");
}

fn by_looking() {
    let mut held = Vec::new();
    while let Ok(inotify) = init(CreateFlags::CLOEXEC) {
        held.push(inotify);
        assert!(held.len() < 10_000, "no end of them");
    }
    let behind = crate::events_support::latencies(40, || {});
    let middle = behind[behind.len() / 2];
    // Another process of this user may free an instance at any moment: then the follower is faster.
    assert!(middle < 60_000, "{behind:?}");
}

/// spec: 9.5
#[test]
fn a_damaged_mark_is_named_within_a_second_on_a_busy_processor() {
    let place = Place::new();
    drop(LogWriter::create(place.as_fd(), 0).unwrap());
    let file = std::fs::OpenOptions::new().write(true).open(place.log()).unwrap();
    file.write_all_at(&[0xff; 24], 64).unwrap();
    let processors = sched_getaffinity(None).unwrap();
    let mut first = CpuSet::new();
    first.set((0..CpuSet::MAX_CPU).find(|&number| processors.is_set(number)).unwrap());
    // The threads below inherit it.
    sched_setaffinity(None, &first).unwrap();
    let over = AtomicBool::new(false);
    let (damaged, took) = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let begun = Instant::now();
        let opened = LogReader::open(place.as_fd(), LogPosition::Start);
        over.store(true, Ordering::Relaxed);
        (matches!(opened, Err(LogError::Damaged(_))), begun.elapsed())
    });
    assert!(damaged && took < Duration::from_secs(1), "{damaged} {took:?}");
}
