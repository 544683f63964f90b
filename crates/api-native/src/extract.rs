//! Extractors whose refusals are problem documents.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path as FilePath;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri};
use penfold_process::path_text::path_text;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::error::Category;

use super::problem::{Kind, Problem};

/// A body of JSON. Unknown fields are errors if the type says so.
#[derive(Debug)]
pub(super) struct Json<T>(pub(super) T);

/// A body of JSON that may be missing: then it is the default.
#[derive(Debug)]
pub(super) struct OptionalJson<T>(pub(super) T);

/// The query of the address.
#[derive(Debug)]
pub(super) struct Query<T>(pub(super) T);

/// The variable parts of the path.
#[derive(Debug)]
pub(super) struct Path<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Json<T>, Problem> {
        let is_json = is_json(request.headers());
        let body = body(request, state).await?;
        if !is_json {
            let sentence = "the body must be `application/json`";
            return Err(Problem::new(Kind::UnsupportedMediaType, sentence));
        }
        parse(&body).map(Json)
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for OptionalJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<OptionalJson<T>, Problem> {
        let is_json = is_json(request.headers());
        let body = body(request, state).await?;
        if body.is_empty() {
            return Ok(OptionalJson(T::default()));
        }
        if !is_json {
            let sentence = "the body must be `application/json`";
            return Err(Problem::new(Kind::UnsupportedMediaType, sentence));
        }
        parse(&body).map(OptionalJson)
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Query<T>, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let uri = Uri::builder().path_and_query(format!("/?{}", with_texts(query))).build();
        match axum::extract::Query::try_from_uri(uri.as_ref().unwrap_or(&parts.uri)) {
            Ok(axum::extract::Query(query)) => Ok(Query(query)),
            Err(error) => Err(Problem::new(Kind::BadRequest, error.body_text())),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Path<T>, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(path)) => Ok(Path(path)),
            Err(error) => Err(Problem::new(Kind::BadRequest, error.body_text())),
        }
    }
}

/// Writes bytes of a query that are no UTF-8 as the text of a path has them, since the values of a query are texts.
fn with_texts(query: &str) -> Cow<'_, str> {
    let is_utf8 = |part: &str| percent_decode_str(part).decode_utf8().is_ok();
    if query.split(['&', '=']).all(is_utf8) {
        return query.into();
    }
    let text = |part: &str| {
        let bytes: Vec<u8> = percent_decode_str(&part.replace('+', " ")).collect();
        utf8_percent_encode(&path_text(FilePath::new(OsStr::from_bytes(&bytes))), NON_ALPHANUMERIC)
            .to_string()
    };
    let pair = |pair: &str| pair.split('=').map(text).collect::<Vec<_>>().join("=");
    query.split('&').map(pair).collect::<Vec<_>>().join("&").into()
}

async fn body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Problem> {
    Bytes::from_request(request, state).await.map_err(|error: BytesRejection| {
        let kind =
            if error.status() == StatusCode::PAYLOAD_TOO_LARGE { Kind::TooLarge } else { Kind::BadRequest };
        Problem::new(kind, error.body_text())
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media_type = value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media_type == "application/json"
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| {
        let kind = match error.classify() {
            Category::Data => Kind::InvalidField,
            Category::Syntax | Category::Eof | Category::Io => Kind::InvalidJson,
        };
        Problem::new(kind, error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn deep_or_damaged_json_is_refused() {
        type Deep = serde_json::Value;
        for body in
            [&b"["[..], b"{\"a\":\xff}", b"", b"{\"a\":1}x", b"{'a':1}", "[".repeat(1 << 20).as_bytes()]
        {
            assert!(parse::<Deep>(body).is_err());
        }
        let numbers = parse::<BTreeMap<String, u32>>(br#"{"a": 1e999999}"#);
        assert!(numbers.is_err());
    }
}
