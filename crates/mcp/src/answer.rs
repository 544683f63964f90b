//! The answer of a tool: a text for the model, and the same as JSON.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

/// The answer of a tool.
#[derive(Debug)]
pub(crate) struct Answer {
    text: String,
    data: Value,
    is_error: bool,
}

impl Answer {
    /// An answer; `data` is an object.
    pub(crate) fn new(text: impl Into<String>, data: Value) -> Answer {
        Answer { text: text.into(), data, is_error: false }
    }

    /// An answer that says what went wrong, in one sentence at first.
    pub(crate) fn failed(text: impl Into<String>, mut data: Value) -> Answer {
        let text = text.into();
        if let Some(fields) = data.as_object_mut() {
            let sentence = text.lines().next().unwrap_or_default();
            fields.insert("error".to_owned(), sentence.into());
        }
        Answer { text, data, is_error: true }
    }
}

/// Why a tool has no other answer: a sentence that tells a model what to do.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ToolError(pub(crate) String);

impl ToolError {
    pub(crate) fn new(sentence: impl Into<String>) -> ToolError {
        ToolError(sentence.into())
    }
}

impl From<ToolError> for Answer {
    fn from(ToolError(sentence): ToolError) -> Answer {
        Answer::failed(sentence, json!({}))
    }
}

impl From<Answer> for CallToolResult {
    fn from(answer: Answer) -> CallToolResult {
        let content = vec![ContentBlock::text(answer.text)];
        let mut result =
            if answer.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
        result.structured_content = Some(answer.data);
        result
    }
}
