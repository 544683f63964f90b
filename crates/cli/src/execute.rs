//! Becomes another program.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use penfold_launch::LaunchError;
use penfold_state::StartFailure;
use penfold_sys::launch::Program;
use penfold_sys::signal::{self, SignalSet};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::failure::Failure;
use crate::variables;

/// Becomes a program, with the signal mask of this process; returns only if that fails.
pub(crate) fn program(words: &[OsString], ignored: Vec<i32>, defaults: Vec<i32>) -> Failure {
    with(words, &[], ignored, defaults)
}

/// Becomes a program with changed environment variables.
pub(crate) fn with(
    words: &[OsString],
    changed: &[(OsString, OsString)],
    mut ignored: Vec<i32>,
    mut defaults: Vec<i32>,
) -> Failure {
    let name = words.first().map(OsString::as_os_str).unwrap_or_default();
    let c_strings = |list: Vec<OsString>| -> Vec<CString> {
        list.into_iter().filter_map(|word| CString::new(word.into_vec()).ok()).collect()
    };
    let candidates = if name.as_bytes().contains(&b'/') {
        vec![name.to_owned()]
    } else {
        let path = variables::get("PATH".as_ref()).unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&path).map(|dir| dir.join(name).into_os_string()).collect()
    };
    let kept = variables::all().filter(|(key, _)| changed.iter().all(|(other, _)| other != key));
    let environment = kept.chain(changed.iter().cloned()).map(|(mut key, value)| {
        key.push("=");
        key.push(value);
        key
    });
    let mut program =
        Program::new(c_strings(candidates), c_strings(words.to_vec()), c_strings(environment.collect()));
    // penfold itself ignores SIGPIPE.
    let pipe = if signal::pipe_inherited_ignored() { &mut ignored } else { &mut defaults };
    pipe.push(Signal::PIPE.as_raw());
    let mask = signal::block_signals(&SignalSet::empty()).unwrap_or_else(|_| SignalSet::empty());
    let errno = program.signals(mask, ignored, defaults).exec().errno;
    let failure = if errno == Errno::NOENT.raw_os_error() {
        StartFailure::NotFound
    } else {
        StartFailure::NotExecutable(errno)
    };
    LaunchError::of_start_failure(&failure, &name.to_string_lossy(), None).into()
}
