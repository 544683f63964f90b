//! Converts a request into a [`Spec`], from which the supervisor starts.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_process::path_text::{path_of_text, path_text};
use penfold_request::value::{self, EnvSetting, ReservedSignal};
use penfold_request::{Containment, OwnerAction, SandboxSpec, USUAL_VARIABLES};
use penfold_resource::request::{PlanPlaces, Request};
use penfold_resource::{PlannedResource, ResourceOwner};
use penfold_state::{
    Detach, EventLog, Id, OnFailure, OwnerExit, ReportFile, ScratchSpec, Spec, TtlAction, names,
};
use penfold_teardown::{MARKER, SpareRule};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::caller::{Caller, Explainer};
use crate::env_file::read_env_files;
use crate::error::{LaunchError, OrFail as _};
use crate::ready::{self, Probe};
use crate::shared_memory::refuse_hidden_paths;
use crate::stop_channel::stop_words;
use crate::surroundings::{LEFT, Surroundings, Variables, is_token};
use crate::{checks, profile, replace};

/// The time between the polite signal and SIGKILL that a request without one gets.
pub const GRACE: Duration = Duration::from_secs(10);
/// The time that a kill may take until the survivors are reported, in a request without one.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The size of the log of a detached sandbox whose request has none.
pub const LOG_SIZE: u64 = 64 << 20;
/// The directory below the state root for directories of sockets.
const SOCKETS: &str = "sockets";

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What a specification has as texts.
#[derive(Clone, Debug)]
pub struct Values {
    signal: Signal,
    spare: Vec<SpareRule>,
    restart: Option<OnFailure>,
    pub(crate) probe: Option<Probe>,
    pub(crate) ready_timeout: Duration,
}

impl Values {
    /// Reads and checks the texts and numbers. Those of flags were checked before.
    ///
    /// # Errors
    /// When one means nothing.
    pub fn of(spec: &SandboxSpec) -> Result<Values, LaunchError> {
        valid("--name", spec.name.as_deref().map(value::name))?;
        for (key, text) in &spec.labels {
            valid("--label", Some(value::label(&format!("{key}={text}"))))?;
        }
        for key in spec.env.keys() {
            valid("--env", Some(value::env_setting(format!("{key}=").as_ref())))?;
        }
        valid("--memory", spec.memory_bytes.map(|bytes| value::memory(&bytes.to_string())))?;
        valid("--pids", spec.pids.map(|pids| value::pids(&pids.to_string())))?;
        valid("--cpus", spec.cpus.map(|cpus| value::cpus(&cpus.to_string())))?;
        valid("--jail-user", spec.jail_user().map(value::jail_user))?;
        valid("--log", spec.event_log.as_deref().map(value::event_log))?;
        let number = valid("--signal", spec.signal.as_deref().map(value::signal))?.map(value::Signal::number);
        let number = number.unwrap_or(Signal::TERM.as_raw());
        let signal = penfold_sys::signal::signal_of_number(number).ok_or(ReservedSignal);
        let rule = |text: &String| Ok(valid("--spare", Some(value::spare_rule(text)))?.into_iter());
        let rules: Result<Vec<_>, LaunchError> = spec.spare.iter().map(rule).collect();
        if spec.ready_timeout_ms.is_some() && spec.ready.is_none() {
            return Err(LaunchError::new("missing `--ready`: `ready_timeout_ms` is the time for its probe"));
        }
        Ok(Values {
            signal: signal.map_err(|error| LaunchError::new(error.to_string()))?,
            spare: rules?.into_iter().flatten().collect(),
            restart: valid("--restart", spec.restart.as_deref().map(value::restart_policy))?,
            probe: valid("--ready", spec.ready.as_deref().map(ready::parse_probe))?,
            ready_timeout: spec.ready_timeout_ms.map_or(ready::TIMEOUT, Duration::from_millis),
        })
    }
}

/// Makes a failure of a wrong value, under the name of its flag.
fn valid<T, E: Into<Box<dyn Error + Send + Sync>>>(
    flag: &str,
    value: Option<Result<T, E>>,
) -> Result<Option<T>, LaunchError> {
    value.transpose().map_err(|error| LaunchError::new(format!("invalid value for `{flag}`")).because(error))
}

/// Opens the report file, so that an unwritable path fails before the command runs.
pub fn report_file(caller: &Caller) -> Result<Option<ReportFile>, LaunchError> {
    let Some(path) = &caller.report else { return Ok(None) };
    let opened = if path.as_os_str() != "-" {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).open(path)
    } else if caller.detach {
        return Err(LaunchError::new(
            "`--report -` cannot be used together with `--detach`, which does not keep standard output",
        )
        .hint("use `--report FILE`, or `penfold report ID` after the end"));
    } else {
        std::io::stdout().as_fd().try_clone_to_owned().map(File::from)
    };
    let file = opened.map_err(|error| {
        let name = if path.as_os_str() == "-" { Path::new("standard output") } else { path };
        LaunchError::new(format!("cannot write the report to `{}`", name.display())).because(error)
    })?;
    Ok(Some(ReportFile::of(file, path.as_os_str() == "-")))
}

