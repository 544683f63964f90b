//! Processes that penfold did not start: `reap` and `gc --foreign` end them, `adopt` takes them in.

mod show;
mod target;

use std::time::Duration;

use penfold_control::leaks::{self, Belongs};
use penfold_process::{Pid, ProcFs, ProcessId, Stat};
use penfold_teardown::{Findings, Scope, Search, Selector, StopPolicy, Teardown};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, output};

pub(crate) use target::Target;

const UNSEEN: &str = "cannot look at the processes of this host";

/// How processes are ended, and which.
#[derive(Debug)]
pub(crate) struct Request {
    /// The processes.
    pub(crate) target: Target,
    /// The polite signal.
    pub(crate) signal: Signal,
    /// Time between the polite signal and KILL.
    pub(crate) grace: Duration,
    /// How long a kill may take until what is left is reported.
    pub(crate) patience: Duration,
    /// Show what would be ended and change nothing.
    pub(crate) dry_run: bool,
    /// Print the result as JSON.
    pub(crate) json: bool,
}

/// Ends processes that penfold did not start; gives the exit code.
///
/// # Errors
/// When nothing was ended: the processes cannot be seen, may not be signalled, or are never ended.
pub(crate) fn end(global: &Global, request: &Request) -> Result<u8, Failure> {
    let mut proc = ProcFs::open().or_fail(FailureKind::Other, UNSEEN)?;
    let Some(selector) = target::selector(&mut proc, &request.target)? else {
        return nothing(global, request);
    };
    let mut search = Search::new(selector.clone(), &mut proc).or_fail(FailureKind::Other, UNSEEN)?;
    target::refuse_spared(&search, &selector)?;
    let mut members = Vec::new();
    let found = search.find(&mut proc, &mut members).or_fail(FailureKind::Other, UNSEEN)?;
    if !global.quiet {
        output::talk(&show::left_out(&search));
    }
    if request.dry_run {
        return Ok(show::would_end(&mut proc, &members, &search, request.json)?);
    }
    if members.is_empty() {
        if !found.completeness.is_complete() {
            let sentence = "nothing was found, but some processes could not be looked at";
            return Err(Failure::new(FailureKind::Other, sentence));
        }
        return nothing(global, request);
    }
    refuse_forbidden(&members, &selector)?;
    let left_out = show::marks(search.left_out());
    let stop_policy = StopPolicy {
        signal: request.signal,
        grace: request.grace,
        patience: request.patience,
        ..StopPolicy::default()
    };
    let mut teardown = Teardown::new(proc, None, Scope::Host(Box::new(search)));
    let findings = penfold_teardown::end(&mut teardown, &stop_policy, &mut []);
    show::findings(global, &findings, left_out, request.json)?;
    Ok(if findings.verified { exit_codes::SUCCESS } else { exit_codes::STILL_THERE })
}

/// The process with this number and all that belongs to its tree; none when it is gone.
///
/// # Errors
/// When it is no process that may be ended: a thread, the kernel's, pid 1, penfold itself or what it runs under.
pub(crate) fn tree(pid: Pid) -> Result<Option<(ProcessId, Vec<Stat>)>, Failure> {
    let mut proc = ProcFs::open().or_fail(FailureKind::Other, UNSEEN)?;
    let target = Target::process(pid);
    let Some(selector) = target::selector(&mut proc, &target)? else { return Ok(None) };
    let mut search = Search::new(selector.clone(), &mut proc).or_fail(FailureKind::Other, UNSEEN)?;
    target::refuse_spared(&search, &selector)?;
    let mut members = Vec::new();
    let _ = search.find(&mut proc, &mut members).or_fail(FailureKind::Other, UNSEEN)?;
    let Selector::Process(root) = selector else { return Ok(None) };
    Ok(members.iter().any(|stat| stat.id() == root).then_some((root, members)))
}

/// Refuses what belongs to a sandbox of penfold: that has an end of its own.
pub(crate) fn refuse_ours(pid: Pid) -> Result<(), Failure> {
    let number = pid.as_raw_pid();
    match leaks::belongs(pid) {
        Ok(Belongs::Penfold) => Err(Failure::new(
            FailureKind::Usage,
            format!("process {number} is a penfold and looks after a sandbox"),
        )
        .hint("`penfold ps` lists the sandboxes")),
        Ok(Belongs::Sandbox(id)) => {
            let id = id.unwrap_or_else(|| "ID".to_owned());
            Err(Failure::new(FailureKind::Usage, format!("process {number} is a member of sandbox {id}"))
                .hint(format!("`penfold kill {id}` ends it")))
        }
        // Who is gone is told so by what follows.
        Ok(Belongs::Nobody | Belongs::Unknown) | Err(_) => Ok(()),
    }
}

/// There is nothing to end: already gone counts.
fn nothing(global: &Global, request: &Request) -> Result<u8, Failure> {
    if request.json {
        show::nothing_as_json(request.dry_run)?;
    } else if !global.quiet {
        output::talk("penfold: nothing to end\n");
    }
    Ok(exit_codes::SUCCESS)
}

/// When not one of them may be signalled there is no use in waiting for them.
fn refuse_forbidden(members: &[Stat], selector: &Selector) -> Result<(), Failure> {
    let forbidden = |stat: &Stat| rustix::process::test_kill_process(stat.pid) == Err(Errno::PERM);
    if !members.iter().all(forbidden) {
        return Ok(());
    }
    let sentence = match selector {
        Selector::Process(id) => format!("not permitted to signal process {}", id.pid.as_raw_pid()),
        _ => format!("not permitted to signal any of the {} processes found", members.len()),
    };
    Err(Failure::new(FailureKind::NotPermitted, sentence).because(std::io::Error::from(Errno::PERM)))
}

/// What a teardown that found nothing has to say.
fn verified_nothing() -> Findings {
    Findings { verified: true, ..Findings::default() }
}
