//! The description of the API in `OpenAPI`, from the code.

use utoipa::OpenApi;
use utoipa::openapi::security::{
    ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityRequirement, SecurityScheme,
};
use utoipa::openapi::{OpenApiVersion, Server};

use crate::events::EventMessage;
use crate::log_answer::LogEvent;
use crate::problem::ProblemDocument;
use crate::routes::Routes;

/// The head of the description.
#[derive(OpenApi)]
#[openapi(
    components(schemas(ProblemDocument, EventMessage, LogEvent)),
    info(
        title = "penfold",
        description = "Runs commands as sandboxes. When a sandbox ends, nothing of it is left, and that was verified.",
        license(name = "MIT OR Apache-2.0")
    )
)]
struct Description;

/// The description of the native API in `OpenAPI`, as JSON.
pub(crate) fn openapi() -> String {
    let (_, mut description) =
        Routes::with_openapi(Description::openapi()).nest("/v1", crate::resources()).split_for_parts();
    // What generators of clients read. It has no word for the items of a stream: the schema of such an answer is that of an item.
    description.openapi = OpenApiVersion::Version31;
    description.servers = Some(vec![Server::new("/")]);
    let scheme = |header: Option<&str>| match header {
        None => SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)),
        Some(name) => SecurityScheme::ApiKey(ApiKey::Header(ApiKeyValue::new(name))),
    };
    let components = description.components.get_or_insert_default();
    components.add_security_scheme("bearer", scheme(None));
    components.add_security_scheme("token", scheme(Some("X-Penfold-Token")));
    // On a Unix socket no token is needed.
    let none = SecurityRequirement::default();
    let by = |name| SecurityRequirement::new::<_, [&str; 0], &str>(name, []);
    description.security = Some(vec![by("bearer"), by("token"), none]);
    description.to_pretty_json().unwrap_or_default()
}