/// Takes the descriptor of `--status-fd` from the caller, so that the command does not inherit it.
fn status_file(caller: &Caller) -> Result<Option<File>, LaunchError> {
    let Some(number) = caller.status_fd else { return Ok(None) };
    let taken = penfold_sys::descriptors::take_one(number);
    let file = taken.map(File::from).and_then(|file| {
        let access = rustix::fs::fcntl_getfl(&file)?.intersection(OFlags::RWMODE);
        if access == OFlags::RDONLY { Err(Errno::BADF.into()) } else { Ok(file) }
    });
    file.map(Some).map_err(|error| {
        let sentence = format!("cannot write to descriptor {number}, which `--status-fd` names");
        LaunchError::new(sentence)
            .because(error)
            .hint("the caller of penfold opens it for writing, and without close-on-exec")
    })
}

/// Who gets the sandbox, and what its command is.
pub(crate) struct Asked<'a> {
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) caller: &'a Caller,
    pub(crate) values: Values,
    /// The variables of the user that the command becomes. They go before the caller's, and those of the flags before both.
    pub(crate) login: Vec<EnvSetting>,
    pub(crate) command: Vec<OsString>,
}

/// Makes the specification of the sandbox.
pub(crate) fn start_spec(
    asked: Asked<'_>,
    surroundings: &Surroundings,
    explainer: &mut dyn Explainer,
) -> Result<Spec, LaunchError> {
    let Asked { spec, caller, values, login, mut command } = asked;
    let report = report_file(caller)?;
    let status = status_file(caller)?;
    let event_log = spec.event_log.as_deref().map(open_event_log).transpose()?;
    let detach = detach(spec, caller, &values)?;
    let id = caller.id.map_or_else(Id::new, Ok).or_fail("cannot make an id")?;
    let state_root = surroundings.state_root.clone();
    let mut environment = environment(spec, login, &surroundings.variables);
    let place =
        PlanPlaces { temporary: surroundings.temporary.clone(), short: absolute(&state_root).join(SOCKETS) };
    let request = spec.resources();
    let plan = plan_resources(&request, &owner(&request, &id), &place)?;
    refuse_hidden_paths(spec, &plan.planned, &surroundings.temporary)?;
    environment.retain(|(key, _)| !plan.variables.iter().any(|(other, _)| key == other));
    environment.extend(plan.variables.iter().map(|(key, value)| (key.into(), value.into())));
    let sockets =
        plan.variables.iter().find(|(key, _)| *key == SOCKETS_VARIABLE).map(|(_, path)| path.as_path());
    environment.extend(profile::complete_vmm(spec, &mut command, sockets));
    let stop_command = stop_words(spec.stop.as_ref(), sockets, &profile::program_inside(spec, surroundings))?;
    // Last, after all checks: this step stops another sandbox.
    let name = spec.name.as_deref().filter(|_| caller.replace);
    let held = name.map(|name| names::held_name(names::tenant_of(&spec.labels), name));
    let claim = held.map(|name| replace::take_name(&name, &id, surroundings, explainer)).transpose()?;
    Ok(Spec {
        id,
        timeout: spec.timeout_ms.and_then(limit),
        environment,
        scratch: spec.has_scratch().then(|| ScratchSpec::below(surroundings.temporary.clone())),
        resources: plan.planned,
        contain: contain(spec),
        limits: spec.limits(),
        owner: caller.owner.and_then(Pid::from_raw),
        on_owner_exit: on_owner_exit(caller),
        on_stdin_close: caller.on_stdin_close,
        signal: values.signal,
        grace: spec.grace_ms.map_or(GRACE, Duration::from_millis),
        patience: spec.patience_ms.map_or(PATIENCE, Duration::from_millis),
        state_root,
        labels: spec.labels.clone(),
        name: spec.name.clone(),
        claim,
        directory: working_directory(spec).or(plan.workspace),
        command,
        wrapper: Vec::new(),
        identity: None,
        profile: spec.profile.map(Into::into),
        jail: None,
        ipc: spec.ipc.map(Into::into).unwrap_or_default(),
        leaks_after: None,
        seeks_clients: caller.codes.fail_on_leak || report.is_some(),
        stop_command,
        allow_outside: spec.allow_outside,
        spare: values.spare,
        outside: None,
        report,
        status,
        event_log,
        stop_on_interrupt: caller.stop_on_interrupt,
        detach,
    })
}

