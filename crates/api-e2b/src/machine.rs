//! The commands of this machine: execs of one sandbox, which is made at the first command.

use std::ffi::OsString;
use std::path::Path;

use penfold_control::execs::ExecStart;
use penfold_launch::user::{as_user_words, as_user_words_on_terminal};
use penfold_request::value::EnvSetting;
use penfold_server::NewSandbox;
use penfold_server::records::choose_records;
use penfold_state::Files;
use penfold_state::intent::Intent;
use rustix::process::geteuid;

use crate::api::{Api, ApiState};
use crate::connect::{Code, RpcError};
use crate::inside::normal_path;
use crate::settings::Settings;
use crate::user::User;

/// The label of the sandbox with the commands.
const LABEL: &str = "e2b.envd";
/// What keeps it alive.
const COMMAND: [&str; 2] = ["sleep", "infinity"];

/// Finds the sandbox of the commands, if it runs.
///
/// # Errors
/// When the records cannot be read.
pub(crate) fn find_sandbox(api: &Api) -> Result<Option<Files>, RpcError> {
    let lives = |files: &Files| !files.has_ended() && files.asked().is_none() && files.lock().may_be_held();
    let mut known = api.commands.lock();
    if known.as_ref().is_none_or(|files| !lives(files)) {
        // A tenant's sandbox could have the label.
        let is_it = |intent: &Intent| intent.tenant().is_none() && intent.labels.contains_key(LABEL);
        let found = choose_records(api.app.engine.scope(), |intent| is_it(intent).then_some(()));
        let found = found.map_err(|error| RpcError::internal(&error))?;
        *known = found.into_iter().map(|((), files)| files).find(lives);
    }
    Ok(known.clone())
}

/// Finds the sandbox of the commands, or makes it.
///
/// # Errors
/// When it cannot be made.
pub(crate) async fn sandbox(api: &ApiState) -> Result<Files, RpcError> {
    if let Some(files) = api.call(find_sandbox).await? {
        return Ok(files);
    }
    // A client that goes away does not stop it half way.
    let api = ApiState::clone(api);
    let making = tokio::spawn(async move {
        let _turn = api.app.engine.creating().await;
        if let Some(files) = api.call(find_sandbox).await? {
            return Ok(files);
        }
        let mut new = NewSandbox::new(COMMAND.map(str::to_owned).to_vec());
        new.spec.labels.insert(LABEL.to_owned(), "1".to_owned());
        new.spec.remove_at_end = true;
        api.app.engine.create(new).await?;
        let missing = || RpcError::new(Code::Unavailable, "the sandbox of the commands ended at once");
        api.call(find_sandbox).await?.ok_or_else(missing)
    });
    making.await.map_err(|error| RpcError::internal(&error))?
}

/// Has a command run on this machine as a user: with the variables and the directory of the user and of `POST /init`.
///
/// # Errors
/// When the directory can be none.
pub(crate) fn place(
    start: &mut ExecStart,
    settings: &Settings,
    user: &User,
    program: &Path,
) -> Result<(), RpcError> {
    let Some(account) = &user.account else {
        return Err(RpcError::new(Code::Unauthenticated, "the user is unknown"));
    };
    let given = start.directory.as_ref().map(|directory| directory.to_string_lossy().into_owned());
    let given = given.or_else(|| settings.default_workdir.clone());
    let directory = normal_path(&user.home, given.as_deref().unwrap_or_default())?;
    // A user may have no home; but a directory that was asked for is there.
    let is_usable = given.is_some() || Path::new(&directory).is_dir();
    start.directory = Some(if is_usable { directory } else { "/".to_owned() }.into());
    let variables = account.variables.iter().map(|EnvSetting { key, value }| (key.clone(), value.clone()));
    let of_all = settings.env_vars.iter();
    let of_all = of_all.map(|(key, value)| (OsString::from(key), Some(OsString::from(value))));
    start.environment.splice(..0, variables.chain(of_all));
    // Of a user with several names the groups are the same.
    if geteuid().as_raw() != account.identity.uid {
        let words = match start.terminal {
            Some(_) => as_user_words_on_terminal(program, &account.identity),
            None => as_user_words(program, &account.identity, false),
        };
        start.command.splice(..0, words);
        start.own_user = true;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_request_come_last_and_a_directory_begins_at_home() {
        let mut user = User::first_of_machine(&[]);
        user.home = "/nonexistent".to_owned();
        let settings =
            Settings { env_vars: [("A".to_owned(), "1".to_owned())].into(), ..Settings::default() };
        let started = |directory: Option<&str>, settings: &Settings| {
            let mut start = ExecStart::new(["true"]);
            start.directory = directory.map(Into::into);
            start.environment = vec![("A".into(), Some("2".into()))];
            place(&mut start, settings, &user, Path::new("/penfold")).unwrap();
            start
        };
        let start = started(Some("a/../b"), &settings);
        assert_eq!(start.directory.unwrap(), Path::new("/nonexistent/b"));
        let values = start.environment.iter().filter(|(key, _)| key == "A");
        let values: Vec<_> = values.map(|(_, value)| value.clone().unwrap()).collect();
        assert_eq!(values, ["1", "2"]);
        assert!(!start.own_user && start.command == ["true"]);
        assert_eq!(started(None, &settings).directory.unwrap(), Path::new("/"));
        let settings = Settings { default_workdir: Some("/x".to_owned()), ..settings };
        assert_eq!(started(None, &settings).directory.unwrap(), Path::new("/x"));
    }
}
