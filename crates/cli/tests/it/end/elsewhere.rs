//! Sandboxes whose record is in another mount namespace, as those of a service with `PrivateTmp=` or of a container.

use std::process::Command;

use penfold_testkit::proc;
use serde_json::Value;

use super::leaks::{doctor, leaks_of};
use super::standing::await_count;
use crate::support::jail::jailed;
use crate::support::{
    Process, Running, TestEnv, USER, Who, has_program, is_our_name, kill_at_once, wait_until,
};

/// `penfold` with these words, in a mount namespace with an empty state root at the same path.
fn inside(env: &TestEnv, words: &[&str]) -> Command {
    let script = r#"mount -t tmpfs -o mode=700,uid="$1" none "$0" && shift && exec "$@""#;
    let user = if env.is_ordinary() { USER } else { 0 };
    let penfold = env.penfold(words);
    let mut command = env.command("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script]).arg(env.root());
    command.arg(user.to_string()).arg(penfold.get_program()).args(penfold.get_args());
    if env.is_ordinary() {
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
    }
    command
}

/// The view of a sandbox that `ps` prints.
#[track_caller]
fn shown(env: &TestEnv, id: &str) -> Option<Value> {
    let listed = env.call(["ps", "--json"]).with_code(0).json();
    listed.as_array().unwrap().iter().find(|one| one["id"] == id).cloned()
}

fn supervisors(env: &TestEnv) -> Vec<Process> {
    let mut found = env.processes();
    found.retain(|process| proc::stat(process.pid()).is_some_and(|stat| is_our_name(&stat.name)));
    found.sort_by_key(|process| process.id().start);
    found
}

/// spec: 5.16
#[test]
fn sandbox_with_a_supervisor_in_another_mount_namespace_runs_elsewhere() {
    jailed(|| {
        for (who, contain) in [
            (Who::Root, "cgroup"),
            (Who::Root, "subreaper"),
            (Who::Delegated, "cgroup"),
            (Who::Delegated, "subreaper"),
        ] {
            let Some(env) = TestEnv::of(who) else { return };
            runs_elsewhere(&env, contain);
        }
    });
}

fn runs_elsewhere(env: &TestEnv, contain: &str) {
    let script = "cd /; setsid sleep 3611 & exec sleep 3611";
    let flags = ["run", "-d", "--on-supervisor-exit", "keep", "--contain", contain];
    let started = [&flags, ["--", "sh", "-c", script].as_slice()].concat();
    let id = Running::start(&mut inside(env, &started)).finish().with_code(0).out().trim().to_owned();
    await_count(env, "3611", 2);
    let members = env.running("sleep 3611");
    let supervisors = supervisors(env);
    assert_eq!(supervisors.len(), 2, "{contain}");
    assert!(
        !env.root().join("sandboxes").join(&id).try_exists().unwrap_or(false),
        "no record is visible here"
    );

    let one = shown(env, &id).unwrap();
    assert_eq!((&one["status"], &one["elsewhere"]), (&"running".into(), &true.into()), "{contain}: {one}");
    assert_eq!(one["claimed"], false, "{one}");
    let table = env.call(["ps"]).with_code(0).out();
    let line = table.lines().find(|line| line.starts_with(&id)).unwrap();
    assert!(line.contains("running (elsewhere)"), "{table}");
    let status = env.call(["status", &id]).with_code(0).out();
    assert!(status.contains("another mount namespace") && !status.contains("penfold kill"), "{status}");
    let found = doctor(env);
    assert!(leaks_of(&found, &id).is_empty(), "{contain}: {found}");
    let text = env.call(["doctor"]).out();
    assert!(!text.contains(&id), "{text}");
    for words in [&["gc", "-f", "--older-than", "0"][..], &["kill", "-f", "--all"]] {
        env.call(words).with_code(0);
    }
    assert!(supervisors.iter().chain(&members).all(|process| !process.has_ended()), "{contain}");

    kill_at_once(&supervisors.iter().collect::<Vec<_>>());
    assert!(members.iter().all(|member| !member.has_ended()), "{contain}");
    let one = shown(env, &id).unwrap();
    assert_eq!((&one["status"], &one["elsewhere"]), (&"orphaned".into(), &false.into()), "{contain}: {one}");
    assert!(!leaks_of(&doctor(env), &id).is_empty(), "{contain}");
    // Without a leaf, nothing tells that the members belong to this state root.
    let named = (contain == "subreaper").then_some(id.as_str());
    env.call(["gc", "-f", "--older-than", "0"].into_iter().chain(named)).with_code(0);
    assert!(members.iter().all(Process::has_ended), "{contain}");
    assert_eq!(shown(env, &id), None, "{contain}");
}

/// An overlay, or a backup, shows the record with a free lock.
/// spec: 5.16
#[test]
fn copy_of_a_record_whose_supervisor_is_elsewhere_ends_nothing() {
    jailed(|| {
        let Some(env) = TestEnv::of(Who::Root) else { return };
        let words = ["run", "-d", "--name", "web", "--contain", "cgroup", "--", "sleep", "3631"];
        let id = Running::start(&mut inside(&env, &words)).finish().with_code(0).out().trim().to_owned();
        await_count(&env, "3631", 1);
        let (members, supervisors) = (env.running("sleep 3631"), supervisors(&env));
        assert_eq!(supervisors.len(), 2);
        let root = env.root();
        let from = format!("/proc/{}/root{}/.", supervisors[0].pid(), root.display());
        env.script(&format!("cp -a {from} {}", root.display())).with_code(0);
        assert!(root.join("sandboxes").join(&id).join("intent.json").try_exists().unwrap());

        let one = shown(&env, &id).unwrap();
        assert_eq!((&one["status"], &one["elsewhere"]), (&"running".into(), &true.into()), "{one}");
        let found = doctor(&env);
        assert!(leaks_of(&found, &id).is_empty(), "{found}");
        // `run` recovers orphans, too.
        for words in [&["run", "true"][..], &["gc", "-f", "--older-than", "0"], &["kill", "-f", "--all"]] {
            env.call(words).with_code(0);
        }
        assert!(supervisors.iter().chain(&members).all(|process| !process.has_ended()));
        kill_at_once(&supervisors.iter().collect::<Vec<_>>());
        assert!(members.iter().all(|member| !member.has_ended()));
        assert_eq!(shown(&env, &id).unwrap()["status"], "orphaned");
        env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
        assert!(members.iter().all(Process::has_ended));
    });
}

/// The member has the name and the lock of a supervisor, another mount namespace, and neither leaf nor marker.
/// spec: 5.16
#[test]
fn member_that_plays_a_supervisor_elsewhere_hides_no_leak() {
    jailed(|| {
        if !has_program(&["flock", "--version"]) {
            return;
        }
        let env = TestEnv::new();
        let script = r#"cd "$TMPDIR"; mkdir -p sandboxes/$PENFOLD_SANDBOX; cp "$(command -v sleep)" pf-supervisor
            setsid sleep 3621 &
            (for m in /sys/fs/cgroup/unified /sys/fs/cgroup; do [ -e $m/cgroup.procs ] && echo 0 > $m/cgroup.procs && break; done
             exec 9< sandboxes/$PENFOLD_SANDBOX; flock 9
             exec env -i "$(command -v unshare)" --mount ./pf-supervisor 3622) &
            exec sleep 3621"#;
        let sandbox =
            env.detach(["--on-supervisor-exit", "keep", "--contain", "cgroup", "--", "bash", "-c", script]);
        await_count(&env, "3621", 2);
        let impostors = || env.find("./pf-supervisor 3622");
        wait_until("the member plays", || impostors().len() == 1);
        let (members, impostor) = (env.running("sleep 3621"), impostors().remove(0));
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", impostor.pid())).unwrap();
        assert!(!groups.contains(&sandbox.id), "it has left the leaf: {groups}");
        assert_eq!(proc::stat(impostor.pid()).unwrap().name, "pf-supervisor");
        sandbox.kill_supervisors();
        assert!(!impostor.has_ended() && members.iter().all(|member| !member.has_ended()));
        let one = shown(&env, &sandbox.id).unwrap();
        assert_eq!((&one["status"], &one["elsewhere"]), (&"orphaned".into(), &false.into()), "{one}");
        env.call(["gc", "-f", "--older-than", "0"]).with_code(0);
        assert!(members.iter().all(Process::has_ended));
    });
}
