//! The threads that end sandboxes without their supervisors, several at the same time.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope as ThreadScope};
use std::time::Duration;

use penfold_teardown::Survivor;

use super::forced_kill::{ForceReason, ForcedKill, KillJob};
use super::{EndLimits, EndMethod, StopResult};
use crate::resolve::{Resolver, SandboxRef};

/// The most sandboxes that are ended in parallel. A sandbox that does not end delays no other, up to this number.
const WORKERS: usize = 16;
/// The interval of progress reports.
const TICK: Duration = Duration::from_millis(100);

/// The index of a target, and its result.
type KillResult = (usize, StopResult);

/// The threads that end sandboxes, as far as threads can be made.
pub(super) struct WorkerPool<'s, 'e, 'a> {
    scope: &'s ThreadScope<'s, 'e>,
    targets: &'a [SandboxRef],
    root: PathBuf,
    how: EndMethod,
    limits: EndLimits,
    jobs: Sender<KillJob<'a>>,
    waiting: Arc<Mutex<Receiver<KillJob<'a>>>>,
    result_sender: Sender<KillResult>,
    results: Receiver<KillResult>,
    taken: usize,
    threads: usize,
}

impl<'s, 'e, 'a: 's> WorkerPool<'s, 'e, 'a> {
    pub(super) fn new(
        scope: &'s ThreadScope<'s, 'e>,
        resolver: &Resolver,
        targets: &'a [SandboxRef],
        how: EndMethod,
        limits: EndLimits,
    ) -> WorkerPool<'s, 'e, 'a> {
        let (jobs, waiting) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let (result_sender, results) = channel();
        let root = resolver.root().to_owned();
        WorkerPool {
            scope,
            targets,
            root,
            how,
            limits,
            jobs,
            waiting,
            result_sender,
            results,
            taken: 0,
            threads: 0,
        }
    }

    pub(super) fn take_on(&mut self, index: usize, reason: ForceReason, known_survivors: Vec<Survivor>) {
        let Some(known) = self.targets.get(index) else { return };
        self.taken += 1;
        // The pool holds the receiver too, so the channel is open.
        let _ = self.jobs.send(KillJob { index, known, reason, known_survivors });
        if self.threads < WORKERS {
            let worker = self.worker();
            // If the user may have no more threads, the existing ones do the work; without any, `finish` does.
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
            result_sender: self.result_sender.clone(),
        }
    }

    /// Waits for all jobs.
    pub(super) fn finish(self, stop_results: &mut [Option<StopResult>], slow: &mut dyn FnMut(usize)) {
        let alone = (self.threads == 0).then(|| self.worker());
        let WorkerPool { jobs, result_sender, results, taken, .. } = self;
        // Closing the channel tells the threads that no job follows.
        drop((jobs, result_sender));
        let mut left = taken;
        if let Some(worker) = alone {
            for done in 0..taken {
                slow(taken - done);
                worker.work_once();
            }
        }
        loop {
            match results.recv_timeout(TICK) {
                Ok((index, stop_result)) => {
                    left -= 1;
                    if let Some(place) = stop_results.get_mut(index) {
                        *place = Some(stop_result);
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
    how: EndMethod,
    limits: EndLimits,
    jobs: Arc<Mutex<Receiver<KillJob<'a>>>>,
    result_sender: Sender<KillResult>,
}

impl Worker<'_> {
    /// Does one job; false when no job follows.
    fn work_once(&self) -> bool {
        // One thread waits for a job, the others for the lock; a panic elsewhere changes nothing here.
        let job = self.jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return false };
        let stop_result = ForcedKill::new(&self.root, &job, self.how, self.limits).run();
        let _ = self.result_sender.send((job.index, stop_result.unwrap_or_else(StopResult::Failed)));
        true
    }
}
