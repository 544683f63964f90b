//! Idempotency keys: a repeated create gets the sandbox of the first one.
//!
//! The key is a label of the sandbox, so that a restarted server knows it. It is forgotten with the record.

use penfold_control::{SandboxRef, SandboxView};
use penfold_state::names;

use crate::engine::{Engine, EngineError, NewSandbox};

/// The label with the key.
const KEY: &str = "penfold.idempotency-key";
/// The label with the hash of the request.
const HASH: &str = "penfold.idempotency-hash";

/// Why no sandbox was started for a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The sandbox cannot be started, or the others not be looked at.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The key was used for another request.
    #[error("sandbox {id} was started with this key by another request")]
    Reused {
        /// The id of the sandbox.
        id: String,
    },
}

/// The sandbox for a key.
#[derive(Debug)]
pub enum Created {
    /// A new one, with its id; its command runs.
    New(String),
    /// The one that an earlier request with the key has started.
    Earlier(Box<(SandboxRef, SandboxView)>),
}

/// Starts a sandbox, unless an earlier request with this key has done so, and the sandbox has a record. The caller does not drop
/// the future before its end, though a client goes away: a repeated request must find the sandbox.
///
/// # Errors
/// When the key was used for another request, or the sandbox cannot be started.
pub async fn create_once(engine: &Engine, key: String, mut wanted: NewSandbox) -> Result<Created, KeyError> {
    let _turn = engine.creating().await;
    let hash = hash(&wanted.fingerprint());
    let is_of_key = |(_, seen): &(SandboxRef, SandboxView)| {
        seen.labels.get(KEY) == Some(&key) && engine.scope().is_own(names::tenant_of(&seen.labels))
    };
    let found = engine.list(true).await?.into_iter().find(is_of_key);
    if let Some((known, seen)) = found {
        if seen.labels.get(HASH) != Some(&hash) {
            return Err(KeyError::Reused { id: seen.id });
        }
        return Ok(Created::Earlier(Box::new((known, seen))));
    }
    wanted.spec.labels.extend([(KEY.to_owned(), key), (HASH.to_owned(), hash)]);
    Ok(Created::New(engine.create(wanted).await?))
}

/// FNV-1a: the same in every version of the server.
fn hash(text: &str) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, mix))
}
