//! The tenants of a server: each is served by parts and routes of its own, which reach the tenant's sandboxes only. Nothing
//! that they keep in memory is shared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;

use crate::app::AppState;
use crate::dialect::Dialects;
use crate::refusal::Refusal;
use crate::tokens::{Tenant, Token, Tokens};

/// The tenants of a server; a clone is another handle.
#[derive(Debug, Clone)]
pub(crate) struct Tenants(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    /// For callers without a token.
    whole: Served,
    dialects: Dialects,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    tokens: Arc<Tokens>,
    /// Those that have sent a request.
    served: HashMap<Option<String>, (Arc<Tenant>, Served)>,
}

/// The parts and routes that serve a tenant.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) app: AppState,
    pub(crate) router: Router,
}

impl Tenants {
    pub(crate) fn new(app: &AppState, dialects: &Dialects) -> Tenants {
        let known = Known { tokens: Arc::new(app.config.tokens.clone()), served: HashMap::new() };
        let whole = Served { app: AppState::clone(app), router: dialects.router(app) };
        Tenants(Arc::new(Parts { whole, dialects: dialects.clone(), known: Mutex::new(known) }))
    }

    /// Returns what serves a caller without a token.
    pub(crate) fn whole(&self) -> &Served {
        &self.0.whole
    }

    /// Decides whether a request is served, and returns what serves its tenant.
    ///
    /// # Errors
    /// Those of `authorize`.
    pub(crate) fn admit(
        &self,
        authorize: impl FnOnce(&Tokens) -> Result<Option<&Token>, Refusal>,
    ) -> Result<Served, Refusal> {
        // One lock for the token and the parts: those of a tenant whose tokens are removed are not made again.
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = Arc::clone(&known.tokens);
        let Some(Token { tenant, .. }) = authorize(&tokens)? else { return Ok(self.0.whole.clone()) };
        let (_, served) = known.served.entry(tenant.name.clone()).or_insert_with(|| {
            let app = self.0.whole.app.for_tenant(tenant);
            let router = self.0.dialects.router(&app);
            (Arc::clone(tenant), Served { app, router })
        });
        Ok(served.clone())
    }

    /// Takes over other tokens. Streams of a tenant whose lines have changed are ended; its sandboxes go on.
    pub(crate) fn replace(&self, tokens: Tokens) {
        let mut known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut known.tokens, Arc::new(tokens));
        let now = Arc::clone(&known.tokens);
        let changed =
            |_: &Option<String>, (tenant, _): &mut (Arc<Tenant>, Served)| before.of(tenant) != now.of(tenant);
        for (_, (_, served)) in known.served.extract_if(changed) {
            served.app.revoked.begin();
            served.app.drain.begin();
        }
    }

    /// Returns a path for the log: without the tokens in it, wherever they are.
    pub(crate) fn without_tokens(&self, path: &str) -> String {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = Arc::clone(&known.tokens);
        drop(known);
        let shown = |part| if tokens.find(str::as_bytes(part)).is_some() { "******" } else { part };
        path.split('/').map(shown).collect::<Vec<_>>().join("/")
    }

    /// Ends the streams of all tenants.
    pub(crate) fn begin_drain(&self) {
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, served) in known.served.values() {
            served.app.drain.begin();
        }
        drop(known);
        self.0.whole.app.drain.begin();
    }

    /// Who has the sandboxes that belong to no tenant, for people; `None` if that needs no word.
    pub(crate) fn unowned_reached_by(&self) -> Option<String> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).tokens.unowned_reached_by()
    }
}
