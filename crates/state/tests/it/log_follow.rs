//! A follower of a log is notified promptly, loses no kept output, and delays nobody.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log_support::Place;
use penfold_state::log::{LogEntry, LogPosition, LogReader, LogWaitEnd, LogWriter, Stream, USUAL_LIMIT};
use rustix::pipe::{PipeFlags, pipe_with};

#[test]
fn a_follower_notices_that_nobody_reads_it() {
    let place = Place::new();
    let _writer = LogWriter::create(place.as_fd(), USUAL_LIMIT).unwrap();
    let (far, near) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    drop(far);
    let waited = place.read(LogPosition::Start).wait(|| false, Some(near.as_fd())).unwrap();
    assert_eq!(waited, LogWaitEnd::HungUp);
}

/// spec: 9.2
#[test]
fn readers_that_are_overtaken_see_nothing_wrong() {
    const LINE: usize = 50;
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mut reader = place.read(LogPosition::Start);
                let over = &over;
                scope.spawn(move || {
                    let (mut next, mut missed, mut lines) = (0_u64, 0, 0_u64);
                    loop {
                        while let Some(entry) = reader.next_entry().unwrap() {
                            match entry {
                                LogEntry::Data { bytes, .. } => {
                                    let number: u64 =
                                        std::str::from_utf8(bytes).unwrap().trim().parse().unwrap();
                                    assert!(number == next || (number > next && missed > 0));
                                    (next, missed, lines) = (number + 1, 0, lines + 1);
                                }
                                LogEntry::Missed { bytes } => missed += bytes,
                                other => panic!("{other:?} after {next}"),
                            }
                        }
                        if reader.wait(|| over.load(Ordering::SeqCst), None).unwrap() == LogWaitEnd::Ended {
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

/// spec: 9.2
#[test]
fn a_reader_that_goes_from_place_to_place_reads_at_each_as_one_that_stays() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), USUAL_LIMIT).unwrap();
    let append = |writer: &mut LogWriter, number: usize| {
        let stream = if number.is_multiple_of(3) { Stream::Stderr } else { Stream::Stdout };
        writer.append(stream, format!("{number:0>width$}\n", width = 1 + 37 * number % 3000).as_bytes());
    };
    for number in 0..200 {
        append(&mut writer, number);
    }
    let begins = [
        LogPosition::Start,
        LogPosition::Offset(12_345),
        LogPosition::Last { lines: 7, of: None },
        LogPosition::Since(0),
        LogPosition::Offset(u64::MAX),
    ];
    let mut shared = place.read(LogPosition::Start);
    let mut own: Vec<_> = begins.iter().map(|begin| place.read(*begin)).collect();
    let mut places: Vec<_> = own.iter().map(LogReader::place).collect();
    for round in 0..2000_usize {
        // Some go far ahead of others.
        let turn = if round % 7 < 4 { round % begins.len() } else { round / 100 % begins.len() };
        shared.go_to_place(places[turn]);
        assert_eq!(shared.offset(), own[turn].offset());
        assert_eq!(shared.next_entry().unwrap(), own[turn].next_entry().unwrap());
        places[turn] = shared.place();
        assert_eq!(places[turn], own[turn].place());
        if round % 5 == 0 {
            append(&mut writer, round);
        }
    }
}
