//! The description of the API in `OpenAPI`, and a page that shows it. The page needs nothing from elsewhere.

use axum::Router;
use axum::http::{HeaderName, header};
use axum::response::IntoResponse;
use axum::routing::get;
use penfold_server::AppState;

/// The description, generated from the code by a test.
pub(super) const OPENAPI: &str = include_str!("../openapi.json");

/// Nothing but the page's own script, style and description; no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/v1/openapi.json", get(async || document("application/json", OPENAPI)))
        .route("/docs", get(async || document("text/html; charset=utf-8", include_str!("page/index.html"))))
        .route(
            "/docs/page.js",
            get(async || document("text/javascript; charset=utf-8", include_str!("page/page.js"))),
        )
        .route(
            "/docs/page.css",
            get(async || document("text/css; charset=utf-8", include_str!("page/page.css"))),
        )
}

fn document(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_committed_description_is_that_of_the_code() {
        assert!(OPENAPI == crate::description::openapi() + "\n", "`just openapi` writes docs/openapi.json");
    }

    /// Writes the description; `just openapi` runs it.
    #[test]
    #[ignore = "changes a file of the repository"]
    fn write_the_description() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        std::fs::write(path, crate::description::openapi() + "\n").unwrap();
    }

    #[test]
    fn every_reference_of_the_description_leads_somewhere() {
        let whole: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let references: Vec<_> = OPENAPI.split("\"$ref\": \"#").skip(1).collect();
        assert!(references.len() > 50, "{} references", references.len());
        for reference in references {
            let path = reference.split('"').next().unwrap();
            assert!(whole.pointer(path).is_some(), "{path}");
        }
    }

    #[test]
    fn the_page_loads_nothing_from_elsewhere() {
        for text in
            [include_str!("page/index.html"), include_str!("page/page.js"), include_str!("page/page.css")]
        {
            assert!(!text.contains("//cdn") && !text.contains("http://") && !text.contains("https://"));
            assert!(!text.contains("innerHTML") && !text.contains("eval("));
        }
    }
}
