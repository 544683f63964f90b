//! The target of `reap`: the processes to end, and those that penfold never ends.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use penfold_cgroup::mountinfo::{self, MountEntry};
use penfold_cgroup::{Leaf, v1group};
use penfold_process::{Pid, ProcFs};
use penfold_teardown::{Search, Selector};
use rustix::io::Errno;

use crate::failure::{Failure, FailureKind};
use crate::value;

/// The target: the union of all that is given, or `home` alone.
#[derive(Args, Clone, Debug, Default)]
#[group(required = true, multiple = true)]
pub(crate) struct Target {
    /// A process and its descendants; PID@START means only the process that started then, as reports name it.
    #[arg(long, value_name = "PID", value_parser = value::process, allow_hyphen_values = true)]
    pub(crate) pid: Vec<(Pid, Option<u64>)>,
    /// A process group.
    #[arg(long, value_name = "PGID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) pgid: Vec<Pid>,
    /// A session.
    #[arg(long, value_name = "SID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) session: Vec<Pid>,
    /// A cgroup directory, of v2 or v1; includes the cgroups below it.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Vec<PathBuf>,
    /// Every process with this variable in its environment.
    #[arg(
        long,
        value_name = "KEY=VALUE",
        value_parser = OsStringValueParser::new().try_map(|text| value::env_pair(&text))
    )]
    pub(crate) env: Vec<(OsString, OsString)>,
    /// All that tests left: sandboxes with a record below DIR, and processes that use DIR.
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath,
        conflicts_with_all = ["pid", "pgid", "session", "cgroup", "env"])]
    pub(crate) home: Option<PathBuf>,
}

impl Target {
    /// The target that is a process and its descendants.
    pub(crate) fn process(pid: Pid) -> Target {
        Target { pid: vec![(pid, None)], ..Target::default() }
    }
}

/// Makes the selector; `None` if all of the target is already gone.
pub(super) fn selector(proc: &mut ProcFs, target: &Target) -> Result<Option<Selector>, Failure> {
    let mut found = Vec::new();
    for &(pid, start) in &target.pid {
        // A process that has this pid and began at another time is another one: the one that was named is gone.
        let is_named = |selector: &Selector| match selector {
            Selector::Process(id) => start.is_none_or(|start| id.start.0 == start),
            _ => true,
        };
        found.extend(process(proc, pid)?.filter(is_named));
    }
    for &group in &target.pgid {
        refuse_init(group, "process group")?;
        found.push(Selector::Group(group.as_raw_pid()));
    }
    for &session in &target.session {
        refuse_init(session, "session")?;
        found.push(Selector::Session(session.as_raw_pid()));
    }
    for path in &target.cgroup {
        found.extend(cgroup(path)?);
    }
    for (key, value) in target.env.clone() {
        if value.is_empty() {
            let sentence =
                format!("refused to end processes by `--env {}=`: the value is empty", key.to_string_lossy());
            return Err(
                refused(sentence).hint("the shell expands an unset variable to nothing; check the value")
            );
        }
        found.push(Selector::Environment { key: key.into_vec(), value: value.into_vec() });
    }
    Ok(match found.len() {
        0 | 1 => found.pop(),
        _ => Some(Selector::Any(found)),
    })
}

fn refused(sentence: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Usage, sentence)
}

fn process(proc: &mut ProcFs, pid: Pid) -> Result<Option<Selector>, Failure> {
    let number = pid.as_raw_pid();
    let unread = |error| {
        Failure::new(FailureKind::Other, format!("cannot read process {number} in /proc")).because(error)
    };
    let Some(stat) = proc.stat(pid).map_err(unread)? else {
        // With the mount option hidepid, /proc reports processes of other users as gone.
        return match rustix::process::test_kill_process(pid) {
            Err(Errno::PERM) => {
                let sentence = format!("not permitted to see or signal process {number}");
                Err(Failure::new(FailureKind::NotPermitted, sentence))
            }
            _ => Ok(None),
        };
    };
    if stat.is_kernel_thread() {
        return Err(refused(format!("process {number} ({}) is a kernel thread", stat.comm)));
    }
    match proc.status(pid).map_err(unread)? {
        Some(status) if status.process != pid => {
            let process = status.process.as_raw_pid();
            let sentence = format!("{number} is a thread of process {process}, not a process");
            Err(refused(sentence)
                .hint(format!("`penfold reap --pid {process}` ends the process with all its threads")))
        }
        Some(_) => Ok(Some(Selector::Process(stat.id()))),
        None => Ok(None),
    }
}

