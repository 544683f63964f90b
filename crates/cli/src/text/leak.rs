//! A leak in a few words.

use std::fmt::Write as _;
use std::time::Duration;

use penfold_doctor::leaks::{Leak, Thing};
use penfold_process::ProcessId;

use crate::text::lines::count;
use crate::text::summary::human;

/// The default of `gc --older-than`: gc keeps younger leaks.
pub(crate) const USUAL_AGE: Duration = Duration::from_mins(10);

/// The command that ends processes which this user may not signal, by their pids and, as far as known, their start times.
pub(crate) fn reap_as_root(processes: impl IntoIterator<Item = (i32, Option<ProcessId>)>) -> String {
    let mut command = "sudo penfold reap".to_owned();
    for (pid, id) in processes {
        // Writing to a String cannot fail.
        let _ = match id {
            Some(id) => write!(command, " --pid {pid}@{}", id.start.0),
            None => write!(command, " --pid {pid}"),
        };
    }
    command
}

/// Describes a leak: `cgroup /sys/fs/cgroup/penfold-…`, with the reason and the age.
pub(crate) fn describe(leak: &Leak) -> String {
    if matches!(leak.thing, Thing::Survivor { .. }) {
        return format!("sandbox {}, which could not be ended", leak.id);
    }
    let what = match &leak.thing {
        Thing::Record { command, begun: true, .. } | Thing::Ended { command, .. } if !command.is_empty() => {
            format!("sandbox {} `{command}`", leak.id)
        }
        Thing::Record { path, begun: false, .. } => format!("record {}, never used", path.display()),
        Thing::Record { path, .. } | Thing::Ended { path, .. } | Thing::Unreachable { path } => {
            format!("record {}", path.display())
        }
        Thing::Survivor { .. } | Thing::Processes => format!("processes of {}", leak.id),
        Thing::Cgroup { path } => format!("cgroup {}", path.display()),
        Thing::Directory { path, boot: None } => format!("directory {}", path.display()),
        Thing::Directory { path, boot: Some(_) } => {
            format!("directory {} with the mark of {}", path.display(), leak.id)
        }
        Thing::Netns { path } => format!("network namespace {}", path.display()),
        Thing::Link { name } => format!("link {name}"),
        Thing::Mount { path, .. } => format!("mount {}", path.display()),
        Thing::Loop { path, device } => format!("loop device {device} of {}", path.display()),
        Thing::Container { .. } => format!("container {}", leak.id),
        Thing::Name { path } => format!("name {}", path.display()),
        Thing::File { path } => format!("file {}", path.display()),
        Thing::Socket { path } => format!("socket {}", path.display()),
    };
    let why = match &leak.thing {
        Thing::Record { begun: true, .. } => "its supervisors are gone",
        Thing::Record { .. } => "the penfold command that made it is gone",
        Thing::Ended { .. } => "it has ended",
        Thing::Container { is_lost: true, .. } => "its OCI runtime does not know it",
        Thing::Container { .. } => "its engine wanted it deleted, in vain, and may have forgotten it",
        Thing::Name { .. } => "no living sandbox holds it",
        Thing::File { .. } => "its writer is gone",
        Thing::Socket { .. } => "its supervisor listens and has no record",
        Thing::Unreachable { .. } => "its supervisor lives and its control socket is gone",
        _ if !leak.claimed => "no record here, and perhaps one below another state root",
        Thing::Survivor { .. }
        | Thing::Processes
        | Thing::Cgroup { .. }
        | Thing::Directory { .. }
        | Thing::Netns { .. }
        | Thing::Link { .. }
        | Thing::Mount { .. }
        | Thing::Loop { .. } => "no record",
    };
    let text = with_processes(what, leak);
    // The record is gone, and the age with it.
    if matches!(leak.thing, Thing::Socket { .. }) {
        return format!("{text}, {why}");
    }
    format!("{text}, {} old, {why}", old(leak.age()))
}

/// Adds the number of processes, and the first of them.
fn with_processes(what: String, leak: &Leak) -> String {
    if leak.processes.is_empty() {
        return what;
    }
    let number = count(leak.processes.len(), "process", "processes");
    let named: Vec<String> = leak
        .processes
        .iter()
        .take(3)
        .map(|member| format!("{} {}", member.id.pid.as_raw_pid(), member.name))
        .collect();
    let more = if leak.processes.len() > named.len() { ", …" } else { "" };
    format!("{what}  {number} ({}{more})", named.join(", "))
}

/// Formats the age of a leak.
pub(crate) fn old(age: Duration) -> String {
    const HOUR: u64 = 3600;
    match age.as_secs() {
        seconds if seconds >= 48 * HOUR => format!("{}d", seconds / (24 * HOUR)),
        seconds if seconds >= HOUR => format!("{}h", seconds / HOUR),
        _ => human(Duration::from_secs(age.as_secs().max(1))),
    }
}
