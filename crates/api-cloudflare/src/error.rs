//! The errors of the API: a body with a code, which clients map to their error classes.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use penfold_server::is_no_space;
use serde_json::{Map, Value, json};

use super::time;

/// The code of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    InvalidCommand,
    ValidationFailed,
    IsDirectory,
    NotDirectory,
    NameTooLong,
    PermissionDenied,
    ReadOnly,
    FileNotFound,
    CommandNotFound,
    ProcessNotFound,
    SessionAlreadyExists,
    FileExists,
    SessionDestroyed,
    SessionTerminated,
    FileTooLarge,
    CommandExecutionError,
    StreamStartError,
    ProcessError,
    FilesystemError,
    NoSpace,
    InvalidGitUrl,
    GitAuthFailed,
    GitRepositoryNotFound,
    GitBranchNotFound,
    GitCloneFailed,
    GitOperationFailed,
    GitNetworkError,
    InvalidBackupConfig,
    BackupCreateFailed,
    BackupRestoreFailed,
    WatchStartError,
    PortNotExposed,
    PortOperationError,
    ContextNotFound,
    InterpreterNotReady,
    PythonNotAvailable,
    ExecutionError,
    ControlProtocolIncompatible,
    InvalidProcessCwd,
    InvalidProcessEnvironment,
    InvalidProcessCursor,
    ProcessSpawnFailed,
    TerminalNotFound,
    InvalidTerminalCwd,
    InvalidTerminalCursor,
    TerminalControlError,
    UnknownError,
    InternalError,
}

impl Code {
    /// Returns [`Code::NoSpace`] if the reason of the error is a full disk: another try does not help.
    pub(crate) fn or_no_space(self, reason: &str) -> Code {
        if is_no_space(reason) { Code::NoSpace } else { self }
    }

