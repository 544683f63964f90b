//! Converts what is asked for into a [`Spec`]: the one conversion, whoever has asked.

use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use penfold_process::path_text::path_of_text;
use penfold_request::{Containment, SandboxSpec, USUAL_VARIABLES};
use penfold_resource::Owner;
use penfold_resource::request::Place;
use penfold_state::{Detach, Id, Limits, OnFailure, OwnerExit, ReportFile, ScratchSpec, Spec};
use penfold_teardown::{MARKER, SpareRule};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::detached::{LOG_SIZE, restart_policy};
use super::ready::{self, Probe};
use super::request::{Caller, variable};
use super::{OnOwnerExit, profile, replace, stop_channel};
use crate::args::bounds::GRACE;
use crate::args::patience::PATIENCE;
use crate::args::resources::{self, SOCKETS_VARIABLE};
use crate::args::verb::Global;
use crate::args::{env_file, event_log, spare};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::outside::LEFT;
use crate::surroundings;
use crate::value::{self, EnvSetting, ReservedSignal};

/// The directory below the state root for directories of sockets.
const SOCKETS: &str = "sockets";

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses flags that have no effect on a foreground sandbox.
pub(crate) fn refuse_detached_flags(spec: &SandboxSpec, caller: &Caller) -> Result<(), Failure> {
    let flags = [
        (spec.lease_ms.is_some(), "--ttl"),
        (spec.idle_timeout_ms.is_some(), "--idle-timeout"),
        (spec.ready.is_some(), "--ready"),
        (caller.outside, "--outside"),
        (spec.restart.is_some(), "--restart"),
        (spec.survive_supervisor, "--on-supervisor-exit keep"),
    ];
    if caller.interactive && caller.detach && !spec.terminal {
        let sentence = "`--interactive` has no effect on a detached sandbox without a terminal";
        return Err(not_started(sentence)
            .hint("add `--tty`, and write to it with `penfold attach`; or leave out `--interactive`"));
    }
    match flags.into_iter().find(|(given, _)| *given && !caller.detach) {
        None => Ok(()),
        Some((_, flag)) => {
            let sentence = format!("`{flag}` works for detached sandboxes only");
            Err(not_started(&sentence).hint("add `--detach`"))
        }
    }
}

/// Refuses limits where no cgroup holds them.
pub(crate) fn refuse_limits(spec: &SandboxSpec) -> Result<(), Failure> {
    let flags = [
        (spec.memory_bytes.is_some(), "--memory"),
        (spec.pids.is_some(), "--pids"),
        (spec.cpus.is_some(), "--cpus"),
    ];
    let is_blind = spec.contain == Some(Containment::Subreaper);
    match flags.into_iter().find(|(given, _)| *given && is_blind) {
        None => Ok(()),
        Some((_, flag)) => Err(not_started(&format!(
            "`{flag}` cannot be used together with `--contain subreaper`, which uses no cgroup"
        ))),
    }
}

fn not_started(sentence: &str) -> Failure {
    Failure::new(FailureKind::NotStarted, sentence)
}

/// The limits that are asked for.
pub(super) fn limits(spec: &SandboxSpec) -> Limits {
    let cpus = spec.cpus.and_then(|cpus| Duration::try_from_secs_f64(cpus).ok());
    Limits { memory_bytes: spec.memory_bytes, pids: spec.pids, cpus }
}

/// What a specification has as texts.
pub(super) struct Values {
    signal: Signal,
    spare: Vec<SpareRule>,
    restart: Option<OnFailure>,
    pub(super) probe: Option<Probe>,
    pub(super) ready_timeout: Duration,
}

impl Values {
    /// Reads and checks the texts and numbers. Those of flags were checked before.
    ///
    /// # Errors
    /// When one means nothing.
    pub(super) fn of(spec: &SandboxSpec) -> Result<Values, Failure> {
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
        valid("--log", spec.event_log.as_deref().map(value::event_log))?;
        let number = valid("--signal", spec.signal.as_deref().map(value::signal))?.map(value::Signal::number);
        let number = number.unwrap_or(Signal::TERM.as_raw());
        let signal = penfold_sys::signal::signal(number).ok_or(ReservedSignal);
        let rule = |text: &String| Ok(valid("--spare", Some(spare::rule(text)))?.into_iter());
        let rules: Result<Vec<_>, Failure> = spec.spare.iter().map(rule).collect();
        if spec.ready_timeout_ms.is_some() && spec.ready.is_none() {
            return Err(not_started("missing `--ready`: `ready_timeout_ms` is the time for its probe"));
        }
        Ok(Values {
            signal: signal.map_err(Failure::not_started)?,
            spare: rules?.into_iter().flatten().collect(),
            restart: valid("--restart", spec.restart.as_deref().map(restart_policy))?,
            probe: valid("--ready", spec.ready.as_deref().map(ready::probe))?,
            ready_timeout: spec.ready_timeout_ms.map_or(ready::TIMEOUT, Duration::from_millis),
        })
    }
}

