//! From a request to a sandbox that runs: [`check_request`], [`start_sandbox`], and what the caller waits for.

use std::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use penfold_request::{Containment, SandboxSpec, StartRequest};
use penfold_state::{Outcome, ScratchSpec, Spec, StartFailure, error_chain};
use penfold_supervisor::{DetachedStart, Launcher, LauncherError, LauncherProgress};

use crate::caller::{Caller, Explainer, Warning};
use crate::checks;
use crate::error::{LaunchError, LaunchErrorKind, Remains};
use crate::kept::keep_request;
use crate::profile::{apply_profile, jail_of, login_of_jail};
use crate::ready::{Wait, await_ready};
use crate::scope::{CgroupNeeds, Plan, check_limits, explain_error, plan_scope, start_in_plan};
use crate::spec::{self, Asked, Values, start_spec, with_env_files};
use crate::surroundings::{Surroundings, Variables};
use crate::user::{as_user_words, find_user};

/// A request that contradicts itself nowhere.
#[derive(Debug)]
pub struct CheckedRequest {
    spec: SandboxSpec,
    values: Values,
    command: Vec<OsString>,
    /// What a restart starts from.
    kept: Option<StartRequest>,
    outside: Option<String>,
}

impl CheckedRequest {
    /// Starts the sandbox outside of this one, which the caller has left for it.
    #[must_use]
    pub fn outside_of(self, left: Option<String>) -> CheckedRequest {
        CheckedRequest { outside: left, ..self }
    }
}

/// Checks a request, and reads its files of variables. Nothing is started.
///
/// # Errors
/// When a value means nothing, or parts of the request contradict each other or the caller.
pub fn check_request(
    spec: SandboxSpec,
    caller: &Caller,
    variables: &Variables,
) -> Result<CheckedRequest, LaunchError> {
    let (command, values) = (spec::command_words(&spec), Values::of(&spec)?);
    let kept = (caller.detach && caller.id.is_none()).then(|| StartRequest {
        spec: spec.clone(),
        report: caller.report.clone(),
        ..StartRequest::default()
    });
    checks::refuse_detached_flags(&spec, caller)?;
    checks::refuse_limits(&spec)?;
    checks::refuse_directory_of_jail_user(&spec)?;
    let spec = with_env_files(spec, variables)?;
    checks::refuse_stop_command(&spec)?;
    if spec.contain == Some(Containment::Pidns) {
        checks::refuse_spare(&spec, "--contain pidns")?;
    }
    checks::refuse_stdin_close(caller.on_stdin_close)?;
    Ok(CheckedRequest { spec, values, command, kept, outside: None })
}

/// Starts a sandbox. `change` changes what the supervisor starts from.
///
/// # Errors
/// When this host cannot give what is asked for, or the sandbox does not start. Nothing of it is left then.
pub fn start_sandbox(
    request: CheckedRequest,
    caller: &Caller,
    surroundings: &Surroundings,
    explainer: &mut dyn Explainer,
    change: impl FnOnce(&mut Spec),
) -> Result<StartedSandbox, LaunchError> {
    let CheckedRequest { spec: mut asked, values, command, kept, outside } = request;
    let name = command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let directory = spec::working_directory(&asked);
    let mut wrapper = apply_profile(&mut asked, &command, surroundings)?;
    let jail = jail_of(&asked)?;
    let user = asked.user.as_deref().map(find_user).transpose()?.flatten();
    if let Some(user) = &user {
        checks::refuse_callers_directories(&asked, !wrapper.is_empty())?;
        wrapper = as_user_words(&surroundings.program, &user.identity, asked.scratch);
    }
    let mut plan = plan_scope(&asked, caller.detach, surroundings)?;
    let needs = CgroupNeeds::of(&asked);
    check_limits(&plan, &needs, &name)?;
    let probe = values.probe.clone().map(|probe| (probe, values.ready_timeout));
    let (identity, login) = user.map(|user| (user.identity, user.variables)).unzip();
    let login = login.unwrap_or_else(|| login_of_jail(&asked));
    let spec = start_spec(Asked { spec: &asked, caller, values, login, command }, surroundings, explainer)?;
    let scratch = spec.scratch.map(|asked| ScratchSpec { user: identity.clone(), ..asked });
    let mut spec = Spec { wrapper, outside, identity, scratch, jail, ..spec };
    if let Some(request) = kept {
        keep_request(&request, &mut spec, &surroundings.variables);
    }
    change(&mut spec);
    let ready = probe.map(|(probe, timeout)| Wait::of(probe, timeout, &spec)).transpose()?;
    let started = start_in_plan(&mut plan, spec, &surroundings.buses);
    let attempt = Attempt { name, directory, plan, needs };
    match started {
        Ok(launcher) => Ok(StartedSandbox { launcher, attempt, ready }),
        Err(error) => {
            let failure = LaunchError::new(format!("cannot run `{}`", attempt.name));
            Err(attempt.explain(failure.because(error)))
        }
    }
}

/// What the errors of a start are about.
struct Attempt {
    /// The command.
    name: String,
    directory: Option<PathBuf>,
    plan: Plan,
    needs: CgroupNeeds,
}

