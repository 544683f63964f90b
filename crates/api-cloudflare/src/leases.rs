//! The idle limit of sessions: the lease of a session's sandbox, which is renewed while a client uses the session.
//!
//! The limit is in a label of the sandbox, so that every server keeps it. Without a server a session ends by its last lease.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use penfold_control::{LeaseError, Resolver, Scope, extend_lease};
use penfold_server::records::find_sandbox;
use penfold_server::sent_body::run_beside;
use penfold_state::{Files, error_chain};

/// The label of a session's sandbox with its idle limit in milliseconds.
pub(crate) const IDLE: &str = "penfold.session-idle-ms";
/// A lease is renewed once this part of it is over.
const PART: u32 = 4;

/// Renews the leases of the sessions that clients use.
#[derive(Debug)]
pub(crate) struct Leases(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    scope: Scope,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By the id of the sandbox.
    leases: HashMap<String, Lease>,
    /// The thread that renews; it ends when there is no lease.
    renewer: Option<Thread>,
    has_renewer: bool,
}

/// The lease of a session that is in use, or was a moment ago.
#[derive(Debug)]
struct Lease {
    limit: Duration,
    uses: usize,
    last_use: Instant,
    renewed: Instant,
}

impl Lease {
    /// When it is to be looked at again.
    fn due(&self) -> Instant {
        self.renewed + self.limit / PART
    }
}

/// As long as this value lives, the session does not end by its idle limit.
#[derive(Debug)]
pub(crate) struct InUse {
    shared: Arc<Shared>,
    sandbox: String,
}

impl Drop for InUse {
    fn drop(&mut self) {
        if let Some(lease) = self.shared.lock().leases.get_mut(&self.sandbox) {
            // A session that had ended may have been forgotten, and noted again.
            lease.uses = lease.uses.saturating_sub(1);
            lease.last_use = Instant::now();
        }
    }
}

impl Leases {
    pub(crate) fn new(scope: &Scope) -> Leases {
        Leases(Arc::new(Shared { scope: scope.clone(), known: Mutex::default() }))
    }

    /// Notes that a client uses the session of this record, if it has an idle limit. May wait for the supervisor.
    pub(crate) fn begin_use(&self, files: &Files) -> Option<Arc<InUse>> {
        let limit = files.intent().ok()?.labels.get(IDLE)?.parse().ok().map(Duration::from_millis)?;
        let sandbox = files.name().to_owned();
        let now = Instant::now();
        let is_new = {
            let mut known = self.0.lock();
            let count = known.leases.len();
            let fresh = Lease { limit, uses: 0, last_use: now, renewed: now };
            let lease = known.leases.entry(sandbox.clone()).or_insert(fresh);
            lease.uses += 1;
            known.leases.len() > count
        };
        let in_use = InUse { shared: Arc::clone(&self.0), sandbox };
        if is_new {
            self.0.renew(&in_use.sandbox, limit);
            self.0.wake_renewer();
        }
        Some(Arc::new(in_use))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the thread that renews know that there is one more lease, and starts it if there is none.
    fn wake_renewer(self: &Arc<Shared>) {
        let mut known = self.lock();
        if let Some(renewer) = &known.renewer {
            renewer.unpark();
        }
        if known.has_renewer {
            return;
        }
        known.has_renewer = true;
        let shared = Arc::clone(self);
        if let Err(error) = run_beside("leases", move || shared.renew_all()) {
            known.has_renewer = false;
            tracing::warn!(%error, "cannot renew the leases of sessions that are in use");
        }
    }

    /// Renews the leases until no session is in use, nor was after the last renewal.
    fn renew_all(&self) {
        self.lock().renewer = Some(std::thread::current());
        loop {
            let now = Instant::now();
            let (due, next) = {
                let mut known = self.lock();
                known
                    .leases
                    .retain(|_, lease| lease.due() > now || lease.uses > 0 || lease.last_use > lease.renewed);
                let Some(next) = known.leases.values().map(Lease::due).min() else {
                    (known.renewer, known.has_renewer) = (None, false);
                    return;
                };
                let due: Vec<(String, Duration)> = known
                    .leases
                    .iter_mut()
                    .filter(|(_, lease)| lease.due() <= now)
                    .map(|(sandbox, lease)| {
                        lease.renewed = now;
                        (sandbox.clone(), lease.limit)
                    })
                    .collect();
                (due, next)
            };
            if due.is_empty() {
                std::thread::park_timeout(next.saturating_duration_since(now));
            }
            for (sandbox, limit) in due {
                self.renew(&sandbox, limit);
            }
        }
    }

    fn renew(&self, sandbox: &str, limit: Duration) {
        let Ok(known) = find_sandbox(&self.scope, sandbox) else { return self.forget(sandbox) };
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        match extend_lease(&Resolver::new(self.scope.root()), &known, limit) {
            Ok(()) => {}
            Err(LeaseError::Gone | LeaseError::NotLiving(_) | LeaseError::Ended) => self.forget(sandbox),
            Err(error) => {
                let why = error_chain(&error);
                tracing::warn!(sandbox, why, "cannot renew the lease of a session that is in use");
            }
        }
    }

    fn forget(&self, sandbox: &str) {
        self.lock().leases.remove(sandbox);
    }
}