/// Makes a failure of a wrong value, under the name of its flag.
fn valid<T, E: Into<Box<dyn Error>>>(flag: &str, value: Option<Result<T, E>>) -> Result<Option<T>, Failure> {
    value.transpose().map_err(|error| not_started(&format!("invalid value for `{flag}`")).because(error))
}

/// Opens the report file, so that an unwritable path fails before the command runs.
pub(crate) fn report_file(caller: &Caller) -> Result<Option<ReportFile>, Failure> {
    let Some(path) = &caller.report else { return Ok(None) };
    let opened = if path.as_os_str() != "-" {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).open(path)
    } else if caller.detach {
        return Err(not_started(
            "`--report -` cannot be used together with `--detach`, which does not keep standard output",
        )
        .hint("use `--report FILE`, or `penfold report ID` after the end"));
    } else {
        std::io::stdout().as_fd().try_clone_to_owned().map(File::from)
    };
    let file = opened.map_err(|error| {
        let name = if path.as_os_str() == "-" { Path::new("standard output") } else { path };
        not_started(&format!("cannot write the report to `{}`", name.display())).because(error)
    })?;
    Ok(Some(ReportFile::of(file, path.as_os_str() == "-")))
}

/// Takes the descriptor of `--status-fd` from the caller, so that the command does not inherit it.
fn status_file(caller: &Caller) -> Result<Option<File>, Failure> {
    let Some(number) = caller.status_fd else { return Ok(None) };
    let taken = penfold_sys::descriptors::take_one(number);
    let file = taken.map(File::from).and_then(|file| {
        let access = rustix::fs::fcntl_getfl(&file)?.intersection(OFlags::RWMODE);
        if access == OFlags::RDONLY { Err(Errno::BADF.into()) } else { Ok(file) }
    });
    file.map(Some).map_err(|error| {
        let sentence = format!("cannot write to descriptor {number}, which `--status-fd` names");
        not_started(&sentence)
            .because(error)
            .hint("the caller of penfold opens it for writing, and without close-on-exec")
    })
}

/// Who gets the sandbox, and what its command is.
pub(super) struct Asked<'a> {
    pub(super) spec: &'a SandboxSpec,
    pub(super) caller: &'a Caller,
    pub(super) values: Values,
    /// The variables of the user that the command becomes. They go before the caller's, and those of the flags before both.
    pub(super) login: Vec<EnvSetting>,
    pub(super) command: Vec<OsString>,
}

