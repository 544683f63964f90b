//! `penfold reap --home`: the sandboxes and processes that a test has left.

mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use penfold_control::{EndLimits, EndMethod, Resolver, SandboxRef, SandboxView, StopResult, view};
use penfold_doctor::test_home::{Evidence, Look, TestHome, TestHomeError};
use penfold_process::{ProcFs, ProcessId, Stat};
use penfold_state::error_chain;
use penfold_state::state::Status;
use penfold_teardown::{Findings, Selector, Survivor};

use super::{CANNOT_SEARCH, Request, Targets};
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, output, surroundings, variables};

/// The most state roots whose sandboxes are ended at the same time.
const ROOTS_AT_ONCE: usize = 32;

/// A sandbox whose record is below the home.
struct Sandbox {
    root: PathBuf,
    known: SandboxRef,
}

/// The state roots below a home.
struct Records {
    /// The ids of all sandboxes, ended ones too.
    ids: BTreeSet<String>,
    /// Those that live, and the remains of those that have lost their supervisors.
    left: Vec<Sandbox>,
    /// Directories and state roots that could not be read, with the obstacle.
    unread: Vec<String>,
}

/// Ends what a test has left; returns the exit code.
///
/// # Errors
/// If the directory is refused, or /proc cannot be read, or nothing may be signalled.
pub(super) fn end(global: &Global, request: &Request, path: &Path) -> Result<u8, Failure> {
    let home = TestHome::open(path, variables::user_home().as_deref())?;
    let records = records(&home)?;
    if request.dry_run {
        return dry_run(global, request, &home, &records);
    }
    let begun = Instant::now();
    let mut sweep = Sweep::default();
    sweep.end_sandboxes(request, &home, &records.left)?;
    sweep.end_processes(global, request, &home, &records.ids)?;
    sweep.unread = records.unread;
    sweep.findings.took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    show::messages(global, &sweep);
    if request.json {
        output::json(&show::swept(&sweep))?;
    } else if !global.quiet && sweep.sandboxes.is_empty() && sweep.targets.is_empty() {
        output::message("penfold: nothing to end\n");
    }
    Ok(sweep.exit_code())
}

fn records(home: &TestHome) -> Result<Records, Failure> {
    let roots = home.state_roots()?;
    let enclosing = surroundings::outer_sandboxes();
    let unread = |path: &Path, why: &str| format!("cannot read `{}`: {why}", path.display());
    let mut records = Records {
        ids: roots.ids.into_iter().collect(),
        left: Vec::new(),
        unread: roots.unread.iter().map(|(path, error)| unread(path, &error.to_string())).collect(),
    };
    // This penfold is in such a sandbox.
    records.ids.retain(|id| !enclosing.contains(id));
    for root in roots.found {
        // Of a root that is blocked, this has the obstacle.
        match view::select_sandboxes(&Resolver::new(&root), true) {
            Ok(found) => {
                let ours = found
                    .into_iter()
                    .filter(|(known, seen)| seen.claimed && is_left(seen) && !enclosing.contains(&known.id));
                records.left.extend(ours.map(|(known, _)| Sandbox { root: root.clone(), known }));
            }
            Err(error) => records.unread.push(unread(&root, &error_chain(&error))),
        }
    }
    Ok(records)
}

/// Tells whether a sandbox lives, or was lost and not cleaned up: then its cgroup, network and mounts may be there without a process.
fn is_left(seen: &SandboxView) -> bool {
    seen.status.is_living() || (seen.status == Status::Lost && seen.ended_at_ms.is_none())
}

fn dry_run(global: &Global, request: &Request, home: &TestHome, records: &Records) -> Result<u8, Failure> {
    let look = home.look(&records.ids).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let evidence = evidence_of(&look);
    let proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let selector = Selector::Processes(evidence.keys().copied().collect());
    let mut targets = Targets::find(&Global { quiet: true, ..global.clone() }, proc, selector)?;
    if !global.quiet {
        output::message(&show::elsewhere(&look.elsewhere));
    }
    let would = show::Would::new(&mut targets, &evidence, &records.left, &look);
    would.print(request.json)?;
    Ok(if records.unread.is_empty() { exit_codes::SUCCESS } else { exit_codes::FAILURE })
}

fn evidence_of(look: &Look) -> BTreeMap<ProcessId, Evidence> {
    look.found.iter().map(|(stat, evidence)| (stat.id(), *evidence)).collect()
}

/// The result for one sandbox.
struct EndedSandbox {
    id: String,
    root: PathBuf,
    result: StopResult,
}

/// What a sweep has done so far.
#[derive(Default)]
struct Sweep {
    sandboxes: Vec<EndedSandbox>,
    /// The processes with evidence, and their names.
    targets: BTreeMap<ProcessId, (Stat, Option<String>, Evidence)>,
    findings: Findings,
    ancestors: Vec<Stat>,
    elsewhere: Vec<Stat>,
    unread: Vec<String>,
}