    /// The code as the wire has it, and its status.
    fn on_wire(self) -> (&'static str, StatusCode) {
        const INTERNAL: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;
        match self {
            Code::InvalidCommand => ("INVALID_COMMAND", StatusCode::BAD_REQUEST),
            Code::ValidationFailed => ("VALIDATION_FAILED", StatusCode::BAD_REQUEST),
            Code::IsDirectory => ("IS_DIRECTORY", StatusCode::BAD_REQUEST),
            Code::NotDirectory => ("NOT_DIRECTORY", StatusCode::BAD_REQUEST),
            Code::NameTooLong => ("NAME_TOO_LONG", StatusCode::BAD_REQUEST),
            Code::PermissionDenied => ("PERMISSION_DENIED", StatusCode::FORBIDDEN),
            Code::ReadOnly => ("READ_ONLY", StatusCode::FORBIDDEN),
            Code::FileNotFound => ("FILE_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::CommandNotFound => ("COMMAND_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::ProcessNotFound => ("PROCESS_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::SessionAlreadyExists => ("SESSION_ALREADY_EXISTS", StatusCode::CONFLICT),
            Code::FileExists => ("FILE_EXISTS", StatusCode::CONFLICT),
            Code::SessionDestroyed => ("SESSION_DESTROYED", StatusCode::GONE),
            Code::SessionTerminated => ("SESSION_TERMINATED", StatusCode::GONE),
            Code::FileTooLarge => ("FILE_TOO_LARGE", StatusCode::PAYLOAD_TOO_LARGE),
            Code::CommandExecutionError => ("COMMAND_EXECUTION_ERROR", INTERNAL),
            Code::StreamStartError => ("STREAM_START_ERROR", INTERNAL),
            Code::ProcessError => ("PROCESS_ERROR", INTERNAL),
            Code::FilesystemError => ("FILESYSTEM_ERROR", INTERNAL),
            Code::NoSpace => ("NO_SPACE", INTERNAL),
            Code::InvalidGitUrl => ("INVALID_GIT_URL", StatusCode::BAD_REQUEST),
            Code::GitAuthFailed => ("GIT_AUTH_FAILED", StatusCode::UNAUTHORIZED),
            Code::GitRepositoryNotFound => ("GIT_REPOSITORY_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::GitBranchNotFound => ("GIT_BRANCH_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::GitCloneFailed => ("GIT_CLONE_FAILED", INTERNAL),
            Code::GitOperationFailed => ("GIT_OPERATION_FAILED", INTERNAL),
            Code::GitNetworkError => ("GIT_NETWORK_ERROR", StatusCode::BAD_GATEWAY),
            Code::InvalidBackupConfig => ("INVALID_BACKUP_CONFIG", StatusCode::BAD_REQUEST),
            Code::BackupCreateFailed => ("BACKUP_CREATE_FAILED", INTERNAL),
            Code::BackupRestoreFailed => ("BACKUP_RESTORE_FAILED", INTERNAL),
            Code::WatchStartError => ("WATCH_START_ERROR", INTERNAL),
            Code::PortNotExposed => ("PORT_NOT_EXPOSED", StatusCode::NOT_FOUND),
            Code::PortOperationError => ("PORT_OPERATION_ERROR", INTERNAL),
            Code::ContextNotFound => ("CONTEXT_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::InterpreterNotReady => ("INTERPRETER_NOT_READY", StatusCode::SERVICE_UNAVAILABLE),
            Code::PythonNotAvailable => ("PYTHON_NOT_AVAILABLE", StatusCode::NOT_IMPLEMENTED),
            Code::ExecutionError => ("CODE_EXECUTION_ERROR", INTERNAL),
            Code::ControlProtocolIncompatible => {
                ("CONTROL_PROTOCOL_INCOMPATIBLE", StatusCode::SERVICE_UNAVAILABLE)
            }
            Code::InvalidProcessCwd => ("INVALID_PROCESS_CWD", StatusCode::BAD_REQUEST),
            Code::InvalidProcessEnvironment => ("INVALID_PROCESS_ENVIRONMENT", StatusCode::BAD_REQUEST),
            Code::InvalidProcessCursor => ("INVALID_PROCESS_CURSOR", StatusCode::BAD_REQUEST),
            Code::ProcessSpawnFailed => ("PROCESS_SPAWN_FAILED", INTERNAL),
            Code::TerminalNotFound => ("TERMINAL_NOT_FOUND", StatusCode::NOT_FOUND),
            Code::InvalidTerminalCwd => ("INVALID_TERMINAL_CWD", StatusCode::BAD_REQUEST),
            Code::InvalidTerminalCursor => ("INVALID_TERMINAL_CURSOR", StatusCode::BAD_REQUEST),
            Code::TerminalControlError => ("TERMINAL_CONTROL_ERROR", INTERNAL),
            Code::UnknownError => ("UNKNOWN_ERROR", INTERNAL),
            Code::InternalError => ("INTERNAL_ERROR", INTERNAL),
        }
    }
}

/// An error answer.
#[derive(Debug, Clone)]
pub(crate) struct ApiError(Box<Fields>);

#[derive(Debug, Clone)]
struct Fields {
    code: Code,
    status: StatusCode,
    message: String,
    context: Map<String, Value>,
    operation: Option<&'static str>,
    suggestion: Option<&'static str>,
}

impl ApiError {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> ApiError {
        let (_, status) = code.on_wire();
        let (message, context) = (message.into(), Map::new());
        ApiError(Box::new(Fields { code, status, message, context, operation: None, suggestion: None }))
    }

    /// Adds a field to the context.
    #[must_use]
    pub(crate) fn with(mut self, key: &str, value: impl Into<Value>) -> ApiError {
        self.0.context.insert(key.to_owned(), value.into());
        self
    }

    #[must_use]
    pub(crate) fn status(mut self, status: StatusCode) -> ApiError {
        self.0.status = status;
        self
    }

    #[must_use]
    pub(crate) fn operation(mut self, operation: &'static str) -> ApiError {
        self.0.operation = Some(operation);
        self
    }

    #[must_use]
    pub(crate) fn suggestion(mut self, suggestion: &'static str) -> ApiError {
        self.0.suggestion = Some(suggestion);
        self
    }

    /// Too much is asked for at one time. Clients repeat a 503 for two minutes, so this is never one.
    pub(crate) fn overload(code: Code, message: impl Into<String>) -> ApiError {
        let message = message.into();
        if is_no_space(&message) {
            return ApiError::new(Code::NoSpace, message);
        }
        ApiError::new(code, message).status(StatusCode::TOO_MANY_REQUESTS).suggestion("try again later")
    }

    /// There is no room for another thread or descriptor.
    pub(crate) fn full(error: &std::io::Error) -> ApiError {
        ApiError::overload(Code::InternalError, format!("no room for another request: {error}"))
    }

    /// The server has as many streams as it can have.
    pub(crate) fn too_many_streams() -> ApiError {
        ApiError::overload(
            Code::InternalError,
            "this server has as many open streams as it can have".to_owned(),
        )
    }

    /// The server runs as many commands as it can.
    pub(crate) fn too_many_commands() -> ApiError {
        ApiError::overload(Code::InternalError, "this server runs as many commands as it can".to_owned())
    }

    /// An operation of penfold or of the host failed.
    pub(crate) fn internal(error: &dyn std::error::Error) -> ApiError {
        let message = penfold_state::error_chain(error);
        ApiError::new(Code::InternalError.or_no_space(&message), message)
    }

    /// A path or method that no route has.
    pub(crate) fn unmatched() -> ApiError {
        ApiError::new(Code::UnknownError, "The requested endpoint was not found")
            .status(StatusCode::NOT_FOUND)
    }

    pub(crate) fn code(&self) -> Code {
        self.0.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    fn body(&self) -> Value {
        let Fields { code, status, message, context, operation, suggestion } = &*self.0;
        let (word, _) = code.on_wire();
        let mut body = json!({
            "code": word,
            "message": message,
            "context": context,
            "httpStatus": status.as_u16(),
            "timestamp": time::current_time(),
        });
        if let Some(fields) = body.as_object_mut() {
            let mut add = |key: &str, value: Option<&'static str>| {
                if let Some(value) = value {
                    fields.insert(key.to_owned(), value.into());
                }
            };
            add("operation", *operation);
            add("suggestion", *suggestion);
        }
        body
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.0.status, Json(self.body())).into_response()
    }
}
