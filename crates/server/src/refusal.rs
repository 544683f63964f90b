//! An answer that no route gives: the request is refused before.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::json;

/// Why a request is refused before it reaches a route.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    sentence: &'static str,
}

impl Refusal {
    /// `kind` is stable; programs compare it.
    pub(crate) fn new(status: StatusCode, kind: &'static str, sentence: &'static str) -> Refusal {
        Refusal { status, kind, sentence }
    }

    /// The answer in the form of the API that was asked. The connection is closed after it.
    pub(crate) fn answer(self, native: bool) -> Response {
        let Refusal { status, kind, sentence } = self;
        let mut response = if native {
            let body = json!({ "type": format!("urn:penfold:problem:{kind}"), "title": sentence, "status": status.as_u16() });
            let mut response = (status, Json(body)).into_response();
            let problem = HeaderValue::from_static("application/problem+json");
            response.headers_mut().insert(header::CONTENT_TYPE, problem);
            response
        } else {
            let body =
                json!({ "code": kind.to_uppercase(), "message": sentence, "httpStatus": status.as_u16() });
            (status, Json(body)).into_response()
        };
        if status == StatusCode::UNAUTHORIZED && native {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        response
    }
}