/// A limit of time; 0 is none.
fn limit(ms: u64) -> Option<Duration> {
    Some(Duration::from_millis(ms)).filter(|time| !time.is_zero())
}

/// The working directory that is asked for.
pub fn working_directory(spec: &SandboxSpec) -> Option<PathBuf> {
    spec.dir.as_deref().map(path_of_text)
}

/// The words of the command.
pub(crate) fn command_words(spec: &SandboxSpec) -> Vec<OsString> {
    spec.command.iter().map(|word| path_of_text(word).into_os_string()).collect()
}

/// Reads the files of variables; those that are given by themselves take precedence.
///
/// # Errors
/// When a file cannot be read, or has a line that sets no variable.
pub fn with_env_files(spec: SandboxSpec, variables: &Variables) -> Result<SandboxSpec, LaunchError> {
    let files: Vec<PathBuf> = spec.env_files.iter().map(|file| path_of_text(file)).collect();
    let mut env: BTreeMap<String, String> =
        read_env_files(&files)?.into_iter().filter_map(|setting| variable(setting, variables)).collect();
    env.extend(spec.env);
    Ok(SandboxSpec { env, env_files: Vec::new(), ..spec })
}

/// The name and the value of a setting, which may be that of the caller; `None` if there is none.
fn variable(setting: EnvSetting, variables: &Variables) -> Option<(String, String)> {
    let value = setting.value.or_else(|| variables.value(&setting.key).map(OsStr::to_owned))?;
    Some((path_text(setting.key.as_ref()), path_text(value.as_ref())))
}

fn settings(spec: &SandboxSpec) -> impl Iterator<Item = EnvSetting> {
    let text = |text: &String| path_of_text(text).into_os_string();
    spec.env.iter().map(move |(key, value)| EnvSetting { key: text(key), value: Some(text(value)) })
}

fn on_owner_exit(caller: &Caller) -> OwnerExit {
    match caller.on_owner_exit {
        None if caller.detach => OwnerExit::Keep,
        None | Some(OwnerAction::Kill) => OwnerExit::Kill,
        Some(OwnerAction::Stop) => OwnerExit::Stop,
        Some(OwnerAction::Keep) => OwnerExit::Keep,
    }
}

fn contain(spec: &SandboxSpec) -> penfold_state::Contain {
    match spec.contain.unwrap_or_default() {
        // Without a cgroup, no limit would hold.
        Containment::Auto if !spec.limits().is_empty() => penfold_state::Contain::Cgroup,
        Containment::Auto => penfold_state::Contain::Auto,
        Containment::Cgroup => penfold_state::Contain::Cgroup,
        Containment::Pidns => penfold_state::Contain::Pidns,
        Containment::Subreaper => penfold_state::Contain::Subreaper,
    }
}

/// The settings of a detached sandbox; `None` in the foreground.
fn detach(spec: &SandboxSpec, caller: &Caller, values: &Values) -> Result<Option<Detach>, LaunchError> {
    checks::check_detached(spec, caller)?;
    let ready_pipe = values.probe.as_ref().map(Probe::pipe).transpose()?.flatten();
    Ok(caller.detach.then(|| Detach {
        ttl: spec.lease_ms.and_then(limit),
        ttl_action: if spec.lease_pauses { TtlAction::Pause } else { TtlAction::End },
        idle: spec.idle_timeout_ms.and_then(limit),
        keep: spec.survive_supervisor,
        remove: spec.remove_at_end,
        terminal: spec.terminal,
        log_limit: spec.log_size.unwrap_or(LOG_SIZE),
        ready: spec.ready.clone(),
        ready_pipe,
        restart: values.restart,
        life: None,
        launch: None,
    }))
}

/// The variable with the directory of sockets.
const SOCKETS_VARIABLE: &str = "PENFOLD_SOCKETS";

