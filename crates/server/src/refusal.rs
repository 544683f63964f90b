//! Why a request is refused before it reaches a route.

use axum::http::StatusCode;

/// Why a request is refused before it reaches a route.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// The status of the answer.
    pub status: StatusCode,
    /// The kind, in lower case with `_`; it is stable, so that programs can compare it.
    pub kind: &'static str,
    /// The reason, for people.
    pub sentence: &'static str,
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(status: StatusCode, kind: &'static str, sentence: &'static str) -> Refusal {
        Refusal { status, kind, sentence }
    }
}
