//! Recognises virtual machine monitors and the programs around them.

use penfold_process::Pid;

use super::super::path;

/// Prefixes of the names of monitors that have the rest for a version or an architecture.
const MONITORS: [&str; 3] = ["firecracker-v", "cloud-hypervisor-v", "qemu-system-"];
/// Programs that start one other program, with other rights, namespaces or limits.
const WRAPPERS: [&str; 34] = [
    "bwrap",
    "capsh",
    "cgexec",
    "chroot",
    "chrt",
    "doas",
    "env",
    "flock",
    "ionice",
    "ip",
    "jailer",
    "nice",
    "nohup",
    "nsenter",
    "numactl",
    "pkexec",
    "prlimit",
    "runuser",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "setuidgid",
    "stdbuf",
    "su",
    "sudo",
    "sudo-rs",
    "systemd-inhibit",
    "systemd-run",
    "taskset",
    "time",
    "timeout",
    "unshare",
    "xvfb-run",
];
const SHELLS: [&str; 9] = ["ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "zsh"];

/// What a process is for a virtual machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// A monitor, with its name.
    Monitor(String),
    /// A program that starts one other program.
    Wrapper,
    /// A shell.
    Shell,
    /// Another program.
    Other,
}

/// Recognises a program by the name of its executable file; where that cannot be read or is none of the known, by its first
/// argument. The name of the main thread shows nothing: every process can choose it.
pub(super) fn program_role(pid: Pid, arguments: &[String]) -> Role {
    let file = executable(pid);
    match file.as_deref().map_or(Role::Other, role_of) {
        Role::Other => arguments.first().map_or(Role::Other, |first| role_of(name(first))),
        role => role,
    }
}

fn role_of(name: &str) -> Role {
    // A shell of a login has a dash before its name. A packager may have wrapped the program.
    let name = name.trim_start_matches(['-', '.']);
    let name = name.strip_suffix("-wrapped").unwrap_or(name);
    let is_monitor =
        matches!(
            name,
            "firecracker" | "cloud-hypervisor" | "cloud-hypervisor-static" | "crosvm" | "qemu-kvm"
        ) || MONITORS.iter().any(|prefix| name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty()));
    if is_monitor {
        Role::Monitor(name.to_owned())
    } else if WRAPPERS.contains(&name) {
        Role::Wrapper
    } else if SHELLS.contains(&name) {
        Role::Shell
    } else {
        Role::Other
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the file name of the executable; `None` where it cannot be read.
fn executable(pid: Pid) -> Option<String> {
    let target = std::fs::read_link(path(pid, "exe")).ok()?;
    let target = target.to_string_lossy();
    Some(name(target.strip_suffix(" (deleted)").unwrap_or(&target)).to_owned())
}

/// Returns the arguments of a process, the first of them its name; none where they cannot be read.
pub(super) fn process_arguments(pid: Pid) -> Vec<String> {
    let text = std::fs::read(path(pid, "cmdline")).unwrap_or_default();
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_monitor_is_known_by_its_whole_name() {
        for name in
            ["firecracker", "firecracker-v1.7.0", "cloud-hypervisor-static", "crosvm", "qemu-system-x86_64"]
        {
            assert_eq!(role_of(name), Role::Monitor(name.to_owned()));
        }
        assert_eq!(role_of(".qemu-system-arm-wrapped"), Role::Monitor("qemu-system-arm".to_owned()));
        for name in [
            "firecracker-containerd",
            "cloud-hypervisor-exporter",
            "qemu-img",
            "qemu-system-",
            "xfirecracker",
            "crosvm2",
            "",
        ] {
            assert_eq!(role_of(name), Role::Other, "{name}");
        }
        assert_eq!((role_of("sudo"), role_of("-bash")), (Role::Wrapper, Role::Shell));
    }
}