/// The resources of a sandbox, and the variables of its command that name them.
struct PlannedResources {
    planned: Vec<PlannedResource>,
    variables: Vec<(&'static str, PathBuf)>,
    /// The working directory, if there is a workspace.
    workspace: Option<PathBuf>,
}

/// The owner of the resources of a new sandbox.
fn owner(request: &Request, id: &Id) -> ResourceOwner {
    // The boot is in the marks of resources.
    let boot =
        if request.is_empty() { String::new() } else { penfold_process::boot_id().unwrap_or_default() };
    ResourceOwner { id: id.short(), boot }
}

/// Chooses the names and paths of all resources.
fn plan_resources(
    request: &Request,
    owner: &ResourceOwner,
    place: &PlanPlaces,
) -> Result<PlannedResources, LaunchError> {
    let planned =
        request.plan(owner, place).map_err(|error| LaunchError::new(penfold_state::error_chain(&error)))?;
    let mut variables = Vec::new();
    if let Some(sockets) = &request.sockets {
        let path = sockets.path.clone().unwrap_or_else(|| place.short.join(&owner.id));
        variables.push((SOCKETS_VARIABLE, path));
    }
    for planned in &planned {
        match planned {
            PlannedResource::Netns(netns) => variables.push(("PENFOLD_NETNS", netns.name.clone().into())),
            PlannedResource::Tap(tap) => variables.push(("PENFOLD_TAP", tap.name.clone().into())),
            _ => {}
        }
    }
    let workspace = request.workspace.as_ref().map(|workspace| workspace.path.clone());
    Ok(PlannedResources { planned, variables, workspace })
}

/// Returns an event log, after a check that it can be written.
///
/// # Errors
/// When it cannot be written: nothing is started then.
fn open_event_log(given: &str) -> Result<EventLog, LaunchError> {
    let cannot = || format!("cannot write events to `{given}`");
    let event_log = if given == value::JOURNALD {
        EventLog::Journald
    } else {
        let path = std::path::absolute(path_of_text(given)).or_fail(&cannot())?;
        EventLog::File(path)
    };
    event_log.check().or_fail(&cannot())?;
    Ok(event_log)
}

/// The caller's environment with the settings of `-e`; the last setting of a variable counts.
fn environment(
    spec: &SandboxSpec,
    login: Vec<EnvSetting>,
    variables: &Variables,
) -> Vec<(OsString, OsString)> {
    // `PENFOLD_*TOKEN` variables are credentials of penfold: the command gets one only if `-e` names it.
    let (own, mut environment): (Vec<_>, Vec<_>) =
        variables.iter().cloned().partition(|(key, _)| is_token(key));
    environment.retain(|(key, _)| key != LEFT);
    if spec.inherit_env == Some(false) {
        let usual =
            |key: &OsString| key.to_str().is_some_and(|key| USUAL_VARIABLES.contains(&key) || key == MARKER);
        environment.retain(|(key, _)| usual(key));
    }
    for setting in login.into_iter().chain(settings(spec)) {
        // A setting without a value copies the caller's variable, which `environment` usually contains already.
        let named = || own.iter().find(|(key, _)| *key == setting.key).map(|(_, value)| value.clone());
        if let Some(value) = setting.value.clone().or_else(named) {
            environment.retain(|(key, _)| *key != setting.key);
            environment.push((setting.key.clone(), value));
        }
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, caller: &[(&str, &str)]) -> Vec<String> {
        let spec: SandboxSpec = serde_json::from_str(text).unwrap();
        let caller = caller.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        let all = environment(&spec, Vec::new(), &caller).into_iter();
        all.map(|(key, value)| format!("{}={}", key.to_string_lossy(), value.to_string_lossy())).collect()
    }

    #[test]
    fn a_command_gets_a_credential_of_penfold_only_by_name() {
        let caller = [("A", "1"), ("PENFOLD_TOKEN", "t"), (LEFT, "3f9a1c2b7d04"), ("PATH", "/bin")];
        assert_eq!(names("{}", &caller), ["A=1", "PATH=/bin"]);
        assert_eq!(names(r#"{"inherit_env":false,"env":{"B":"2"}}"#, &caller), ["PATH=/bin", "B=2"]);
        assert_eq!(
            names(r#"{"env":{"PENFOLD_TOKEN":"t","A":"3"}}"#, &caller),
            ["PATH=/bin", "A=3", "PENFOLD_TOKEN=t"]
        );
    }

    #[test]
    fn limits_need_a_cgroup_and_zero_is_no_limit_of_time() {
        let spec = |text: &str| serde_json::from_str::<SandboxSpec>(text).unwrap();
        assert_eq!(contain(&spec("{}")), penfold_state::Contain::Auto);
        assert_eq!(contain(&spec(r#"{"cpus":0.5}"#)), penfold_state::Contain::Cgroup);
        assert_eq!((limit(0), limit(7)), (None, Some(Duration::from_millis(7))));
    }

    #[test]
    fn a_wrong_value_has_the_name_of_its_flag() {
        for (text, flag) in [
            (r#"{"name":"-"}"#, "--name"),
            (r#"{"signal":"NONE"}"#, "--signal"),
            (r#"{"pids":0}"#, "--pids"),
            (r#"{"ready":"tcp:1"}"#, "--ready"),
            (r#"{"restart":"always"}"#, "--restart"),
            (r#"{"spare":["/"]}"#, "--spare"),
            (r#"{"profile":"jail","jail":{"user":"root"}}"#, "--jail-user"),
        ] {
            let error = Values::of(&serde_json::from_str(text).unwrap()).unwrap_err();
            assert_eq!(error.sentence, format!("invalid value for `{flag}`"));
            assert!(error.cause.is_some(), "{text}");
        }
    }
}
