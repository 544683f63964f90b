//! The home of a test goes, unless sandboxes live there.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use penfold_testkit::{HOME_BASE, TestHome};
use rustix::fs::{FlockOperation, flock};

/// An id that no other test has.
fn id() -> String {
    format!("{:012x}", std::process::id())
}

/// Makes a record by hand, as penfold makes it.
fn record(home: &TestHome) -> PathBuf {
    let record = home.state_root().join("sandboxes").join(id());
    fs::create_dir_all(&record).unwrap();
    let intent = r#"{"id": "x", "name": "web", "command": ["npm", "start"], "other": 1}"#;
    fs::write(record.join("intent.json"), intent).unwrap();
    record
}

#[track_caller]
fn refuses(home: TestHome) -> PathBuf {
    let path = home.path().to_path_buf();
    let panicked = catch_unwind(AssertUnwindSafe(|| drop(home)));
    let message = *panicked.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains(&id()) && message.contains("web") && message.contains("npm start"), "{message}");
    assert!(path.is_dir());
    path
}

fn base() -> PathBuf {
    let base = std::env::temp_dir().join(format!(
        "testkit-homes-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    fs::create_dir(&base).unwrap();
    base
}

fn is_empty(base: &Path) -> bool {
    fs::read_dir(base).unwrap().next().is_none()
}

/// spec: 21.6
#[test]
fn a_home_goes_with_its_files_and_with_the_records_of_ended_sandboxes() {
    let base = base();
    let home = TestHome::below(&base).unwrap();
    record(&home);
    assert!(home.sandboxes().is_empty());
    assert!(home.path().starts_with(base.canonicalize().unwrap()));
    drop(home);
    assert!(is_empty(&base));
    fs::remove_dir(&base).unwrap();
}

/// spec: 21.6
#[test]
fn a_home_is_not_dropped_while_a_record_is_held() {
    let base = base();
    let home = TestHome::below(&base).unwrap();
    let held = fs::File::open(record(&home)).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let path = refuses(home);
    drop(held);
    fs::remove_dir_all(path).unwrap();
    fs::remove_dir(&base).unwrap();
}

/// spec: 21.6
#[test]
fn a_home_is_not_dropped_while_a_member_lives() {
    let base = base();
    let home = TestHome::below(&base).unwrap();
    record(&home);
    let mut member = Command::new("sleep")
        .arg("2021")
        .env("PENFOLD_SANDBOX", format!("aaaaaaaaaaaa:{}", id()))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let path = refuses(home);
    member.kill().unwrap();
    member.wait().unwrap();
    fs::remove_dir_all(path).unwrap();
    fs::remove_dir(&base).unwrap();
}

/// spec: 21.6
#[test]
fn during_a_panic_a_home_is_kept_without_a_second_panic() {
    let base = base();
    let home = TestHome::below(&base).unwrap();
    let held = fs::File::open(record(&home)).unwrap();
    flock(&held, FlockOperation::LockExclusive).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _home = home;
        panic!("the test failed");
    }));
    assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "the test failed");
    assert!(!is_empty(&base));
    fs::remove_dir_all(&base).unwrap();
}

/// spec: 21.6
#[test]
fn a_command_gets_the_directories() {
    let base = base();
    let home = TestHome::below(&base).unwrap();
    let mut shell = Command::new("sh");
    let script = "for v in TMPDIR XDG_CONFIG_HOME XDG_RUNTIME_DIR PENFOLD_TEST_HOME_BASE; do eval \"[ -d \\\"\\$$v\\\" ] && echo \\$$v\"; done";
    let output = home.configure(shell.args(["-c", script])).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 4, "{text}");
    assert!(text.lines().all(|line| Path::new(line).starts_with(home.path())), "{text}");
    assert_eq!(HOME_BASE, "PENFOLD_TEST_HOME_BASE");
    drop(home);
    fs::remove_dir(&base).unwrap();
}
