//! The view of a sandbox whose files are damaged, forged or gone: a living sandbox never shows as ended.

use penfold_testkit::skip;
use std::os::unix::fs::{chown, symlink};

use crate::view_support::{Alive, TestEnv, listen, remove, report, scribble, state};
use penfold_control::view::{self, SandboxView};
use penfold_state::state::{CommandExit, Status};
use penfold_state::time::now_ms;
use penfold_state::{ExitStatus, record::SCHEMA};
use penfold_teardown::Cause;

/// A kind of damage to a file: its name, and the action.
type Damage = (&'static str, fn(&std::path::Path));

const DAMAGE: &[Damage] = &[
    ("missing", |file| {
        let _ = std::fs::remove_file(file);
    }),
    ("empty", |file| scribble(file, b"")),
    ("truncated", |file| scribble(file, br#"{"schema":1,"status":"runn"#)),
    ("garbage", |file| scribble(file, b"\x00\xff\xfe{{{")),
    ("null", |file| scribble(file, b"null")),
    ("of a newer version", |file| scribble(file, br#"{"schema":2,"status":"exited","new":[]}"#)),
    ("a symlink", |file| {
        let _ = std::fs::remove_file(file);
        symlink("/etc/passwd", file).unwrap();
    }),
    ("a fifo", |file| {
        let _ = std::fs::remove_file(file);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, file, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    }),
    ("a directory", |file| {
        let _ = std::fs::remove_file(file);
        std::fs::create_dir(file).unwrap();
    }),
    ("another user's", |file| {
        // Only root can give a file away; other users write one more malformed file.
        if chown(file, Some(65534), None).is_err() {
            scribble(file, br#"{"schema":1}"#);
        }
    }),
];

fn is_said(view: &SandboxView, file: &str) -> bool {
    view.damage.iter().any(|damage| damage.starts_with(file))
}

/// spec: 5.4
#[test]
fn a_sandbox_that_is_looked_after_runs_whatever_became_of_its_state() {
    for (what, damage) in DAMAGE {
        let env = TestEnv::new();
        let intent = env.intent(Some("web"));
        let id = intent.id.short();
        let record = env.reserve(&intent);
        record.files().write_state(&state(Status::Running)).unwrap();
        assert_eq!(env.see(&id).unwrap().damage, Vec::<String>::new());
        damage(&env.record(&id).join("state.json"));
        let seen = env.listed(&id, false).unwrap_or_else(|| panic!("{what}: not listed"));
        assert_eq!(seen.status, Status::Running, "{what}");
        assert!(is_said(&seen, "state.json"), "{what}: {:?}", seen.damage);
        assert_eq!(seen.name.as_deref(), Some("web"), "{what}");
    }
}

/// spec: 5.4
#[test]
fn a_sandbox_that_is_looked_after_runs_whatever_became_of_its_intent() {
    for (what, damage) in DAMAGE {
        let env = TestEnv::new();
        let intent = env.intent(None);
        let id = intent.id.short();
        let record = env.reserve(&intent);
        record.files().write_state(&state(Status::Stopping)).unwrap();
        damage(&env.record(&id).join("intent.json"));
        let seen = env.listed(&id, false).unwrap_or_else(|| panic!("{what}: not listed"));
        assert_eq!(seen.status, Status::Stopping, "{what}");
        assert!(is_said(&seen, "intent.json"), "{what}: {:?}", seen.damage);
    }
}

/// Forges the worst claim about a living sandbox: that it ended, and that nothing is left.
fn forge_end(env: &TestEnv, id: &str) {
    env.put(id, "exit.json", r#"{"schema":1,"exit":{"code":0},"cause":"exit","at_ms":1}"#);
    env.put(id, "report.json", &report(id, r#"{"code":0}"#, "exit"));
}

/// spec: 5.4
#[test]
fn what_has_a_populated_leaf_never_counts_as_ended() {
    let files = ["intent.json", "state.json", "exit.json", "report.json"];
    for (what, damage) in DAMAGE {
        for (number, file) in files.iter().enumerate() {
            let env = TestEnv::new();
            let mut intent = env.intent(Some("web"));
            let Some(mut alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
            let id = intent.id.short();
            let record = env.reserve(&intent);
            record.files().write_state(&state(Status::Running)).unwrap();
            env.close(record);
            forge_end(&env, &id);
            damage(&env.record(&id).join(file));
            // Also damage a second file, because faults come in pairs.
            damage(&env.record(&id).join(files[(number + 1) % files.len()]));
            assert!(alive.is_alive());
            for seen in [env.see(&id), env.listed(&id, false), env.listed(&id, true)] {
                let seen = seen.unwrap_or_else(|| panic!("{file} {what}: not seen"));
                assert_eq!(seen.status, Status::Orphaned, "{file} {what}");
                let pid = alive.pid().to_string();
                assert!(
                    seen.evidence.iter().any(|it| it.contains(&pid)),
                    "{file} {what}: {:?}",
                    seen.evidence
                );
                assert_eq!(seen.name.as_deref(), Some("web"), "{file} {what}: the leaf says it");
                assert_eq!((seen.leader, seen.supervisors.len()), (None, 0), "{file} {what}");
            }
        }
    }
}

/// spec: 5.4
#[test]
fn a_record_that_is_gone_or_a_link_leaves_an_orphan() {
    let env = TestEnv::new();
    let mut intent = env.intent(Some("web"));
    let Some(_alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    let id = intent.id.short();
    env.abandon(&intent);
    let status = |all| env.listed(&id, all).map(|seen| (seen.status, seen.name, seen.command));
    let orphan = Some((Status::Orphaned, Some("web".to_owned()), intent.command.clone()));
    assert_eq!(status(false), orphan);
    remove(&env.record(&id));
    assert_eq!(status(false), orphan, "without a record");
    symlink("/etc", env.record(&id)).unwrap();
    assert_eq!(status(false), orphan, "a link in the place of the record");
    std::fs::remove_file(env.record(&id)).unwrap();
    std::fs::remove_dir(env.root().join("sandboxes")).unwrap();
    std::fs::remove_dir(env.root()).unwrap();
    assert_eq!(status(false), orphan, "without a root");
    drop(env.registry());
    assert_eq!(status(true), orphan, "with a new root");
}

#[test]
fn a_leaf_without_a_record_that_has_become_empty_is_no_orphan() {
    let env = TestEnv::new();
    let mut intent = env.intent(None);
    let Some(mut alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    let id = intent.id.short();
    assert_eq!(env.listed(&id, false).unwrap().status, Status::Orphaned);
    alive.end();
    assert_eq!(env.listed(&id, false), None);
    assert_eq!(env.listed(&id, true).unwrap().status, Status::Lost);
}

#[test]
fn a_leaf_that_may_be_of_another_root_is_listed_only_while_something_lives_in_it() {
    let env = TestEnv::new();
    let mut intent = env.intent(None);
    let Some(mut alive) = Alive::in_leaf(&mut intent) else { return skip("no cgroup2 to write to") };
    let id = intent.id.short();
    rustix::fs::removexattr(intent.leaf.as_ref().unwrap(), "user.penfold").unwrap();
    let seen = env.listed(&id, false).unwrap();
    assert_eq!((seen.status, seen.claimed), (Status::Orphaned, false));
    alive.end();
    assert_eq!(env.listed(&id, true), None);
    assert_eq!(env.see(&id).unwrap().status, Status::Lost, "for who names it");
}

/// spec: 5.4
#[test]
fn a_marker_is_a_fingerprint_and_a_socket_only_where_no_lock_tells() {
    let env = TestEnv::new();
    let intent = env.intent(None);
    let id = intent.id.short();
    env.end(&intent, r#"{"code":0}"#, "exit");
    assert_eq!(env.see(&id).unwrap().status, Status::Exited);
    let mut alive = Alive::marked(&id);
    let seen = env.see(&id).unwrap();
    assert_eq!(seen.status, Status::Orphaned);
    assert!(is_said(&seen, "report.json"), "{:?}", seen.damage);
    alive.end();
    assert_eq!(env.see(&id).unwrap().status, Status::Exited);
    let _socket = listen(&env.record(&id));
    assert_eq!(env.see(&id).unwrap().status, Status::Exited, "anybody can listen there");
}

#[test]
fn what_has_ended_is_not_running_while_somebody_puts_it_away() {
    let env = TestEnv::new();
    let mut intent = env.intent(None);
    let id = intent.id.short();
    intent.leaf = Some(env.record(&id).join(format!("penfold-{id}")));
    env.end(&intent, r#"{"code":0}"#, "exit");
    let record = std::fs::File::open(env.record(&id)).unwrap();
    record.lock().unwrap();
    assert_eq!(env.see(&id).unwrap().status, Status::Exited);
}

/// spec: 5.5
#[test]
fn nothing_of_a_sandbox_that_nobody_saw_end_makes_it_lost() {
    let env = TestEnv::new();
    let mut intent = env.intent(None);
    intent.boot = "of another boot".to_owned();
    let id = intent.id.short();
    let record = env.reserve(&intent);
    record.files().write_state(&state(Status::Running)).unwrap();
    env.close(record);
    assert_eq!(env.listed(&id, false), None);
    let seen = env.listed(&id, true).unwrap();
    assert_eq!((seen.status, seen.exit, seen.cause), (Status::Lost, None, None));
    assert!(!seen.evidence.is_empty());
}

/// spec: 5.5
#[test]
fn the_end_is_told_as_it_was_written_once() {
    for (exit, cause, status, code) in [
        (r#"{"code":3}"#, "exit", Status::Exited, Some(ExitStatus::Code(3))),
        (r#"{"code":143}"#, "exit", Status::Exited, Some(ExitStatus::Code(143))),
        (r#"{"signal":15}"#, "stop", Status::Killed, Some(ExitStatus::Signal(15))),
        ("null", "start-failed", Status::Failed, None),
        ("null", "lost", Status::Lost, None),
    ] {
        let env = TestEnv::new();
        let intent = env.intent(None);
        let id = intent.id.short();
        env.end(&intent, exit, cause);
        assert_eq!(env.listed(&id, false), None, "{cause}");
        let seen = env.listed(&id, true).unwrap();
        assert_eq!((seen.status, seen.exit), (status, code), "{cause}");
        assert!(seen.ended_at_ms.is_some() && seen.damage.is_empty(), "{cause}");
    }
}

/// spec: 5.5
#[test]
fn a_damaged_end_is_read_from_the_report_and_never_invented() {
    for (what, damage) in DAMAGE {
        let env = TestEnv::new();
        let intent = env.intent(None);
        let id = intent.id.short();
        env.end(&intent, r#"{"signal":9}"#, "kill");
        damage(&env.record(&id).join("exit.json"));
        let seen = env.see(&id).unwrap();
        assert_eq!((seen.status, seen.exit), (Status::Killed, Some(ExitStatus::Signal(9))), "{what}");
        damage(&env.record(&id).join("report.json"));
        let seen = env.see(&id).unwrap();
        assert_eq!((seen.status, seen.exit, seen.cause), (Status::Lost, None, None), "{what}");
    }
}

/// spec: 5.4
#[test]
fn a_state_cannot_say_that_what_is_looked_after_has_ended() {
    let env = TestEnv::new();
    let intent = env.intent(None);
    let id = intent.id.short();
    let record = env.reserve(&intent);
    for status in [Status::Exited, Status::Failed, Status::Killed, Status::Lost, Status::Orphaned] {
        record.files().write_state(&state(status)).unwrap();
        forge_end(&env, &id);
        let seen = env.listed(&id, false).unwrap();
        assert_eq!(seen.status, Status::Running, "{status}");
        assert!(is_said(&seen, "state.json"), "{status}");
    }
    record.files().write_state(&state(Status::Unkillable)).unwrap();
    assert_eq!(env.see(&id).unwrap().status, Status::Unkillable);
    let exited =
        CommandExit { schema: SCHEMA, exit: Some(ExitStatus::Code(7)), cause: Cause::Kill, at_ms: 1 };
    assert!(!record.files().write_exited(&exited).unwrap(), "it was written before");
}

/// spec: 5.4
#[test]
fn an_intent_cannot_speak_for_another_sandbox() {
    let env = TestEnv::new();
    let (mine, other) = (env.intent(Some("mine")), env.intent(Some("other")));
    let id = mine.id.short();
    let _record = env.reserve(&mine);
    env.put(&id, "intent.json", &serde_json::to_string(&other).unwrap());
    let seen = env.listed(&id, false).unwrap();
    assert_eq!((seen.id.as_str(), seen.name.as_deref()), (id.as_str(), None));
    assert!(is_said(&seen, "intent.json"), "{:?}", seen.damage);
    assert_eq!(env.listed(&other.id.short(), true), None);
}

/// spec: 5.4
#[test]
fn a_clock_that_was_set_back_changes_no_word() {
    let env = TestEnv::new();
    let future = now_ms() + 1_000_000_000;
    let mut intent = env.intent(None);
    intent.made_at_ms = future;
    let id = intent.id.short();
    let record = env.reserve(&intent);
    let mut said = state(Status::Running);
    said.started_at_ms = future;
    record.files().write_state(&said).unwrap();
    let seen = env.listed(&id, false).unwrap();
    assert_eq!((seen.status, seen.started_at_ms), (Status::Running, Some(future)));
    std::fs::remove_file(env.record(&id).join("state.json")).unwrap();
    assert_eq!(env.listed(&id, false).unwrap().status, Status::Running);
}

#[test]
fn one_that_is_just_being_made_is_created() {
    let env = TestEnv::new();
    let mut intent = env.intent(None);
    intent.made_at_ms = now_ms();
    let id = intent.id.short();
    let _record = env.reserve(&intent);
    let seen = env.listed(&id, false).unwrap();
    assert_eq!((seen.status, seen.damage), (Status::Created, Vec::new()));
    std::fs::create_dir(env.record("0123456789ab")).unwrap();
    assert_eq!(env.listed("0123456789ab", true), None, "a bare directory is no sandbox yet");
}

#[test]
fn a_foreground_sandbox_runs_without_a_state() {
    let env = TestEnv::new();
    let mut intent = env.intent(None);
    intent.detached = None;
    let id = intent.id.short();
    let record = env.reserve(&intent);
    let seen = env.listed(&id, false).unwrap();
    assert_eq!((seen.status, seen.detached, seen.damage), (Status::Running, false, Vec::new()));
    env.close(record);
    assert_eq!(env.see(&id).unwrap().status, Status::Lost);
}

/// The record was found whole. While it is observed, it is removed by a process that holds its lock or died with it.
/// spec: 5.5
#[test]
fn a_record_that_is_put_away_meanwhile_is_no_sandbox() {
    for held in [false, true] {
        let env = TestEnv::new();
        let mut intent = env.intent(Some("web"));
        intent.leaf = Some(env.root().join("leaf"));
        let id = intent.id.short();
        env.end(&intent, r#"{"code":0}"#, "exit");
        env.put(&id, "state.json", &serde_json::to_string(&state(Status::Running)).unwrap());
        let resolver = env.resolver();
        let known = resolver.resolve(&id).unwrap();
        assert_eq!(view::observe_sandbox(&resolver, &known).unwrap().status, Status::Exited);
        let record = held.then(|| env.registry().take(&id).unwrap().unwrap());
        for file in ["intent.json", "state.json", "exit.json", "leaf", "report.json"] {
            std::fs::remove_file(env.record(&id).join(file)).unwrap();
        }
        assert_eq!(view::observe_sandbox(&resolver, &known), None, "held: {held}");
        drop(record);
    }
}

/// Processes that live on without the sandbox's record and leaf are not overlooked.
/// spec: 5.4
#[test]
fn a_record_that_vanishes_meanwhile_hides_nobody_with_its_marker() {
    let env = TestEnv::new();
    let intent = env.intent(Some("web"));
    let id = intent.id.short();
    env.abandon(&intent);
    let mut alive = Alive::marked(&id);
    let resolver = env.resolver();
    let known = resolver.resolve(&id).unwrap();
    remove(&env.record(&id));
    assert!(alive.is_alive());
    assert_eq!(view::observe_sandbox(&resolver, &known).map(|seen| seen.status), Some(Status::Orphaned));
    alive.end();
    assert_eq!(view::observe_sandbox(&env.resolver(), &known), None);
}
