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
            let body = json!({
                "type": format!("urn:penfold:problem:{kind}"),
                "title": "the request is refused before its route",
                "status": status.as_u16(),
                "detail": sentence,
            });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_problem_document_with_all_that_the_description_requires() {
        let answer = Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "why").answer(true);
        assert_eq!(answer.headers()[header::CONTENT_TYPE], "application/problem+json");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(axum::body::to_bytes(answer.into_body(), usize::MAX)).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let description = include_str!("../../../docs/openapi.json");
        let description: serde_json::Value = serde_json::from_str(description).unwrap();
        let required = description["components"]["schemas"]["Problem"]["required"].as_array().unwrap();
        assert!(required.len() >= 4, "{required:?}");
        for field in required {
            assert!(body.get(field.as_str().unwrap()).is_some(), "{field} is missing in {body}");
        }
        assert_eq!((&body["status"], &body["detail"]), (&json!(401), &json!("why")));
    }
}
