//! The process that containerd keeps beside a container of Docker. Once Docker has forgotten the container, nobody else ends it. When it has ended,
//! containerd removes its own state of the container.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, Process, ProcessId, Signal, Stat};
use rustix::event::{PollFd, PollFlags};

use crate::members::wait_for_descriptors;
use crate::note::{ContainerNote, Engine};

/// The beginning of its name, as far as the kernel keeps it.
const NAME: &str = "containerd-shim";

/// Ends the shim of a container of Docker of which nothing else is left.
///
/// # Errors
/// When /proc cannot be read, or the shim does not end.
pub(crate) fn end_shim(note: &ContainerNote, deadline: Instant) -> io::Result<()> {
    if note.engine != Engine::Docker {
        return Ok(());
    }
    let mut proc = ProcFs::open()?;
    for id in find(&mut proc, note)? {
        let Some(process) = Process::open_exact(&mut proc, id)? else { continue };
        process.signal(Signal::KILL)?;
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
        if !wait_for_descriptors(&[PollFd::new(&process.pidfd(), PollFlags::IN)], left) {
            return Err(io::Error::other(format!("the shim with pid {} does not end", id.pid)));
        }
    }
    Ok(())
}

fn find(proc: &mut ProcFs, note: &ContainerNote) -> io::Result<Vec<ProcessId>> {
    let mut shims = Vec::new();
    let _ = proc.scan(|stat: Stat| {
        if stat.comm.starts_with(NAME) && !stat.is_dead() {
            shims.push(stat.id());
        }
    })?;
    shims.retain(|id| is_of(id.pid, note));
    Ok(shims)
}

/// Tells whether a shim is that of this container: by its directory, which is the bundle, and by the id among its arguments.
fn is_of(pid: Pid, note: &ContainerNote) -> bool {
    let dir = Path::new("/proc").join(pid.as_raw_pid().to_string());
    let words = std::fs::read(dir.join("cmdline")).unwrap_or_default();
    let words: Vec<&OsStr> = words.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    let has_id = words.windows(2).any(|pair| pair[0] == "-id" && pair[1] == note.id.as_str());
    has_id && std::fs::read_link(dir.join("cwd")).is_ok_and(|cwd| cwd == note.bundle)
}
