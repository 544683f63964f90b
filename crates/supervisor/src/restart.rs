//! `--restart`: starts the next life of a detached sandbox whose command has failed by itself.
//!
//! The last process of the sandbox decides, after the verified end was written, and becomes `penfold next-life`. By then it has no
//! members and no resources left. It passes on the lock of the record, so that no moment shows a record that nobody holds. A stop
//! or kill may come at the same time: it takes the launch file away first, or ends the next life.

use std::ffi::{CString, OsString};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Duration;

use penfold_state::lives::Restart;
use penfold_state::time::{now_ms, whole_millis};
use penfold_state::{Files, Launch, Life, Spec};
use penfold_sys::launch::Program;
use penfold_sys::signal::SignalSet;
use penfold_teardown::Level;
use rustix::io::FdFlags;
use rustix::process::Signal;

use crate::detached_parts::DetachedParts;
use crate::sandbox_parts::{SandboxKind, SandboxParts};
use crate::signals::CHILD;

/// The wait before the first restart in a row; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_mins(1);

/// Becomes the process that starts the next life; returns if there will be none.
pub(crate) fn begin_next_life(parts: &SandboxParts) {
    let spec = &parts.setup.spec;
    let (SandboxKind::Detached(detached), Some(detach)) = (&parts.kind, &spec.detach) else { return };
    if detach.restart.is_none() {
        return;
    }
    // A command that never ran leaves the record, and the report in it, of the former life.
    let life = detach.life.as_ref().map(Life::number);
    if !matches!(detached.files().report(), Ok(Some(report)) if report.life == life) {
        return;
    }
    let began = match detached.files().restart() {
        Ok(Restart::Next(failures)) => {
            penfold_sys::crash_point!("restarting");
            become_next(spec, detached, parts.level, failures)
        }
        Ok(Restart::Limit(most)) => Err(format!("the limit of {most} restarts in a row is reached")),
        Ok(Restart::None) | Err(_) => return,
    };
    if let Err(reason) = began {
        detached.publish_no_restart(reason);
    }
}

/// Returns the time that the next life waits before its command runs.
fn wait(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
    FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT)
}

/// Becomes `penfold next-life`, which gets the lock of the record; returns only after a failure.
fn become_next(spec: &Spec, detached: &DetachedParts, level: Level, failures: u32) -> Result<(), String> {
    let files = detached.files();
    let launch = match files.launch() {
        Ok(Some(launch)) => launch,
        // Another command restarts or ends the sandbox.
        Ok(None) => return Ok(()),
        Err(error) => return Err(format!("the launch file cannot be read: {error}")),
    };
    if let Some(why) = launch.missing_directory() {
        return Err(why);
    }
    let root = std::path::absolute(&spec.state_root).map_err(|error| error.to_string())?;
    let at_ms = now_ms().saturating_add(whole_millis(wait(failures)));
    let mut program = program(&launch, &words(root.into(), files, failures))
        .ok_or_else(|| "the launch file is damaged".to_owned())?;
    detached.write_waiting(at_ms, level);
    // These attributes would outlive execve(2).
    let _ = rustix::process::set_child_subreaper(None);
    let _ = rustix::process::set_parent_process_death_signal(None);
    rustix::io::fcntl_setfd(files.dir(), FdFlags::empty()).map_err(|error| error.to_string())?;
    let errno = program.exec().errno;
    let _ = rustix::io::fcntl_setfd(files.dir(), FdFlags::CLOEXEC);
    Err(format!("penfold cannot be executed: {}", std::io::Error::from_raw_os_error(errno)))
}

fn words(root: OsString, files: &Files, failures: u32) -> Vec<OsString> {
    let mut root_flag = OsString::from("--root=");
    root_flag.push(root);
    vec![
        "penfold".into(),
        "next-life".into(),
        root_flag,
        format!("--failures={failures}").into(),
        format!("--wait={}ms", wait(failures).as_millis()).into(),
        format!("--lock-fd={}", files.dir().as_raw_fd()).into(),
        files.name().into(),
    ]
}

fn program(launch: &Launch, words: &[OsString]) -> Option<Program> {
    let strings = |list: Vec<OsString>| -> Option<Vec<CString>> {
        list.into_iter().map(|word| CString::new(word.into_vec()).ok()).collect()
    };
    let variable = |(key, value): &(OsString, OsString)| {
        let mut entry = key.clone();
        entry.push("=");
        entry.push(value);
        entry
    };
    let environment = launch.environment.iter().map(variable).collect();
    let mut program =
        Program::new(vec![c"/proc/self/exe".to_owned()], strings(words.to_vec())?, strings(environment)?);
    program.directory(CString::new(launch.directory.as_os_str().as_bytes()).ok()?);
    // penfold itself ignores SIGPIPE.
    program.signals(SignalSet::empty(), Vec::new(), vec![CHILD, Signal::PIPE.as_raw()]);
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_minute() {
        let ms = |failures| wait(failures).as_millis();
        assert_eq!([1, 2, 3, 10, 11, u32::MAX].map(ms), [100, 200, 400, 51_200, 60_000, 60_000]);
    }
}