impl Attempt {
    /// Adds what a person can do about the place of the sandbox.
    fn explain(&self, error: LaunchError) -> LaunchError {
        explain_error(&self.plan, &self.needs, error)
    }

    /// The error of a command that was not executed.
    fn start_failure(&self, failure: &StartFailure) -> LaunchError {
        LaunchError::of_start_failure(failure, &self.name, self.directory.clone())
    }

    fn warn(&self, id: String, is_detached: bool, explainer: &mut dyn Explainer) {
        if let Some(reason) = self.plan.warning(is_detached) {
            explainer.warn(&Warning::UnexpectedEnd { id, reason });
        }
    }
}

/// A sandbox that was started.
pub struct StartedSandbox {
    launcher: Launcher,
    attempt: Attempt,
    /// What the start waits for.
    ready: Option<Wait>,
}

/// A sandbox in the foreground that has ended.
pub struct EndedSandbox {
    /// How it ended.
    pub outcome: Outcome,
    attempt: Attempt,
}

impl StartedSandbox {
    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> String {
        self.launcher.id()
    }

    /// Returns the state root.
    #[must_use]
    pub fn state_root(&self) -> &Path {
        self.launcher.state_root()
    }

    /// Waits for the end of a sandbox in the foreground. `slow` hears of an end that takes long, see [`Launcher::wait`].
    ///
    /// # Errors
    /// When nothing is known of the end.
    pub fn wait(
        self,
        explainer: &mut dyn Explainer,
        slow: impl FnMut(LauncherProgress) -> bool,
    ) -> Result<EndedSandbox, LaunchError> {
        let StartedSandbox { launcher, attempt, ready: _ } = self;
        attempt.warn(launcher.id(), false, explainer);
        let outcome = launcher.wait(slow).map_err(|error| {
            LaunchError::new("cannot tell how the sandbox ended")
                .with_kind(LaunchErrorKind::Unverified)
                .because(error)
        })?;
        Ok(EndedSandbox { outcome, attempt })
    }

    /// Waits until the command of a detached sandbox runs, and is ready if that was asked for, and hands its id to the caller. If that
    /// fails, nothing is left of the sandbox.
    ///
    /// # Errors
    /// When the command does not run, the sandbox is not ready in time, or `tell_id` fails.
    pub fn follow<E: Error + 'static>(
        self,
        explainer: &mut dyn Explainer,
        tell_id: impl FnOnce(&str) -> Result<(), E>,
    ) -> Result<(), LaunchError> {
        let StartedSandbox { launcher, attempt, ready } = self;
        let id = launcher.id();
        follow_start(launcher, &attempt, ready, explainer, tell_id)
            .map_err(|error| attempt.explain(error))?;
        attempt.warn(id, true, explainer);
        Ok(())
    }
}

impl EndedSandbox {
    /// Returns the error of a command that did not start.
    #[must_use]
    pub fn failure(&self) -> Option<LaunchError> {
        let report = &self.outcome.report;
        let failure = report.failure.as_ref().filter(|_| report.findings.verified)?;
        Some(self.attempt.explain(self.attempt.start_failure(failure)))
    }
}

fn follow_start<E: Error + 'static>(
    launcher: Launcher,
    attempt: &Attempt,
    ready: Option<Wait>,
    explainer: &mut dyn Explainer,
    tell_id: impl FnOnce(&str) -> Result<(), E>,
) -> Result<(), LaunchError> {
    let (id, name) = (launcher.id(), &attempt.name);
    let lost = |error: LauncherError| {
        LaunchError::new(format!("cannot run `{name}`: sandbox {id} may be left"))
            .with_kind(LaunchErrorKind::Unverified)
            .because(error)
            .hint("`penfold doctor` lists leaks, `penfold gc` ends them")
    };
    let outcome = match launcher.wait_running().map_err(lost)? {
        DetachedStart::Over(outcome) => *outcome,
        DetachedStart::Running(launcher) => {
            let detached = launcher
                .detach()
                .map_err(|error| LaunchError::new(format!("cannot detach from sandbox {id}")).because(error));
            if let (Ok(()), Some(ready)) = (&detached, ready) {
                await_ready(&ready, &id, launcher.state_root(), launcher.signals(), explainer)?;
            }
            let tell = || tell_id(&id).map_err(|error| LaunchError::new(error_chain(&error)));
            return match detached.and_then(|()| tell()) {
                Ok(()) => Ok(()),
                Err(error) => {
                    let outcome = launcher.abandon("the id cannot be printed").map_err(lost)?;
                    Err(left(error, outcome))
                }
            };
        }
    };
    let error = match &outcome.report.failure {
        Some(failure) => attempt.start_failure(failure),
        None => {
            LaunchError::new(format!("cannot run `{name}`: sandbox {id} was ended before its id was printed"))
        }
    };
    Err(left(error.refused_by(&outcome), outcome))
}

/// Adds what the end of a sandbox has left.
fn left(error: LaunchError, outcome: Outcome) -> LaunchError {
    if outcome.report.findings.verified {
        return error;
    }
    error.with_kind(LaunchErrorKind::Unverified).with_remains(Remains::OfStart(outcome))
}
