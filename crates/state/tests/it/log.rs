//! A log returns what was written to it, as far back as its limit allows.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::log_support::{Place, Read};
use penfold_state::log::{
    LogEntry, LogError, LogPosition, LogReader, LogWriter, PipeState, Stream, USUAL_LIMIT,
};
use proptest::prelude::*;
use rustix::pipe::{PipeFlags, pipe_with};
use std::os::fd::AsFd;

/// Makes bytes that show their position.
fn bytes(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// spec: 9.1, 9.2
    #[test]
    fn bytes_are_exact_whatever_the_sizes_and_the_limit(
        limit in 0_u64..400_000,
        pieces in prop::collection::vec((any::<bool>(), prop_oneof![1_usize..40, 1_usize..5000, 1_usize..200_000]), 1..60),
        reopen_at in 0_usize..60,
    ) {
        let place = Place::new();
        let mut writer = LogWriter::create(place.as_fd(), limit).unwrap();
        let mut reader = place.read(LogPosition::Start);
        let (mut all, mut out, mut err) = (Vec::new(), Vec::new(), Vec::new());
        let mut seen = Read::default();
        for (number, &(is_err, length)) in pieces.iter().enumerate() {
            if number == reopen_at {
                drop(writer);
                writer = LogWriter::reopen(place.as_fd(), 1).unwrap();
            }
            let piece = bytes(all.len(), length);
            writer.append(if is_err { Stream::Stderr } else { Stream::Stdout }, &piece);
            all.extend_from_slice(&piece);
            if is_err { err.extend_from_slice(&piece) } else { out.extend_from_slice(&piece) }
            if number % 3 == 0 {
                while seen.take(&mut reader) {}
            }
        }
        let late = Read::to_end(&mut place.read(LogPosition::Start));
        prop_assert!(all.ends_with(&late.all) && out.ends_with(&late.out) && err.ends_with(&late.err));
        prop_assert_eq!((late.lost, late.missed, late.damaged), (0, 0, 0));
        let size = std::fs::metadata(place.log()).unwrap().len();
        prop_assert!(size <= limit.max(12 << 10), "{} of {}", size, limit);
        let heads = 16 * late.pieces.len();
        // Everything is kept but the front page and one block, with two blocks at least.
        let kept = late.all.len() + heads;
        prop_assert!(late.all.len() == all.len() || kept >= (usize::try_from(limit).unwrap() / 3).saturating_sub(4096));
        while seen.take(&mut reader) {}
        prop_assert!(seen.missed > 0 || seen.all == all);
        prop_assert!(seen.all.ends_with(&late.all));
        prop_assert_eq!((seen.lost, seen.damaged), (0, 0));
    }

    /// spec: 9.1
    #[test]
    fn reading_goes_on_at_any_byte(length in 1_usize..20_000, at in 0_usize..20_000) {
        let place = Place::new();
        let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
        let text = bytes(0, length);
        for piece in text.chunks(777) {
            writer.append(Stream::Stdout, piece);
        }
        let at = at % length;
        let whole = Read::to_end(&mut place.read(LogPosition::Start));
        let mut before = 0;
        for (offset, length) in whole.pieces {
            if at < before + length {
                let offset = offset + u64::try_from(at - before).unwrap();
                let rest = Read::to_end(&mut place.read(LogPosition::Offset(offset)));
                prop_assert_eq!(rest.pieces[0].0, offset);
                prop_assert!(rest.all == text[at..]);
                break;
            }
            before += length;
        }
    }

    /// spec: 9.1
    #[test]
    fn the_last_lines_are_those_that_tail_shows(
        text in "([a-c]{0,3}\n?){0,50}",
        lines in 0_u64..20,
        cut in 1_usize..9,
    ) {
        let place = Place::new();
        let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
        for piece in text.as_bytes().chunks(cut) {
            writer.append(Stream::Stdout, piece);
        }
        let all: Vec<&str> = text.split_inclusive('\n').collect();
        let expected = all[all.len().saturating_sub(usize::try_from(lines).unwrap())..].concat();
        prop_assert_eq!(place.text(LogPosition::Last { lines, of: None }), expected);
    }
}

#[test]
fn the_last_lines_are_found_over_many_blocks() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), 256 << 10).unwrap();
    let mut out = Vec::new();
    for number in 0..20_000 {
        let line = format!("line {number} of many\n");
        writer.append(Stream::Stdout, line.as_bytes());
        out.push(line);
        if number % 1000 == 500 {
            writer.append(Stream::Stderr, format!("e{number}\n").as_bytes());
        }
    }
    for lines in [1, 7, 900, 2500] {
        let wanted = out[out.len() - usize::try_from(lines).unwrap()..].concat();
        let read = Read::to_end(&mut place.read(LogPosition::Last { lines, of: Some(Stream::Stdout) }));
        assert_eq!(String::from_utf8(read.out).unwrap(), wanted, "{lines}");
    }
    let read = Read::to_end(&mut place.read(LogPosition::Last { lines: 2, of: Some(Stream::Stderr) }));
    assert_eq!(String::from_utf8(read.err).unwrap(), "e18500\ne19500\n");
    let all = place.text(LogPosition::Start);
    assert_eq!(place.text(LogPosition::Last { lines: 1_000_000, of: None }), all);
}

