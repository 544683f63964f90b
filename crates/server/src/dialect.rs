//! A dialect: an API that the server serves. The crates above this one make dialects; the server knows only the list that it
//! is given.

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};

use crate::app::AppState;
use crate::health;
use crate::refusal::Refusal;

/// An API that the server serves.
#[derive(Debug, Clone)]
pub struct Dialect {
    /// The name, as the metrics have it.
    pub name: &'static str,
    /// Tells whether a path belongs to the dialect. The first dialect of the list that owns a path has it.
    pub owns: fn(&str) -> bool,
    /// Tells whether a request belongs to the dialect, whoever owns its path. Such a request goes to the routes of this dialect only, and needs no
    /// token of the server: the routes decide who is served, and find the tokens in the extension `Arc<Tokens>`.
    pub claims: Option<fn(&Parts) -> bool>,
    /// Where clients put the token of the server, besides `X-Penfold-Token`.
    pub token_place: TokenPlace,
    /// Tells whether a request changes nothing: a token that is read-only is good for it.
    pub reads: fn(&Method, &str) -> bool,
    /// Tells whether a request ends something: it has room of its own when the server has as many connections as it can have.
    pub ends: fn(&Method, &str) -> bool,
    /// The form of a refusal: the answer to a request of this dialect that reaches no route.
    pub refusal: fn(&Refusal) -> Response,
    /// The routes. At most one dialect of a list has a fallback for all paths.
    pub routes: fn(AppState) -> Router,
    /// Whether the routes are served. Refusals have the form of the path's dialect in either case.
    pub is_served: bool,
}

/// The place of the server's token in a request.
#[derive(Debug, Clone)]
pub enum TokenPlace {
    /// `Authorization: Bearer`.
    Bearer,
    /// A header of its own.
    Header(HeaderName),
    /// None: every header is for the routes.
    Nowhere,
}

/// The form of paths that no dialect owns.
const PLAIN: Dialect = Dialect {
    name: "none",
    owns: |_| true,
    claims: None,
    token_place: TokenPlace::Nowhere,
    reads: |method, _| method.is_safe(),
    ends: |_, _| false,
    refusal: |refusal| (refusal.status, format!("{}\n", refusal.sentence)).into_response(),
    routes: |_| Router::new(),
    is_served: false,
};

impl Dialect {
    /// Answers a request that reaches no route. The connection is closed after the answer.
    pub(crate) fn refuse(&self, refusal: Refusal) -> Response {
        let mut response = (self.refusal)(&refusal);
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}

/// The dialects of a server; a clone is another handle.
#[derive(Debug, Clone)]
pub(crate) struct Dialects(Arc<[Dialect]>);

impl Dialects {
    pub(crate) fn new(all: Vec<Dialect>) -> Dialects {
        Dialects(all.into())
    }

    /// Returns the dialect of a request, and whether the dialect claims it.
    pub(crate) fn of(&self, parts: &Parts) -> (&Dialect, bool) {
        match self.claiming().find(|dialect| dialect.claims.is_some_and(|claims| claims(parts))) {
            Some(dialect) => (dialect, true),
            None => (self.of_path(parts.uri.path()), false),
        }
    }

    /// Returns the dialect of a path.
    fn of_path(&self, path: &str) -> &Dialect {
        self.0.iter().find(|dialect| (dialect.owns)(path)).unwrap_or(&PLAIN)
    }

    /// The dialects that claim requests, if they are served.
    fn claiming(&self) -> impl Iterator<Item = &Dialect> {
        self.0.iter().filter(|dialect| dialect.is_served && dialect.claims.is_some())
    }

    /// Returns the routes for monitors, and those of all dialects that are served and own paths.
    pub(crate) fn router(&self, app: &AppState) -> Router {
        let served = self.0.iter().filter(|dialect| dialect.is_served && dialect.claims.is_none());
        let all = served.map(|dialect| (dialect.routes)(AppState::clone(app)));
        let routes = all.fold(health::health_router(AppState::clone(app)), Router::merge);
        routes.layer(DefaultBodyLimit::max(app.config.limits.body))
    }

    /// Returns the routes of each dialect that claims requests, by its name.
    pub(crate) fn claiming_routers(&self, app: &AppState) -> Vec<(&'static str, Router)> {
        let routes = |dialect: &Dialect| {
            let routes = (dialect.routes)(AppState::clone(app));
            (dialect.name, routes.layer(DefaultBodyLimit::max(app.config.limits.body)))
        };
        self.claiming().map(routes).collect()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    #[test]
    fn the_first_dialect_that_owns_a_path_has_it() {
        let own = Dialect { name: "own", owns: |path| path.starts_with("/own"), ..PLAIN };
        let rest = Dialect { name: "rest", owns: |path| path != "/nobody", ..PLAIN };
        let dialects = Dialects::new(vec![own, rest]);
        assert_eq!(
            ["/own/x", "/x", "/nobody"].map(|path| dialects.of_path(path).name),
            ["own", "rest", "none"]
        );
    }

    #[test]
    fn a_refusal_closes_the_connection() {
        let refusal = Refusal::new(StatusCode::FORBIDDEN, "forbidden", "why");
        let answer = PLAIN.refuse(refusal);
        assert_eq!(
            (answer.status(), &answer.headers()[header::CONNECTION]),
            (StatusCode::FORBIDDEN, &HeaderValue::from_static("close"))
        );
    }
}
