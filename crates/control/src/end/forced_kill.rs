//! Ends sandboxes without their supervisors: the supervisor is dead, silent or untrusted, or the record is gone.
//!
//! The members are ended first. A supervisor that merely does not answer then sees its sandbox end and exits by
//! itself. Next, the processes that still hold the lock are killed, and the remains are recovered under the lock.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs, Process, Signal, Stat};
use penfold_teardown::{
    Findings, MemberScope, Resource, Search, Selector, SparePolicy, StopPolicy, Survivor, Teardown,
};
use rustix::io::Errno;

use super::{EndLimits, EndMethod, StopResult};
use crate::holders::{self, Holders, Locks};
use crate::resolve::{Resolver, SandboxRef};
use crate::timeout::pause_before_retry;
use penfold_state::evidence::fingerprints;
use penfold_state::evidence::{self, Evidence};
use penfold_state::marked;
use penfold_state::record::{Record, Registry};
use penfold_state::recovery::{self, recover_sandbox};
use penfold_state::{LeafName, Requester, Scratch, remember_survivors, spared};

/// The time that a stopped supervisor has to notice the end of its sandbox.
const PASSING_TIMEOUT: Duration = Duration::from_millis(200);
/// The interval at which the lock is tried.
const LOOK: Duration = Duration::from_millis(2);
/// The most commands cleaning up the same sandbox that are waited for, each for its full time.
const TURNS: u32 = 3;
/// The grace of a sandbox that has neither a supervisor nor a grace in its record.
const USUAL_GRACE: Duration = Duration::from_secs(10);
/// The longest grace that is accepted from a record: the command could have written it.
const LONGEST_GRACE: Duration = Duration::from_hours(1);

/// The reason why a sandbox is ended without its supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ForceReason {
    /// No process holds its lock.
    Unattended,
    /// Its record is gone.
    NoRecord,
    /// Its supervisor has no socket that accepts connections.
    NoSocket,
    /// Its supervisor does not answer, or refuses.
    Unresponsive,
    /// Its supervisor has begun the end and does not finish.
    Overdue,
    /// Its supervisor, or an impostor, has lied.
    Untrusted,
    /// Its supervisor has reported survivors.
    Unverified,
}

/// A sandbox that has to be ended.
pub(super) struct KillJob<'a> {
    pub(super) index: usize,
    pub(super) known: &'a SandboxRef,
    pub(super) reason: ForceReason,
    /// The survivors that its supervisor has reported.
    pub(super) known_survivors: Vec<Survivor>,
}

/// A sandbox that is being ended without its supervisor's help.
pub(super) struct ForcedKill<'a> {
    resolver: Resolver,
    registry: Option<Registry>,
    known: &'a SandboxRef,
    reason: ForceReason,
    known_survivors: &'a [Survivor],
    limits: EndLimits,
    /// The time that a kill may take until the survivors are reported.
    patience: Duration,
    /// How to end the members, as far as nobody has asked them yet.
    stop_policy: StopPolicy,
    /// Whether a kill was asked for.
    kills: bool,
}

