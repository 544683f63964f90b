//! Problem documents: the body of every answer that is an error (RFC 9457).

use std::collections::BTreeMap;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use penfold_control::{Candidate, ForgetError, ResolveError, StartError, has_just_ended};
use penfold_request::RefusalKind;
use penfold_server::EngineError;
use penfold_server::is_no_space;
use penfold_state::{Files, error_chain};
use penfold_teardown::Survivor;
use serde::Serialize;
use utoipa::openapi::{Content, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, ToSchema};

/// The media type of a problem document.
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";

/// An error, as RFC 9457 describes it. Programs compare `type`; all other texts are for people and may change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemDocument {
    /// The kind of the error: `urn:penfold:problem:` and a word that never changes.
    #[schema(example = "urn:penfold:problem:not_found")]
    r#type: String,
    /// The kind of the error, for people.
    title: &'static str,
    /// The status code of the answer.
    status: u16,
    /// This error, for people.
    detail: String,
    /// The processes and resources that still exist, for `unverified`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    remaining: Vec<Survivor>,
    /// The sandboxes that match, for `ambiguous`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    candidates: Vec<CandidateSandbox>,
    /// The sandbox that is in the way, for `name_taken`.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
}

/// An error of a request; the answer is a [`ProblemDocument`].
#[derive(Debug)]
pub(crate) struct Problem {
    kind: Kind,
    detail: String,
    /// The lists that few kinds have.
    lists: Option<Box<Lists>>,
}

#[derive(Debug, Default)]
struct Lists {
    remaining: Vec<Survivor>,
    candidates: Vec<CandidateSandbox>,
    holder: Option<String>,
}

/// Any status that a description of a route does not list.
impl IntoResponses for Problem {
    fn responses() -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
        let content = Content::new(Some(Ref::from_schema_name(ProblemDocument::name())));
        let response = ResponseBuilder::new().description("a problem").content(PROBLEM_JSON, content).build();
        BTreeMap::from([("default".to_owned(), RefOr::T(response))])
    }
}

/// A sandbox that an ambiguous word matches.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct CandidateSandbox {
    /// The id.
    id: String,
    /// The name, if the sandbox has one.
    name: Option<String>,
}

/// The kinds of errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The request cannot be read.
    BadRequest,
    /// The body is no JSON.
    InvalidJson,
    /// A value in the request is not possible.
    InvalidField,
    /// The body has another media type.
    UnsupportedMediaType,
    /// The body is too large.
    TooLarge,
    /// There is no such route.
    NoRoute,
    /// The route has other methods.
    MethodNotAllowed,
    /// There is no such sandbox, exec, session or file.
    NotFound,
    /// The word matches several sandboxes.
    Ambiguous,
    /// A living sandbox has the name.
    NameTaken,
    /// There is one with this name.
    Exists,
    /// The idempotency key was used for another request.
    KeyReused,
    /// The sandbox has ended.
    HasEnded,
    /// The sandbox has not ended.
    NotEnded,
    /// The supervisor refuses the request.
    Refused,
    /// The command does not exist.
    CommandNotFound,
    /// The command cannot be executed.
    CommandNotExecutable,
    /// The command could not be started.
    NotStarted,
    /// The file is there already, or is of another type.
    FileConflict,
    /// The path leads out of the workspace.
    OutsideWorkspace,
    /// The range is not in the file.
    BadRange,
    /// The kernel does not permit it.
    NotPermitted,
    /// The token is not good for it.
    Forbidden,
    /// The end could not be verified.
    Unverified,
    /// Too many streams are open.
    TooMany,
    /// The server ends.
    Draining,
    /// A supervisor or a session host does not answer.
    Unanswered,
    /// The disk is full.
    NoSpace,
    /// Any other failure.
    Internal,
}

impl Kind {
    /// Every kind.
    #[cfg(test)]
    pub(crate) const ALL: [Kind; 29] = [
        Kind::BadRequest,
        Kind::InvalidJson,
        Kind::InvalidField,
        Kind::UnsupportedMediaType,
        Kind::TooLarge,
        Kind::NoRoute,
        Kind::MethodNotAllowed,
        Kind::NotFound,
        Kind::Ambiguous,
        Kind::NameTaken,
        Kind::Exists,
        Kind::KeyReused,
        Kind::HasEnded,
        Kind::NotEnded,
        Kind::Refused,
        Kind::CommandNotFound,
        Kind::CommandNotExecutable,
        Kind::NotStarted,
        Kind::FileConflict,
        Kind::OutsideWorkspace,
        Kind::BadRange,
        Kind::NotPermitted,
        Kind::Forbidden,
        Kind::Unverified,
        Kind::TooMany,
        Kind::Draining,
        Kind::Unanswered,
        Kind::NoSpace,
        Kind::Internal,
    ];

