//! Members that use cgroups against their keeper.

use std::fs;
use std::path::{Path, PathBuf};

use penfold_testkit::mounts;
use rustix::process::Pid;

use super::namespace::namespace;
use super::yard::{Never, Step, Trouble, Yard};

fn join(cgroup: &Path) -> Result<(), Trouble> {
    fs::write(cgroup.join("cgroup.procs"), "0").or_skip("cannot move to another cgroup")
}

fn make(parent: Option<PathBuf>, name: &str, what: &str) -> Result<PathBuf, Trouble> {
    let parent = parent.ok_or_else(|| Trouble::Skip(format!("there is no {what}")))?;
    let cgroup = parent.join(name);
    fs::create_dir(&cgroup).or_skip(&format!("cannot create `{}`", cgroup.display()))?;
    Ok(cgroup)
}

pub(super) fn moved(yard: &Yard) -> Never {
    // The top of the hierarchy where that is allowed, else beside the command's own cgroup.
    let beside = mounts::own_cgroup().and_then(|own| own.parent().map(Path::to_path_buf));
    let cgroup = make(mounts::cgroup2(), &yard.tag(), "cgroup2 mount")
        .or_else(|_| make(beside, &yard.tag(), "cgroup2 mount"))?;
    yard.daemon(|yard| {
        join(&cgroup)?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn nested(yard: &Yard) -> Never {
    let outer = make(mounts::own_cgroup(), &yard.tag(), "visible cgroup2 cgroup")?;
    let inner = make(Some(outer.clone()), &yard.tag(), "cgroup")?;
    for cgroup in [outer, inner] {
        yard.child(|yard| {
            join(&cgroup)?;
            yard.sleeper()
        })?;
    }
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn frozen_v2(yard: &Yard) -> Never {
    let cgroup = make(mounts::own_cgroup(), &yard.tag(), "visible cgroup2 cgroup")?;
    let pid = yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        join(&cgroup)?;
        yard.register()?;
        yard.mark("joined")?;
        yard.linger()
    })?;
    yard.until(|| yard.is_marked("joined")).step("the child does not join")?;
    fs::write(cgroup.join("cgroup.freeze"), "1").or_skip("cannot freeze a cgroup")?;
    let events = cgroup.join("cgroup.events");
    yard.until(|| fs::read_to_string(&events).is_ok_and(|text| text.contains("frozen 1")))
        .step("the cgroup does not freeze")?;
    yard.watch(pid, Some(cgroup))?;
    yard.stands(3)?;
    yard.lead()
}

fn freeze_v1(yard: &Yard, pid: Pid) -> Result<(), Trouble> {
    let cgroup = make(mounts::freezer(), &yard.tag(), "v1 freezer")?;
    let pid_text = pid.as_raw_nonzero().to_string();
    fs::write(cgroup.join("cgroup.procs"), pid_text).or_skip("cannot move a child to the freezer")?;
    let state = cgroup.join("freezer.state");
    fs::write(&state, "FROZEN").or_skip("cannot freeze")?;
    yard.until(|| fs::read_to_string(&state).is_ok_and(|text| text.trim() == "FROZEN"))
        .step("the freezer does not freeze")?;
    yard.watch(pid, Some(cgroup))
}

pub(super) fn frozen_v1(yard: &Yard) -> Never {
    let pid = yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        yard.sleeper()
    })?;
    yard.await_members(2)?;
    freeze_v1(yard, pid)?;
    yard.stands(3)?;
    yard.lead()
}

pub(super) fn frozen_v1_pidns(yard: &Yard) -> Never {
    let pid = namespace(yard, false)?;
    yard.await_members(3)?;
    freeze_v1(yard, pid)?;
    yard.stands(4)?;
    yard.lead()
}
