//! Shared code of the tests of events.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_state::events::{
    Event, EventEntry, EventKind, EventPosition, EventReader, EventSubject, append_events,
};

/// A state root for one test.
pub struct Place {
    _dir: tempfile::TempDir,
    root: PathBuf,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("penfold-events-").tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir(&root).unwrap();
        Place { _dir: dir, root }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn current(&self) -> PathBuf {
        self.root.join("events.jsonl")
    }

    pub fn before(&self) -> PathBuf {
        self.root.join("events.jsonl.1")
    }
}

/// Makes an event with the number of its writer, and its own number.
pub fn leak(writer: usize, number: usize, text: &str) -> Event {
    let what = EventKind::Leak {
        what: format!("{writer} {number}"),
        outcome: text.to_owned(),
        reason: Some(text.to_owned()),
    };
    let about = EventSubject {
        id: "0123456789ab".to_owned(),
        name: Some(text.to_owned()),
        labels: BTreeMap::new(),
        life: None,
    };
    Event { schema: 1, time_ns: 1, about, what }
}

/// Returns the writers and the numbers of events.
pub fn whats(entries: Vec<EventEntry>) -> Vec<(usize, usize)> {
    let what = |entry| match entry {
        EventEntry::Event(event) => match event.what {
            EventKind::Leak { what, .. } => {
                let (writer, number) = what.split_once(' ')?;
                Some((writer.parse().ok()?, number.parse().ok()?))
            }
            _ => None,
        },
        EventEntry::Skipped => None,
    };
    entries.into_iter().filter_map(what).collect()
}

/// Returns the sorted delays of a follower for some events, in microseconds.
pub fn latencies(count: usize, prepare: impl FnOnce()) -> Vec<u128> {
    let place = Place::new();
    append_events(place.root(), &[leak(0, 0, "x")]).unwrap();
    let mut reader = EventReader::open(place.root(), EventPosition::End).unwrap();
    prepare();
    let (ask, asked) = std::sync::mpsc::channel::<usize>();
    let (say, said) = std::sync::mpsc::channel::<Instant>();
    let root = place.root().to_owned();
    let mut behind = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in asked {
                // Wait for the follower: an event that exists before its look has no delay.
                let _ = rustix::event::poll(&mut [], Some(&Duration::from_millis(3).try_into().unwrap()));
                let begun = Instant::now();
                append_events(&root, &[leak(0, number, "x")]).unwrap();
                say.send(begun).unwrap();
            }
        });
        for number in 0..count {
            ask.send(number).unwrap();
            let end = Instant::now() + Duration::from_secs(10);
            while reader.next_entry().unwrap().is_none() {
                assert!(Instant::now() < end);
                reader.wait(None).unwrap();
            }
            behind.push(said.recv().unwrap().elapsed().as_micros());
        }
        drop(ask);
    });
    behind.sort_unstable();
    behind
}
