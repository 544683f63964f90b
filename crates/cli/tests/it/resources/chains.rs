//! Wrapper chains with the real tools: whatever ends the sandbox, the chain and all resources are gone.
//!
//! A chain enters the network namespace of its sandbox and ends in `$SLEEP`. Wrappers make sessions, process groups, mount and
//! pid namespaces, other users and empty environments on the way.

use std::os::unix::fs::MetadataExt as _;

use penfold_harness::Trial;
use penfold_testkit::proc;

use super::endings::Ending;
use super::{Removed, assert_all_there, assert_none_there, can_make, flags};
use crate::support::{Level, Process, Sandbox, TestEnv, descendants, has_program, wait_until};

/// A leader's script, and what its tree must look like before it is ended.
struct Chain {
    name: &'static str,
    /// A program that may be missing.
    needs: &'static [&'static str],
    /// The script of `sh -c`. Without `exec`, a wrapper stays above the next one.
    script: &'static str,
    /// How often `$SLEEP` runs.
    sleeps: usize,
    /// Names of other processes that must run.
    wrappers: &'static [&'static str],
}

const CHAINS: [Chain; 12] = [
    Chain {
        name: "unshare_exec",
        needs: &["unshare", "-m", "true"],
        script: r#"exec unshare -m -- bash -c 'mount -t tmpfs none ../inner && exec ip netns exec "$PENFOLD_NETNS" $SLEEP'"#,
        sleeps: 1,
        wrappers: &[],
    },
    Chain {
        name: "unshare",
        needs: &["unshare", "-m", "true"],
        script: r#"exec unshare -m -- bash -c 'mount -t tmpfs none ../inner && ip netns exec "$PENFOLD_NETNS" $SLEEP; exit'"#,
        sleeps: 1,
        wrappers: &["bash"],
    },
    Chain {
        name: "mount_of_the_host",
        needs: &["unshare", "-m", "true"],
        script: r#"mount -t tmpfs none ../outer
            unshare -m -- bash -c 'mount -t tmpfs none ../outer; ip netns exec "$PENFOLD_NETNS" $SLEEP; exit'; exit"#,
        sleeps: 1,
        wrappers: &["sh", "bash"],
    },
    Chain {
        name: "sudo",
        needs: &["sudo", "-n", "true"],
        script: r#"sudo -n -u root ip netns exec "$PENFOLD_NETNS" \
            sudo -n -u nobody env "PENFOLD_TEST_ENV=$PENFOLD_TEST_ENV" $SLEEP; exit"#,
        sleeps: 1,
        wrappers: &["sh", "sudo"],
    },
    Chain {
        name: "sudo_on_a_terminal",
        needs: &["sudo", "-n", "true"],
        // On a terminal, sudo makes another one, and a session of its own.
        script: r#"exec script -qec 'sudo -n -u root ip netns exec "$PENFOLD_NETNS" \
            sudo -n -u nobody env "PENFOLD_TEST_ENV=$PENFOLD_TEST_ENV" $SLEEP; exit' /dev/null"#,
        sleeps: 1,
        wrappers: &["script", "sudo"],
    },
    Chain {
        name: "bwrap_in_bwrap",
        needs: &["bwrap", "--bind", "/", "/", "true"],
        script: r#"exec ip netns exec "$PENFOLD_NETNS" bwrap --bind / / --dev /dev --proc /proc --unshare-pid --cap-add ALL \
            bwrap --bind / / --dev /dev --proc /proc --unshare-pid sh -c '$SLEEP & setsid $SLEEP & wait'"#,
        sleeps: 2,
        wrappers: &["bwrap", "sh"],
    },
    Chain {
        name: "bwrap_in_bwrap_that_die_with_their_parents",
        needs: &["bwrap", "--bind", "/", "/", "true"],
        script: r#"ip netns exec "$PENFOLD_NETNS" \
            bwrap --die-with-parent --bind / / --dev /dev --proc /proc --unshare-pid --cap-add ALL \
            bwrap --die-with-parent --bind / / --dev /dev --proc /proc --unshare-pid sh -c '$SLEEP & setsid $SLEEP & wait'; exit"#,
        sleeps: 2,
        wrappers: &["bwrap", "sh"],
    },
    Chain {
        name: "nsenter",
        needs: &["nsenter", "-V"],
        script: r#"exec nsenter --net="/run/netns/$PENFOLD_NETNS" --pid=/proc/self/ns/pid $SLEEP"#,
        sleeps: 1,
        wrappers: &["nsenter"],
    },
    Chain {
        name: "setpriv",
        needs: &["setpriv", "--version"],
        script: r#"ip netns exec "$PENFOLD_NETNS" setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs $SLEEP; exit"#,
        sleeps: 1,
        wrappers: &["sh"],
    },
    Chain {
        name: "script",
        needs: &["script", "--version"],
        script: r#"exec script -qec 'ip netns exec "$PENFOLD_NETNS" $SLEEP; exit' /dev/null"#,
        sleeps: 1,
        wrappers: &["script", "sh"],
    },
    Chain {
        name: "shell_that_ignores_term",
        needs: &["sh", "-c", "exit"],
        script: r#"trap '' TERM; ip netns exec "$PENFOLD_NETNS" sh -c 'setsid $SLEEP & $SLEEP; exit'; while :; do $SLEEP; done"#,
        sleeps: 2,
        wrappers: &["sh"],
    },
    Chain {
        name: "wrapper_that_dies_before_its_grandchild",
        needs: &["bash", "-c", "exit"],
        script: r#"exec bash -c '(trap "" TERM; exec ip netns exec "$PENFOLD_NETNS" $SLEEP) & wait'"#,
        sleeps: 1,
        wrappers: &["bash"],
    },
];

