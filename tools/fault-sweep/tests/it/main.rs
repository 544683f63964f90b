//! The faults that `scripts/fault-sweep` has found.

#![allow(clippy::print_stderr, reason = "a skipped test says why")]

use std::path::Path;
use std::process::Command;

/// Faults that left something, or made penfold hang or lie. Each names a call by its path, or hits all calls of that
/// name. So a fault keeps its meaning when other calls come and go.
const FOUND: &[&str] = &[
    // The record of a scratch directory that could not be removed was lost, and no command tried again.
    "run/cgroup supervisor readlinkat:/proc/self/fd/#* EIO",
    "run/subreaper supervisor fchmod#* EIO",
    "run/auto supervisor unlinkat:tmp/penfold-#* EINTR",
    // A directory whose path could not be read counted as removed.
    "run-stop/cgroup supervisor readlinkat:/proc/self/fd/#2 EPERM",
    // A stop that could not be sent or received was forgotten.
    "run-stop/cgroup supervisor recvfrom#1 EMFILE",
    "run-stop/pidns launcher sendto#1 EPERM",
    // The launcher never learned that the command ran.
    "run-d/auto supervisor sendto#2 ENOSPC",
    "run-d/cgroup standby write:eventfd#1 EIO",
    // The leader waited for its parent, and the parent for the leader.
    "run/auto leader sendto#1 EMFILE",
    "run-d/pidns leader sendto#1 ENOMEM",
    // The message that the command runs was lost, and the launcher waited for it.
    "run-d/pidns supervisor sendto#2 EAGAIN",
    // penfold's init could not report the exit of the command: the code was 0.
    "run/pidns init sendto#* EIO",
    "run/pidns supervisor recvfrom#* ECONNRESET",
    // The launcher failed after the fork: 125 although the sandbox ran.
    "run-d/cgroup launcher signalfd4#* EMFILE",
    "run-d/subreaper launcher pidfd_open#* EMFILE",
    "run-d/pidns launcher recvfrom#1 EIO",
    "run-d/cgroup launcher ppoll#1 ENOMEM",
    "run-d/cgroup launcher rt_sigprocmask#* EPERM",
    "run-d/auto launcher write:verb.out#* ENOSPC",
    // 125 for a command that ran in a sandbox.
    "exec/cgroup client signalfd4#* EMFILE",
    "exec/subreaper client rt_sigprocmask#* EPERM",
    "exec/pidns client recvfrom#* EIO",
    // A leaf without a record.
    "run/cgroup launcher eventfd2#* EMFILE",
    "run-d/pidns standby eventfd2#* EMFILE",
    // The scan failed, and the answer was 0.
    "gc/cgroup client flock:root/sandboxes#* EMFILE",
    "gc/subreaper client newfstatat:intent.json#* ENOMEM",
    // An unreadable object counted as removed, as property of another user, or as gone.
    "rm/auto client fstat:root/sandboxes#* ENOMEM",
    "rm/auto client newfstatat#* ENOMEM",
    "kill/cgroup client openat#* EMFILE",
    "stop/subreaper client openat#* EIO",
];

/// spec: 4.5
#[test]
fn what_was_found_once_is_not_found_again() {
    let program = Path::new(env!("CARGO_BIN_EXE_fault-sweep"));
    if !program.with_file_name("penfold").exists() {
        return eprintln!("skipped: penfold is not built beside fault-sweep");
    }
    if !rustix::process::geteuid().is_root() || !cfg!(target_arch = "x86_64") {
        return eprintln!("skipped: only root sweeps, and on x86-64");
    }
    let mut sweep = Command::new(program);
    sweep.args(["--strict", "--jobs", "4"]);
    for word in FOUND {
        sweep.args(["--word", word]);
    }
    let output = sweep.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
