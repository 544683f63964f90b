//! Makes contexts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_control::execs::{self, ExecError, ExecStart};
use penfold_server::execs::discard_exec;
use penfold_server::ids::Spot;
use penfold_session::protocol::is_variable;
use penfold_state::{StartFailure, error_chain};
use rustix::io::Errno;

use crate::api::{Api, ApiState};
use crate::end_tree::GRACE;
use crate::error::{ApiError, Code};
use crate::ids::SessionId;
use crate::processes;
use crate::sessions::{self, Session};

use super::contexts::{self, Context};
use super::end;
use super::frames::new_token;
use super::hello;
use super::language::Language;

/// The time in which a session that is ended by others ends after a context of it.
const MOMENT: Duration = Duration::from_millis(100);
/// The contexts of a session that may run at one time.
const MOST: usize = 32;
/// The directory that clients name unless their users name another one. It may be missing.
const WORKSPACE: &str = "/workspace";

/// A context to be made.
#[derive(Debug)]
pub(super) struct NewContext {
    pub(super) language: Language,
    pub(super) cwd: Option<String>,
    pub(super) env: BTreeMap<String, String>,
    /// Whether it runs the code of requests without a context.
    pub(super) is_default: bool,
}

impl NewContext {
    /// A context without wishes, for the code of requests without a context.
    pub(super) fn default_of(language: Language) -> NewContext {
        NewContext { language, cwd: None, env: BTreeMap::new(), is_default: true }
    }

    fn check(&self) -> Result<(), ApiError> {
        let invalid = |message: String| Err(ApiError::new(Code::ValidationFailed, message));
        if let Some(name) = self.env.keys().find(|name| !is_variable(name)) {
            return invalid(format!("env_vars: {name:?} is no name of a variable"));
        }
        if self.env.values().chain(&self.cwd).any(|text| text.contains('\0')) {
            return invalid("cwd or env_vars has a NUL".to_owned());
        }
        Ok(())
    }

    /// Returns the directory of the context: that of the session's shell, unless the client names one that exists.
    async fn directory(&self, api: &ApiState, session: &SessionId) -> Result<PathBuf, ApiError> {
        let of_shell = sessions::directory(api, session).await?;
        let Some(cwd) = self.cwd.clone().filter(|cwd| !cwd.is_empty()) else { return Ok(of_shell) };
        api.call(move |_| {
            let is_missing = cwd == WORKSPACE && !Path::new(WORKSPACE).is_dir();
            Ok(if is_missing { of_shell } else { of_shell.join(cwd) })
        })
        .await
    }

    fn start(&self, api: &Api, session: &Session, directory: &Path) -> Result<Context, ApiError> {
        let files = &session.files;
        let failed = |error: &(dyn std::error::Error + 'static)| {
            if session.is_ending(error) { session.destroyed() } else { self.failed(&error_chain(error)) }
        };
        let running = contexts::running_contexts(files).map_err(|error| failed(&error))?;
        if running.len() >= MOST {
            let message = format!("session '{}' has {MOST} code contexts; delete one", session.id.as_str());
            return Err(ApiError::overload(Code::InternalError, message));
        }
        processes::make_room(api, files);
        let id = new_id();
        let mut start = ExecStart::new(self.language.command());
        let own = self.language.variables().into_iter();
        let given = self.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        start.environment = own.chain(given).map(|(name, value)| (name.into(), Some(value.into()))).collect();
        start.labels =
            contexts::labels_of(&id, self.language, &directory.display().to_string(), self.is_default);
        start.directory = Some(directory.to_owned());
        start.open_input = true;
        start.grace = GRACE;
        start.log_limit = api.output_limit();
        let number = match execs::start_exec(files, start) {
            Ok(started) => started.number,
            Err(ExecError::StartFailed { number, failure }) => {
                discard_exec(files, number, GRACE);
                return Err(self.not_started(&failure, directory));
            }
            Err(ExecError::Refused(reason)) => return Err(ApiError::overload(Code::InternalError, reason)),
            Err(error) => return Err(failed(&error)),
        };
        if let Some(reserved) = api.contexts.reserve(&id) {
            reserved.settle(Spot { sandbox: files.name().to_owned(), number });
        }
        contexts::find_context(api, &id)
    }

    fn not_started(&self, failure: &StartFailure, directory: &Path) -> ApiError {
        match failure {
            StartFailure::NotFound => self.language.missing(),
            StartFailure::Directory(errno) => {
                let (cwd, errno) = (directory.display(), Errno::from_raw_os_error(*errno));
                let message = format!("cannot enter the directory '{cwd}': {errno}");
                ApiError::new(Code::ValidationFailed, message).with("field", "cwd")
            }
            StartFailure::NotExecutable(errno) => self.failed(&Errno::from_raw_os_error(*errno).to_string()),
            StartFailure::Other(reason) => self.failed(reason),
        }
    }

    fn failed(&self, why: &str) -> ApiError {
        let message = format!("Failed to create code context: {why}");
        let error = ApiError::new(Code::InternalError.or_no_space(why), message);
        error.with("language", self.language.name()).with("originalError", why)
    }
}

/// Makes a context, and returns once it can run code.
///
/// # Errors
/// When its interpreter is missing, or does not start.
pub(super) async fn create_context(
    api: &ApiState,
    id: &SessionId,
    wanted: NewContext,
) -> Result<Context, ApiError> {
    wanted.check()?;
    let session = sessions::obtain(api, id).await?;
    let directory = wanted.directory(api, id).await?;
    let language = wanted.language;
    let context = {
        let _turn = api.locks.lock(&format!("{}\ncontexts", id.as_str())).await;
        let session = session.clone();
        api.wait(move |api| wanted.start(api, &session, &directory)).await?
    };
    let error = match hello::greet_context(api, &context).await {
        Ok(abilities) if abilities.typescript || language != Language::TypeScript => return Ok(context),
        Ok(_) => Language::too_old(),
        Err(error) => error,
    };
    end::end_context(api, context).await?;
    // It may have been ended before the rest of a session that is deleted.
    api.wait(move |_| Err(if session.ends_within(MOMENT) { session.destroyed() } else { error })).await
}

/// Returns the context for the code of requests without one, and makes it if there is none.
///
/// # Errors
/// As [`create_context`].
pub(super) async fn default_context(
    api: &ApiState,
    id: &SessionId,
    language: Language,
) -> Result<Context, ApiError> {
    let _turn = api.locks.lock(&format!("{}\ndefault-{}", id.as_str(), language.name())).await;
    let session = sessions::obtain(api, id).await?;
    let found = api.call(move |_| {
        let running =
            contexts::running_contexts(&session.files).map_err(|error| ApiError::internal(&error))?;
        Ok(running.into_iter().find(|context| context.is_default() && context.language == language))
    });
    match found.await? {
        Some(context) => Ok(context),
        None => create_context(api, id, NewContext::default_of(language)).await,
    }
}

/// Makes an id of the form that the reference has.
fn new_id() -> String {
    let random = new_token();
    let mut id = String::with_capacity(36);
    for (at, digit) in random.chars().enumerate() {
        if [8, 12, 16, 20].contains(&at) {
            id.push('-');
        }
        id.push(digit);
    }
    id
}
