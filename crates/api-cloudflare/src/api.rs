//! What every handler of this API can reach.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use penfold_server::execs::Followers;
use penfold_server::ids::{Locks, Places};
use penfold_server::{AppState, EngineError};
use tokio::sync::Semaphore;

use super::error::ApiError;
use super::leases::Leases;
use super::lost_shells::LostShells;
use super::watched::KeptTrees;

/// What every handler of this API can reach; a clone is another handle.
pub(crate) type ApiState = Arc<Api>;

/// The parts of this API. All of them but `lost_shells` can be made again from the disk.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) app: AppState,
    /// Held while a session is made or ended.
    pub(crate) locks: Locks,
    /// Where processes are.
    pub(crate) places: Places,
    /// Where the contexts of the interpreter are.
    pub(crate) contexts: Places,
    /// Where the terminals of clients from 0.13 on are.
    pub(crate) terminals: Places,
    /// The sessions whose shell has exited.
    pub(crate) lost_shells: LostShells,
    /// The open streams of processes and contexts.
    pub(crate) followers: Followers,
    /// The places of the tenant for watched directory trees.
    pub(crate) watches: Arc<Semaphore>,
    /// The watched trees that are kept between two requests.
    pub(crate) kept_trees: KeptTrees,
    /// The leases of the sessions that clients use.
    pub(crate) leases: Leases,
    /// The new sessions until the next look for sandboxes that others have removed.
    pub(crate) until_look: AtomicUsize,
}

/// The most watched directory trees of a tenant.
const WATCHES: usize = 32;

impl Api {
    pub(crate) fn new(app: AppState) -> ApiState {
        let leases = Leases::new(app.engine.scope());
        Arc::new(Api {
            app,
            leases,
            locks: Locks::default(),
            places: Places::default(),
            contexts: Places::default(),
            terminals: Places::default(),
            lost_shells: LostShells::default(),
            followers: Followers::default(),
            watches: Arc::new(Semaphore::new(WATCHES)),
            kept_trees: KeptTrees::default(),
            until_look: AtomicUsize::default(),
        })
    }

    /// The size limit for the output of a command that is kept.
    pub(crate) fn output_limit(&self) -> u64 {
        self.app.config.limits.output
    }

    /// Does short blocking work beside the runtime.
    ///
    /// # Errors
    /// Those of the work; an internal error if it was abandoned.
    pub(crate) async fn call<T: Send + 'static>(
        self: &Arc<Api>,
        work: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let api = Arc::clone(self);
        let done = self.app.engine.call(move |_| work(&api)).await;
        done.map_err(|error| ApiError::internal(&error))?
    }

    /// Runs a command to its end on a thread of its own.
    ///
    /// # Errors
    /// Those of the work; 429 if as many commands run as can run, or there is no room for a thread.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Api>,
        work: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.app.engine.command_place().ok_or_else(ApiError::too_many_commands)?;
        self.wait(move |api| {
            let _place = place;
            work(api)
        })
        .await
    }

    /// Does work that may wait for long on a thread of its own.
    ///
    /// # Errors
    /// Those of the work; 429 if there is no room for a thread.
    pub(crate) async fn wait<T: Send + 'static>(
        self: &Arc<Api>,
        work: impl FnOnce(&Api) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if cfg!(fuzzing) {
            return Err(ApiError::internal(&EngineError::Abandoned));
        }
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let api = Arc::clone(self);
        let begun = penfold_server::sent_body::run_beside("wait", move || {
            // A client that is gone changes nothing.
            let _ = sender.send(work(&api));
        });
        begun.map_err(|error| ApiError::full(&error))?;
        let gone = std::io::Error::other("the work was abandoned");
        receiver.await.map_err(|_| ApiError::internal(&gone))?
    }
}