impl<'a> ForcedKill<'a> {
    pub(super) fn new(
        root: &Path,
        job: &'a KillJob<'a>,
        how: EndMethod,
        limits: EndLimits,
    ) -> ForcedKill<'a> {
        let asked = matches!(job.reason, ForceReason::Overdue | ForceReason::Unverified);
        // If the supervisor has already used up the patience, a short time is enough to name the survivors.
        let patience = limits.patience(job.known.intent.as_ref());
        let short = if job.reason == ForceReason::Unverified { limits.exit.min(patience) } else { patience };
        let usual = StopPolicy { patience: short, ..StopPolicy::default() };
        let made_with = made_with(job.known);
        let stop_policy = match how {
            EndMethod::Stop { signal, grace } if !asked => StopPolicy {
                signal: signal.or(made_with.0).unwrap_or(usual.signal),
                grace: grace.or(made_with.1).unwrap_or(USUAL_GRACE),
                ..usual
            },
            _ => StopPolicy { grace: Duration::ZERO, ..usual },
        };
        let registry = Registry::open_existing(root).ok().flatten();
        let limits = EndLimits { verb: Some(limits.verb_of(how)), ..limits };
        let (known, reason, known_survivors) = (job.known, job.reason, job.known_survivors.as_slice());
        let kills = how == EndMethod::Kill;
        ForcedKill {
            resolver: Resolver::new(root),
            registry,
            known,
            reason,
            known_survivors,
            limits,
            patience,
            stop_policy,
            kills,
        }
    }

    pub(super) fn run(&self) -> io::Result<StopResult> {
        // Read these before the members, the leaf and the record go: afterwards no source is left.
        let scratch = self.scratch();
        // With a record, the recovery releases them under its lock.
        let intent = self.known.intent.as_ref().filter(|_| self.known.record.is_none());
        let owned =
            intent.map(|intent| recovery::owned_resources(intent, Some(self.resolver.root()), self.patience));
        let supervisors = self.known.record.as_ref().map(holders::supervisors_in_record).unwrap_or_default();
        let stop_result = self.wait_exit(self.end()?, &supervisors)?;
        if !matches!(stop_result, StopResult::Gone) {
            return Ok(stop_result);
        }
        // A supervisor that was killed may not have released them.
        let mut resources: Vec<Box<dyn Resource>> = Vec::new();
        if let Some(scratch) = scratch.map_or(Ok(None), Scratch::existing)? {
            resources.push(Box::new(scratch));
        }
        resources.extend(owned.into_iter().flatten());
        let mut left = Vec::new();
        penfold_teardown::release_resources(&mut resources, true, |resource, _, reason| {
            left.extend(reason.map(|reason| Survivor::Resource { what: resource.describe(), reason }));
        });
        Ok(if left.is_empty() { StopResult::Gone } else { StopResult::Left(left) })
    }

    /// Returns the scratch directory, from the intent or from the environment of the members.
    fn scratch(&self) -> Option<PathBuf> {
        let id = &self.known.id;
        match &self.known.intent {
            Some(intent) => {
                let path = intent.scratch.clone();
                path.filter(|path| LeafName::id_at(path).as_ref() == Some(id))
            }
            None => self
                .resolver
                .fingerprints()
                .marked()
                .get(id)
                .and_then(|pids| fingerprints::scratch_of_processes(pids, id)),
        }
    }

    fn end(&self) -> io::Result<StopResult> {
        if self.is_over() {
            return Ok(StopResult::Gone);
        }
        if let Some(record) = self.take()? {
            return self.recover(record);
        }
        let mut proc = ProcFs::open()?;
        // Find the holders before the leaf goes: without a record, only the leaf's lock shows the supervisors.
        let locks = Locks::of(&self.known.id, self.known.record.as_ref(), self.known.leaf.as_deref());
        let mut holders = locks.holders(&mut proc)?;
        let mut left = self.end_members()?.survivors;
        penfold_sys::crash_point!("members-ended");
        if self.are_below(&mut proc, &holders, &left)? {
            // The supervisor goes on to kill them, and knows when they have ended.
            return Ok(self.look(left, true));
        }
        let until = Instant::now() + self.patience * TURNS;
        loop {
            let limit = self.limit(&mut proc, &holders)?;
            let mut record = self.wait_for_lock(&mut proc, &holders, limit)?;
            if record.is_none() && self.reason != ForceReason::Unverified {
                left.extend(self.end_holders(&mut proc, &holders)?);
                if self.are_below(&mut proc, &holders, &left)? {
                    return Ok(self.look(left, true));
                }
                record = self.wait_for_lock(&mut proc, &holders, self.limits.exit)?;
            }
            if let Some(record) = record {
                return self.wait_exit(self.recover(record)?, holders.processes());
            }
            if !self.is_held(&mut proc, &holders)?
                || self.reason == ForceReason::Unverified
                || Instant::now() >= until
            {
                return Ok(self.look(left, true));
            }
            // Another command has taken the lock meanwhile for the same purpose.
            holders = locks.holders(&mut proc)?;
        }
    }

    /// Returns the time that the holders of the lock have to notice the end of the sandbox, and to exit.
    fn limit(&self, proc: &mut ProcFs, holders: &Holders<'_>) -> io::Result<Duration> {
        // A holder that has just reported survivors is a supervisor, even if no member is its child.
        if holders.are_passing() && self.reason != ForceReason::Unverified {
            return Ok(self.patience * 2 + self.limits.exit);
        }
        if holders.are_stopped(proc)? {
            return Ok(PASSING_TIMEOUT);
        }
        Ok(match self.reason {
            // Its supervisor stays as long as something is left: the lock becomes free only if the survivors end
            // meanwhile.
            ForceReason::Unverified => self.limits.exit.min(self.patience),
            ForceReason::Unresponsive | ForceReason::Overdue | ForceReason::Untrusted => self.limits.exit,
            ForceReason::Unattended | ForceReason::NoRecord | ForceReason::NoSocket => self.patience,
        })
    }

    /// Ends the members that can be found without the supervisor, politely if requested.
    fn end_members(&self) -> io::Result<Findings> {
        if let (Some(files), Some(verb)) = (&self.known.record, self.limits.verb) {
            files.note_asked(Requester::this(verb), self.kills);
        }
        let mut all = Findings { verified: true, ..Findings::default() };
        let mut leaves: Vec<Option<&Path>> = self.leaves().into_iter().map(Some).collect();
        if leaves.is_empty() {
            leaves.push(None);
        }
        for leaf in leaves {
            let leaf = match leaf {
                Some(path) => Leaf::open(path).map_err(io::Error::other)?,
                None => None,
            };
            let mut proc = ProcFs::open()?;
            let intent = self.known.intent.as_ref();
            let root = Some(self.resolver.root());
            let marker = marked::build_marker(&self.known.id, intent, self.known.record.as_ref(), true, root);
            let search = marked::search_members(&marker, root, &mut proc)?;
            let mut teardown = Teardown::new(proc, leaf, MemberScope::Host(Box::new(search)));
            if let Some(sparing) = spared::spare_policy_of_intent(intent, root) {
                teardown.spare(sparing);
            }
            let findings = penfold_teardown::end_members(&mut teardown, &self.stop_policy, &mut []);
            all.verified &= findings.verified;
            all.survivors.extend(findings.survivors);
        }
        self.remember(&all.survivors);
        Ok(all)
    }

    /// Remembers survivors before anything goes that leads to them.
    fn remember(&self, survivors: &[Survivor]) {
        remember_survivors(self.resolver.root(), &self.known.id, survivors);
    }

    /// Returns the leaf that the record names, and the leaf found on the host: a record may be forged.
    fn leaves(&self) -> Vec<&Path> {
        let seen = self.resolver.fingerprints().leaves().get(&self.known.id);
        let mut leaves: Vec<&Path> = self.known.leaf.iter().chain(seen).map(PathBuf::as_path).collect();
        leaves.dedup();
        leaves
    }

    /// Tells whether a survivor is below a holder of the lock. Such a supervisor must stay: nothing else may lead to the survivor.
    fn are_below(&self, proc: &mut ProcFs, holders: &Holders<'_>, left: &[Survivor]) -> io::Result<bool> {
        let left: HashSet<i32> = left
            .iter()
            .filter(|survivor| is_alive(survivor))
            .filter_map(|survivor| match survivor {
                Survivor::Process { pid, .. } => Some(*pid),
                Survivor::Resource { .. } | Survivor::Unknown { .. } => None,
            })
            .collect();
        if left.is_empty() || self.reason == ForceReason::Unverified {
            return Ok(false);
        }
        for holder in holders.left(proc)? {
            if below(proc, holder.id().pid)?.iter().any(|pid| left.contains(&pid.as_raw_pid())) {
                let _ = holder.signal(Signal::CONT)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Kills the holders of the lock, and their descendants. If one of these cannot be ended, its holder stays.
    ///
    /// Without a leaf and a marker, nothing else would show that the descendants are members.
    fn end_holders(&self, proc: &mut ProcFs, holders: &Holders<'_>) -> io::Result<Vec<Survivor>> {
        let mut left = Vec::new();
        for holder in holders.left(proc)? {
            let ours = proc.stat(holder.id().pid)?.is_some_and(|stat| stat.has_our_name());
            if !ours {
                holder.signal(Signal::KILL)?;
                continue;
            }
            let mut descendants = Vec::new();
            let _ = proc.descendants(holder.id().pid, &mut descendants)?;
            let is_holder = |id| holders.processes().iter().any(|other| other.id() == id);
            let members = descendants.iter().map(Stat::id).filter(|id| !is_holder(*id)).collect();
            let mut survivors = self.end_selected(Selector::Processes(members))?;
            survivors.extend(hidden_below(proc, holder.id().pid)?);
            if survivors.is_empty() {
                left.extend(self.end_selected(Selector::Process(holder.id()))?);
            } else {
                self.remember(&survivors);
                left.extend(survivors);
            }
        }
        Ok(left)
    }

    /// Kills processes that may still be children of a supervisor.
    fn end_selected(&self, selector: Selector) -> io::Result<Vec<Survivor>> {
        let mut proc = ProcFs::open()?;
        let search = Search::new(selector, &mut proc)?;
        let mut teardown = Teardown::new(proc, None, MemberScope::Host(Box::new(search)));
        let sparing = spared::spare_policy_of_intent(self.known.intent.as_ref(), Some(self.resolver.root()));
        if let Some(sparing) = sparing {
            teardown.spare(SparePolicy { is_partial: true, ..sparing });
        }
        let stop_policy = StopPolicy { grace: Duration::ZERO, ..self.stop_policy };
        Ok(penfold_teardown::end_members(&mut teardown, &stop_policy, &mut []).survivors)
    }

    /// Waits for the supervisors to exit: only then the sandbox is gone. They release the lock shortly before their
    /// end.
    fn wait_exit(&self, stop_result: StopResult, supervisors: &[Process]) -> io::Result<StopResult> {
        if !matches!(stop_result, StopResult::Gone) {
            return Ok(stop_result);
        }
        let late = holders::wait_exit(supervisors, Instant::now() + self.limits.exit)?;
        if late.is_empty() {
            return Ok(stop_result);
        }
        let reason = |pid: Pid| format!("its supervisor {} exits and does not end", pid.as_raw_pid());
        Ok(StopResult::Left(late.into_iter().map(|pid| Survivor::Unknown { reason: reason(pid) }).collect()))
    }

    /// Ends the remains under the lock.
    fn recover(&self, record: Record) -> io::Result<StopResult> {
        let mut left = Vec::new();
        let intent = record.intent();
        let whole = intent.is_ok_and(|intent| intent.leaf.as_deref() == self.known.leaf.as_deref());
        if !self.stop_policy.grace.is_zero() || !whole || self.leaves().len() > 1 {
            left = self.end_members()?.survivors;
        }
        let findings = recover_sandbox(
            record,
            true,
            self.patience,
            Some(Requester::this(self.limits.verb_of(EndMethod::Kill))),
        )?;
        let is_process = |survivor: &Survivor| matches!(survivor, Survivor::Process { .. });
        let (alive, unreleased): (Vec<_>, Vec<_>) = findings.survivors.into_iter().partition(is_process);
        left.extend(alive);
        // A result found under the lock stays true, even if another command holds the lock now to clean up.
        Ok(match self.look(left, !findings.verified) {
            StopResult::Gone if !unreleased.is_empty() => StopResult::Left(unreleased),
            stop_result => stop_result,
        })
    }

    fn is_recorded(&self) -> bool {
        self.registry.as_ref().is_some_and(|registry| registry.holds(&self.known.id))
    }

    fn take(&self) -> io::Result<Option<Record>> {
        let Some(registry) = &self.registry else { return Ok(None) };
        if self.known.record.is_none() {
            // The record cannot be opened, or was missed by the lookup.
            return Ok(registry.take(&self.known.id).ok().flatten());
        }
        registry.take(&self.known.id).map_err(io::Error::other)
    }

    /// Waits until the lock is free and takes it. Without a record, waits until the holders are gone.
    fn wait_for_lock(
        &self,
        proc: &mut ProcFs,
        holders: &Holders<'_>,
        limit: Duration,
    ) -> io::Result<Option<Record>> {
        let until = Instant::now() + limit;
        loop {
            holders.wake(proc)?;
            if let Some(record) = self.take()? {
                return Ok(Some(record));
            }
            if !self.is_held(proc, holders)? || Instant::now() >= until {
                return Ok(None);
            }
            pause_before_retry(LOOK);
        }
    }

    /// Tells whether a process still holds the lock.
    fn is_held(&self, proc: &mut ProcFs, holders: &Holders<'_>) -> io::Result<bool> {
        if !holders.left(proc)?.is_empty() {
            return Ok(true);
        }
        Ok(self.is_recorded() && self.known.record.as_ref().is_some_and(|files| files.lock().may_be_held()))
    }

    /// Tells whether nothing is left, from a look at all evidence.
    fn is_over(&self) -> bool {
        let held = self.known.record.as_ref().is_some_and(|files| files.lock().may_be_held());
        if held || self.reason == ForceReason::NoRecord {
            return false;
        }
        let ended = self.known.record.as_ref().is_some_and(penfold_state::Files::has_ended);
        (ended || !self.is_recorded())
            && self.leaves().into_iter().all(evidence::is_leaf_empty)
            && self.evidence(true).is_nothing()
    }

    /// Takes a fresh look and returns the result. With `attended`, the lock and the socket are evidence, too.
    fn look(&self, mut left: Vec<Survivor>, attended: bool) -> StopResult {
        // What could not be ended does not end by waiting.
        let is_left =
            |survivor: &Survivor| matches!(survivor, Survivor::Process { .. }) && is_alive(survivor);
        let waits = self.known_survivors.is_empty() && !left.iter().any(is_left);
        let until = Instant::now() + if waits { self.limits.exit } else { Duration::ZERO };
        let mut evidence = self.evidence(attended);
        // Without a lock to wait for, the socket shows that the supervisors have not exited yet. Another command that
        // cleans up may also hold a lock for a moment.
        while !evidence.is_nothing() && Instant::now() < until {
            pause_before_retry(LOOK);
            evidence = self.evidence(attended);
        }
        if evidence.is_nothing() {
            return StopResult::Gone;
        }
        // A member that only its supervisor can see also counts as left.
        left.extend(
            self.known_survivors.iter().filter(|known| !left.contains(known)).cloned().collect::<Vec<_>>(),
        );
        // A survivor of one step may have ended in the next, or be one of that, too.
        left.retain(is_alive);
        let mut named = HashSet::new();
        left.retain(|survivor| match survivor {
            Survivor::Process { pid, start_time, .. } => named.insert((*pid, *start_time)),
            Survivor::Resource { .. } | Survivor::Unknown { .. } => true,
        });
        if left.is_empty() {
            left.extend(evidence.sentences().into_iter().map(|reason| Survivor::Unknown { reason }));
        }
        StopResult::Left(left)
    }

    /// Returns the evidence that something of the sandbox is alive: lock, leaf and marker.
    ///
    /// Without a lock, a supervisor's socket counts too. With a lock, a listener that does not hold it is no
    /// supervisor.
    fn evidence(&self, attended: bool) -> Evidence {
        let fresh = self.resolver.again();
        let mut evidence = Evidence::of_members(fresh.fingerprints(), &self.known.subject());
        if attended && self.is_recorded() {
            if self.known.record.as_ref().is_some_and(|files| files.lock().may_be_held()) {
                evidence.add("a process of penfold holds its lock and does not let go".to_owned());
            }
        } else if attended {
            evidence.socket(fresh.fingerprints(), &self.known.id);
        }
        evidence
    }
}

/// Returns the polite signal and the grace from the record.
fn made_with(known: &SandboxRef) -> (Option<Signal>, Option<Duration>) {
    let Some(intent) = &known.intent else { return (None, None) };
    let grace = intent.grace_ms.map(|ms| Duration::from_millis(ms).min(LONGEST_GRACE));
    (intent.signal.and_then(penfold_sys::signal::signal_of_number), grace)
}

/// Returns the pids of all processes below one, and of those of their children that `/proc` hides.
fn below(proc: &mut ProcFs, pid: Pid) -> io::Result<Vec<Pid>> {
    let mut descendants = Vec::new();
    let _ = proc.descendants(pid, &mut descendants)?;
    let shown: Vec<Pid> = descendants.iter().map(|stat| stat.pid).collect();
    let (mut pids, mut children) = (shown.clone(), Vec::new());
    for parent in shown.into_iter().chain([pid]) {
        proc.children(parent, &mut children)?;
        pids.append(&mut children);
    }
    Ok(pids)
}

/// Returns the living processes below one that `/proc` hides: they belong to other users.
fn hidden_below(proc: &mut ProcFs, pid: Pid) -> io::Result<Vec<Survivor>> {
    let mut pids = below(proc, pid)?;
    pids.retain(|&pid| {
        matches!(proc.stat(pid), Ok(None) | Err(_))
            && !matches!(rustix::process::test_kill_process(pid), Err(Errno::SRCH))
    });
    Ok(pids.into_iter().map(|pid| Survivor::hidden(pid, false)).collect())
}

/// Tells whether a survivor with a pid is still alive. One that `/proc` hides is, while its pid is in use.
fn is_alive(survivor: &Survivor) -> bool {
    let Survivor::Process { pid, start_time, .. } = survivor else { return true };
    let Some(pid) = penfold_process::pid_from_raw(*pid) else { return false };
    if *start_time == 0 {
        return !matches!(rustix::process::test_kill_process(pid), Err(Errno::SRCH));
    }
    let stat = ProcFs::open().and_then(|mut proc| proc.stat(pid));
    stat.is_ok_and(|stat| stat.is_some_and(|stat| stat.start.0 == *start_time && !stat.is_dead()))
}
