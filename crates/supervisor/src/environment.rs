//! Prepares the command: its program, environment and signals.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use penfold_state::{Id, Identity, Jail, Spec, USER_SCRATCH, spared};
use penfold_sys::launch::Program;
use penfold_sys::signal::{self, SignalSet};
use penfold_teardown::MARKER;

use crate::signals::CHILD;
use crate::start_error::StartError;

/// The default of execvp(3) without PATH.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// The most ids in a marker. A deeper nesting needs no more: enclosing sandboxes end the nested ones anyway.
const MAX_MARKER_IDS: usize = 32;

/// Returns the ids in the caller's marker: the enclosing sandboxes, outermost first.
pub(crate) fn enclosing_sandboxes(environment: &[(OsString, OsString)]) -> Vec<String> {
    let marker = environment.iter().find(|(key, _)| key == MARKER).map(|(_, value)| value.as_bytes());
    let ids: Vec<String> = marker
        .unwrap_or_default()
        .split(|&byte| byte == b':')
        .filter_map(|id| std::str::from_utf8(id).ok())
        .filter(|id| Id::is_short(id))
        .map(str::to_owned)
        .collect();
    ids.get(ids.len().saturating_sub(MAX_MARKER_IDS)..).unwrap_or_default().to_vec()
}

/// Returns the scratch directory of a program that penfold makes the user of its sandbox; `run --user` has made it.
pub(crate) fn scratch_of(scratch: Option<&Path>, identity: Option<&Identity>) -> Option<PathBuf> {
    scratch.map(|scratch| if identity.is_some() { scratch.join(USER_SCRATCH) } else { scratch.to_owned() })
}

/// The signal state in which this process was started.
#[derive(Debug, Clone)]
pub(crate) struct InheritedSignals {
    /// The signal mask.
    pub(crate) mask: SignalSet,
    /// SIGCHLD was ignored, which makes children unwaitable.
    pub(crate) child_ignored: bool,
}

/// Where a program starts.
#[derive(Debug, Default)]
pub(crate) struct StartPlace<'a> {
    /// The working directory; `None` for that of this process, or of the jail.
    pub(crate) directory: Option<&'a Path>,
    /// The value of TMPDIR, if it is penfold's.
    pub(crate) temporary: Option<&'a Path>,
    /// The network namespace to enter.
    pub(crate) netns: Option<PathBuf>,
}

impl<'a> StartPlace<'a> {
    /// The place of the commands of a sandbox, outside of any jail.
    pub(crate) fn of(spec: &'a Spec, scratch: Option<&'a Path>) -> StartPlace<'a> {
        StartPlace {
            directory: spec.directory.as_deref().or(scratch),
            temporary: scratch,
            netns: spec.netns(),
        }
    }

    /// The place of a program that enters a jail. The jail has the network, and the directory unless another one is given.
    pub(crate) fn in_jail(
        jail: &'a Jail,
        directory: Option<&'a Path>,
        scratch: Option<&'a Path>,
    ) -> StartPlace<'a> {
        let scratch = scratch.filter(|_| !jail.has_user);
        StartPlace { directory, temporary: Some(scratch.unwrap_or(&jail.temporary)), netns: None }
    }
}

/// Prepares a program with its arguments, `words`, before the clone, so that no allocation is needed between clone and exec.
pub(crate) fn build_program(
    spec: &Spec,
    words: &[OsString],
    place: StartPlace<'_>,
    inherited: &InheritedSignals,
) -> Result<Program, StartError> {
    let StartPlace { directory, temporary, netns } = place;
    let mut marker = enclosing_sandboxes(&spec.environment);
    marker.push(spec.id.short());
    let mut own: Vec<(&OsStr, OsString)> = vec![(OsStr::new(MARKER), marker.join(":").into())];
    if !spec.spare.is_empty() || spec.allow_outside {
        own.push((OsStr::new(spared::ROOT_VARIABLE), spec.state_root.clone().into()));
    }
    if let Some(temporary) = temporary {
        own.push((OsStr::new("TMPDIR"), temporary.as_os_str().to_owned()));
    }
    let given = spec.environment.iter().map(|(key, value)| (key.as_os_str(), value));
    let kept = given.filter(|(key, _)| own.iter().all(|(mine, _)| mine != key));
    let environment = kept
        .chain(own.iter().map(|(key, value)| (*key, value)))
        .map(|(key, value)| {
            let mut entry = key.as_bytes().to_vec();
            entry.push(b'=');
            entry.extend_from_slice(value.as_bytes());
            c_string(entry, "the environment")
        })
        .collect::<Result<Vec<_>, _>>()?;
    let path = spec.environment.iter().find(|(key, _)| key == "PATH").map(|(_, value)| value.as_os_str());
    let name = words.first().map(OsString::as_os_str).unwrap_or_default();
    let arguments = words
        .iter()
        .map(|word| c_string(word.clone().into_vec(), "the command"))
        .collect::<Result<Vec<_>, _>>()?;
    let mut program = Program::new(candidates(name, path)?, arguments, environment);
    if let Some(netns) = netns {
        program.network(c_string(netns.into_os_string().into_vec(), "the network namespace")?);
    }
    if let Some(directory) = directory {
        program.directory(c_string(directory.as_os_str().as_bytes().to_vec(), "the working directory")?);
    }
    let (mut ignored, mut defaults) = (Vec::new(), Vec::new());
    if inherited.child_ignored {
        ignored.push(CHILD);
    }
    // Rust's start-up code has since set SIGPIPE to "ignored".
    let pipe = if signal::pipe_inherited_ignored() { &mut ignored } else { &mut defaults };
    pipe.push(PIPE);
    program.signals(inherited.mask, ignored, defaults);
    Ok(program)
}

const PIPE: i32 = rustix::process::Signal::PIPE.as_raw();

/// Returns the paths to try: the name itself if it has a `/`, otherwise its place in each directory of PATH.
fn candidates(name: &OsStr, path: Option<&OsStr>) -> Result<Vec<CString>, StartError> {
    let bytes = name.as_bytes();
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if bytes.contains(&b'/') {
        return Ok(vec![c_string(bytes.to_vec(), "the command")?]);
    }
    let path = path.unwrap_or(OsStr::new(DEFAULT_PATH)).as_bytes();
    path.split(|&byte| byte == b':')
        .map(|dir| {
            let mut candidate = dir.to_vec();
            if !candidate.is_empty() {
                candidate.push(b'/');
            }
            candidate.extend_from_slice(bytes);
            c_string(candidate, "the command")
        })
        .collect()
}

fn c_string(bytes: Vec<u8>, what: &'static str) -> Result<CString, StartError> {
    CString::new(bytes).map_err(|_| StartError::Nul { what })
}
