//! Lists the processes of a cgroup and of all cgroups below it.

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use penfold_process::{Pid, ProcFs, pid_from_raw};
use rustix::io::Errno;

use crate::dir;
use crate::walk::{Visit, walk_cgroups};

/// Adds to `out` the pid of every process in `top` and below; `list` is the `cgroup.procs` of `top`, if already open.
pub(crate) fn collect_processes(
    top: BorrowedFd<'_>,
    list: Option<BorrowedFd<'_>>,
    out: &mut Vec<Pid>,
) -> Result<(), Errno> {
    let mut members = MemberReader {
        out,
        tids: Vec::new(),
        text: Vec::new(),
        open: list,
        list: c"cgroup.procs",
        failure: None,
    };
    walk_cgroups(top, &mut members);
    let mut tids = members.tids;
    match members.failure {
        Some(errno) => return Err(errno),
        None if out.is_empty() => {
            // Kernels before 5.2 omit a process whose main thread has exited from `cgroup.procs`.
            let mut threads = MemberReader {
                out: &mut tids,
                tids: Vec::new(),
                text: Vec::new(),
                open: None,
                list: c"cgroup.threads",
                failure: None,
            };
            walk_cgroups(top, &mut threads);
            if let Some(errno) = threads.failure {
                return Err(errno);
            }
        }
        None => {}
    }
    if !tids.is_empty() {
        add_processes_of(&tids, out)?;
    }
    out.sort_unstable_by_key(|pid| pid.as_raw_pid());
    out.dedup();
    Ok(())
}

struct MemberReader<'a> {
    out: &'a mut Vec<Pid>,
    /// Threads whose process is not known yet.
    tids: Vec<Pid>,
    text: Vec<u8>,
    /// The `cgroup.procs` of the first directory.
    open: Option<BorrowedFd<'a>>,
    list: &'static CStr,
    failure: Option<Errno>,
}

impl Visit for MemberReader<'_> {
    fn enter(&mut self, dir: BorrowedFd<'_>) {
        let read = match self.open.take() {
            Some(list) => dir::read_again(list, &mut self.text),
            None => dir::read_all(dir, self.list, &mut self.text),
        };
        match read {
            Ok(()) => self.out.extend(numbers(&self.text)),
            // A threaded cgroup lists threads only.
            Err(Errno::OPNOTSUPP) => match dir::read_all(dir, c"cgroup.threads", &mut self.text) {
                Ok(()) => self.tids.extend(numbers(&self.text)),
                Err(errno) => self.fail(dir, errno),
            },
            Err(errno) => self.fail(dir, errno),
        }
    }

    fn leave(&mut self, _parent: BorrowedFd<'_>, _name: &CStr) {}

    fn fail(&mut self, _dir: BorrowedFd<'_>, errno: Errno) {
        if !dir::is_gone(errno) {
            self.failure.get_or_insert(errno);
        }
    }
}

/// Zero stands for a process of another pid namespace, which has no pid here.
fn numbers(text: &[u8]) -> impl Iterator<Item = Pid> {
    text.split(|&byte| byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok()?.parse().ok().and_then(pid_from_raw))
}

fn add_processes_of(tids: &[Pid], out: &mut Vec<Pid>) -> Result<(), Errno> {
    let failed = |error: &std::io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
    let mut proc = ProcFs::open().map_err(|error| failed(&error))?;
    for &tid in tids {
        if let Some(status) = proc.status(tid).map_err(|error| failed(&error))? {
            out.push(status.process);
        }
    }
    Ok(())
}
