//! Idempotency keys: a repeated create gets the sandbox of the first one.
//!
//! The key is a label of the sandbox, so that a restarted server knows it. It is forgotten with the record.

use axum::http::HeaderMap;

use super::model::Sandbox;
use super::problem::{Kind, Problem};
use crate::app::AppState;
use crate::engine::NewSandbox;

/// The label with the key.
const KEY: &str = "penfold.idempotency-key";
/// The label with the hash of the request.
const HASH: &str = "penfold.idempotency-hash";
const LONGEST: usize = 128;

/// A key, with the hash of the request that it came with.
#[derive(Debug)]
pub(super) struct KeyedRequest {
    key: String,
    hash: String,
}

/// Reads the key of a request.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut given = headers.get_all("idempotency-key").iter();
    let Some(value) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(Problem::new(Kind::BadRequest, "`Idempotency-Key` was sent twice"));
    }
    let text = value.to_str().ok().filter(|text| {
        (1..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    });
    text.map(|key| Some(key.to_owned())).ok_or_else(|| {
        Problem::new(Kind::BadRequest, "`Idempotency-Key` is not 1 to 128 visible ASCII characters")
    })
}

impl KeyedRequest {
    /// Notes the key and the hash in the labels of the sandbox.
    pub(super) fn label(key: String, wanted: &mut NewSandbox) -> KeyedRequest {
        let hash = hash(&wanted.fingerprint());
        wanted.spec.labels.insert(KEY.to_owned(), key.clone());
        wanted.spec.labels.insert(HASH.to_owned(), hash.clone());
        KeyedRequest { key, hash }
    }
}

/// Finds the sandbox that was started with this key.
pub(super) async fn find(app: &AppState, request: &KeyedRequest) -> Result<Option<Sandbox>, Problem> {
    let found = app.engine.list(true).await?;
    let first = found.into_iter().find(|(_, seen)| seen.labels.get(KEY) == Some(&request.key));
    let Some((known, seen)) = first else { return Ok(None) };
    if seen.labels.get(HASH) != Some(&request.hash) {
        let sentence = format!("sandbox {} was started with this key by another request", seen.id);
        return Err(Problem::new(Kind::KeyReused, sentence));
    }
    Ok(Some(Sandbox::of(known.intent.as_ref(), seen)))
}

/// FNV-1a: the same in every version of the server.
fn hash(text: &str) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix))
}
