//! The JSON schema of a description, for editors and for other programs.

use serde_json::{Value, json};
use utoipa::OpenApi as _;

use super::SandboxSpec;

#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(SandboxSpec)))]
struct Components;

/// Returns the schema of a file for `penfold run --spec`: JSON Schema 2020-12, as `OpenAPI` uses it.
fn json_schema() -> Value {
    let text = serde_json::to_string(&Components::openapi()).unwrap_or_default();
    let text = text.replace("#/components/schemas/", "#/$defs/");
    let mut all: Value = serde_json::from_str(&text).unwrap_or_default();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A sandbox to be started by penfold",
        "$ref": "#/$defs/SandboxSpec",
        "$defs": all["components"]["schemas"].take(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec.schema.json");

    fn text() -> String {
        serde_json::to_string_pretty(&json_schema()).unwrap() + "\n"
    }

    /// spec: 8.9
    #[test]
    fn the_committed_schema_is_that_of_the_code() {
        let committed = std::fs::read_to_string(FILE).unwrap();
        assert!(committed == text(), "docs/spec.schema.json is not up to date: run `just schema`");
    }

    #[test]
    #[ignore = "writes docs/spec.schema.json"]
    fn write_the_schema() {
        std::fs::write(FILE, text()).unwrap();
    }

    /// What the schema has, a file may have, and nothing else.
    #[test]
    fn the_schema_has_every_field() {
        let schema = json_schema();
        let spec = &schema["$defs"]["SandboxSpec"];
        let fields = spec["properties"].as_object().unwrap();
        let refused = serde_json::from_str::<SandboxSpec>(r#"{"?":1}"#).unwrap_err().to_string();
        // It lists the fields, each in backticks, after the unknown one.
        let known: BTreeSet<&str> = refused.split('`').skip(3).step_by(2).collect();
        assert_eq!(fields.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
        assert_eq!(spec["additionalProperties"], false);
        assert!(schema["$defs"]["MountRequest"].is_object() && schema["$defs"]["Network"].is_object());
    }
}
