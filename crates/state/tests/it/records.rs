//! Damaged and forged records, records of another version, and roots that another user made.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_state::intent::{DetachedIntent, Intent};
use penfold_state::record::SCHEMA;
use penfold_state::{Id, Limits, Registry, recovery};

const PATIENCE: Duration = Duration::from_secs(5);

/// A state root, beside files that a forger wants removed.
struct Place {
    dir: tempfile::TempDir,
    registry: Registry,
}

impl Place {
    fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(&dir.path().join("root")).unwrap();
        Place { dir, registry }
    }

    fn record(&self, name: &str) -> PathBuf {
        self.dir.path().join("root/sandboxes").join(name)
    }

    /// Makes a directory with a file in it.
    fn precious(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), "precious").unwrap();
        path
    }

    /// Writes a record without a supervisor.
    fn forge(&self, name: &str, intent: &[u8]) {
        std::fs::create_dir(self.record(name)).unwrap();
        std::fs::set_permissions(self.record(name), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::write(self.record(name).join("intent.json"), intent).unwrap();
    }

    fn names(&self) -> Vec<String> {
        self.registry.names().unwrap()
    }
}

fn intent() -> Intent {
    Intent {
        schema: SCHEMA,
        id: Id::new().unwrap(),
        name: None,
        labels: BTreeMap::new(),
        resources: Vec::new(),
        event_log: None,
        spare: None,
        identity: None,
        profile: None,
        outside: None,
        command: vec!["true".to_owned()],
        boot: penfold_process::boot_id().unwrap(),
        within: Vec::new(),
        leaf: None,
        limits: Limits::default(),
        scope: None,
        scratch: None,
        workspace: None,
        home: None,
        ancestors: Vec::new(),
        session: None,
        since: None,
        made_at_ms: 0,
        signal: None,
        grace_ms: None,
        patience_ms: None,
        detached: None,
    }
}

/// Does what a launcher does for the sandboxes of others.
fn sweep(place: &Place) {
    let orphans = recovery::find_orphans(&place.registry, "").unwrap();
    recovery::sweep_orphans(&place.registry, &orphans, PATIENCE);
}

fn text(intent: &Intent) -> Vec<u8> {
    serde_json::to_vec(intent).unwrap()
}

fn is_whole(precious: &Path) -> bool {
    std::fs::read(precious.join("file")).is_ok_and(|content| content == b"precious")
}