    /// Returns [`Kind::NoSpace`] if the reason of the error is a full disk.
    pub(crate) fn or_no_space(self, reason: &str) -> Kind {
        if is_no_space(reason) { Kind::NoSpace } else { self }
    }

    /// The status code, the word in `type`, and the title.
    pub(crate) fn parts(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Kind::BadRequest => (StatusCode::BAD_REQUEST, "bad_request", "the request cannot be read"),
            Kind::InvalidJson => (StatusCode::BAD_REQUEST, "invalid_json", "the body is not valid JSON"),
            Kind::InvalidField => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid_field", "a value in the request is not valid")
            }
            Kind::UnsupportedMediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "the body has another media type",
            ),
            Kind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the request is too large"),
            Kind::NoRoute => (StatusCode::NOT_FOUND, "no_route", "there is no such route"),
            Kind::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "the route has other methods")
            }
            Kind::NotFound => (StatusCode::NOT_FOUND, "not_found", "not found"),
            Kind::Ambiguous => (StatusCode::CONFLICT, "ambiguous", "the word matches several sandboxes"),
            Kind::NameTaken => (StatusCode::CONFLICT, "name_taken", "a living sandbox has this name"),
            Kind::Exists => (StatusCode::CONFLICT, "exists", "there is one with this name"),
            Kind::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "key_reused",
                "the idempotency key was used for another request",
            ),
            Kind::HasEnded => (StatusCode::CONFLICT, "has_ended", "it has ended"),
            Kind::NotEnded => (StatusCode::CONFLICT, "not_ended", "it has not ended"),
            Kind::Refused => (StatusCode::CONFLICT, "refused", "the request is refused"),
            Kind::CommandNotFound => {
                (StatusCode::UNPROCESSABLE_ENTITY, "command_not_found", "the command does not exist")
            }
            Kind::CommandNotExecutable => {
                (StatusCode::UNPROCESSABLE_ENTITY, "command_not_executable", "the command cannot be executed")
            }
            Kind::NotStarted => {
                (StatusCode::UNPROCESSABLE_ENTITY, "not_started", "the command was not started")
            }
            Kind::FileConflict => (StatusCode::CONFLICT, "file_conflict", "another file is in the way"),
            Kind::OutsideWorkspace => {
                (StatusCode::FORBIDDEN, "outside_workspace", "the path leads out of the workspace")
            }
            Kind::BadRange => {
                (StatusCode::RANGE_NOT_SATISFIABLE, "bad_range", "the range is not in the file")
            }
            Kind::NotPermitted => {
                (StatusCode::FORBIDDEN, "not_permitted", "the operating system does not permit it")
            }
            Kind::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "the token is not good for this"),
            Kind::Unverified => {
                (StatusCode::INTERNAL_SERVER_ERROR, "unverified", "something is left, or may be left")
            }
            Kind::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too_many", "a limit of this server is reached"),
            Kind::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining", "the server ends"),
            Kind::Unanswered => {
                (StatusCode::GATEWAY_TIMEOUT, "unanswered", "a penfold process does not answer")
            }
            Kind::NoSpace => (StatusCode::INSUFFICIENT_STORAGE, "no_space", "there is no room on the disk"),
            Kind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal", "the server failed"),
        }
    }
}

