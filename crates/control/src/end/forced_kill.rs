//! Ends sandboxes whose supervisors cannot be asked: there is none, it does not answer, it lies, or its record is gone.
//!
//! The members go first, so that a supervisor that only cannot hear sees its sandbox end and goes by itself. Then those
//! that still hold the lock are killed, and what is left is recovered under the lock.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope as ThreadScope};
use std::time::{Duration, Instant};

use penfold_cgroup::Leaf;
use penfold_process::{Pid, ProcFs, Process, Signal};
use penfold_teardown::{Findings, Ladder, Resource as _, Scope, Search, Selector, Survivor, Teardown};

use super::holders::{self, Holders, Locks};
use super::{Fate, How, Limits, pause};
use crate::resolve::{Finder, Known};
use penfold_state::evidence::fingerprints;
use penfold_state::evidence::{self, Evidence};
use penfold_state::marked;
use penfold_state::record::{Record, Registry};
use penfold_state::recovery::recover;
use penfold_state::{LeafName, Scratch};

/// How many sandboxes are worked on at a time: one that does not end holds up no other, up to this many.
const WORKERS: usize = 16;
/// How often those who wait hear how far things have come.
const TICK: Duration = Duration::from_millis(100);
/// How long a supervisor that does not answer may take to see that its sandbox is over.
const BLINK: Duration = Duration::from_millis(200);
/// How often it is looked whether the lock is free.
const LOOK: Duration = Duration::from_millis(2);
/// How many commands that put the same sandbox away are waited for, each as long as it may take.
const TURNS: u32 = 3;
/// The grace of a sandbox that nobody can be asked about, and whose record does not tell.
const USUAL_GRACE: Duration = Duration::from_secs(10);
/// The longest grace that a record is believed: the command could have written it.
const LONGEST_GRACE: Duration = Duration::from_hours(1);

/// Reason a sandbox is ended over the head of its supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    /// Nobody holds its lock.
    Unattended,
    /// Its record is gone.
    NoRecord,
    /// Its supervisor has no socket that one could talk to.
    NoSocket,
    /// Its supervisor does not answer, or refuses.
    Unresponsive,
    /// Its supervisor has begun and does not come to an end.
    Overdue,
    /// Its supervisor, or who poses as one, says what is not so.
    Untrusted,
    /// Its supervisor has looked in vain for the end.
    Unverified,
}

/// One sandbox that has to be ended.
struct Job<'a> {
    index: usize,
    known: &'a Known,
    reason: Reason,
    /// Who is left, by the word of its supervisor.
    told: Vec<Survivor>,
}

/// Which target, and what became of it.
type Result = (usize, Fate);

/// Who ends them, each in a thread of its own where one can be made.
pub(super) struct WorkerPool<'s, 'e, 'a> {
    scope: &'s ThreadScope<'s, 'e>,
    targets: &'a [Known],
    root: PathBuf,
    how: How,
    limits: Limits,
    jobs: Sender<Job<'a>>,
    waiting: Arc<Mutex<Receiver<Job<'a>>>>,
    told: Sender<Result>,
    results: Receiver<Result>,
    taken: usize,
    threads: usize,
}

impl<'s, 'e, 'a: 's> WorkerPool<'s, 'e, 'a> {
    pub(super) fn new(
        scope: &'s ThreadScope<'s, 'e>,
        finder: &Finder,
        targets: &'a [Known],
        how: How,
        limits: Limits,
    ) -> WorkerPool<'s, 'e, 'a> {
        let (jobs, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let (told, results) = channel();
        let root = finder.root().to_owned();
        WorkerPool { scope, targets, root, how, limits, jobs, waiting, told, results, taken: 0, threads: 0 }
    }

    pub(super) fn take_on(&mut self, index: usize, reason: Reason, told: Vec<Survivor>) {
        let Some(known) = self.targets.get(index) else { return };
        self.taken += 1;
        // The receiver is kept here as well: it cannot be gone.
        let _ = self.jobs.send(Job { index, known, reason, told });
        if self.threads < WORKERS {
            let worker = self.worker();
            // Where the user may have no more threads, those that there are do the work; without any, `finish`.
            let made = Builder::new().spawn_scoped(self.scope, move || while worker.work_once() {});
            self.threads += usize::from(made.is_ok());
        }
    }

    fn worker(&self) -> Worker<'a> {
        Worker {
            root: self.root.clone(),
            how: self.how,
            limits: self.limits,
            jobs: Arc::clone(&self.waiting),
            told: self.told.clone(),
        }
    }

    /// Waits for all that were taken on.
    pub(super) fn finish(self, fates: &mut [Option<Fate>], slow: &mut dyn FnMut(usize)) {
        let alone = (self.threads == 0).then(|| self.worker());
        let WorkerPool { jobs, told, results, taken, .. } = self;
        // Without it the threads see that there is nothing more to come.
        drop((jobs, told));
        let mut left = taken;
        if let Some(worker) = alone {
            for done in 0..taken {
                slow(taken - done);
                worker.work_once();
            }
        }
        loop {
            match results.recv_timeout(TICK) {
                Ok((index, fate)) => {
                    left -= 1;
                    if let Some(place) = fates.get_mut(index) {
                        *place = Some(fate);
                    }
                }
                Err(RecvTimeoutError::Timeout) => slow(left),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Does one job after another.
struct Worker<'a> {
    root: PathBuf,
    how: How,
    limits: Limits,
    jobs: Arc<Mutex<Receiver<Job<'a>>>>,
    told: Sender<Result>,
}

impl Worker<'_> {
    /// False when there is nothing more to come.
    fn work_once(&self) -> bool {
        // One thread waits for a job, the others for the lock; a panic elsewhere changes nothing here.
        let job = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return false };
        let fate = Forced::new(&self.root, &job, self.how, self.limits).run();
        let _ = self.told.send((job.index, fate.unwrap_or_else(Fate::Failed)));
        true
    }
}

