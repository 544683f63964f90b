//! The output of a command that was waited for, in the answer about its end.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use utoipa::ToSchema;

/// The most bytes of a stream in an answer.
pub(crate) const LARGEST_OUTPUT: usize = 1 << 20;

/// Output of a command.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Output {
    /// The bytes, if they are UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// The bytes in Base64, if they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Whether this is all of the output. The log of the command has the rest.
    complete: bool,
}

impl Output {
    /// Makes the output of these bytes.
    pub(crate) fn of(mut bytes: Vec<u8>, complete: bool) -> Output {
        // A character that was cut in two is left out.
        let cut = std::str::from_utf8(&bytes).err().filter(|error| !complete && error.error_len().is_none());
        if let Some(cut) = cut {
            bytes.truncate(cut.valid_up_to());
        }
        match String::from_utf8(bytes) {
            Ok(text) => Output { text: Some(text), base64: None, complete },
            Err(error) => Output { text: None, base64: Some(STANDARD.encode(error.as_bytes())), complete },
        }
    }
}
