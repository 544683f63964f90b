//! Whatever the data plane reaches: a sandbox, or this machine.

use std::sync::Arc;

use axum::http::HeaderMap;
use penfold_server::Engine;
use penfold_state::Files;

use crate::connect::{Code, RpcError};
use crate::settings::Settings;
use crate::user::User;

/// Whatever the data plane reaches for one request.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    pub(crate) place: Place,
    /// The user as whom commands run, unless the request names another.
    pub(crate) user: User,
    /// The access token, unless none is needed.
    pub(crate) token: Option<String>,
    /// Whether the request has the token, or needs none.
    pub(crate) is_admitted: bool,
}

/// Where commands run and files are.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In a sandbox that runs, with this record.
    Sandbox(Files),
    /// On this machine.
    Machine {
        /// The record of the sandbox of its commands, if there is one.
        commands: Option<Files>,
        settings: Arc<Settings>,
    },
}

impl Guest {
    /// The record of the sandbox with the commands.
    ///
    /// # Errors
    /// When there was no command yet.
    pub(crate) fn record(&self) -> Result<&Files, RpcError> {
        let missing = || RpcError::new(Code::NotFound, "there is no such process: no command was started");
        self.any_record().ok_or_else(missing)
    }

    /// The same; `None` if there was no command yet.
    pub(crate) fn any_record(&self) -> Option<&Files> {
        match &self.place {
            Place::Sandbox(files) => Some(files),
            Place::Machine { commands, .. } => commands.as_ref(),
        }
    }

    /// A name that no other sandbox has.
    pub(crate) fn name(&self) -> &str {
        match &self.place {
            Place::Sandbox(files) => files.name(),
            Place::Machine { .. } => "machine",
        }
    }

    /// Takes the Unix user that a request asks for with `Authorization: Basic`.
    ///
    /// # Errors
    /// A sentence, when it cannot be that one.
    pub(crate) async fn of_headers(self, engine: &Engine, headers: &HeaderMap) -> Result<Guest, RpcError> {
        let refused = |why| RpcError::new(Code::Unauthenticated, why);
        let name = user_name(headers).map_err(refused)?;
        self.of_user(engine, &name).await.map_err(refused)
    }

    /// Takes the Unix user with this name. The empty name is the usual user.
    ///
    /// # Errors
    /// A sentence, when it cannot be that one.
    pub(crate) async fn of_user(mut self, engine: &Engine, name: &str) -> Result<Guest, String> {
        if name.is_empty() || name == self.user.name {
            return Ok(self);
        }
        match self.place {
            Place::Sandbox(_) => {
                let own = &self.user.name;
                return Err(format!(
                    "invalid username: '{name}'; everything in this sandbox runs as `{own}`, and there is no other user to become"
                ));
            }
            Place::Machine { .. } => {
                let name = name.to_owned();
                // Its files may be on a disk, or asked for from a name service.
                let found = engine.call(move |_| User::of_machine(&name)).await;
                self.user = found.map_err(|error| error.to_string())??;
            }
        }
        Ok(self)
    }
}

/// The name of the Unix user that a request asks for; empty if it asks for none.
fn user_name(headers: &HeaderMap) -> Result<String, String> {
    use base64::Engine as _;
    let Some(given) = headers.get(axum::http::header::AUTHORIZATION) else { return Ok(String::new()) };
    let name = given.to_str().ok().and_then(|text| text.strip_prefix("Basic ")).and_then(|text| {
        let decoded = base64::engine::general_purpose::STANDARD.decode(text).ok()?;
        String::from_utf8(decoded).ok()?.split_once(':').map(|(name, _)| name.to_owned())
    });
    name.ok_or_else(|| "`Authorization` is not `Basic base64(user:)`".to_owned())
}