#[test]
fn a_record_cannot_name_a_directory_of_others_as_its_scratch() {
    let place = Place::new();
    let precious = place.precious("home");
    let intent = Intent { scratch: Some(precious.clone()), ..intent() };
    place.forge(&intent.id.short(), &text(&intent));
    sweep(&place);
    assert!(is_whole(&precious));
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn a_record_cannot_name_the_scratch_of_another_sandbox() {
    let place = Place::new();
    let (mine, other) = (intent(), intent());
    let precious = place.precious(&format!("penfold-{}", other.id));
    place.forge(&mine.id.short(), &text(&Intent { scratch: Some(precious.clone()), ..mine.clone() }));
    // A record must not name another sandbox's directory under its own name either.
    place.forge("0123456789ab", &text(&Intent { scratch: Some(precious.clone()), ..other }));
    sweep(&place);
    assert!(is_whole(&precious));
}

#[test]
fn the_own_scratch_goes_with_a_record_that_nobody_looks_after() {
    let place = Place::new();
    let intent = intent();
    let scratch = place.precious(&format!("penfold-{}", intent.id));
    place.forge(&intent.id.short(), &text(&Intent { scratch: Some(scratch.clone()), ..intent }));
    sweep(&place);
    assert!(!scratch.try_exists().unwrap());
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn a_link_in_the_place_of_the_scratch_is_not_followed() {
    let place = Place::new();
    let precious = place.precious("home");
    let intent = intent();
    let scratch = place.dir.path().join(format!("penfold-{}", intent.id));
    std::os::unix::fs::symlink(&precious, &scratch).unwrap();
    place.forge(&intent.id.short(), &text(&Intent { scratch: Some(scratch), ..intent }));
    sweep(&place);
    assert!(is_whole(&precious));
}

#[test]
fn a_record_of_a_newer_format_is_left_as_it_is_and_holds_up_nobody() {
    let place = Place::new();
    place.forge("aaaaaaaaaaaa", br#"{"schema":2,"other":true}"#);
    place.forge("bbbbbbbbbbbb", &text(&Intent { schema: SCHEMA + 1, ..intent() }));
    let old = intent();
    place.forge(&old.id.short(), &text(&old));
    sweep(&place);
    let mut left = place.names();
    left.sort_unstable();
    assert_eq!(left, ["aaaaaaaaaaaa", "bbbbbbbbbbbb"]);
    assert_eq!(
        std::fs::read(place.record("aaaaaaaaaaaa").join("intent.json")).unwrap(),
        br#"{"schema":2,"other":true}"#
    );
}

#[test]
fn a_damaged_record_goes_and_takes_nothing_with_it() {
    let place = Place::new();
    let precious = place.precious("home");
    let whole = text(&Intent { scratch: Some(precious.clone()), ..intent() });
    for (number, damaged) in
        [&b""[..], b"{", b"null", b"\0\0\0\0", &whole[..whole.len() - 1]].iter().enumerate()
    {
        place.forge(&format!("{number:012x}"), damaged);
    }
    sweep(&place);
    assert!(is_whole(&precious));
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn a_fifo_in_the_place_of_the_intent_holds_up_nobody() {
    let place = Place::new();
    place.forge("aaaaaaaaaaaa", b"");
    let file = place.record("aaaaaaaaaaaa").join("intent.json");
    std::fs::remove_file(&file).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    sweep(&place);
    assert_eq!(place.names(), Vec::<String>::new());
}

#[test]
fn a_record_in_use_is_not_taken_and_one_let_go_is() {
    let place = Place::new();
    let intent = intent();
    let name = intent.id.short();
    let record = place.registry.reserve(&intent).unwrap();
    assert!(place.registry.take_orphan(&name).unwrap().is_none());
    drop(record);
    let orphan = place.registry.take_orphan(&name).unwrap().expect("nobody looks after it");
    assert_eq!(orphan.intent().unwrap(), intent);
}

/// spec: 17.5
#[test]
fn a_record_of_an_older_penfold_has_no_limits_and_limits_read_back() {
    let old = intent();
    let written = text(&old);
    assert!(!String::from_utf8(written.clone()).unwrap().contains("limits"), "as before, without limits");
    assert_eq!(serde_json::from_slice::<Intent>(&written).unwrap(), old);
    let limits =
        Limits { memory_bytes: Some(512 << 20), pids: Some(100), cpus: Some(Duration::from_millis(1500)) };
    let limited = Intent { limits, ..intent() };
    let written = text(&limited);
    let json: serde_json::Value = serde_json::from_slice(&written).unwrap();
    let expected = serde_json::json!({"memory_bytes": 536_870_912, "pids": 100, "cpus": 1.5});
    assert_eq!(json["limits"], expected);
    assert_eq!(serde_json::from_slice::<Intent>(&written).unwrap(), limited);
}

/// Makes a record without a supervisor for a sandbox with a leaf in `leaf` and a report; returns its name.
fn reported(place: &Place, leaf: &Path, detached: Option<DetachedIntent>) -> String {
    let intent = intent();
    let name = intent.id.short();
    let leaf = leaf.join(format!("penfold-{name}"));
    let intent = Intent { leaf: Some(leaf), detached, ..intent };
    drop(place.registry.reserve(&intent).unwrap());
    std::fs::write(place.record(&name).join("report.json"), "{}").unwrap();
    name
}

#[test]
fn what_has_ended_is_seen_to_have_without_being_opened() {
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
    let place = Place::new();
    let record = place.record(&reported(&place, place.dir.path(), Some(DetachedIntent::default())));
    let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    add_watch(&watch, &record, WatchFlags::OPEN).unwrap();
    assert!(recovery::find_orphans(&place.registry, "").unwrap().is_empty());
    sweep(&place);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    assert!(Reader::new(&watch, &mut buffer).next().is_err(), "it was opened");
    assert!(record.join("report.json").try_exists().unwrap());
}

/// spec: 5.9
#[test]
fn a_report_beside_a_leaf_does_not_keep_an_orphan_from_being_found() {
    // A foreground sandbox has no report but a forged one.
    for detached in [Some(DetachedIntent::default()), None] {
        let place = Place::new();
        let name = reported(&place, place.dir.path(), detached);
        assert!(place.registry.take_orphan(&name).unwrap().is_none());
        std::fs::create_dir(place.dir.path().join(format!("penfold-{name}"))).unwrap();
        assert!(!recovery::find_orphans(&place.registry, "").unwrap().is_empty());
        assert!(place.registry.take_orphan(&name).unwrap().is_some());
    }
}

#[test]
fn records_are_made_while_others_look_for_those_that_were_left() {
    let place = Place::new();
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..2)
            .map(|_| {
                let root = place.dir.path().join("root");
                scope.spawn(move || {
                    let registry = Registry::open(&root).unwrap();
                    (0..200).filter_map(|_| registry.reserve(&intent()).err()).collect::<Vec<_>>()
                })
            })
            .collect();
        while makers.iter().any(|maker| !maker.is_finished()) {
            let _ = recovery::find_orphans(&place.registry, "");
            std::thread::yield_now();
        }
        for maker in makers {
            let refused = maker.join().unwrap();
            assert!(refused.is_empty(), "{refused:?}");
        }
    });
}

#[test]
fn a_root_that_is_a_link_is_refused_however_often_it_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("elsewhere")).unwrap();
    let link = dir.path().join("root");
    std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
    for _ in 0..2 {
        assert!(Registry::open(&link).is_err());
    }
    assert!(Registry::open_existing(&link).is_err());
    assert_eq!(std::fs::read_dir(dir.path().join("elsewhere")).unwrap().count(), 0);
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says why")]
fn a_root_of_another_user_is_refused_however_often_it_is_tried() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to give a directory away");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::os::unix::fs::chown(&root, Some(65534), None).unwrap();
    for _ in 0..2 {
        assert!(Registry::open(&root).is_err());
    }
    assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
}

/// If a command is killed while it removes a record, any other command can remove the rest, which is no orphan.
/// spec: 5.3
#[test]
fn the_report_is_the_last_file_of_a_record_to_go() {
    use penfold_teardown::Resource as _;
    use rustix::fs::inotify::{CreateFlags, Reader, WatchFlags, add_watch, init};
    let place = Place::new();
    let intent = intent();
    let mut record = place.registry.reserve(&intent).unwrap();
    let path = place.record(&intent.id.short());
    for name in ["report.json", "exit.json", "state.json", "log", "a", "z"] {
        std::fs::write(path.join(name), "{}").unwrap();
    }
    std::fs::create_dir_all(path.join("inside/deep")).unwrap();
    let watch = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).unwrap();
    add_watch(&watch, &path, WatchFlags::DELETE).unwrap();
    record.release(true).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(&watch, &mut buffer);
    let mut removed = Vec::new();
    while let Ok(event) = reader.next() {
        removed.extend(event.file_name().map(|name| name.to_str().unwrap().to_owned()));
    }
    assert_eq!(removed.len(), 8, "{removed:?}");
    assert_eq!(removed.last().map(String::as_str), Some("report.json"), "{removed:?}");
}