/// spec: 9.1
#[test]
fn a_time_is_found_over_many_blocks() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
    for number in 0..4000 {
        writer.append(Stream::Stdout, format!("{number}\n").as_bytes());
    }
    let mut times = Vec::new();
    let mut reader = place.read(LogPosition::Start);
    while let Some(entry) = reader.next_entry().unwrap() {
        let LogEntry::Data { time, bytes, .. } = entry else { panic!("{entry:?}") };
        times.push((time, String::from_utf8(bytes.to_vec()).unwrap()));
    }
    assert!(times.is_sorted_by_key(|(time, _)| *time) && times.len() > 1000);
    for at in [0, 1, 300, times.len() - 1] {
        let first = times.iter().position(|(time, _)| *time >= times[at].0).unwrap();
        let wanted: String = times[first..].iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(place.text(LogPosition::Since(times[at].0)), wanted);
    }
    assert_eq!(place.text(LogPosition::Since(u64::MAX)), "");
}

/// spec: 9.2
#[test]
fn an_offset_that_is_gone_says_how_much_was_missed() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), 12 << 10).unwrap();
    writer.append(Stream::Stdout, b"first");
    let mut reader = place.read(LogPosition::Start);
    assert!(matches!(reader.next_entry(), Ok(Some(LogEntry::Data { bytes: b"first", .. }))));
    let offset = reader.offset();
    for _ in 0..100 {
        writer.append(Stream::Stdout, &[b'x'; 500]);
    }
    for reader in [&mut reader, &mut place.read(LogPosition::Offset(offset))] {
        let Ok(Some(LogEntry::Missed { bytes })) = reader.next_entry() else { panic!("nothing missed") };
        let Ok(Some(LogEntry::Data { offset: next, .. })) = reader.next_entry() else {
            panic!("nothing left")
        };
        assert_eq!(offset + bytes + 16, next);
    }
    assert_eq!(place.text(LogPosition::Offset(u64::MAX)), "");
}

/// spec: 9.5
#[test]
fn what_was_not_marked_when_the_writer_died_is_cut() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), 64 << 10).unwrap();
    writer.append(Stream::Stdout, b"whole\n");
    drop(writer);
    let end = std::fs::metadata(place.log()).unwrap().len();
    let file = std::fs::OpenOptions::new().write(true).open(place.log()).unwrap();
    file.write_all_at(&[7; 3000], end).unwrap();
    let mut writer = LogWriter::reopen(place.as_fd(), USUAL_LIMIT).unwrap();
    assert_eq!(place.text(LogPosition::Start), "whole\n");
    writer.append(Stream::Stderr, b"and on\n");
    let read = Read::to_end(&mut place.read(LogPosition::Start));
    assert_eq!((read.all.as_slice(), read.damaged), (&b"whole\nand on\n"[..], 0));
}

#[test]
fn a_second_log_is_not_made_and_a_missing_one_is_named() {
    let place = Place::new();
    assert!(matches!(LogReader::open(place.as_fd(), LogPosition::Start), Err(LogError::Missing)));
    let writer = LogWriter::create(place.as_fd(), 0).unwrap();
    assert!(LogWriter::create(place.as_fd(), 0).is_err());
    drop(writer);
    assert_eq!(std::fs::metadata(place.log()).unwrap().mode() & 0o777, 0o600);
}

#[test]
fn a_log_is_whole_as_soon_as_it_is_seen() {
    let place = Place::new();
    let made = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                drop(LogWriter::create(place.as_fd(), 0).unwrap());
                std::fs::remove_file(place.log()).unwrap();
            }
            made.store(true, Ordering::Relaxed);
        });
        while !made.load(Ordering::Relaxed) {
            match LogReader::open(place.as_fd(), LogPosition::Start) {
                Ok(_) | Err(LogError::Missing) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    // Its writer died before it wrote.
    std::fs::write(place.log(), b"").unwrap();
    assert!(matches!(LogReader::open(place.as_fd(), LogPosition::Start), Err(LogError::Missing)));
    LogWriter::reopen(place.as_fd(), 0).unwrap().append(Stream::Stdout, b"anew");
    assert_eq!(place.text(LogPosition::Start), "anew");
}

/// spec: 9.3
#[test]
fn a_pipe_is_drained_in_bounded_steps_up_to_its_end() {
    let place = Place::new();
    let mut writer = LogWriter::create(place.as_fd(), USUAL_LIMIT).unwrap();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let size = rustix::pipe::fcntl_setpipe_size(&write, 1 << 20).unwrap();
    let empty = writer.drain(Stream::Stdout, read.as_fd()).unwrap();
    assert_eq!((empty.bytes, empty.state), (0, PipeState::Empty));
    let text = bytes(0, size);
    assert_eq!(rustix::io::write(&write, &text).unwrap(), size);
    let mut moved = 0;
    loop {
        let drained = writer.drain(Stream::Stdout, read.as_fd()).unwrap();
        moved += drained.bytes;
        assert!(drained.bytes <= (1 << 20) + (64 << 10));
        if drained.state != PipeState::Open {
            assert_eq!(drained.state, PipeState::Empty);
            break;
        }
    }
    assert_eq!(moved, u64::try_from(size).unwrap());
    // A stream that never ends gets no more of the writer's time than others.
    let endless = std::fs::File::open("/dev/zero").unwrap();
    let mut other = LogWriter::create(Place::new().as_fd(), 64 << 10).unwrap();
    let drained = other.drain(Stream::Stdout, endless.as_fd()).unwrap();
    assert!(drained.bytes <= (1 << 20) + (64 << 10) && drained.state == PipeState::Open);
    drop(write);
    assert_eq!(writer.drain(Stream::Stdout, read.as_fd()).unwrap().state, PipeState::End);
    assert!(Read::to_end(&mut place.read(LogPosition::Start)).out == text);
}
