//! A resource that is held by others is named, keeps its record, and is gone once it is let go.

use std::fs::{self, File};
use std::path::PathBuf;

use rustix::mount::{MountFlags, UnmountFlags};

use super::{assert_none_there, can_make, flags};
use crate::observe::metrics;
use crate::support::{PATIENCE, Sandbox, TestEnv, wait_until};

/// A mount that is unmounted at the end.
struct Held(PathBuf);

impl Drop for Held {
    fn drop(&mut self) {
        rustix::mount::unmount(&self.0, UnmountFlags::empty()).unwrap();
    }
}

/// Ends a sandbox while something of it is held; then lets go, and collects.
#[track_caller]
fn is_named_and_collected<H>(
    words: &[String],
    hold: impl FnOnce(&TestEnv, &Sandbox) -> H,
    env: &TestEnv,
    (kind, named): (&str, &str),
) {
    let words = ["--patience", PATIENCE].into_iter().chain(words.iter().map(String::as_str));
    let sandbox = env.detach(words.chain(["--", "sleep", "1000"]));
    let guard = hold(env, &sandbox);
    let done = env.call(["kill", "--patience", PATIENCE, &sandbox.id]);
    assert!(done.err().contains("not gone") && done.err().contains(named), "no `{named}` in {}", done.err());
    assert_eq!(done.code(), Some(5));
    assert!(env.running("sleep 1000").is_empty());
    assert!(sandbox.record.try_exists().unwrap());
    wait_until("the failure is counted", || {
        let series = format!("penfold_releases_failed_total{{kind=\"{kind}\"}}");
        metrics::number(env, &series) != "0" && metrics::ended(env, "detached", "kill") == metrics::of(0, 1)
    });
    let listed = env.call(["doctor"]);
    assert!(listed.out().contains(&sandbox.id), "{}", listed.out());
    drop(guard);
    env.call(["gc", "-f"]).with_code(0);
    assert_none_there(env, &sandbox.id);
    env.call(["rm", "-f", &sandbox.id]);
    env.assert_nothing_left();
}

/// spec: 18.5
#[test]
fn a_busy_mount() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let files = env.path("work/files");
    fs::create_dir(&files).unwrap();
    let words = [format!("--mount=type=tmpfs,target={}", files.display())];
    let hold = |_: &TestEnv, _: &Sandbox| File::create(files.join("open")).unwrap();
    let me = std::process::id().to_string();
    is_named_and_collected(&words, hold, &env, ("mount", &me));
}

/// A network namespace that a descriptor holds is not gone, although its name is.
/// spec: 18.5
#[test]
fn a_namespace_that_a_descriptor_holds() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let hold =
        |_: &TestEnv, sandbox: &Sandbox| File::open(format!("/run/netns/penfold-{}", sandbox.id)).unwrap();
    let me = std::process::id().to_string();
    is_named_and_collected(&["--netns".to_owned()], hold, &env, ("netns", &me));
}

/// spec: 18.5
#[test]
fn a_namespace_that_a_mount_holds() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let hold = |env: &TestEnv, sandbox: &Sandbox| {
        let place = env.path("held");
        File::create(&place).unwrap();
        let from = format!("/run/netns/penfold-{}", sandbox.id);
        rustix::mount::mount(from.as_str(), &place, "", MountFlags::BIND, None).unwrap();
        Held(place)
    };
    is_named_and_collected(&["--netns".to_owned()], hold, &env, ("netns", "held"));
}

/// A directory in the place of another is not touched.
/// spec: 18.5
#[test]
fn a_link_in_the_place_of_the_workspace_is_not_followed() {
    let env = TestEnv::new();
    let (space, precious) = (env.path("work/space"), env.path("work/precious"));
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    let script = "cd ..; rm -rf space; ln -s precious space; touch space/through";
    let done = env.run(["--workspace", space.to_str().unwrap(), "sh", "-c", script]);
    assert!(
        precious.join("file").try_exists().unwrap() && precious.join("through").try_exists().unwrap(),
        "{}",
        done.err()
    );
    let _ = fs::remove_file(&space);
    env.call(["gc", "-f"]);
    assert!(precious.join("file").try_exists().unwrap());
    env.assert_nothing_left();
}

/// `unshare -m` copies the mounts of all sandboxes. That must not hold them: their copies are unmounted there.
/// spec: 18.5
#[test]
fn copies_in_the_mount_namespaces_of_others_go_too() {
    if !can_make() {
        return;
    }
    let env = TestEnv::new();
    let words = flags(&env);
    let words = words.iter().map(String::as_str).chain(["--", "sleep", "1000"]);
    let sandbox = env.detach(words);
    let other = env.detach(["--", "unshare", "-m", "--propagation", "private", "sleep", "1001"]);
    wait_until("it has copied them", || env.is_running("sleep 1001"));
    let copied = env.running("sleep 1001").remove(0);
    let table = || fs::read_to_string(format!("/proc/{}/mountinfo", copied.pid())).unwrap();
    assert!(table().contains(&format!("/run/netns/penfold-{}", sandbox.id)), "{}", table());
    assert!(table().contains("work/files") && table().contains("work/layers"), "{}", table());
    sandbox.call(&env, &["kill", "ID"]).with_code(0);
    assert_none_there(&env, &sandbox.id);
    assert!(!table().contains(&sandbox.id) && !copied.has_ended(), "{}", table());
    for sandbox in [&sandbox, &other] {
        sandbox.call(&env, &["rm", "-f", "ID"]).with_code(0);
    }
    env.assert_nothing_left();
}