/// Refuses group 1 and session 1: every process that never made a group or session belongs to those of pid 1.
fn refuse_init(number: Pid, kind: &str) -> Result<(), Failure> {
    if number.is_init() {
        return Err(refused(format!("refused to end {kind} 1: pid 1 leads this {kind}")));
    }
    Ok(())
}

/// Refuses a target that is pid 1, penfold or an ancestor of penfold.
pub(super) fn refuse_spared(search: &Search, selector: &Selector) -> Result<(), Failure> {
    if let Selector::Any(several) = selector {
        return several.iter().try_for_each(|one| refuse_spared(search, one));
    }
    let Selector::Process(id) = selector else { return Ok(()) };
    if !search.spares(id.pid) {
        return Ok(());
    }
    let number = id.pid.as_raw_pid();
    let role = if id.pid.is_init() {
        "pid 1 of this host or container"
    } else if id.pid == rustix::process::getpid() {
        "penfold itself"
    } else {
        "an ancestor of this penfold"
    };
    Err(refused(format!("refused to end process {number}: it is {role}")))
}

/// Finds a cgroup, given as a directory or in the notation of `/proc/<pid>/cgroup` for v2; `None` if gone.
fn cgroup(given: &Path) -> Result<Option<Selector>, Failure> {
    let shown = given.display();
    let unread =
        |error| Failure::new(FailureKind::Other, "cannot read `/proc/self/mountinfo`").because(error);
    let unopened = |error: std::io::Error| {
        Failure::new(FailureKind::Other, format!("cannot open the cgroup `{shown}`")).because(error)
    };
    if !given.is_absolute() || given.components().any(|part| part == Component::ParentDir) {
        return Err(refused(format!("`{shown}` is not an absolute path without `..`")));
    }
    let is_root = || Err(refused(format!("refused to end `{shown}`: it is the root of all cgroups")));
    let text = std::fs::read("/proc/self/mountinfo").map_err(unread)?;
    let mounts = mountinfo::parse_mountinfo(&text).map_err(|error| unread(std::io::Error::other(error)))?;
    let of_type = |wanted| mounts.iter().filter(move |mount| mount.fs_type == wanted);
    let has_given = |mount: &&MountEntry| given.starts_with(&mount.mount_point);
    if of_type("cgroup").any(|mount| given == mount.mount_point) {
        return is_root();
    }
    if of_type("cgroup").any(|mount| has_given(&mount)) {
        let found = v1group::v1_processes(given, &mut Vec::new()).map_err(|errno| unopened(errno.into()))?;
        return Ok(found.then(|| Selector::CgroupV1(given.to_owned())));
    }
    let is_path = of_type("cgroup2").any(|mount| has_given(&mount));
    let candidates: Vec<PathBuf> = if is_path {
        vec![given.to_owned()]
    } else {
        // The notation of /proc/<pid>/cgroup: relative to the root of the hierarchy.
        let below = of_type("cgroup2").filter_map(|mount| {
            let rest = given.strip_prefix(&mount.root).ok()?;
            Some(mount.mount_point.join(rest))
        });
        below.collect()
    };
    for path in candidates.into_iter().rev() {
        if of_type("cgroup2").any(|mount| path == mount.mount_point) {
            return is_root();
        }
        if Leaf::open(&path).map_err(|error| unopened(std::io::Error::other(error)))?.is_some() {
            return Ok(Some(Selector::Cgroup(path)));
        }
    }
    // The path may exist and be no cgroup directory.
    match given.try_exists() {
        Ok(true) if !is_path => Err(refused(format!("`{shown}` is not a directory of a cgroup file system"))),
        _ => Ok(None),
    }
}
