//! Converts the flags of `penfold run` into a [`Spec`].

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use penfold_api::USUAL_VARIABLES;
use penfold_resource::Owner;
use penfold_resource::request::Place;
use penfold_state::{Detach, Id, OwnerExit, ReportFile, ScratchSpec, Spec};

use penfold_teardown::MARKER;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::{Contain, OnOwnerExit, OnSupervisorExit, RunArgs, profile, replace, restart};
use crate::args::resources::{self, SOCKETS_VARIABLE};
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::outside::LEFT;
use crate::surroundings;
use crate::value::{EnvSetting, ReservedSignal};

/// The directory below the state root for directories of sockets.
const SOCKETS: &str = "sockets";

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses flags that have no effect on a foreground sandbox.
pub(crate) fn refuse_detached_flags(args: &RunArgs) -> Result<(), Failure> {
    let flags = [
        (args.detached.ttl.is_some(), "--ttl"),
        (args.detached.idle_timeout.is_some(), "--idle-timeout"),
        (args.ready.ready.is_some(), "--ready"),
        (args.outside, "--outside"),
        (args.detached.restart.is_some(), "--restart"),
    ];
    if args.interactive && args.detach && !args.tty {
        let sentence = "`--interactive` has no effect on a detached sandbox without a terminal";
        return Err(Failure::new(FailureKind::NotStarted, sentence)
            .hint("add `--tty`, and write to it with `penfold attach`; or leave out `--interactive`"));
    }
    match flags.into_iter().find(|(given, _)| *given && !args.detach) {
        None => Ok(()),
        Some((_, flag)) => {
            let sentence = format!("`{flag}` works for detached sandboxes only");
            Err(Failure::new(FailureKind::NotStarted, sentence).hint("add `--detach`"))
        }
    }
}

/// Refuses limits where no cgroup holds them.
pub(crate) fn refuse_limits(args: &RunArgs) -> Result<(), Failure> {
    match args.limits.flag().filter(|_| args.contain == Contain::Subreaper) {
        None => Ok(()),
        Some(flag) => Err(Failure::new(
            FailureKind::NotStarted,
            format!("`{flag}` cannot be used together with `--contain subreaper`, which uses no cgroup"),
        )),
    }
}

/// Opens the report file, so that an unwritable path fails before the command runs.
pub(crate) fn report_file(args: &RunArgs) -> Result<Option<ReportFile>, Failure> {
    let Some(path) = &args.report else { return Ok(None) };
    let cannot = |sentence: &str| Failure::new(FailureKind::NotStarted, sentence);
    let opened = if path.as_os_str() != "-" {
        let mut options = File::options();
        options.write(true).create(true).truncate(false).open(path)
    } else if args.detach {
        return Err(cannot(
            "`--report -` cannot be used together with `--detach`, which does not keep standard output",
        )
        .hint("use `--report FILE`, or `penfold report ID` after the end"));
    } else {
        std::io::stdout().as_fd().try_clone_to_owned().map(File::from)
    };
    let file = opened.map_err(|error| {
        let name = if path.as_os_str() == "-" { Path::new("standard output") } else { path };
        cannot(&format!("cannot write the report to `{}`", name.display())).because(error)
    })?;
    Ok(Some(ReportFile::of(file, path.as_os_str() == "-")))
}

/// Takes the descriptor of `--status-fd` from the caller, so that the command does not inherit it.
fn status_file(args: &RunArgs) -> Result<Option<File>, Failure> {
    let Some(number) = args.status_fd else { return Ok(None) };
    let taken = penfold_sys::descriptors::take_one(number);
    let file = taken.map(File::from).and_then(|file| {
        let access = rustix::fs::fcntl_getfl(&file)?.intersection(OFlags::RWMODE);
        if access == OFlags::RDONLY { Err(Errno::BADF.into()) } else { Ok(file) }
    });
    file.map(Some).map_err(|error| {
        let sentence = format!("cannot write to descriptor {number}, which `--status-fd` names");
        Failure::new(FailureKind::NotStarted, sentence)
            .because(error)
            .hint("the caller of penfold opens it for writing, and without close-on-exec")
    })
}

fn polite_signal(args: &RunArgs) -> Result<Signal, Failure> {
    penfold_sys::signal::signal(args.bounds.signal()).ok_or(ReservedSignal).map_err(Failure::not_started)
}

