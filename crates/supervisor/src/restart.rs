//! `--restart`: starts the next life of a detached sandbox whose command has failed by itself.
//!
//! The last process of the sandbox decides, after the verified end was written, and becomes `penfold next-life`. By then it has no
//! members and no resources left. A stop or kill may come at the same time: it takes the launch file away first, or finds
//! the next life by it.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::time::Duration;

use penfold_state::launch::has_failed_by_itself;
use penfold_state::{Files, Launch, OnFailure, Report, Spec};
use penfold_sys::launch::Program;
use penfold_sys::signal::SignalSet;
use rustix::process::Signal;

use crate::prepared::Prepared;
use crate::signals::CHILD;

/// The wait before the first restart in a row; each further one doubles it.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// A life that was longer begins a new row of restarts.
const LONG_LIFE: Duration = Duration::from_secs(10);

/// Becomes the process that starts the next life; returns if there will be none.
pub(crate) fn begin_next_life(prepared: &Prepared) {
    let spec = &prepared.setup.spec;
    let (Some(detached), Some(detach)) = (&prepared.detached, &spec.detach) else { return };
    let Some(policy) = detach.restart else { return };
    let files = detached.files();
    let Ok(Some(report)) = files.report() else { return };
    let before = detach.life.as_ref().map_or(0, |life| life.failures);
    // Its caller was told that the command failed.
    let is_refused = detach.ready.is_some() && before == 0 && !matches!(files.ready_at(), Ok(Some(_)));
    if !has_failed_by_itself(&report) || is_refused {
        return;
    }
    penfold_sys::crash_point!("restarting");
    let began = next_in_row(policy, before, &report).and_then(|failures| become_next(spec, files, failures));
    if let Err(reason) = began {
        detached.publish_no_restart(reason);
    }
}

/// Returns the number of the next restart in the row.
fn next_in_row(policy: OnFailure, before: u32, report: &Report) -> Result<u32, String> {
    let is_long = Duration::from_millis(report.duration_ms) > LONG_LIFE;
    let next = if is_long { 1 } else { before.saturating_add(1) };
    match policy.most {
        Some(most) if next > most => Err(format!("the limit of {most} restarts in a row is reached")),
        _ => Ok(next),
    }
}

/// Returns the time that the next life waits before its command runs.
fn wait(failures: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
    FIRST_WAIT.saturating_mul(doubled).min(LONGEST_WAIT)
}

/// Becomes `penfold next-life`; returns only after a failure.
fn become_next(spec: &Spec, files: &Files, failures: u32) -> Result<u32, String> {
    let launch = match files.launch() {
        Ok(Some(launch)) => launch,
        // Another command restarts or ends the sandbox.
        Ok(None) => return Ok(failures),
        Err(error) => return Err(format!("the launch file cannot be read: {error}")),
    };
    let root = std::path::absolute(&spec.state_root).map_err(|error| error.to_string())?;
    let mut program = program(&launch, &words(root.into(), files.name(), failures))
        .ok_or_else(|| "the launch file is damaged".to_owned())?;
    // These attributes would outlive execve(2).
    let _ = rustix::process::set_child_subreaper(None);
    let _ = rustix::process::set_parent_process_death_signal(None);
    let errno = program.exec().errno;
    Err(format!("penfold cannot be executed: {}", std::io::Error::from_raw_os_error(errno)))
}

fn words(root: OsString, id: &str, failures: u32) -> Vec<OsString> {
    let mut root_flag = OsString::from("--root=");
    root_flag.push(root);
    vec![
        "penfold".into(),
        "next-life".into(),
        root_flag,
        format!("--failures={failures}").into(),
        format!("--wait={}ms", wait(failures).as_millis()).into(),
        id.into(),
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
