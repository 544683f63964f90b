//! What every handler of this API can reach.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::http::HeaderValue;
use penfold_server::{AppState, EngineError};
use penfold_state::secret::{SECRET, read_or_make_secret};
use penfold_state::{Files, Id};

use crate::watched::Watchers;

/// The file with the secret, below the state root.
const FILE: &str = "e2b-secret";

/// The secret of the state root.
pub(crate) type Secret = [u8; SECRET];

/// What every handler of this API can reach; a clone is another handle.
pub(crate) type ApiState = Arc<Api>;

/// A value that one thread uses at one time.
#[derive(Debug, Default)]
pub(crate) struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that all processors have worked, and the time that has passed for all of them, in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Processors {
    pub(crate) busy: u64,
    pub(crate) all: u64,
}

/// The parts of this API. All of them can be made again.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) app: AppState,
    secret: OnceLock<Secret>,
    /// What this server adds to a request that it passes on, and no other server does.
    pub(crate) via: HeaderValue,
    /// The watched directories of sandboxes; the only part that a restart loses.
    pub(crate) watchers: Watchers,
    /// The record of the sandbox with the commands of this machine, once it was found.
    pub(crate) commands: Shared<Option<Files>>,
    /// Held while `POST /init` reads and keeps settings.
    pub(crate) setting: Shared<()>,
    /// The last look at the processors, for the next one.
    pub(crate) processors: Shared<Option<Processors>>,
}

impl Api {
    pub(crate) fn new(app: AppState) -> ApiState {
        Arc::new(Api {
            app,
            secret: OnceLock::new(),
            via: own_via(),
            watchers: Watchers::default(),
            commands: Shared::default(),
            setting: Shared::default(),
            processors: Shared::default(),
        })
    }

    /// Returns the secret from which access tokens are made.
    ///
    /// # Errors
    /// When it can be neither read nor made.
    pub(crate) fn secret(&self) -> std::io::Result<Secret> {
        if let Some(secret) = self.secret.get() {
            return Ok(*secret);
        }
        let secret = read_or_make_secret(self.app.engine.scope().root(), FILE)?;
        Ok(*self.secret.get_or_init(|| secret))
    }

    /// Does short blocking work beside the runtime.
    ///
    /// # Errors
    /// Those of the work; an internal error if it was abandoned.
    pub(crate) async fn call<T: Send + 'static, E: From<EngineError> + Send + 'static>(
        self: &Arc<Api>,
        work: impl FnOnce(&Api) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E> {
        let api = Arc::clone(self);
        self.app.engine.call(move |_| work(&api)).await?
    }
}

fn own_via() -> HeaderValue {
    let named =
        Id::new().ok().and_then(|id| HeaderValue::try_from(format!("1.1 penfold-{}", id.short())).ok());
    named.unwrap_or(HeaderValue::from_static("1.1 penfold"))
}
