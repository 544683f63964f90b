//! The events of a state root: written by many processes at once, renamed when full, read whatever the file holds.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::events_support::{Place, leak, whats};
use penfold_state::events::{Event, EventEntry, EventKind, EventPosition, EventReader, append_events};
use rustix::fs::{FlockOperation, flock};

const FULL: u64 = 8 << 20;

/// Returns all events that can be read now.
fn rest(reader: &mut EventReader) -> Vec<EventEntry> {
    std::iter::from_fn(|| reader.next_entry().unwrap()).collect()
}

fn all(place: &Place) -> Vec<EventEntry> {
    rest(&mut EventReader::open(place.root(), EventPosition::Start).unwrap())
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |data| data.len())
}

#[test]
fn what_is_written_is_read_in_order_and_private() {
    let place = Place::new();
    let events: Vec<Event> = (0..100).map(|number| leak(0, number, "x")).collect();
    append_events(place.root(), &events[..60]).unwrap();
    append_events(place.root(), &events[60..]).unwrap();
    let expected: Vec<EventEntry> =
        events.into_iter().map(|event| EventEntry::Event(Box::new(event))).collect();
    assert_eq!(all(&place), expected);
    let mode = std::fs::metadata(place.current()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    let text = std::fs::read_to_string(place.current()).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["schema"], &first["kind"]), (&1.into(), &"leak".into()));
}

/// spec: 10.2
#[test]
fn nothing_is_lost_when_many_write_and_files_are_renamed() {
    const WRITERS: usize = 4;
    const EACH: usize = 1600;
    let place = Place::new();
    let mut reader = EventReader::open(place.root(), EventPosition::End).unwrap();
    let long = "x".repeat(1000);
    let mut next = [0; WRITERS];
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (place, long) = (&place, &long);
            scope.spawn(move || {
                for number in 0..EACH {
                    append_events(place.root(), &[leak(writer, number, long)]).unwrap();
                }
            });
        }
        let end = Instant::now() + Duration::from_mins(1);
        while next.iter().sum::<usize>() < WRITERS * EACH {
            assert!(Instant::now() < end, "{next:?}");
            for (writer, number) in whats(rest(&mut reader)) {
                assert_eq!(number, next[writer], "of writer {writer}");
                next[writer] += 1;
            }
            reader.wait(None).unwrap();
        }
    });
    assert!(rest(&mut reader).is_empty());
    // More than two files were filled, and only two are kept, each hardly larger than its limit.
    let (now, before) = (size(&place.current()), size(&place.before()));
    assert!((FULL..FULL + (1 << 20)).contains(&before) && now < FULL, "{now} {before}");
    // The kept events have no gap in the middle either. A writer that was early may have none among them.
    let kept = whats(all(&place));
    assert!(!kept.is_empty());
    for writer in 0..WRITERS {
        let numbers: Vec<usize> = kept.iter().filter(|kept| kept.0 == writer).map(|kept| kept.1).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
        assert!(numbers.last().is_none_or(|last| *last == EACH - 1));
    }
}

/// spec: 10.2
#[test]
fn a_reader_that_sleeps_over_two_renames_misses_nothing() {
    let place = Place::new();
    let fill = |name: &str| {
        append_events(place.root(), &[leak(0, 0, name)]).unwrap();
        File::options().append(true).open(place.current()).unwrap().write_all(&vec![b'\n'; 8 << 20]).unwrap();
    };
    fill("first");
    let mut reader = EventReader::open(place.root(), EventPosition::Start).unwrap();
    assert_eq!(rest(&mut reader).len(), 1);
    fill("second");
    assert!(size(&place.before()) >= FULL);
    append_events(place.root(), &[leak(0, 1, "third")]).unwrap();
    let found = rest(&mut reader);
    let places: Vec<String> = found.iter().map(|entry| format!("{entry:?}")).collect();
    assert!(places.len() == 2 && places[0].contains("second") && places[1].contains("third"), "{places:?}");
}

/// spec: 10.2
#[test]
fn whoever_stands_still_over_the_file_holds_nobody_up_and_its_size_stays_bounded() {
    let place = Place::new();
    append_events(place.root(), &[leak(0, 0, "x")]).unwrap();
    let held = File::open(place.current()).unwrap();
    for lock in [FlockOperation::LockExclusive, FlockOperation::LockShared] {
        flock(held.as_fd(), lock).unwrap();
        append_events(place.root(), &[leak(0, 1, "x")]).unwrap();
    }
    let mut file = File::options().append(true).open(place.current()).unwrap();
    for (sizes, renamed) in [(9 << 20, false), (8 << 20, true)] {
        file.write_all(&vec![b'\n'; sizes]).unwrap();
        append_events(place.root(), &[leak(0, 2, "x")]).unwrap();
        assert_eq!(size(&place.before()) > 0, renamed);
    }
    assert_eq!(whats(all(&place)).len(), 5);
}