impl Problem {
    /// Makes a problem.
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        Problem { kind, detail: detail.into(), lists: None }
    }

    /// The body of the answer.
    pub(crate) fn document(self) -> ProblemDocument {
        let (status, word, title) = self.kind.parts();
        let Lists { remaining, candidates, holder } = self.lists.map(|lists| *lists).unwrap_or_default();
        let (status, r#type) = (status.as_u16(), format!("urn:penfold:problem:{word}"));
        ProblemDocument { r#type, title, status, detail: self.detail, remaining, candidates, holder }
    }

    /// Tells whether it is of this kind.
    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.kind == kind
    }

    /// The document as a value.
    pub(crate) fn json(self) -> serde_json::Value {
        serde_json::to_value(self.document()).unwrap_or_default()
    }

    fn with(mut self, lists: Lists) -> Problem {
        self.lists = Some(Box::new(lists));
        self
    }

    /// A value that is not possible, with the name of its field.
    pub(crate) fn field(name: &str, problem: impl std::fmt::Display) -> Problem {
        Problem::new(Kind::InvalidField, format!("`{name}`: {problem}"))
    }

    /// The server ends.
    pub(crate) fn draining() -> Problem {
        Problem::new(
            Kind::Draining,
            "the server ends, or the tokens of the caller have changed; sandboxes go on",
        )
    }

    /// The sandbox has ended.
    pub(crate) fn ended(id: &str) -> Problem {
        Problem::new(Kind::HasEnded, format!("sandbox {id} has ended"))
    }

    /// A sandbox that was there is not found any more: it has ended, and its record was removed.
    pub(crate) fn or_ended(self, id: &str) -> Problem {
        if self.kind == Kind::NotFound { Problem::ended(id) } else { self }
    }

    /// A request to a sandbox failed. If the sandbox has ended meanwhile, that is the reason.
    pub(crate) fn beside_end(self, files: &Files) -> Problem {
        if self.kind != Kind::HasEnded && has_just_ended(files) { Problem::ended(files.name()) } else { self }
    }

    /// Something is left.
    pub(crate) fn remaining(detail: impl Into<String>, remaining: Vec<Survivor>) -> Problem {
        Problem::new(Kind::Unverified, detail).with(Lists { remaining, ..Lists::default() })
    }

    fn error(kind: Kind, error: &dyn std::error::Error) -> Problem {
        let detail = error_chain(error);
        Problem::new(kind.or_no_space(&detail), detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let (status, word, _) = self.kind.parts();
        if status.is_server_error() {
            tracing::warn!(problem = word, detail = self.detail, "problem");
        }
        let body = serde_json::to_vec(&self.document()).unwrap_or_default();
        let mut response = (status, body).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        response
    }
}

impl From<ResolveError> for Problem {
    fn from(error: ResolveError) -> Problem {
        let detail = error.to_string();
        match error {
            ResolveError::NotFound { .. } => Problem::new(Kind::NotFound, detail),
            ResolveError::Unreadable { .. } => Problem::new(Kind::Internal, detail),
            ResolveError::Ambiguous { candidates, .. } => {
                let candidates =
                    candidates.into_iter().map(|Candidate { id, name }| CandidateSandbox { id, name });
                let lists = Lists { candidates: candidates.collect(), ..Lists::default() };
                Problem::new(Kind::Ambiguous, detail).with(lists)
            }
        }
    }
}

impl From<ForgetError> for Problem {
    fn from(error: ForgetError) -> Problem {
        let detail = error_chain(&error);
        match error {
            ForgetError::Left { survivors, .. } => Problem::remaining(detail, survivors),
            ForgetError::Living { .. } => Problem::new(Kind::NotEnded, detail),
            ForgetError::Busy { .. } | ForgetError::Closed { .. } | ForgetError::Stuck { .. } => {
                Problem::new(Kind::Unverified, detail)
            }
        }
    }
}

impl From<StartError> for Problem {
    fn from(error: StartError) -> Problem {
        let refusal = match &error {
            StartError::Execute { .. } => return Problem::error(Kind::Internal, &error),
            StartError::Refused(refusal) => refusal,
        };
        let kind = match refusal.kind {
            RefusalKind::NameTaken => {
                let holder = Some(refusal.holder.clone().unwrap_or_default());
                let lists = Lists { holder, ..Lists::default() };
                return Problem::error(Kind::NameTaken, &error).with(lists);
            }
            RefusalKind::CommandNotFound => Kind::CommandNotFound,
            RefusalKind::CommandNotExecutable => Kind::CommandNotExecutable,
            RefusalKind::TooLarge => Kind::TooLarge,
            RefusalKind::NotStarted => Kind::NotStarted,
            RefusalKind::Unverified => Kind::Unverified,
        };
        Problem::error(kind, &error)
    }
}

impl From<EngineError> for Problem {
    fn from(error: EngineError) -> Problem {
        match error {
            EngineError::Resolve(error) => error.into(),
            EngineError::Forget(error) => error.into(),
            EngineError::Start(error) => error.into(),
            EngineError::TooMany { .. } | EngineError::Busy => Problem::error(Kind::TooMany, &error),
            EngineError::Look(_) | EngineError::Execute { .. } | EngineError::Abandoned => {
                Problem::error(Kind::Internal, &error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_kind_has_a_word_of_its_own_and_an_error_status() {
        let words: BTreeSet<&str> = Kind::ALL.iter().map(|kind| kind.parts().1).collect();
        assert_eq!(words.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            let (status, word, _) = kind.parts();
            assert!(status.is_client_error() || status.is_server_error(), "{word}");
            assert!(word.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase()), "{word}");
        }
    }

    #[test]
    fn the_documentation_lists_each_kind() {
        let page = include_str!("../../../docs/api.md");
        for kind in Kind::ALL {
            let (status, word, title) = kind.parts();
            let row = format!("| `{word}` | {} | {title} |", status.as_u16());
            assert!(page.contains(&row), "docs/api.md lacks: {row}");
        }
    }

    #[test]
    fn a_problem_names_what_is_left() {
        let left = Survivor::Unknown { reason: "why".to_owned() };
        let text = serde_json::to_value(Problem::remaining("x", vec![left]).document()).unwrap();
        assert_eq!(text["type"], "urn:penfold:problem:unverified");
        assert_eq!(text["status"], 500);
        assert_eq!(text["remaining"][0]["reason"], "why");
    }
}
