//! Writes an error with its causes as one line of text.

use std::error::Error;

/// Writes an error and its causes, outermost first, separated by `: `.
pub fn error_chain(error: &dyn Error) -> String {
    sentence_chain(error.to_string(), error.source())
}

/// Writes a sentence and its causes in the same way.
///
/// A cause with the same text as the one before it is left out: transparent wrappers have the text of their source.
pub fn sentence_chain(sentence: String, cause: Option<&(dyn Error + 'static)>) -> String {
    let mut text = sentence.clone();
    let mut said = sentence;
    let mut next = cause;
    while let Some(cause) = next {
        let words = cause.to_string();
        if words != said {
            text.push_str(": ");
            text.push_str(&words);
            said = words;
        }
        next = cause.source();
    }
    text
}