/// Makes the specification of the sandbox.
pub(super) fn spec(global: &Global, asked: Asked<'_>) -> Result<Spec, Failure> {
    let Asked { spec, caller, values, login, mut command } = asked;
    let report = report_file(caller)?;
    let status = status_file(caller)?;
    let event_log = spec.event_log.as_deref().map(event_log::open).transpose()?;
    let detach = detach(spec, caller, &values)?;
    let id = caller.id.map_or_else(Id::new, Ok).or_fail(FailureKind::NotStarted, "cannot make an id")?;
    let state_root = surroundings::root(global);
    let mut environment =
        environment(login.into_iter().chain(settings(spec)), spec.inherit_env == Some(false));
    let place = Place { temporary: surroundings::temporary(), short: absolute(&state_root).join(SOCKETS) };
    let request = spec.resources();
    // The boot is in the marks of resources.
    let boot =
        if request.is_empty() { String::new() } else { penfold_process::boot_id().unwrap_or_default() };
    let plan = resources::plan(&request, &Owner { id: id.short(), boot }, &place)?;
    environment.retain(|(key, _)| !plan.variables.iter().any(|(other, _)| key == other));
    environment.extend(plan.variables.iter().map(|(key, value)| (key.into(), value.into())));
    let sockets =
        plan.variables.iter().find(|(key, _)| *key == SOCKETS_VARIABLE).map(|(_, path)| path.as_path());
    environment.extend(profile::complete_vmm(spec, &mut command, sockets));
    let stop_command = stop_channel::words(spec.stop.as_ref(), sockets, &profile::program(spec))?;
    // Last, after all checks: this step stops another sandbox.
    let name = spec.name.as_deref().filter(|_| caller.replace);
    let claim = name.map(|name| replace::take(global, &state_root, name, &id)).transpose()?;
    Ok(Spec {
        id,
        timeout: spec.timeout_ms.and_then(limit),
        environment,
        scratch: spec.scratch.then(|| ScratchSpec::below(surroundings::temporary())),
        resources: plan.planned,
        contain: contain(spec),
        limits: limits(spec),
        owner: caller.owner.and_then(Pid::from_raw),
        on_owner_exit: on_owner_exit(caller),
        on_stdin_close: caller.on_stdin_close.map(Into::into),
        signal: values.signal,
        grace: spec.grace_ms.map_or(GRACE, Duration::from_millis),
        patience: spec.patience_ms.map_or(PATIENCE, Duration::from_millis),
        state_root,
        labels: spec.labels.clone(),
        name: spec.name.clone(),
        claim,
        directory: directory(spec).or(plan.workspace),
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
pub(crate) fn directory(spec: &SandboxSpec) -> Option<PathBuf> {
    spec.dir.as_deref().map(path_of_text)
}

/// The words of the command.
pub(super) fn command(spec: &SandboxSpec) -> Vec<OsString> {
    spec.command.iter().map(|word| path_of_text(word).into_os_string()).collect()
}

/// Reads the files of variables; those that are given by themselves take precedence.
///
/// # Errors
/// When a file cannot be read, or has a line that sets no variable.
pub(super) fn with_env_files(spec: SandboxSpec) -> Result<SandboxSpec, Failure> {
    let files: Vec<PathBuf> = spec.env_files.iter().map(|file| path_of_text(file)).collect();
    let mut env: BTreeMap<String, String> =
        env_file::settings(&files)?.into_iter().filter_map(variable).collect();
    env.extend(spec.env);
    Ok(SandboxSpec { env, env_files: Vec::new(), ..spec })
}

fn settings(spec: &SandboxSpec) -> impl Iterator<Item = EnvSetting> {
    let text = |text: &String| path_of_text(text).into_os_string();
    spec.env.iter().map(move |(key, value)| EnvSetting { key: text(key), value: Some(text(value)) })
}

fn on_owner_exit(caller: &Caller) -> OwnerExit {
    match caller.on_owner_exit {
        None if caller.detach => OwnerExit::Keep,
        None | Some(OnOwnerExit::Kill) => OwnerExit::Kill,
        Some(OnOwnerExit::Stop) => OwnerExit::Stop,
        Some(OnOwnerExit::Keep) => OwnerExit::Keep,
    }
}

fn contain(spec: &SandboxSpec) -> penfold_state::Contain {
    match spec.contain.unwrap_or_default() {
        // Without a cgroup, no limit would hold.
        Containment::Auto if !limits(spec).is_empty() => penfold_state::Contain::Cgroup,
        Containment::Auto => penfold_state::Contain::Auto,
        Containment::Cgroup => penfold_state::Contain::Cgroup,
        Containment::Pidns => penfold_state::Contain::Pidns,
        Containment::Subreaper => penfold_state::Contain::Subreaper,
    }
}

/// Refuses settings of a detached sandbox that contradict each other.
pub(crate) fn check_detached(spec: &SandboxSpec, caller: &Caller) -> Result<(), Failure> {
    if spec.survive_supervisor && spec.contain == Some(Containment::Pidns) {
        return Err(not_started(
            "`--contain pidns` cannot be used together with `--on-supervisor-exit keep`: \
             a pid namespace ends with its supervisor",
        ));
    }
    check_restart(spec, caller)
}

/// Refuses `--restart` for a sandbox that cannot be restarted.
fn check_restart(spec: &SandboxSpec, caller: &Caller) -> Result<(), Failure> {
    let ends_with_owner = matches!(caller.on_owner_exit, Some(OnOwnerExit::Kill | OnOwnerExit::Stop));
    let flags =
        [(spec.remove_at_end, "--rm"), (caller.outside, "--outside"), (ends_with_owner, "--on-owner-exit")];
    match flags.into_iter().find(|(given, _)| *given && spec.restart.is_some()) {
        None => Ok(()),
        Some((_, flag)) => Err(Failure::new(
            FailureKind::NotStarted,
            format!("`--restart` cannot be used together with `{flag}`"),
        )),
    }
}

/// The settings of a detached sandbox; `None` in the foreground.
fn detach(spec: &SandboxSpec, caller: &Caller, values: &Values) -> Result<Option<Detach>, Failure> {
    check_detached(spec, caller)?;
    let ready_pipe = values.probe.as_ref().map(Probe::pipe).transpose()?.flatten();
    Ok(caller.detach.then(|| Detach {
        ttl: spec.lease_ms.and_then(limit),
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

/// The caller's environment with the settings of `-e`; the last setting of a variable counts.
fn environment(settings: impl Iterator<Item = EnvSetting>, bare: bool) -> Vec<(OsString, OsString)> {
    // `PENFOLD_*TOKEN` variables are credentials of penfold: the command gets one only if `-e` names it.
    let (own, mut environment): (Vec<_>, Vec<_>) = std::env::vars_os().partition(|(key, _)| {
        let key = key.as_encoded_bytes();
        key.starts_with(b"PENFOLD_") && key.ends_with(b"TOKEN")
    });
    environment.retain(|(key, _)| key != LEFT);
    if bare {
        let usual =
            |key: &OsString| key.to_str().is_some_and(|key| USUAL_VARIABLES.contains(&key) || key == MARKER);
        environment.retain(|(key, _)| usual(key));
    }
    for setting in settings {
        // A setting without a value copies the caller's variable, which `environment` usually contains already.
        let named = || own.iter().find(|(key, _)| *key == setting.key).map(|(_, value)| value.clone());
        if let Some(value) = setting.value.clone().or_else(named) {
            environment.retain(|(key, _)| *key != setting.key);
            environment.push((setting.key.clone(), value));
        }
    }
    environment
}
