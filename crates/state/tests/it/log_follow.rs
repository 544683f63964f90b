//! A follower of a log is notified promptly, loses no kept output, and delays nobody.

use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::log_support::{Place, latencies, wait};
use penfold_state::log::{Entry, From, PipeState, Stream, USUAL_LIMIT, Waited, Writer};
use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};

#[test]
fn a_follower_notices_that_nobody_reads_it() {
    let place = Place::new();
    let _writer = Writer::create(place.as_fd(), USUAL_LIMIT).unwrap();
    let (far, near) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    drop(far);
    let waited = place.read(From::Start).wait(|| false, Some(near.as_fd())).unwrap();
    assert_eq!(waited, Waited::HungUp);
}

/// spec: 9.2
#[test]
fn readers_that_are_overtaken_see_nothing_wrong() {
    const LINE: usize = 50;
    let place = Place::new();
    let mut writer = Writer::create(place.as_fd(), 64 << 10).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut reader = place.read(From::Start);
                let over = &over;
                scope.spawn(move || {
                    let (mut next, mut missed, mut lines) = (0_u64, 0, 0_u64);
                    loop {
                        while let Some(entry) = reader.next_entry().unwrap() {
                            match entry {
                                Entry::Data { bytes, .. } => {
                                    let number: u64 =
                                        std::str::from_utf8(bytes).unwrap().trim().parse().unwrap();
                                    assert!(number == next || (number > next && missed > 0));
                                    (next, missed, lines) = (number + 1, 0, lines + 1);
                                }
                                Entry::Missed { bytes } => missed += bytes,
                                other => panic!("{other:?} after {next}"),
                            }
                        }
                        if reader.wait(|| over.load(Ordering::SeqCst), None).unwrap() == Waited::Ended {
                            return (next, lines);
                        }
                    }
                })
            })
            .collect();
        for number in 0..200_000 {
            writer.append(Stream::Stdout, format!("{number:width$}\n", width = LINE - 1).as_bytes());
        }
        over.store(true, Ordering::SeqCst);
        drop(writer);
        for reader in readers {
            let (next, lines) = reader.join().unwrap();
            assert!(next == 200_000 && lines > 500, "{lines}");
        }
    });
}

const GIGABYTE: u64 = 1 << 30;

/// Runs `program` with its output in a pipe and calls `taker` with the pipe.
fn output_of(program: &str, taker: impl FnOnce(OwnedFd)) -> f64 {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let start = Instant::now();
    let mut child = Command::new("sh").args(["-c", program]).stdout(Stdio::from(write)).spawn().unwrap();
    taker(read);
    child.wait().unwrap();
    1024.0 / start.elapsed().as_secs_f64()
}

fn into_log(writer: &mut Writer, pipe: &OwnedFd) -> u64 {
    let flags = rustix::fs::fcntl_getfl(pipe).unwrap();
    rustix::fs::fcntl_setfl(pipe, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut bytes = 0;
    loop {
        let drained = writer.drain(Stream::Stdout, pipe.as_fd()).unwrap();
        bytes += drained.bytes;
        match drained.state {
            PipeState::Open => {}
            PipeState::Empty => wait(pipe, PollFlags::IN, None),
            PipeState::End => return bytes,
        }
    }
}

fn into_cat(pipe: OwnedFd) {
    let mut cat = Command::new("cat");
    cat.stdin(Stdio::from(pipe)).stdout(Stdio::null()).spawn().unwrap().wait().unwrap();
}

#[test]
#[ignore = "measures; to be run alone, as a release build"]
#[allow(clippy::print_stderr, reason = "its numbers are what it is for")]
fn a_gigabyte_goes_through_nearly_as_fast_as_into_cat() {
    for parent in ["/dev/shm", "/tmp"] {
        for program in
            ["head -c 1G /dev/zero", "dd if=/dev/zero bs=64k count=16384 status=none", "yes | head -c 1G"]
        {
            let (mut cat, mut log, mut grown, mut followed) = (vec![], vec![], vec![], vec![]);
            for _ in 0..3 {
                cat.push(output_of(program, into_cat));
                let place = Place::within(std::path::Path::new(parent));
                let mut writer = Writer::create(place.as_fd(), USUAL_LIMIT).unwrap();
                let run = |writer: &mut Writer| {
                    output_of(program, |pipe| {
                        let _ = rustix::pipe::fcntl_setpipe_size(&pipe, pipe_size());
                        assert_eq!(into_log(writer, &pipe), GIGABYTE);
                    })
                };
                log.push(run(&mut writer));
                grown.push(run(&mut writer));
                let over = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        let mut reader = place.read(From::Start);
                        while reader.wait(|| over.load(Ordering::SeqCst), None).unwrap() == Waited::More {
                            while reader.next_entry().unwrap().is_some() {}
                        }
                    });
                    followed.push(run(&mut writer));
                    over.store(true, Ordering::SeqCst);
                });
            }
            let best = |of: Vec<f64>| of.into_iter().fold(0.0, f64::max);
            let [cat, log, grown, followed] = [cat, log, grown, followed].map(best);
            eprintln!(
                "{parent} {program}: cat {cat:.0} MiB/s, log {log:.0} ({:.0} %), full grown {grown:.0}, followed {followed:.0}",
                100.0 * log / cat
            );
        }
        let behind = latencies(&Place::within(std::path::Path::new(parent)), 500, || ());
        eprintln!("latency in µs: p50 {} p99 {} max {}", behind[250], behind[495], behind[499]);
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement takes its sizes from who measures")]
fn pipe_size() -> usize {
    std::env::var("PIPE").ok().and_then(|size| size.parse().ok()).unwrap_or(1 << 20)
}
