//! Which processes are meant, and which are never ended.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use penfold_cgroup::{Leaf, mountinfo};
use penfold_process::{Pid, ProcFs};
use penfold_teardown::{Search, Selector};
use rustix::io::Errno;

use crate::failure::{Failure, FailureKind};
use crate::value;

/// Which processes are meant; exactly one is set.
#[derive(Args, Clone, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct Target {
    /// A process and everything below it.
    #[arg(long, value_name = "PID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) pid: Option<Pid>,
    /// A process group.
    #[arg(long, value_name = "PGID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) pgid: Option<Pid>,
    /// A session.
    #[arg(long, value_name = "SID", value_parser = value::pid, allow_hyphen_values = true)]
    pub(crate) session: Option<Pid>,
    /// A cgroup and those below it, as a directory.
    #[arg(long, value_name = "PATH")]
    pub(crate) cgroup: Option<PathBuf>,
    /// Every process with this variable in its environment.
    #[arg(
        long,
        value_name = "KEY=VALUE",
        value_parser = OsStringValueParser::new().try_map(|text| value::env_pair(&text))
    )]
    pub(crate) env: Option<(OsString, OsString)>,
}

impl Target {
    /// A process and everything below it.
    pub(crate) fn process(pid: Pid) -> Target {
        Target { pid: Some(pid), pgid: None, session: None, cgroup: None, env: None }
    }
}

/// The selector; none when what was named is gone already.
pub(super) fn selector(proc: &mut ProcFs, target: &Target) -> Result<Option<Selector>, Failure> {
    if let Some(pid) = target.pid {
        return process(proc, pid);
    }
    if let Some(group) = target.pgid {
        refuse_init(group, "process group")?;
        return Ok(Some(Selector::Group(group.as_raw_pid())));
    }
    if let Some(session) = target.session {
        refuse_init(session, "session")?;
        return Ok(Some(Selector::Session(session.as_raw_pid())));
    }
    if let Some(path) = &target.cgroup {
        return Ok(cgroup(path)?.map(Selector::Cgroup));
    }
    let (key, value) = target.env.clone().unwrap_or_default();
    if value.is_empty() {
        let sentence =
            format!("`--env {}=` has no value: it would match more than was meant", key.to_string_lossy());
        return Err(refused(sentence).hint("a variable that the shell did not know is empty"));
    }
    Ok(Some(Selector::Environment { key: key.into_vec(), value: value.into_vec() }))
}

fn refused(sentence: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Usage, sentence)
}

fn process(proc: &mut ProcFs, pid: Pid) -> Result<Option<Selector>, Failure> {
    let number = pid.as_raw_pid();
    let unread =
        |error| Failure::new(FailureKind::Other, format!("cannot look at process {number}")).because(error);
    let Some(stat) = proc.stat(pid).map_err(unread)? else {
        // A /proc that hides the processes of others answers as if they were gone.
        return match rustix::process::test_kill_process(pid) {
            Err(Errno::PERM) => {
                let sentence = format!("process {number} is hidden and not permitted to be signalled");
                Err(Failure::new(FailureKind::NotPermitted, sentence))
            }
            _ => Ok(None),
        };
    };
    if stat.is_kernel_thread() {
        return Err(refused(format!("process {number} ({}) is a thread of the kernel", stat.comm)));
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

/// What pid 1 leads is everything that never asked for a group or session of its own.
fn refuse_init(number: Pid, what: &str) -> Result<(), Failure> {
    if number.is_init() {
        return Err(refused(format!("{what} 1 is that of pid 1 and is never ended")));
    }
    Ok(())
}

/// Refuses a process that is never ended when it is named by itself.
pub(super) fn refuse_spared(search: &Search, selector: &Selector) -> Result<(), Failure> {
    let Selector::Process(id) = selector else { return Ok(()) };
    if !search.spares(id.pid) {
        return Ok(());
    }
    let number = id.pid.as_raw_pid();
    let what = if id.pid.is_init() {
        "the first process of this host"
    } else if id.pid == rustix::process::getpid() {
        "penfold itself"
    } else {
        "what penfold runs under"
    };
    Err(refused(format!("process {number} is {what} and is never ended")))
}

/// The directory of a cgroup, given as such or as `/proc/<pid>/cgroup` shows it; none when it is gone.
fn cgroup(given: &Path) -> Result<Option<PathBuf>, Failure> {
    let shown = given.display();
    let unread = |error| Failure::new(FailureKind::Other, "cannot read the list of mounts").because(error);
    if !given.is_absolute() || given.components().any(|part| part == Component::ParentDir) {
        return Err(refused(format!("`{shown}` is no absolute path without `..`")));
    }
    let text = std::fs::read("/proc/self/mountinfo").map_err(unread)?;
    let mounts = mountinfo::parse(&text).map_err(|error| unread(std::io::Error::other(error)))?;
    let mounts: Vec<_> = mounts.into_iter().filter(|mount| mount.fs_type == "cgroup2").collect();
    let candidates: Vec<PathBuf> = if mounts.iter().any(|mount| given.starts_with(&mount.mount_point)) {
        vec![given.to_owned()]
    } else {
        // As the kernel shows it, counted from the root of the hierarchy.
        let below = mounts.iter().rev().filter_map(|mount| {
            let rest = given.strip_prefix(&mount.root).ok()?;
            Some(mount.mount_point.join(rest))
        });
        below.collect()
    };
    for path in candidates {
        if mounts.iter().any(|mount| path == mount.mount_point) {
            return Err(refused(format!("`{shown}` is the root of all cgroups and is never ended")));
        }
        let opened = Leaf::open(&path).map_err(|error| {
            Failure::new(FailureKind::Other, format!("cannot use the cgroup `{shown}`")).because(error)
        })?;
        if opened.is_some() {
            return Ok(Some(path));
        }
    }
    // It may be there and be something else, such as a directory of cgroup v1.
    match given.try_exists() {
        Ok(true) if !mounts.iter().any(|mount| given.starts_with(&mount.mount_point)) => {
            Err(refused(format!("`{shown}` is not a directory of a cgroup2 file system")))
        }
        _ => Ok(None),
    }
}
