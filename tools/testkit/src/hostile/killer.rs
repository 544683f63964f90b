//! Leaders that attack their ancestors on a request to exit.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::proc::{self, Handle};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::env::{Never, Step, TestEnv, Trouble};

fn beside_a_daemon(env: &TestEnv) -> Result<(), Trouble> {
    env.daemon(TestEnv::sleeper)?;
    env.child(TestEnv::sleeper)?;
    env.stands(3)?;
    env.wait_for_word();
    Ok(())
}

/// Returns the pid of the parent as this process and as /proc see it; they differ in a pid namespace.
fn parent_pids() -> Result<(Pid, i32), Trouble> {
    let parent = rustix::process::getppid()
        .ok_or_else(|| Trouble::Skip("the parent is in an outer pid namespace".to_owned()))?;
    Ok((parent, proc::this().step("cannot read /proc/self/stat")?.parent))
}

/// Kills the parent.
fn kill_parent() -> Result<(), Trouble> {
    let (parent, _) = parent_pids()?;
    let pidfd = rustix::process::pidfd_open(parent, PidfdFlags::empty()).step("cannot open the parent")?;
    if rustix::process::getppid() == Some(parent) {
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).step("cannot kill the parent")?;
    }
    Ok(())
}

fn parent_is_spared(env: &TestEnv) -> Result<bool, Trouble> {
    let (_, seen) = parent_pids()?;
    Ok(proc::stat(seen).is_none_or(|stat| env.is_spared(stat.id)))
}

/// Kills the parent unless the parent must be spared. After a kill this process lingers as a stray; otherwise it exits,
/// so that the tool ends in the usual way.
fn attack(env: &TestEnv) -> Never {
    let before = rustix::process::getppid();
    if !parent_is_spared(env)? {
        kill_parent()?;
    }
    let end = Instant::now() + Duration::from_millis(500);
    while rustix::process::getppid() == before {
        if Instant::now() >= end {
            std::process::exit(0);
        }
        sleep(Duration::from_millis(2));
    }
    env.linger()
}

pub(super) fn parent(env: &TestEnv) -> Never {
    beside_a_daemon(env)?;
    attack(env)
}

pub(super) fn grandparents(env: &TestEnv) -> Never {
    beside_a_daemon(env)?;
    let (parent, seen) = parent_pids()?;
    // If the two differ, this is a pid namespace, and the process that /proc names is out of reach.
    if parent.as_raw_nonzero().get() == seen
        && let Some(grandparent) = proc::stat(seen).and_then(|stat| proc::stat(stat.parent))
        && !env.is_spared(grandparent.id)
        && let Some(handle) = Handle::open(grandparent.id).step("cannot open the grandparent")?
    {
        drop(handle.signal(Signal::KILL));
    }
    attack(env)
}

pub(super) fn group(env: &TestEnv) -> Never {
    beside_a_daemon(env)?;
    if env.group_is_spared() {
        rustix::process::setpgid(None, None).step("cannot make a process group")?;
    }
    rustix::process::kill_current_process_group(Signal::KILL).step("cannot kill the group")?;
    env.linger()
}