/// spec: 10.4
#[test]
fn garbage_is_skipped_and_what_is_around_it_is_read() {
    let place = Place::new();
    append_events(place.root(), &[leak(0, 0, "x")]).unwrap();
    let mut file = File::options().append(true).open(place.current()).unwrap();
    file.write_all(b"{\"schema\":2,\"time_ns\":1,\"id\":\"a\",\"kind\":\"exec\",\"number\":1,\"command\":[]}\nnot json\n\n\xff\xfe\n")
        .unwrap();
    file.write_all(b"{\"schema\":1,\"time_ns\":1,\"id\":\"a\",\"kind\":\"unheard-of\"}\n").unwrap();
    file.write_all(&vec![b'x'; 300_000]).unwrap();
    file.write_all(b"\n").unwrap();
    append_events(place.root(), &[leak(0, 1, "x")]).unwrap();
    // A full disk leaves a line like this.
    file.write_all(b"{\"schema\":1,\"ti").unwrap();
    append_events(place.root(), &[leak(0, 2, "x")]).unwrap();
    let found = all(&place);
    let skipped = found.iter().filter(|entry| **entry == EventEntry::Skipped).count();
    assert_eq!((skipped, whats(found)), (6, vec![(0, 0), (0, 1), (0, 2)]));
}

#[test]
fn a_line_that_is_half_written_is_awaited() {
    let place = Place::new();
    append_events(place.root(), &[leak(0, 0, "x")]).unwrap();
    let line = std::fs::read(place.current()).unwrap();
    let mut reader = EventReader::open(place.root(), EventPosition::End).unwrap();
    let mut file = File::options().append(true).open(place.current()).unwrap();
    file.write_all(&line[..20]).unwrap();
    assert_eq!(rest(&mut reader), []);
    let mut late = EventReader::open(place.root(), EventPosition::End).unwrap();
    file.write_all(&line[20..]).unwrap();
    assert_eq!(whats(rest(&mut reader)), [(0, 0)]);
    assert_eq!(rest(&mut late), []);
    append_events(place.root(), &[leak(0, 1, "x")]).unwrap();
    assert_eq!(whats(rest(&mut late)), [(0, 1)]);
}

/// spec: 10.2
#[test]
fn long_and_odd_texts_are_cut_to_a_line() {
    let place = Place::new();
    let mut event = leak(0, 0, "x");
    event.about.labels = (0..100).map(|number| (format!("key{number}"), "v".repeat(200))).collect();
    for text in ["x", "é", "\u{1}", "\n"] {
        event.what = EventKind::Exec { number: 1, command: vec![text.repeat(3000), text.repeat(9)] };
        append_events(place.root(), std::slice::from_ref(&event)).unwrap();
        event.what = EventKind::Exec { number: 1, command: vec![text.to_owned(); 9000] };
        append_events(place.root(), std::slice::from_ref(&event)).unwrap();
    }
    let text = std::fs::read_to_string(place.current()).unwrap();
    assert!(text.lines().count() == 8 && text.lines().all(|line| line.len() < 4096));
    let entries = all(&place);
    let is_cut = |entry: &EventEntry| match entry {
        EventEntry::Event(event) => {
            matches!(&event.what, EventKind::Exec { command, .. } if !command[0].is_empty())
        }
        EventEntry::Skipped => false,
    };
    assert!(entries.iter().all(is_cut), "{entries:?}");
}

/// spec: 10.4
#[test]
fn links_fifos_and_directories_are_neither_written_nor_read() {
    let place = Place::new();
    let other = place.root().join("other");
    std::fs::write(&other, "").unwrap();
    symlink(&other, place.current()).unwrap();
    assert!(append_events(place.root(), &[leak(0, 0, "x")]).is_err());
    assert!(EventReader::open(place.root(), EventPosition::Start).unwrap().next_entry().is_err());
    assert_eq!(size(&other), 0);
    std::fs::remove_file(place.current()).unwrap();

    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, place.current(), fifo, mode, 0).unwrap();
    assert!(append_events(place.root(), &[leak(0, 0, "x")]).is_err());
    assert!(EventReader::open(place.root(), EventPosition::Start).unwrap().next_entry().is_err());
    std::fs::remove_file(place.current()).unwrap();

    std::fs::create_dir(place.current()).unwrap();
    assert!(append_events(place.root(), &[leak(0, 0, "x")]).is_err());
    std::fs::remove_dir(place.current()).unwrap();

    let link = place.root().with_extension("link");
    symlink(place.root(), &link).unwrap();
    assert!(append_events(&link, &[leak(0, 0, "x")]).is_err());
    std::fs::remove_file(&link).unwrap();
    assert!(!place.current().try_exists().unwrap());
}