/// A sandbox that is being ended without its supervisor's help.
struct Forced<'a> {
    finder: Finder,
    registry: Option<Registry>,
    known: &'a Known,
    reason: Reason,
    told: &'a [Survivor],
    limits: Limits,
    /// How long a kill may take until what is left is reported.
    patience: Duration,
    /// For the members, as far as nobody has asked them yet.
    ladder: Ladder,
}

impl<'a> Forced<'a> {
    fn new(root: &Path, job: &'a Job<'a>, how: How, limits: Limits) -> Forced<'a> {
        let asked = matches!(job.reason, Reason::Overdue | Reason::Unverified);
        // Where the supervisor has been patient already, a short look is enough to name what is left.
        let patience = limits.patience(job.known.intent.as_ref());
        let short = if job.reason == Reason::Unverified { limits.farewell.min(patience) } else { patience };
        let usual = Ladder { patience: short, ..Ladder::default() };
        let made_with = made_with(job.known);
        let ladder = match how {
            How::Stop { signal, grace } if !asked => Ladder {
                signal: signal.or(made_with.0).unwrap_or(usual.signal),
                grace: grace.or(made_with.1).unwrap_or(USUAL_GRACE),
                ..usual
            },
            _ => Ladder { grace: Duration::ZERO, ..usual },
        };
        let registry = Registry::open_existing(root).ok().flatten();
        let (known, reason, told) = (job.known, job.reason, job.told.as_slice());
        Forced { finder: Finder::new(root), registry, known, reason, told, limits, patience, ladder }
    }

    fn run(&self) -> io::Result<Fate> {
        // Before the members, the leaf and the record go: nothing else may tell of these.
        let scratch = self.scratch();
        let supervisors = self.known.record.as_ref().map(holders::named).unwrap_or_default();
        let fate = self.see_off(self.end()?, &supervisors)?;
        match scratch.map_or(Ok(None), Scratch::existing)? {
            Some(mut scratch) if matches!(fate, Fate::Gone) => Ok(match scratch.release(true) {
                Ok(()) => Fate::Gone,
                Err(error) => {
                    let (what, reason) = (scratch.describe(), error.to_string());
                    Fate::Left(vec![Survivor::Resource { what, reason }])
                }
            }),
            _ => Ok(fate),
        }
    }

    /// The scratch directory, by what is known of the sandbox, or by who lives in it.
    fn scratch(&self) -> Option<PathBuf> {
        let id = &self.known.id;
        match &self.known.intent {
            Some(intent) => {
                let path = intent.scratch.clone();
                path.filter(|path| LeafName::id_at(path).as_ref() == Some(id))
            }
            None => {
                self.finder.fingerprints().marked().get(id).and_then(|pids| fingerprints::scratch(pids, id))
            }
        }
    }

    fn end(&self) -> io::Result<Fate> {
        if self.is_over() {
            return Ok(Fate::Gone);
        }
        if let Some(record) = self.take()? {
            return self.recover(record);
        }
        let mut proc = ProcFs::open()?;
        // Before the leaf goes: where the record is gone nothing else tells who looks after the sandbox.
        let locks = Locks::of(&self.known.id, self.known.record.as_ref(), self.known.leaf.as_deref());
        let mut holders = locks.holders(&mut proc)?;
        let mut left = self.end_members()?.survivors;
        let until = Instant::now() + self.patience * TURNS;
        loop {
            let limit = self.limit(&mut proc, &holders)?;
            let mut record = self.wait_for_lock(&mut proc, &holders, limit)?;
            if record.is_none() && self.reason != Reason::Unverified {
                left.extend(self.end_holders(&mut proc, &holders)?);
                record = self.wait_for_lock(&mut proc, &holders, self.limits.farewell)?;
            }
            if let Some(record) = record {
                return self.see_off(self.recover(record)?, holders.processes());
            }
            if !self.is_held(&mut proc, &holders)?
                || self.reason == Reason::Unverified
                || Instant::now() >= until
            {
                return Ok(self.look(left, true));
            }
            // Another command has taken the lock meanwhile for the same purpose.
            holders = locks.holders(&mut proc)?;
        }
    }

    /// How long those who hold the lock may take to see that the sandbox is over, and to go.
    fn limit(&self, proc: &mut ProcFs, holders: &Holders<'_>) -> io::Result<Duration> {
        // Who has just told what is left looks after it, also where none of its members is a child of it.
        if holders.are_passing() && self.reason != Reason::Unverified {
            return Ok(self.patience * 2 + self.limits.farewell);
        }
        if holders.are_stopped(proc)? {
            return Ok(BLINK);
        }
        Ok(match self.reason {
            // Its supervisor stays for as long as something is left: the lock comes free only if that ends meanwhile.
            Reason::Unverified => self.limits.farewell.min(self.patience),
            Reason::Unresponsive | Reason::Overdue | Reason::Untrusted => self.limits.farewell,
            Reason::Unattended | Reason::NoRecord | Reason::NoSocket => self.patience,
        })
    }

    /// Ends the members that can be found without the supervisor, politely where that is wanted.
    fn end_members(&self) -> io::Result<Findings> {
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
            let marker =
                marked::marker(&self.known.id, self.known.intent.as_ref(), self.known.record.as_ref(), true);
            let search = marked::search(&marker, &mut proc)?;
            let mut teardown = Teardown::new(proc, leaf, Scope::Host(Box::new(search)));
            let findings = penfold_teardown::end(&mut teardown, &self.ladder, &mut []);
            all.verified &= findings.verified;
            all.survivors.extend(findings.survivors);
        }
        Ok(all)
    }

    /// The leaf that the record names, and the one that is there: a record may be forged.
    fn leaves(&self) -> Vec<&Path> {
        let seen = self.finder.fingerprints().leaves().get(&self.known.id);
        let mut leaves: Vec<&Path> = self.known.leaf.iter().chain(seen).map(PathBuf::as_path).collect();
        leaves.dedup();
        leaves
    }

    /// Kills those who hold the lock, and who descends from them: without a leaf and a marker nothing else would tell
    /// that those belong.
    fn end_holders(&self, proc: &mut ProcFs, holders: &Holders<'_>) -> io::Result<Vec<Survivor>> {
        let mut left = Vec::new();
        for holder in holders.left(proc)? {
            let ours = proc.stat(holder.id().pid)?.is_some_and(|stat| stat.has_our_name());
            if !ours {
                holder.signal(Signal::KILL)?;
                continue;
            }
            let mut proc = ProcFs::open()?;
            let search = Search::new(Selector::Process(holder.id()), &mut proc)?;
            let mut teardown = Teardown::new(proc, None, Scope::Host(Box::new(search)));
            let ladder = Ladder { grace: Duration::ZERO, ..self.ladder };
            left.extend(penfold_teardown::end(&mut teardown, &ladder, &mut []).survivors);
        }
        Ok(left)
    }

    /// A sandbox is gone only when its supervisors are: they have let go of the lock before they are seen to have ended.
    fn see_off(&self, fate: Fate, supervisors: &[Process]) -> io::Result<Fate> {
        if !matches!(fate, Fate::Gone) {
            return Ok(fate);
        }
        let late = holders::see_off(supervisors, Instant::now() + self.limits.farewell)?;
        if late.is_empty() {
            return Ok(fate);
        }
        let reason = |pid: Pid| format!("its supervisor {} exits and does not end", pid.as_raw_pid());
        Ok(Fate::Left(late.into_iter().map(|pid| Survivor::Unknown { reason: reason(pid) }).collect()))
    }

    /// Ends what is left under the lock.
    fn recover(&self, record: Record) -> io::Result<Fate> {
        let mut left = Vec::new();
        let intent = record.intent();
        let whole = intent.is_ok_and(|intent| intent.leaf.as_deref() == self.known.leaf.as_deref());
        if !self.ladder.grace.is_zero() || !whole || self.leaves().len() > 1 {
            left = self.end_members()?.survivors;
        }
        let findings = recover(record, true, self.patience)?;
        let is_process = |survivor: &Survivor| matches!(survivor, Survivor::Process { .. });
        let (alive, unreleased): (Vec<_>, Vec<_>) = findings.survivors.into_iter().partition(is_process);
        left.extend(alive);
        // What was seen under the lock is so whoever holds it now, to put the record away.
        Ok(match self.look(left, !findings.verified) {
            Fate::Gone if !unreleased.is_empty() => Fate::Left(unreleased),
            fate => fate,
        })
    }

    fn is_recorded(&self) -> bool {
        self.registry.as_ref().is_some_and(|registry| registry.holds(&self.known.id))
    }

    fn take(&self) -> io::Result<Option<Record>> {
        let Some(registry) = &self.registry else { return Ok(None) };
        if self.known.record.is_none() {
            // It cannot be opened, or was lost when it was looked for.
            return Ok(registry.take(&self.known.id).ok().flatten());
        }
        registry.take(&self.known.id).map_err(io::Error::other)
    }

    /// Waits until the lock is free and takes it; or, where there is no record, until the holders are gone.
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
            pause(LOOK);
        }
    }

    /// Whether somebody looks after it still.
    fn is_held(&self, proc: &mut ProcFs, holders: &Holders<'_>) -> io::Result<bool> {
        if !holders.left(proc)?.is_empty() {
            return Ok(true);
        }
        Ok(self.is_recorded() && self.known.record.as_ref().is_some_and(|files| files.lock().may_be_held()))
    }

    /// Whether nothing is left, from a look at everything that would tell.
    fn is_over(&self) -> bool {
        let held = self.known.record.as_ref().is_some_and(|files| files.lock().may_be_held());
        if held || self.reason == Reason::NoRecord {
            return false;
        }
        let ended = self.known.record.as_ref().is_some_and(penfold_state::Files::has_ended);
        (ended || !self.is_recorded())
            && self.leaves().into_iter().all(evidence::is_leaf_empty)
            && self.evidence(true).is_nothing()
    }

    /// What became of it, from a fresh look; at who looks after it, too, if its end was not seen under the lock.
    fn look(&self, mut left: Vec<Survivor>, attended: bool) -> Fate {
        let until = Instant::now() + if self.told.is_empty() { self.limits.farewell } else { Duration::ZERO };
        let mut evidence = self.evidence(attended);
        // Where there is no lock to wait for, the socket tells that the supervisors are not out yet; and another command
        // at the same work may hold a lock for a moment.
        while !evidence.is_nothing() && Instant::now() < until {
            pause(LOOK);
            evidence = self.evidence(attended);
        }
        if evidence.is_nothing() {
            return Fate::Gone;
        }
        // A member that its supervisor alone can see is as little gone.
        left.extend(self.told.iter().filter(|told| !left.contains(told)).cloned().collect::<Vec<_>>());
        // What was in the way of one step may have been out of the way for the next.
        left.retain(is_alive);
        if left.is_empty() {
            left.extend(evidence.sentences().into_iter().map(|reason| Survivor::Unknown { reason }));
        }
        Fate::Left(left)
    }

    /// What speaks for something of it being alive: its lock, its leaf, its marker; and a supervisor's socket where there
    /// is no lock to tell. Where there is one, whoever listens is none of its supervisors.
    fn evidence(&self, attended: bool) -> Evidence {
        let fresh = self.finder.again();
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

/// How a sandbox is asked to end, and for how long, by its record.
fn made_with(known: &Known) -> (Option<Signal>, Option<Duration>) {
    let Some(intent) = &known.intent else { return (None, None) };
    let grace = intent.grace_ms.map(|ms| Duration::from_millis(ms).min(LONGEST_GRACE));
    (intent.signal.and_then(penfold_sys::signal::signal), grace)
}

/// Whether a survivor that has a name is still there.
fn is_alive(survivor: &Survivor) -> bool {
    let Survivor::Process { pid, start_time, .. } = survivor else { return true };
    let Some(pid) = penfold_process::pid_from_raw(*pid) else { return false };
    let stat = ProcFs::open().and_then(|mut proc| proc.stat(pid));
    stat.is_ok_and(|stat| stat.is_some_and(|stat| stat.start.0 == *start_time && !stat.is_dead()))
}
