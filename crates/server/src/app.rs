//! What every handler can reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::Config;
use crate::deleted::Deleted;
use crate::drain::Drain;
use crate::engine::Engine;
use crate::metrics::Metrics;

/// What every handler can reach; a clone is another handle.
pub type AppState = Arc<App>;

/// The parts of a running server.
#[derive(Debug)]
pub struct App {
    /// The settings.
    pub config: Config,
    /// The calls into penfold.
    pub engine: Engine,
    /// The counters behind `/metrics`.
    pub metrics: Metrics,
    /// The end of the server, which streams wait for.
    pub drain: Drain,
    /// The reports of removed records.
    pub deleted: Deleted,
    ready: AtomicBool,
}

impl App {
    /// Makes the parts of a server with these settings.
    pub fn new(config: Config) -> AppState {
        let metrics = Metrics::default();
        let engine = Engine::new(&config, &metrics);
        let ready = AtomicBool::new(false);
        Arc::new(App { config, engine, metrics, drain: Drain::default(), deleted: Deleted::default(), ready })
    }

    /// Tells whether the orphans of the state root were recovered.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Notes that the orphans of the state root were recovered.
    pub(crate) fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }
}
