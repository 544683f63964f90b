//! The calls into penfold. They block, so each runs on a thread beside the runtime.

mod create;
mod quota;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use penfold_control::{
    ForgetError, ResolveError, Resolver, SandboxRef, SandboxView, Scope, StartError, start_detached, view,
};
use penfold_state::names;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::config::Config;
use crate::descriptors::Shares;
use crate::locks::Locks;
use crate::metrics::Metrics;
use crate::records::find_sandbox;
use crate::sent_body::run_beside;
use crate::tokens::Tenant;

pub use create::{NewSandbox, is_settable};

/// Why a call into penfold gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// There is no such sandbox, or the word is ambiguous.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The records or the host cannot be read.
    #[error("cannot look at the sandboxes")]
    Look(#[source] io::Error),
    /// `penfold` cannot be executed.
    #[error("cannot execute `{}`", program.display())]
    Execute {
        /// The path of the program.
        program: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The sandbox was not started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The tenant has as many sandboxes as it can have.
    #[error("there are {most} living sandboxes of this tenant already")]
    TooMany {
        /// The limit.
        most: usize,
    },
    /// As many requests wait as can wait.
    #[error("this server has as many waiting requests as it can have")]
    Busy,
    /// The record cannot be removed.
    #[error(transparent)]
    Forget(#[from] ForgetError),
    /// The call panicked, or the server ends.
    #[error("the call was abandoned")]
    Abandoned,
}

/// The calls into penfold, for the callers of one tenant.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    scope: Scope,
    /// `None` for callers without a token.
    tenant: Option<Arc<Tenant>>,
    /// The counters of sandboxes that were started.
    started: Vec<Counter>,
}

/// What the engines of all tenants share.
#[derive(Debug)]
struct Shared {
    program: PathBuf,
    environment: Arc<Vec<(OsString, OsString)>>,
    creating: Locks,
    quota: Arc<quota::Quota>,
    checking: Mutex<()>,
    calls: Arc<Semaphore>,
    followers: Arc<Semaphore>,
    enders: Arc<Semaphore>,
    commands: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    large_bodies: Arc<Semaphore>,
}

/// The most watched directory trees at one time; each has an inotify descriptor, of which a user has 128 by default.
const WATCHES: usize = 64;
/// The most bodies at one time that are larger than [`crate::Limits::body`]; each is in memory.
const LARGE_BODIES: usize = 2;

impl Engine {
    /// Makes the engine of a server with these settings.
    pub(crate) fn new(config: &Config, metrics: &Metrics) -> Engine {
        let Shares { streams, ends, commands, calls, .. } = Shares::of_process();
        let shared = Shared {
            program: config.program.clone(),
            environment: Arc::new(config.environment.clone()),
            creating: Locks::default(),
            quota: Arc::new(quota::Quota::new(config.limits.sandboxes)),
            checking: Mutex::new(()),
            calls: Arc::new(Semaphore::new(calls)),
            followers: Arc::new(Semaphore::new(streams)),
            enders: Arc::new(Semaphore::new(ends)),
            commands: Arc::new(Semaphore::new(commands)),
            watches: Arc::new(Semaphore::new(WATCHES)),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES)),
        };
        let scope = Scope::whole(&config.state_root);
        let started = vec![metrics.sandboxes_started.clone()];
        Engine { shared: Arc::new(shared), scope, tenant: None, started }
    }

    /// Makes the engine for the callers of a tenant.
    pub(crate) fn for_tenant(&self, tenant: &Arc<Tenant>, metrics: &Metrics) -> Engine {
        let root = self.scope.root();
        let scope = match &tenant.name {
            Some(name) if tenant.is_admin => Scope::of_admin(root, name),
            Some(name) => Scope::of_tenant(root, name, tenant.is_alone),
            None => Scope::of_nobody(root, tenant.unnamed.as_deref().unwrap_or_default()),
        };
        let mut started = self.started.clone();
        started.push(metrics.sandboxes_started.clone());
        Engine { shared: Arc::clone(&self.shared), scope, tenant: Some(Arc::clone(tenant)), started }
    }

    /// The sandboxes that the callers reach.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// The name of the tenant to whom new sandboxes belong.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_ref()?.name.as_deref()
    }

    /// A lock for those that look for a sandbox of the tenant and create one if there is none.
    pub async fn creating(&self) -> OwnedMutexGuard<()> {
        self.shared.creating.lock(self.tenant().unwrap_or_default()).await
    }

    /// A lock for those that search the whole host.
    pub fn checking(&self) -> &Mutex<()> {
        &self.shared.checking
    }

    /// A place for one more stream or wait; `None` when there are as many as there can be.
    pub fn follower(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.followers).try_acquire_owned().ok()
    }

    /// A place for one more command whose end a request waits for; `None` when there are as many as there can be.
    pub fn command_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.commands).try_acquire_owned().ok()
    }

    /// A place for one more watched directory tree; `None` when there are as many as there can be.
    pub fn watch_place(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.watches).try_acquire_owned().ok()
    }

    /// A place for one more body that is larger than [`crate::Limits::body`]; `None` when there are as many as there can be.
    pub fn large_body(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.shared.large_bodies).try_acquire_owned().ok()
    }

    /// The places for streams and waits that are free.
    #[cfg(test)]
    pub(crate) fn free_followers(&self) -> usize {
        self.shared.followers.available_permits()
    }

    /// A place for one more request that ends something.
    ///
    /// # Errors
    /// [`EngineError::Busy`] when there are as many as there can be.
    pub fn ender(&self) -> Result<OwnedSemaphorePermit, EngineError> {
        Arc::clone(&self.shared.enders).try_acquire_owned().map_err(|_| EngineError::Busy)
    }

    /// Does work that may wait for long, on a thread of its own: the threads of [`Engine::call`] are few, and stay free for
    /// short work. A caller that goes away does not end the work.
    ///
    /// # Errors
    /// [`EngineError::Busy`] if no thread can be started, [`EngineError::Abandoned`] if the work panicked.
    pub async fn wait<T: Send + 'static>(
        &self,
        place: OwnedSemaphorePermit,
        work: impl FnOnce(&Scope) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        if cfg!(fuzzing) {
            return Err(EngineError::Abandoned);
        }
        let scope = self.scope.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let begun = run_beside("wait", move || {
            let done = work(&scope);
            drop(place);
            // The request may be gone.
            let _ = sender.send(done);
        });
        begun.map_err(|_| EngineError::Busy)?;
        receiver.await.map_err(|_| EngineError::Abandoned)
    }

    /// Does short blocking work on a thread beside the runtime, once there are descriptors for it; the work gets the scope of the
    /// callers. A caller that goes away does not end the work.
    ///
    /// # Errors
    /// [`EngineError::Abandoned`] if the work panicked or the runtime ends.
    pub async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Scope) -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        // A fuzzed request must change nothing on this host.
        if cfg!(fuzzing) {
            return Err(EngineError::Abandoned);
        }
        let scope = self.scope.clone();
        let place =
            Arc::clone(&self.shared.calls).acquire_owned().await.map_err(|_| EngineError::Abandoned)?;
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&scope);
            drop(place);
            done
        });
        done.await.map_err(|_| EngineError::Abandoned)
    }

    /// Starts a detached sandbox. Returns its id once its command runs.
    ///
    /// # Errors
    /// When the command does not run; nothing is left then, unless the error is of the kind [`penfold_request::RefusalKind::Unverified`].
    pub async fn create(&self, mut wanted: NewSandbox) -> Result<String, EngineError> {
        let Shared { program, environment, quota, .. } = &*self.shared;
        let (program, environment) = (program.clone(), Arc::clone(environment));
        let (quota, tenant) = (Arc::clone(quota), self.tenant.clone());
        let id = self.call(move |scope| {
            let root = scope.root();
            // Nobody else can set these labels.
            let labels = &mut wanted.spec.labels;
            labels.retain(|key, _| key != quota::LABEL && key != names::TENANT);
            let mut place = None;
            if let Some(tenant) = &tenant {
                place = Some(quota.take(tenant, root)?);
                let (key, value) = quota::label(tenant);
                labels.insert(key.to_owned(), value.to_owned());
            }
            penfold_sys::crash_point!("serve-sandbox-wanted");
            let environment = wanted.environment(&environment);
            let made = start_detached(&program, root, &wanted.into_request(), &environment);
            penfold_sys::crash_point!("serve-sandbox-made");
            if let Some(place) = place.filter(|_| made.is_ok()) {
                place.fill();
            }
            made.map_err(EngineError::Start)
        });
        let id = id.await??;
        for counter in &self.started {
            counter.inc();
        }
        Ok(id)
    }

    /// Executes penfold with these words to its end, for work that a process with threads must not do itself.
    ///
    /// # Errors
    /// When it cannot be executed.
    pub async fn execute(&self, words: Vec<OsString>) -> Result<Output, EngineError> {
        let Shared { program, environment, .. } = &*self.shared;
        let (program, environment) = (program.clone(), Arc::clone(environment));
        self.call(move |scope| {
            let mut command = Command::new(&program);
            command.arg("--root").arg(scope.root()).args(words).stdin(Stdio::null());
            command.env_clear().envs(environment.iter().map(|(key, value)| (key, value)));
            command.output().map_err(|source| EngineError::Execute { program, source })
        })
        .await?
    }

    /// Lists the sandboxes that may have a living member, or `all`, each with its traces.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub async fn list(&self, all: bool) -> Result<Vec<(SandboxRef, SandboxView)>, EngineError> {
        self.call(move |scope| {
            view::select_sandboxes(&Resolver::within(scope), all).map_err(EngineError::Look)
        })
        .await?
    }

    /// Finds one sandbox by its id, a unique prefix of the id, or its name; the view is `None` while it is being made.
    ///
    /// # Errors
    /// When there is no such sandbox, or the word is ambiguous.
    pub async fn find(&self, word: String) -> Result<(SandboxRef, Option<SandboxView>), EngineError> {
        self.call(move |scope| {
            let known = find_sandbox(scope, &word)?;
            let seen = view::observe_sandbox(&Resolver::new(scope.root()), &known);
            Ok((known, seen))
        })
        .await?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::tokens::Tokens;

    fn engine() -> Engine {
        Engine::new(&Config::of_test(), &Metrics::default())
    }

    /// spec: 15.4
    #[test]
    fn all_tenants_share_the_places_for_watches_and_large_bodies() {
        let engine = engine();
        let tenant = |name: &str| {
            let tokens = Tokens::parse(format!("{name} {name}-0123456789abcdef").as_bytes()).unwrap();
            let token = tokens.find(format!("{name}-0123456789abcdef").as_bytes()).unwrap();
            engine.for_tenant(&token.tenant, &Metrics::default())
        };
        let (alice, bob) = (tenant("alice"), tenant("bob"));
        let watches: Vec<_> = std::iter::from_fn(|| alice.watch_place()).take(1000).collect();
        assert_eq!((watches.len(), bob.watch_place().is_none()), (WATCHES, true));
        let bodies: Vec<_> = std::iter::from_fn(|| alice.large_body()).take(1000).collect();
        assert_eq!((bodies.len(), bob.large_body().is_none()), (LARGE_BODIES, true));
        drop((watches, bodies));
        assert!(bob.watch_place().is_some() && bob.large_body().is_some());
    }

    /// spec: 15.15
    #[test]
    fn short_work_waits_for_its_share_of_the_descriptors() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        runtime.unwrap().block_on(async {
            let engine = engine();
            let others = u32::try_from(Shares::of_process().calls - 1).unwrap();
            let _taken = engine.shared.calls.acquire_many(others).await.unwrap();
            let (says, said) = mpsc::channel();
            let first = engine.call(move |_| said.recv_timeout(Duration::from_millis(100)).is_ok());
            let second = engine.call(move |_| says.send(()).is_err());
            let (is_disturbed, is_late) = tokio::join!(first, second);
            assert_eq!((is_disturbed.unwrap(), is_late.unwrap()), (false, true));
        });
    }

    /// spec: 15.4.2
    #[test]
    fn long_waits_leave_the_threads_for_short_work_free_and_are_bounded() {
        // One thread for all short work: a wait on it would keep everything else waiting.
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).enable_all().build();
        runtime.unwrap().block_on(async {
            let engine = Arc::new(engine());
            let mut releases = Vec::new();
            let mut waits = Vec::new();
            for _ in 0..3 {
                let engine = Arc::clone(&engine);
                let place = engine.ender().unwrap();
                let (release, held) = mpsc::channel::<()>();
                releases.push(release);
                waits.push(tokio::spawn(
                    async move { engine.wait(place, move |_| held.recv().is_err()).await },
                ));
            }
            tokio::task::yield_now().await;
            let short = tokio::time::timeout(Duration::from_mins(1), engine.call(|_| 7));
            assert_eq!(short.await.unwrap().unwrap(), 7);
            let places: Vec<_> = (3..Shares::of_process().ends).map(|_| engine.ender().unwrap()).collect();
            assert!(matches!(engine.ender(), Err(EngineError::Busy)));
            drop((places, releases));
            for wait in waits {
                assert!(wait.await.unwrap().unwrap());
            }
            assert!(engine.ender().is_ok());
        });
    }
}
