//! The flags of `run` as a request: what is asked for, and how the caller takes part.
//!
//! Every flag is named in [`RunArgs::into_request`], so that a forgotten one does not compile.

use std::path::Path;
use std::time::Duration;

use clap::ArgMatches;
use clap::parser::ValueSource;
use penfold_launch::caller::{Caller, Codes};
use penfold_process::path_text::path_text;
use penfold_request::{Jail, SandboxSpec, Vmm};
use penfold_state::Limits;

use super::RunArgs;
use super::detached::{DetachedArgs, OnSupervisorExit, ReadyArgs};
use super::end::SpareArgs;
use super::profile::ProfileArgs;
use crate::args::bounds::Bounds;
use crate::args::event_log::EventLogArgs;
use crate::args::user::UserArgs;
use crate::failure::Failure;
use crate::value::{EnvSetting, policy_text};
use crate::variables;

/// Which flags with a default were given: only these take precedence over a file.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one for each flag")]
pub(crate) struct Given {
    contain: bool,
    grace: bool,
    patience: bool,
    log_size: bool,
    ready_timeout: bool,
}

impl Given {
    pub(crate) fn of(matches: &ArgMatches) -> Given {
        let is_given = |id: &str| {
            matches.try_contains_id(id).unwrap_or(false)
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        Given {
            contain: is_given("contain"),
            grace: is_given("grace"),
            patience: is_given("patience"),
            log_size: is_given("log_size"),
            ready_timeout: is_given("ready_timeout"),
        }
    }
}

impl RunArgs {
    /// Splits the flags into what is asked for, and how the caller takes part.
    ///
    /// # Errors
    /// When a relative path has no beginning.
    #[expect(clippy::too_many_lines, reason = "a line for each flag, and one for where it goes")]
    pub(crate) fn into_request(self, given: Given) -> Result<(SandboxSpec, Caller), Failure> {
        let RunArgs {
            bounds,
            contain,
            ipc,
            unit,
            detach,
            tty,
            interactive,
            rm,
            on_owner_exit,
            owner,
            on_stdin_close,
            patience,
            outside,
            scratch,
            stop_on_interrupt,
            event_log: EventLogArgs { log },
            fail_on_leak,
            report,
            status_fd,
            name,
            replace,
            label,
            // Read by `spec_file`.
            spec: _,
            detached,
            ready,
            user,
            limits,
            resources,
            profile,
            stop,
            spare,
            command,
        } = self;
        resources.check()?;
        let resources = resources.into_inner().request();
        let codes = Codes { preserve: bounds.preserve_status, fail_on_leak };
        let UserArgs { user } = user.into_inner();
        let SpareArgs { spare, allow_outside } = spare.into_inner();
        let spec = SandboxSpec {
            command: command.iter().map(text).collect(),
            name,
            labels: label.into_iter().map(|label| (label.key, label.value)).collect(),
            scratch,
            patience_ms: given.patience.then(|| millis(patience.patience)),
            contain: given.contain.then_some(contain),
            workspace: resources.workspace,
            sockets: resources.sockets,
            network: resources.network,
            mounts: resources.mounts,
            own: resources.own,
            stop: stop.request(),
            spare: spare.iter().map(|rule| rule.text().to_owned()).collect(),
            allow_outside,
            remove_at_end: rm,
            user,
            unit,
            ipc,
            event_log: log,
            terminal: tty,
            ..SandboxSpec::default()
        };
        let spec = with_bounds(spec, bounds, given);
        let spec = with_limits(spec, limits.limits());
        let spec = with_profile(spec, profile.into_inner());
        let spec = with_detached(spec, &detached, ready.into_inner(), given);
        let caller = Caller {
            detach,
            interactive,
            replace,
            outside,
            stop_on_interrupt,
            on_owner_exit,
            owner,
            on_stdin_close: on_stdin_close.map(Into::into),
            report,
            status_fd,
            codes,
            id: None,
        };
        Ok((spec, caller))
    }
}

/// The text of a word or path, which keeps every byte.
fn text(word: impl AsRef<Path>) -> String {
    path_text(word.as_ref())
}

/// A time in milliseconds. A part of one counts as a whole one: a limit that was given is never none.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn with_bounds(spec: SandboxSpec, bounds: Bounds, given: Given) -> SandboxSpec {
    // The exit code is the caller's matter.
    let Bounds { timeout, grace, signal, preserve_status: _, env, env_file, workdir } = bounds;
    SandboxSpec {
        env: env.into_iter().filter_map(variable).collect(),
        env_files: env_file.iter().map(text).collect(),
        dir: workdir.as_ref().map(text),
        timeout_ms: timeout.map(millis),
        grace_ms: given.grace.then(|| millis(grace)),
        signal: signal.map(|signal| signal.number().to_string()),
        ..spec
    }
}

/// The name and the value of a setting, which may be that of the caller; `None` if there is none.
fn variable(setting: EnvSetting) -> Option<(String, String)> {
    let value = setting.value.or_else(|| variables::get(&setting.key))?;
    Some((text(&setting.key), text(&value)))
}

fn with_limits(spec: SandboxSpec, limits: Limits) -> SandboxSpec {
    let Limits { memory_bytes, pids, cpus } = limits;
    SandboxSpec { memory_bytes, pids, cpus: cpus.map(|cpus| cpus.as_secs_f64()), ..spec }
}

fn with_profile(spec: SandboxSpec, args: ProfileArgs) -> SandboxSpec {
    let ProfileArgs { profile, rootfs, network, vmm, no_seccomp, jail_user } = args;
    let seccomp = no_seccomp.then_some(false);
    let jail = Jail { rootfs: rootfs.as_ref().map(text), network, seccomp, user: jail_user };
    SandboxSpec {
        profile,
        jail: Some(jail).filter(|jail| *jail != Jail::default()),
        vmm: vmm.map(|kind| Vmm { kind: Some(kind) }),
        ..spec
    }
}

fn with_detached(spec: SandboxSpec, args: &DetachedArgs, ready: ReadyArgs, given: Given) -> SandboxSpec {
    let &DetachedArgs { ttl, ttl_pauses, idle_timeout, restart, log_size, on_supervisor_exit } = args;
    let ReadyArgs { ready, ready_timeout } = ready;
    SandboxSpec {
        lease_ms: ttl.map(millis),
        lease_pauses: ttl_pauses,
        idle_timeout_ms: idle_timeout.map(millis),
        restart: restart.map(policy_text),
        log_size: given.log_size.then_some(log_size),
        survive_supervisor: on_supervisor_exit == OnSupervisorExit::Keep,
        ready_timeout_ms: given.ready_timeout.then(|| millis(ready_timeout)),
        ready: ready.map(|probe| probe.text),
        ..spec
    }
}
