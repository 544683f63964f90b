//! `penfold reap`: what it does.

mod show;
mod target;

use penfold_process::{Pid, ProcFs, ProcessId, Stat};
use penfold_teardown::{Findings, Ladder, Scope, Search, Selector, Teardown};
use rustix::io::Errno;

use crate::args::Global;
use crate::args::reap::{ReapArgs, Target};
use crate::exit_codes;
use crate::failure::Failure;
use crate::output;

/// Ends processes that penfold did not start.
pub(crate) fn reap(global: &Global, args: &ReapArgs) -> Result<u8, Failure> {
    let signal = penfold_sys::signal::signal(args.signal.number())
        .ok_or_else(|| Failure::new(exit_codes::USAGE, "signals 32 and 33 belong to the C library"))?;
    let blind =
        |error| Failure::new(exit_codes::FAILURE, "cannot look at the processes of this host").because(error);
    let mut proc = ProcFs::open().map_err(blind)?;
    let Some(selector) = target::selector(&mut proc, &args.target)? else {
        return nothing(global, args);
    };
    let mut search = Search::new(selector.clone(), &mut proc).map_err(blind)?;
    target::refuse_spared(&search, &selector)?;
    let mut members = Vec::new();
    let found = search.find(&mut proc, &mut members).map_err(blind)?;
    if !global.quiet {
        output::talk(&show::left_out(&search));
    }
    if args.dry_run {
        return show::would_end(&mut proc, &members, &search, args.json);
    }
    if members.is_empty() {
        if !found.completeness.is_complete() {
            let sentence = "nothing was found, but some processes could not be looked at";
            return Err(Failure::new(exit_codes::FAILURE, sentence));
        }
        return nothing(global, args);
    }
    refuse_forbidden(&members, &selector)?;
    let left_out = show::marks(search.left_out());
    let ladder = Ladder { signal, grace: args.grace, patience: args.patience.patience, ..Ladder::default() };
    let mut teardown = Teardown::new(proc, None, Scope::Host(Box::new(search)));
    let findings = penfold_teardown::end(&mut teardown, &ladder, &mut []);
    show::findings(global, &findings, left_out, args.json)?;
    Ok(if findings.verified { exit_codes::SUCCESS } else { exit_codes::STILL_THERE })
}

/// The process with this number and all that belongs to its tree; none when it is gone.
///
/// # Errors
/// When it is no process that may be ended: a thread, the kernel's, pid 1, penfold itself or what it runs under.
pub(crate) fn tree(pid: Pid) -> Result<Option<(ProcessId, Vec<Stat>)>, Failure> {
    let blind =
        |error| Failure::new(exit_codes::FAILURE, "cannot look at the processes of this host").because(error);
    let mut proc = ProcFs::open().map_err(blind)?;
    let target = Target { pid: Some(pid), pgid: None, session: None, cgroup: None, env: None };
    let Some(selector) = target::selector(&mut proc, &target)? else { return Ok(None) };
    let mut search = Search::new(selector.clone(), &mut proc).map_err(blind)?;
    target::refuse_spared(&search, &selector)?;
    let mut members = Vec::new();
    let _ = search.find(&mut proc, &mut members).map_err(blind)?;
    let Selector::Process(root) = selector else { return Ok(None) };
    Ok(members.iter().any(|stat| stat.id() == root).then_some((root, members)))
}

/// There is nothing to end: already gone counts.
fn nothing(global: &Global, args: &ReapArgs) -> Result<u8, Failure> {
    if args.json {
        show::nothing_as_json(args.dry_run)?;
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
    Err(Failure::new(exit_codes::NOT_PERMITTED, sentence).because(std::io::Error::from(Errno::PERM)))
}

/// What a teardown that found nothing has to say.
fn verified_nothing() -> Findings {
    Findings { verified: true, ..Findings::default() }
}
