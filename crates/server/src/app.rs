//! What every handler can reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::Config;
use crate::deleted::Deleted;
use crate::drain::Drain;
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::tokens::Tenant;

/// What every handler can reach; a clone is another handle.
pub type AppState = Arc<App>;

/// The parts of a running server, as one tenant reaches them.
#[derive(Debug)]
pub struct App {
    /// The settings.
    pub config: Arc<Config>,
    /// The calls into penfold.
    pub engine: Engine,
    /// The end of the server, or of the tenant's access, which streams wait for.
    pub drain: Drain,
    /// The end of the tenant's access.
    pub(crate) revoked: Drain,
    /// The reports of removed records.
    pub deleted: Arc<Deleted>,
    /// The counters behind `/metrics`.
    pub(crate) metrics: Arc<Metrics>,
    /// Those of the whole server, if they are others.
    of_server: Option<Arc<Metrics>>,
    ready: Arc<AtomicBool>,
}

impl App {
    /// Makes the parts of a server with these settings, for callers that reach everything.
    pub fn new(config: Config) -> AppState {
        let metrics = Arc::new(Metrics::default());
        let engine = Engine::new(&config, &metrics);
        Arc::new(App {
            config: Arc::new(config),
            engine,
            metrics,
            drain: Drain::default(),
            revoked: Drain::default(),
            deleted: Arc::default(),
            of_server: None,
            ready: Arc::default(),
        })
    }

    /// Makes the parts that the callers of a tenant reach.
    pub(crate) fn for_tenant(&self, tenant: &Arc<Tenant>) -> AppState {
        let own = Arc::new(Metrics::default());
        let engine = self.engine.for_tenant(tenant, &own);
        let reaches_all = engine.scope().has_unowned();
        Arc::new(App {
            config: Arc::clone(&self.config),
            engine,
            metrics: if reaches_all { Arc::clone(&self.metrics) } else { own },
            drain: Drain::default(),
            revoked: Drain::default(),
            deleted: Arc::clone(&self.deleted),
            of_server: (!reaches_all).then(|| Arc::clone(&self.metrics)),
            ready: Arc::clone(&self.ready),
        })
    }

    /// Counts something for the tenant and for the server.
    pub(crate) fn count(&self, add: impl Fn(&Metrics)) {
        [Some(&self.metrics), self.of_server.as_ref()].into_iter().flatten().for_each(|metrics| add(metrics));
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
