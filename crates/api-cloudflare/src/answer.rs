//! Successful answers.

use axum::Json;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::error::ApiError;
use super::time;

/// The type of JSON answers.
pub(crate) const JSON: &str = "application/json";

/// The result of a route.
pub(crate) type RouteResult = Result<Response, ApiError>;

/// Answers with these fields, which are an object, and those that each answer has.
pub(crate) fn success_answer(mut fields: Value) -> Response {
    if let Some(fields) = fields.as_object_mut() {
        fields.insert("success".to_owned(), json!(true));
        fields.insert("timestamp".to_owned(), time::current_time().into());
    }
    Json(fields).into_response()
}