/// Each ending with a leaf; one ending at each other level, since those find the members in other ways.
const ENDINGS: [(Level, Ending); 7] = [
    (Level::Cgroup, Ending::Stop),
    (Level::Cgroup, Ending::Kill),
    (Level::Cgroup, Ending::Rm),
    (Level::Cgroup, Ending::SupervisorDies),
    (Level::Cgroup, Ending::BothDie),
    (Level::Subreaper, Ending::Stop),
    (Level::Pidns, Ending::BothDie),
];

/// A test for each chain.
pub fn generated() -> Vec<Trial> {
    // spec: 18.1, 18.4
    let trial = |chain: &'static Chain| {
        Trial::test(format!("resources::chains::{}", chain.name), move || {
            if can_make() && has_program(chain.needs) {
                let env = TestEnv::new();
                let levels = env.levels();
                for (level, ending) in ENDINGS.into_iter().filter(|(level, _)| levels.contains(level)) {
                    println!("{level:?} {ending:?}");
                    ends(&env, chain, level, ending);
                }
                env.assert_nothing_left();
            }
            Ok(())
        })
    };
    CHAINS.iter().map(trial).collect()
}

/// Starts a chain, sees all of it, ends it, and looks for what is left.
fn ends(env: &TestEnv, chain: &Chain, level: Level, ending: Ending) {
    for point in ["inner", "outer"] {
        std::fs::create_dir_all(env.path("work").join(point)).unwrap();
    }
    let sleep = format!("sleep 1000.{}", std::process::id());
    let mut words = flags(env);
    words.extend(["--netns-outside", "--grace", "100ms", "--contain", level.word()].map(str::to_owned));
    words.push(format!("--own=mount={}", env.path("work/outer").display()));
    words.extend(["--", "env"].map(str::to_owned));
    words.extend([format!("SLEEP={sleep}"), "SHELL=/bin/sh".to_owned()]);
    words.extend(["sh", "-c", chain.script].map(str::to_owned));
    let sandbox = env.detach(&words);
    let _removed = Removed(env, &sandbox);
    let mut members = Vec::new();
    wait_until("the chain stands", || {
        members = members_of(&sandbox);
        let sleeps = members.iter().filter(|one| one.command_line().trim_end() == sleep).count();
        let names: Vec<String> = members.iter().map(name).collect();
        let expected = chain.wrappers.iter().all(|wrapper| names.iter().any(|name| name == wrapper));
        sleeps >= chain.sleeps && expected
    });
    assert_all_there(env, &sandbox.id);
    let namespace = std::fs::metadata(format!("/run/netns/penfold-{}", sandbox.id)).unwrap().ino();
    let entered = |one: &&Process| {
        std::fs::metadata(format!("/proc/{}/ns/net", one.pid())).is_ok_and(|file| file.ino() == namespace)
    };
    assert!(members.iter().filter(entered).count() >= chain.sleeps, "the chain is not in the namespace");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounted = |point| mounts.contains(env.path("work").join(point).to_str().unwrap());
    // At level pidns, the whole sandbox has a mount namespace of its own.
    assert_eq!(mounted("outer"), chain.name == "mount_of_the_host" && level != Level::Pidns);
    assert!(!mounted("inner"), "a mount of the chain is in the namespace of the host");
    ending.apply(env, &sandbox);
    sandbox.assert_gone(&members);
    assert_none_there(env, &sandbox.id);
}

/// All processes of a sandbox but penfold's, whatever their environment says.
fn members_of(sandbox: &Sandbox) -> Vec<Process> {
    let below = descendants(proc::this().unwrap().id.pid);
    let mut found: Vec<Process> = below.into_iter().filter_map(Process::find).collect();
    found.retain(|one| !one.has_ended() && !sandbox.supervisors.iter().any(|other| other.id() == one.id()));
    found
}

fn name(process: &Process) -> String {
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).unwrap_or_default();
    name.trim_end().to_owned()
}
