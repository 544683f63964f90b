//! The tenants of a server: each is served by parts and routes of its own, which reach the tenant's sandboxes only. Nothing
//! that they keep in memory is shared.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use penfold_api::SHORTEST_TOKEN;

use crate::app::AppState;
use crate::dialect::{Dialect, Dialects};
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
    /// The routes of the dialects that claim requests, by name. A tenant has none: whose caller it is, those routes find out.
    pub(crate) claiming: Vec<(&'static str, Router)>,
}

impl Served {
    /// Returns the routes of a dialect.
    pub(crate) fn router_of(self, dialect: &Dialect) -> Router {
        let own = self.claiming.into_iter().find(|(name, _)| *name == dialect.name);
        own.map_or(self.router, |(_, router)| router)
    }
}

impl Tenants {
    pub(crate) fn new(app: &AppState, dialects: &Dialects) -> Tenants {
        let known = Known { tokens: Arc::new(app.config.tokens.clone()), served: HashMap::new() };
        let whole = Served {
            app: AppState::clone(app),
            router: dialects.router(app),
            claiming: dialects.claiming_routers(app),
        };
        Tenants(Arc::new(Parts { whole, dialects: dialects.clone(), known: Mutex::new(known) }))
    }

    /// Returns what serves a caller without a token.
    pub(crate) fn whole(&self) -> &Served {
        &self.0.whole
    }

    /// Returns the tokens as they are now.
    pub(crate) fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.0.known.lock().unwrap_or_else(PoisonError::into_inner).tokens)
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
            if self.0.whole.app.drain.has_begun() {
                app.drain.begin();
            }
            let router = self.0.dialects.router(&app);
            (Arc::clone(tenant), Served { app, router, claiming: Vec::new() })
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
        let tokens = self.tokens();
        // Most parts are too short for one.
        let is_token = |part: &str| part.len() >= SHORTEST_TOKEN && tokens.find(part.as_bytes()).is_some();
        path.split('/').map(|part| if is_token(part) { "******" } else { part }).collect::<Vec<_>>().join("/")
    }

    /// Ends the streams of all tenants.
    pub(crate) fn begin_drain(&self) {
        // First: a tenant that comes now finds that it has begun.
        self.0.whole.app.drain.begin();
        let known = self.0.known.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, served) in known.served.values() {
            served.app.drain.begin();
        }
    }

    /// Who has the sandboxes that belong to no tenant, for people; `None` if that needs no word.
    pub(crate) fn unowned_reached_by(&self) -> Option<String> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).tokens.unowned_reached_by()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::App;
    use crate::config::Config;

    const ALICE: &str = "alice-0123456789abcdef";
    const BOB: &str = "bob-0123456789abcdef";

    fn tenants() -> Tenants {
        let tokens = Tokens::parse(format!("alice {ALICE}\nbob {BOB}").as_bytes()).unwrap();
        let app = App::new(Config { tokens, ..Config::of_test() });
        Tenants::new(&app, &Dialects::new(Vec::new()))
    }

    fn admit(tenants: &Tenants, token: &str) -> Option<AppState> {
        let refused = crate::auth::unauthorized;
        let served = tenants.admit(|tokens| tokens.find(token.as_bytes()).map(Some).ok_or_else(refused));
        served.ok().map(|served| served.app)
    }

    /// spec: 15.5
    #[test]
    fn a_tenant_that_comes_while_the_server_ends_is_told_so() {
        let tenants = tenants();
        let early = admit(&tenants, ALICE).unwrap();
        assert!(!early.drain.has_begun());
        tenants.begin_drain();
        assert!(early.drain.has_begun() && admit(&tenants, BOB).unwrap().drain.has_begun());
    }

    /// spec: 15.17.4
    #[test]
    fn parts_of_a_tenant_stay_as_long_as_its_lines() {
        let tenants = tenants();
        let (alice, bob) = (admit(&tenants, ALICE).unwrap(), admit(&tenants, BOB).unwrap());
        assert!(Arc::ptr_eq(&alice, &admit(&tenants, ALICE).unwrap()));
        let tokens = |text: String| Tokens::parse(text.as_bytes()).unwrap();
        // Another order, and a limit for bob.
        tenants.replace(tokens(format!("bob {BOB} max-sandboxes=1\nalice {ALICE}")));
        assert!(bob.revoked.has_begun() && bob.drain.has_begun());
        assert!(!alice.revoked.has_begun() && !alice.drain.has_begun());
        let again = admit(&tenants, BOB).unwrap();
        assert!(!Arc::ptr_eq(&bob, &again) && !again.revoked.has_begun());
        // Alone, alice reaches more.
        tenants.replace(tokens(format!("alice {ALICE}")));
        assert!(alice.revoked.has_begun() && admit(&tenants, BOB).is_none());
        assert!(admit(&tenants, ALICE).unwrap().engine.scope().has_unowned());
    }

    /// spec: 15.2.1
    #[test]
    fn tokens_are_not_in_a_path_for_the_log() {
        let path = format!("//t/{ALICE}/v1/{BOB}x/{BOB}");
        assert_eq!(tenants().without_tokens(&path), format!("//t/******/v1/{BOB}x/******"));
    }
}
