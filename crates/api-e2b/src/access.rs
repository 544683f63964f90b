//! Access tokens of sandboxes, and signatures of file URLs. Both are made from the secret of the state root and from the id, so
//! nothing is kept, and every server of the root knows them.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use penfold_state::time::now_ms;
use sha2::{Digest as _, Sha256};

use crate::api::Secret;

/// The header with the access token of a sandbox.
pub(crate) const HEADER: &str = "x-access-token";

/// The access token of a sandbox.
pub(crate) fn access_token(secret: &Secret, id: &str) -> String {
    // Twice, so that a token tells nothing about those of longer ids.
    let inner =
        Sha256::new().chain_update(secret).chain_update(b"e2b access token ").chain_update(id).finalize();
    let outer = Sha256::new().chain_update(secret).chain_update(inner).finalize();
    URL_SAFE_NO_PAD.encode(outer)
}

/// Compares two texts in a time that does not depend on their contents.
pub(crate) fn is_same(given: &str, expected: &str) -> bool {
    let differs =
        given.bytes().zip(expected.bytes()).fold(0, |differs, (one, other)| differs | (one ^ other));
    std::hint::black_box(differs) == 0 && given.len() == expected.len()
}

/// What a client may do with a file URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileRight {
    Read,
    Write,
}

/// The signature of a file URL, as the query of a request has it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Signature {
    pub(crate) path: String,
    pub(crate) username: String,
    pub(crate) given: String,
    /// The end of the URL's time, in seconds since 1970.
    pub(crate) expiration: Option<u64>,
}

/// Why a signature is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadSignature {
    Wrong,
    Expired,
}

impl Signature {
    /// Checks the signature against the access token of the sandbox.
    ///
    /// # Errors
    /// When it is another one, or its time is over.
    pub(crate) fn check(&self, right: FileRight, token: &str) -> Result<(), BadSignature> {
        let right = if right == FileRight::Read { "read" } else { "write" };
        let mut text = format!("{}:{right}:{}:{token}", self.path, self.username);
        if let Some(expiration) = self.expiration {
            text.push(':');
            text.push_str(&expiration.to_string());
        }
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
        if !is_same(&self.given, &expected) {
            return Err(BadSignature::Wrong);
        }
        let is_over = self.expiration.is_some_and(|end| end.saturating_mul(1000) < now_ms());
        if is_over { Err(BadSignature::Expired) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_differ_by_id_and_by_secret() {
        let tokens =
            [([1; 32], "a"), ([1; 32], "b"), ([2; 32], "a")].map(|(secret, id)| access_token(&secret, id));
        assert!(tokens[0] != tokens[1] && tokens[0] != tokens[2] && tokens[0].len() == 43);
        assert_eq!(tokens[0], access_token(&[1; 32], "a"));
        assert!(is_same("ab", "ab") && !is_same("ab", "ac") && !is_same("a", "ab") && !is_same("", "a"));
    }

    #[test]
    fn a_signature_holds_for_its_path_right_user_and_time() {
        let sign = |text: &str| format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
        let of = |given: String, expiration| Signature {
            path: "/a".to_owned(),
            username: "user".to_owned(),
            given,
            expiration,
        };
        let plain = of(sign("/a:read:user:token"), None);
        assert_eq!(plain.check(FileRight::Read, "token"), Ok(()));
        assert_eq!(plain.check(FileRight::Write, "token"), Err(BadSignature::Wrong));
        assert_eq!(plain.check(FileRight::Read, "other"), Err(BadSignature::Wrong));
        let late = of(sign("/a:read:user:token:5"), Some(5));
        assert_eq!(late.check(FileRight::Read, "token"), Err(BadSignature::Expired));
        let far = of(sign("/a:read:user:token:99999999999"), Some(99_999_999_999));
        assert_eq!(far.check(FileRight::Read, "token"), Ok(()));
    }
}
