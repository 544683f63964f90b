//! Processes that penfold did not start: `reap` and `gc --foreign` end them, `adopt` makes them a sandbox.

mod home;
mod show;
mod target;

use std::time::Duration;

use penfold_control::descent::{self, ProcessSandbox};
use penfold_process::{Pid, ProcFs, ProcessId, Stat};
use penfold_teardown::{MemberScope, Search, Selector, StopPolicy, Teardown};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, output};

pub(crate) use show::{Ended, messages};
pub(crate) use target::Target;

const CANNOT_SEARCH: &str = "cannot search the processes of this host";

/// A request to end processes.
#[derive(Debug)]
pub(crate) struct Request {
    /// The processes to end.
    pub(crate) target: Target,
    /// The polite signal.
    pub(crate) signal: Signal,
    /// Time between the polite signal and KILL.
    pub(crate) grace: Duration,
    /// The time that a kill may take before penfold reports the survivors.
    pub(crate) patience: Duration,
    /// Only list the processes that would be ended.
    pub(crate) dry_run: bool,
    /// Print the result as JSON.
    pub(crate) json: bool,
}

/// Ends processes that penfold did not start; returns the exit code.
///
/// # Errors
/// If no process was ended: /proc cannot be read, no target may be signalled, or penfold never ends the target.
pub(crate) fn end(global: &Global, request: &Request) -> Result<u8, Failure> {
    if let Some(path) = &request.target.home {
        return home::end(global, request, path);
    }
    let mut proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let Some(selector) = target::selector(&mut proc, &request.target)? else {
        return nothing(global, request);
    };
    let found = Targets::find(global, proc, selector)?;
    if request.dry_run {
        return found.show(request.json);
    }
    if found.members.is_empty() {
        if !found.is_complete {
            let sentence = "no matching process was found, but /proc hides some processes from this user";
            return Err(Failure::new(FailureKind::Other, sentence));
        }
        return nothing(global, request);
    }
    let ended = found.end(request)?;
    show::messages(global, &ended.findings);
    if request.json {
        output::json(&ended)?;
    }
    Ok(ended.exit_code())
}

/// Ends the processes that this selector finds, and prints the survivors; returns the exit code. Where only cgroups are selected, no
/// other process is looked at.
///
/// # Errors
/// If /proc cannot be read, or none of the processes may be signalled.
pub(crate) fn end_selected(
    global: &Global,
    mut proc: ProcFs,
    selector: Selector,
    grace: Duration,
    patience: Duration,
) -> Result<u8, Failure> {
    let request = Request {
        target: Target::default(),
        signal: Signal::TERM,
        grace,
        patience,
        dry_run: false,
        json: false,
    };
    let mut search = Search::new(selector.clone(), &mut proc).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    if selector.is_by_cgroup() {
        search = search.inside_only();
    }
    let found = Targets::found_by(global, proc, selector, search)?;
    // The last one may have ended by itself meanwhile.
    if found.members.is_empty() {
        return Ok(exit_codes::SUCCESS);
    }
    let ended = found.end(&request)?;
    show::messages(global, &ended.findings);
    Ok(ended.exit_code())
}

/// The processes that a request means.
pub(crate) struct Targets {
    proc: ProcFs,
    selector: Selector,
    search: Search,
    members: Vec<Stat>,
    is_complete: bool,
}

impl Targets {
    /// Finds exactly this process and its tree.
    ///
    /// # Errors
    /// If /proc cannot be read, or penfold never ends the process.
    pub(crate) fn tree(global: &Global, root: ProcessId) -> Result<Targets, Failure> {
        let proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
        Targets::find(global, proc, Selector::Process(root))
    }

    fn find(global: &Global, mut proc: ProcFs, selector: Selector) -> Result<Targets, Failure> {
        let search = Search::new(selector.clone(), &mut proc).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
        Targets::found_by(global, proc, selector, search)
    }

    fn found_by(
        global: &Global,
        mut proc: ProcFs,
        selector: Selector,
        mut search: Search,
    ) -> Result<Targets, Failure> {
        target::refuse_spared(&search, &selector)?;
        let mut members = Vec::new();
        let found = search.find(&mut proc, &mut members).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
        if !global.quiet {
            output::message(&show::left_out(&search));
        }
        let is_complete = found.completeness.is_complete();
        Ok(Targets { proc, selector, search, members, is_complete })
    }

    /// Lists the processes that would be ended; returns the exit code.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn show(mut self, json: bool) -> Result<u8, Failure> {
        Ok(show::would_end(&mut self.proc, &self.members, &self.search, json)?)
    }

    /// Ends the processes, and those that they start meanwhile.
    ///
    /// # Errors
    /// If none of them may be signalled.
    pub(crate) fn end(self, request: &Request) -> Result<Ended, Failure> {
        refuse_forbidden(&self.members, &self.selector)?;
        let left_out = show::marks(self.search.left_out());
        let stop_policy = StopPolicy {
            signal: request.signal,
            grace: request.grace,
            patience: request.patience,
            ..StopPolicy::default()
        };
        let mut teardown = Teardown::new(self.proc, None, MemberScope::Host(Box::new(self.search)));
        Ok(Ended::new(penfold_teardown::end_members(&mut teardown, &stop_policy, &mut []), left_out))
    }
}

/// Finds the process with this pid and its tree; `None` if the process is gone.
///
/// # Errors
/// If penfold never ends the process: a thread, a kernel thread, pid 1, penfold itself or an ancestor of penfold.
pub(crate) fn tree(pid: Pid) -> Result<Option<(ProcessId, Vec<Stat>)>, Failure> {
    let mut proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let target = Target::process(pid);
    let Some(selector) = target::selector(&mut proc, &target)? else { return Ok(None) };
    let mut search = Search::new(selector.clone(), &mut proc).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    target::refuse_spared(&search, &selector)?;
    let mut members = Vec::new();
    let _ = search.find(&mut proc, &mut members).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let Selector::Process(root) = selector else { return Ok(None) };
    Ok(members.iter().any(|stat| stat.id() == root).then_some((root, members)))
}

/// Refuses a process of a sandbox, and a penfold process: `penfold kill` must end these.
pub(crate) fn refuse_ours(pid: Pid) -> Result<(), Failure> {
    let number = pid.as_raw_pid();
    match descent::find_owner(pid) {
        Ok(ProcessSandbox::Penfold) => Err(Failure::new(
            FailureKind::Usage,
            format!("process {number} is the supervisor, standby or launcher of a sandbox"),
        )
        .hint("`penfold ps` lists the sandboxes")),
        Ok(ProcessSandbox::Sandbox(id)) => {
            let id = id.unwrap_or_else(|| "ID".to_owned());
            Err(Failure::new(FailureKind::Usage, format!("process {number} is a member of sandbox {id}"))
                .hint(format!("`penfold kill {id}` ends it")))
        }
        // The next step of the caller reports a process that is gone.
        Ok(ProcessSandbox::Nobody | ProcessSandbox::Unknown) | Err(_) => Ok(()),
    }
}

/// Reports that no process matches, and returns success: a process that is already gone counts as ended.
fn nothing(global: &Global, request: &Request) -> Result<u8, Failure> {
    if request.json {
        show::nothing_as_json(request.dry_run)?;
    } else if !global.quiet {
        output::message("penfold: nothing to end\n");
    }
    Ok(exit_codes::SUCCESS)
}

/// Fails at once if no member may be signalled: the grace would pass without effect.
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
