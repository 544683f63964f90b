//! A leak in a few words.

use std::time::Duration;

use super::{Leak, Thing};

/// Describes a leak: `cgroup /sys/fs/cgroup/penfold-…`, with the reason and the age.
pub fn describe_leak(leak: &Leak) -> String {
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
    format!("{text}, {} old, {why}", age_in_words(leak.age()))
}

/// Adds the number of processes, and the first of them.
fn with_processes(what: String, leak: &Leak) -> String {
    if leak.processes.is_empty() {
        return what;
    }
    let noun = if leak.processes.len() == 1 { "process" } else { "processes" };
    let named: Vec<String> = leak
        .processes
        .iter()
        .take(3)
        .map(|member| format!("{} {}", member.id.pid.as_raw_pid(), member.name))
        .collect();
    let more = if leak.processes.len() > named.len() { ", …" } else { "" };
    format!("{what}  {} {noun} ({}{more})", leak.processes.len(), named.join(", "))
}

/// Formats the age of a leak: `3s`, `9m59s`, `47h`, `2d`.
pub fn age_in_words(age: Duration) -> String {
    const HOUR: u64 = 3600;
    match age.as_secs().max(1) {
        seconds if seconds >= 48 * HOUR => format!("{}d", seconds / (24 * HOUR)),
        seconds if seconds >= HOUR => format!("{}h", seconds / HOUR),
        seconds if seconds >= 60 => format!("{}m{}s", seconds / 60, seconds % 60),
        seconds => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded() {
        let words = |seconds| age_in_words(Duration::from_secs(seconds));
        assert_eq!([0, 59, 60, 3599].map(words), ["1s", "59s", "1m0s", "59m59s"]);
        assert_eq!([3600, 172_799, 172_800].map(words), ["1h", "47h", "2d"]);
    }
}
