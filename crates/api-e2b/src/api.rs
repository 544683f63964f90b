//! What every handler of this API can reach.

use std::sync::{Arc, OnceLock};

use penfold_server::{AppState, EngineError};
use penfold_state::secret::{SECRET, read_or_make_secret};

use crate::watched::Watchers;

/// The file with the secret, below the state root.
const FILE: &str = "e2b-secret";

/// The secret of the state root.
pub(crate) type Secret = [u8; SECRET];

/// What every handler of this API can reach; a clone is another handle.
pub(crate) type ApiState = Arc<Api>;

/// The parts of this API. All of them can be made again from the disk.
#[derive(Debug)]
pub(crate) struct Api {
    pub(crate) app: AppState,
    secret: OnceLock<Secret>,
    /// The watched directories of sandboxes; the only part that a restart loses.
    pub(crate) watchers: Watchers,
}

impl Api {
    pub(crate) fn new(app: AppState) -> ApiState {
        Arc::new(Api { app, secret: OnceLock::new(), watchers: Watchers::default() })
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
