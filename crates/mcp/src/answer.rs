//! The answer of a tool: a text for the model, and the same as JSON.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

/// The answer of a tool.
#[derive(Debug)]
pub(crate) struct ToolAnswer {
    text: String,
    data: Value,
    is_error: bool,
}

impl ToolAnswer {
    /// An answer; `data` is an object.
    pub(crate) fn new(text: impl Into<String>, data: Value) -> ToolAnswer {
        ToolAnswer { text: text.into(), data, is_error: false }
    }

    /// An answer that says what went wrong, in one sentence at first.
    pub(crate) fn failed(text: impl Into<String>, mut data: Value) -> ToolAnswer {
        let text = text.into();
        if let Some(fields) = data.as_object_mut() {
            let sentence = text.lines().next().unwrap_or_default();
            fields.insert("error".to_owned(), sentence.into());
        }
        ToolAnswer { text, data, is_error: true }
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

impl From<ToolError> for ToolAnswer {
    fn from(ToolError(sentence): ToolError) -> ToolAnswer {
        ToolAnswer::failed(sentence, json!({}))
    }
}

impl From<ToolAnswer> for CallToolResult {
    fn from(answer: ToolAnswer) -> CallToolResult {
        let content = vec![ContentBlock::text(answer.text)];
        let mut result =
            if answer.is_error { CallToolResult::error(content) } else { CallToolResult::success(content) };
        result.structured_content = Some(answer.data);
        result
    }
}