/// spec: 10.4
#[test]
fn events_of_another_user_are_left_alone() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    append_events(place.root(), &[leak(0, 0, "x")]).unwrap();
    std::os::unix::fs::chown(place.current(), Some(65_534), None).unwrap();
    assert!(append_events(place.root(), &[leak(0, 1, "x")]).is_err());
    assert!(EventReader::open(place.root(), EventPosition::Start).unwrap().next_entry().is_err());
    assert_eq!(std::fs::metadata(place.current()).unwrap().uid(), 65_534);
}

/// spec: 10.3
#[test]
fn a_follower_goes_on_when_the_root_is_made_anew_or_the_file_is_emptied() {
    let place = Place::new();
    std::fs::remove_dir(place.root()).unwrap();
    let mut reader = EventReader::open(place.root(), EventPosition::End).unwrap();
    let mut next = |number: usize| {
        let end = Instant::now() + Duration::from_secs(10);
        let mut found = Vec::new();
        while found.is_empty() {
            assert!(Instant::now() < end, "{number}");
            reader.wait(None).unwrap();
            found = whats(rest(&mut reader));
        }
        assert_eq!(found, [(0, number)]);
    };
    for number in 0..3 {
        std::fs::create_dir(place.root()).unwrap();
        append_events(place.root(), &[leak(0, number, "x")]).unwrap();
        next(number);
        std::fs::remove_file(place.current()).unwrap();
        std::fs::remove_dir(place.root()).unwrap();
    }
    std::fs::create_dir(place.root()).unwrap();
    append_events(place.root(), &[leak(0, 3, "a long text that is there no more")]).unwrap();
    next(3);
    std::fs::write(place.current(), "").unwrap();
    append_events(place.root(), &[leak(0, 4, "x")]).unwrap();
    next(4);
}

/// spec: 10.2
#[test]
fn a_reader_that_goes_from_place_to_place_reads_at_each_as_one_that_stays() {
    let place = Place::new();
    let open = |from| EventReader::open(place.root(), from).unwrap();
    let mut shared = open(EventPosition::Start);
    let (mut own, mut places) = (Vec::new(), Vec::new());
    for round in 0..600 {
        if round % 120 == 0 {
            // From the start, and from here on.
            for from in [EventPosition::Start, EventPosition::End] {
                own.push(open(from));
                places.push(own[own.len() - 1].place());
            }
        }
        if round % 250 == 200 {
            // The next writer renames the file.
            File::options().append(true).open(place.current()).unwrap().set_len(FULL).unwrap();
        }
        append_events(place.root(), &[leak(0, round, &"x".repeat(37 * round % 2000))]).unwrap();
        // They take two entries at a time, and sometimes more than come.
        for turn in (0..2 * own.len()).filter(|turn| (round + turn) % 3 != 0) {
            let turn = turn / 2;
            shared.go_to_place(places[turn].clone());
            assert_eq!(shared.next_entry().unwrap(), own[turn].next_entry().unwrap());
            places[turn] = shared.place();
            assert_eq!(places[turn], own[turn].place());
        }
    }
}

/// spec: 15.16
#[test]
fn places_in_one_file_share_a_descriptor() {
    let place = Place::new();
    append_events(place.root(), &[leak(0, 0, "x")]).unwrap();
    let mut shared = EventReader::open(place.root(), EventPosition::Start).unwrap();
    let mut places = Vec::new();
    for number in 1..=20 {
        let own = EventReader::open(place.root(), EventPosition::End).unwrap();
        append_events(place.root(), &[leak(0, number, "x")]).unwrap();
        shared.go_to_place(own.place());
        drop(own);
        assert_eq!(whats(shared.next_entry().unwrap().into_iter().collect()), [(0, number)]);
        places.push(shared.place());
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = open.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    assert_eq!(names.filter(|name| *name == place.current()).count(), 1);
    drop(places);
}
