//! Members that use cgroups against their supervisor.

use std::fs;
use std::path::{Path, PathBuf};

use crate::mounts;
use rustix::process::Pid;

use super::env::{Never, Step, TestEnv, Trouble};
use super::namespace::namespace;

fn join(cgroup: &Path) -> Result<(), Trouble> {
    fs::write(cgroup.join("cgroup.procs"), "0").or_skip("cannot move to another cgroup")
}

fn make(parent: Option<PathBuf>, name: &str, what: &str) -> Result<PathBuf, Trouble> {
    let parent = parent.ok_or_else(|| Trouble::Skip(format!("there is no {what}")))?;
    let cgroup = parent.join(name);
    fs::create_dir(&cgroup).or_skip(&format!("cannot create `{}`", cgroup.display()))?;
    Ok(cgroup)
}

pub(super) fn moved(env: &TestEnv) -> Never {
    // At the top of the hierarchy if permitted, or else beside the command's own cgroup.
    let beside = mounts::own_cgroup().and_then(|own| own.parent().map(Path::to_path_buf));
    let cgroup = make(mounts::cgroup2(), &env.tag(), "cgroup2 mount")
        .or_else(|_| make(beside, &env.tag(), "cgroup2 mount"))?;
    env.daemon(|env| {
        join(&cgroup)?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn nested(env: &TestEnv) -> Never {
    let outer = make(mounts::own_cgroup(), &env.tag(), "visible cgroup2 cgroup")?;
    let inner = make(Some(outer.clone()), &env.tag(), "cgroup")?;
    for cgroup in [outer, inner] {
        env.child(|env| {
            join(&cgroup)?;
            env.sleeper()
        })?;
    }
    env.stands(3)?;
    env.lead()
}

pub(super) fn frozen_v2(env: &TestEnv) -> Never {
    let cgroup = make(mounts::own_cgroup(), &env.tag(), "visible cgroup2 cgroup")?;
    let pid = env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        join(&cgroup)?;
        env.register()?;
        env.mark("joined")?;
        env.linger()
    })?;
    env.until(|| env.is_marked("joined")).step("the child does not join")?;
    fs::write(cgroup.join("cgroup.freeze"), "1").or_skip("cannot freeze a cgroup")?;
    let events = cgroup.join("cgroup.events");
    env.until(|| fs::read_to_string(&events).is_ok_and(|text| text.contains("frozen 1")))
        .step("the cgroup does not freeze")?;
    env.watch(pid, Some(cgroup))?;
    env.stands(3)?;
    env.lead()
}

fn freeze_v1(env: &TestEnv, pid: Pid) -> Result<(), Trouble> {
    let cgroup = make(mounts::freezer(), &env.tag(), "v1 freezer")?;
    let pid_text = pid.as_raw_nonzero().to_string();
    fs::write(cgroup.join("cgroup.procs"), pid_text).or_skip("cannot move a child to the freezer")?;
    let state = cgroup.join("freezer.state");
    fs::write(&state, "FROZEN").or_skip("cannot freeze")?;
    env.until(|| fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN"))
        .step("the freezer does not freeze")?;
    env.watch(pid, Some(cgroup))
}

pub(super) fn frozen_v1(env: &TestEnv) -> Never {
    let pid = env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        env.sleeper()
    })?;
    env.await_members(2)?;
    freeze_v1(env, pid)?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn frozen_v1_pidns(env: &TestEnv) -> Never {
    let pid = namespace(env, false)?;
    env.await_members(3)?;
    freeze_v1(env, pid)?;
    env.stands(4)?;
    env.lead()
}