impl Sweep {
    /// Ends sandboxes by their records, those of several state roots at the same time.
    fn end_sandboxes(&mut self, request: &Request, home: &TestHome, left: &[Sandbox]) -> Result<(), Failure> {
        let how = if request.grace.is_zero() {
            EndMethod::Kill
        } else {
            EndMethod::Stop { signal: None, grace: Some(request.grace) }
        };
        let limits = EndLimits { patience: Some(request.patience), ..EndLimits::default() };
        let mut roots: BTreeMap<&Path, Vec<SandboxRef>> = BTreeMap::new();
        for sandbox in left {
            roots.entry(&sandbox.root).or_default().push(sandbox.known.clone());
        }
        let roots: Vec<(&Path, Vec<SandboxRef>)> = roots.into_iter().collect();
        for some in roots.chunks(ROOTS_AT_ONCE) {
            home.verify()?;
            let results: Vec<Vec<StopResult>> = std::thread::scope(|scope| {
                let end_root = |(root, targets): &(&Path, Vec<SandboxRef>)| {
                    penfold_control::end_sandboxes(&Resolver::new(root), targets, how, &limits, &mut |_| {})
                };
                let threads: Vec<_> = some.iter().map(|root| scope.spawn(move || end_root(root))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
            });
            for ((root, targets), results) in some.iter().zip(results) {
                let ended = targets.iter().zip(results).map(|(known, result)| EndedSandbox {
                    id: known.id.clone(),
                    root: root.to_path_buf(),
                    result,
                });
                self.sandboxes.extend(ended);
            }
        }
        Ok(())
    }

    /// Ends processes until a look finds none. New ones may appear while others end.
    fn end_processes(
        &mut self,
        global: &Global,
        request: &Request,
        home: &TestHome,
        ids: &BTreeSet<String>,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + request.grace + request.patience;
        loop {
            home.verify()?;
            let look = home.look(ids).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
            let evidence = evidence_of(&look);
            let is_first = self.targets.is_empty();
            (self.ancestors, self.elsewhere) = (look.ancestors, look.elsewhere);
            if evidence.is_empty() {
                if !look.completeness.is_complete() {
                    let reason = "/proc hides some processes from this user".to_owned();
                    self.findings.survivors.push(Survivor::Unknown { reason });
                }
                break;
            }
            if !is_first && Instant::now() >= deadline {
                self.findings.survivors.extend(look.found.iter().map(|(stat, _)| appeared(stat)));
                break;
            }
            let mut proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
            for (stat, evidence) in look.found {
                let command = proc.command_line(stat.pid);
                self.targets.insert(stat.id(), (stat, command, evidence));
            }
            let selector = Selector::Processes(evidence.into_keys().collect());
            let found = Targets::find(&Global { quiet: true, ..global.clone() }, proc, selector)?;
            if found.members.is_empty() {
                continue;
            }
            let ended = match found.end(request) {
                // Something was ended already: this is no failure of the whole sweep.
                Err(_) if !is_first || !self.sandboxes.is_empty() => {
                    let reason = "not permitted to signal the processes that are left".to_owned();
                    self.findings.survivors.push(Survivor::Unknown { reason });
                    break;
                }
                ended => ended?,
            };
            let findings = ended.findings;
            self.findings.ended.extend(findings.ended);
            self.findings.steps.extend(findings.steps);
            self.findings.survivors = findings.survivors;
            if !findings.verified {
                break;
            }
        }
        let gone = |sandbox: &EndedSandbox| matches!(sandbox.result, StopResult::Gone);
        self.findings.verified = self.findings.survivors.is_empty() && self.sandboxes.iter().all(gone);
        Ok(())
    }

    fn exit_code(&self) -> u8 {
        if !self.findings.survivors.is_empty() {
            return exit_codes::STILL_THERE;
        }
        let mut code = if self.unread.is_empty() { exit_codes::SUCCESS } else { exit_codes::FAILURE };
        for sandbox in &self.sandboxes {
            match &sandbox.result {
                StopResult::Gone => {}
                StopResult::Left(_) => return exit_codes::STILL_THERE,
                StopResult::Failed(error) => code = FailureKind::from(error).exit_code(),
            }
        }
        code
    }
}

fn appeared(stat: &Stat) -> Survivor {
    Survivor::Process {
        pid: stat.pid.as_raw_pid(),
        start_time: stat.start.0,
        name: stat.comm.clone(),
        state: stat.state.letter(),
        wait_channel: None,
        reason: "it appeared while others were ended".to_owned(),
    }
}

impl From<TestHomeError> for Failure {
    fn from(error: TestHomeError) -> Failure {
        match error {
            TestHomeError::Refused { .. } => {
                Failure::new(FailureKind::Usage, format!("refused to sweep: {error}"))
                    .hint("name a directory that was made for tests")
            }
            TestHomeError::Replaced { .. } => {
                Failure::new(FailureKind::Other, format!("stopped the sweep: {error}"))
            }
            TestHomeError::Read { ref source, .. } => Failure::new(source.into(), error_chain(&error)),
        }
    }
}