/// Makes the specification of the sandbox.
///
/// The variables of `login` go before the caller's, and those of the flags before both.
pub(super) fn spec(global: &Global, mut args: RunArgs, login: Vec<EnvSetting>) -> Result<Spec, Failure> {
    let report = report_file(&args)?;
    let status = status_file(&args)?;
    let event_log = args.event_log.open(global)?;
    let detach = detach(&args)?;
    let id = args.id.map_or_else(Id::new, Ok).or_fail(FailureKind::NotStarted, "cannot make an id")?;
    let signal = polite_signal(&args)?;
    let state_root = surroundings::root(global);
    let mut environment = environment(&[login, args.bounds.env()?].concat(), args.inherit_env == Some(false));
    let place = Place { temporary: surroundings::temporary(), short: absolute(&state_root).join(SOCKETS) };
    let request = args.resources.request();
    // The boot is in the marks of resources.
    let boot =
        if request.is_empty() { String::new() } else { penfold_process::boot_id().unwrap_or_default() };
    let plan = resources::plan(&request, &Owner { id: id.short(), boot }, &place)?;
    for (key, value) in &plan.variables {
        environment.retain(|(other, _)| other != key);
        environment.push((key.into(), value.into()));
    }
    let sockets =
        plan.variables.iter().find(|(key, _)| *key == SOCKETS_VARIABLE).map(|(_, path)| path.as_path());
    environment.extend(profile::complete_vmm(&mut args, sockets));
    let stop_command = args.stop.words(sockets, &profile::program(&args.profile))?;
    // Last, after all checks: this step stops another sandbox.
    let name = args.name.as_deref().filter(|_| args.replace);
    let claim = name.map(|name| replace::take(global, &state_root, name, &id)).transpose()?;
    Ok(Spec {
        id,
        timeout: args.bounds.timeout(),
        environment,
        scratch: args.scratch.then(|| ScratchSpec::below(surroundings::temporary())),
        resources: plan.planned,
        contain: contain(&args),
        limits: args.limits.limits(),
        owner: args.owner.and_then(Pid::from_raw),
        on_owner_exit: on_owner_exit(&args),
        on_stdin_close: args.on_stdin_close.map(Into::into),
        signal,
        grace: args.bounds.grace,
        patience: args.patience.patience,
        state_root,
        labels: args.label.into_iter().map(|label| (label.key, label.value)).collect(),
        name: args.name,
        claim,
        directory: args.bounds.workdir.or(plan.workspace),
        command: args.command,
        wrapper: Vec::new(),
        identity: None,
        profile: args.profile.profile.map(Into::into),
        jail: None,
        leaks_after: None,
        seeks_clients: args.fail_on_leak || report.is_some(),
        stop_command,
        allow_outside: args.spare.allow_outside,
        spare: args.spare.into_inner().spare,
        outside: None,
        report,
        status,
        event_log,
        stop_on_interrupt: args.stop_on_interrupt,
        detach,
    })
}

fn on_owner_exit(args: &RunArgs) -> OwnerExit {
    match args.on_owner_exit {
        None if args.detach => OwnerExit::Keep,
        None | Some(OnOwnerExit::Kill) => OwnerExit::Kill,
        Some(OnOwnerExit::Stop) => OwnerExit::Stop,
        Some(OnOwnerExit::Keep) => OwnerExit::Keep,
    }
}

fn contain(args: &RunArgs) -> penfold_state::Contain {
    match args.contain {
        // Without a cgroup, no limit would hold.
        Contain::Auto if args.limits.flag().is_some() => penfold_state::Contain::Cgroup,
        Contain::Auto => penfold_state::Contain::Auto,
        Contain::Cgroup => penfold_state::Contain::Cgroup,
        Contain::Pidns => penfold_state::Contain::Pidns,
        Contain::Subreaper => penfold_state::Contain::Subreaper,
    }
}

/// The settings of a detached sandbox; `None` in the foreground.
pub(crate) fn detach(args: &RunArgs) -> Result<Option<Detach>, Failure> {
    let not_started = |sentence: &str| Failure::new(FailureKind::NotStarted, sentence);
    let keep = args.detached.on_supervisor_exit == OnSupervisorExit::Keep;
    if keep && !args.detach {
        return Err(not_started("`--on-supervisor-exit keep` works for detached sandboxes only")
            .hint("add `--detach`"));
    }
    if keep && args.contain == Contain::Pidns {
        return Err(not_started(
            "`--contain pidns` cannot be used together with `--on-supervisor-exit keep`: \
             a pid namespace ends with its supervisor",
        ));
    }
    restart::check(args)?;
    let ready_pipe = args.ready.pipe()?;
    Ok(args.detach.then(|| Detach {
        ttl: args.detached.ttl.filter(|ttl| !ttl.is_zero()),
        idle: args.detached.idle_timeout.filter(|idle| !idle.is_zero()),
        keep,
        remove: args.rm,
        terminal: args.tty,
        log_limit: args.detached.log_size,
        ready: args.ready.text(),
        ready_pipe,
        restart: args.detached.restart,
        life: None,
        launch: None,
    }))
}

/// The caller's environment with the settings of `-e`; the last setting of a variable counts.
fn environment(settings: &[EnvSetting], bare: bool) -> Vec<(OsString, OsString)> {
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
