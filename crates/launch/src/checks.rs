//! What a request cannot have together, or where the caller is: each is refused by the name of its flag.

use std::os::fd::AsFd as _;

use penfold_request::{Containment, OwnerAction, SandboxSpec, StopChannel};
use penfold_state::StdinClose;
use rustix::fs::{FileType, fstat};
use rustix::termios::isatty;

use crate::caller::Caller;
use crate::error::LaunchError;

/// Refuses flags that have no effect on a foreground sandbox.
pub fn refuse_detached_flags(spec: &SandboxSpec, caller: &Caller) -> Result<(), LaunchError> {
    let flags = [
        (spec.lease_ms.is_some(), "--ttl"),
        (spec.lease_pauses, "--ttl-pauses"),
        (spec.idle_timeout_ms.is_some(), "--idle-timeout"),
        (spec.ready.is_some(), "--ready"),
        (caller.outside, "--outside"),
        (spec.restart.is_some(), "--restart"),
        (spec.survive_supervisor, "--on-supervisor-exit keep"),
    ];
    if caller.interactive && caller.detach && !spec.terminal {
        let sentence = "`--interactive` has no effect on a detached sandbox without a terminal";
        return Err(LaunchError::new(sentence)
            .hint("add `--tty`, and write to it with `penfold attach`; or leave out `--interactive`"));
    }
    match flags.into_iter().find(|(given, _)| *given && !caller.detach) {
        None => Ok(()),
        Some((_, flag)) => {
            let sentence = format!("`{flag}` works for detached sandboxes only");
            Err(LaunchError::new(sentence).hint("add `--detach`"))
        }
    }
}

/// Refuses limits where no cgroup holds them.
pub fn refuse_limits(spec: &SandboxSpec) -> Result<(), LaunchError> {
    let flags = [
        (spec.memory_bytes.is_some(), "--memory"),
        (spec.pids.is_some(), "--pids"),
        (spec.cpus.is_some(), "--cpus"),
    ];
    let is_blind = spec.contain == Some(Containment::Subreaper);
    match flags.into_iter().find(|(given, _)| *given && is_blind) {
        None => Ok(()),
        Some((_, flag)) => Err(LaunchError::new(format!(
            "`{flag}` cannot be used together with `--contain subreaper`, which uses no cgroup"
        ))),
    }
}

/// Refuses settings of a detached sandbox that contradict each other.
pub fn check_detached(spec: &SandboxSpec, caller: &Caller) -> Result<(), LaunchError> {
    if spec.survive_supervisor && spec.contain == Some(Containment::Pidns) {
        return Err(LaunchError::new(
            "`--contain pidns` cannot be used together with `--on-supervisor-exit keep`: \
             a pid namespace ends with its supervisor",
        ));
    }
    check_restart(spec, caller)
}

/// Refuses `--restart` for a sandbox that cannot be restarted.
fn check_restart(spec: &SandboxSpec, caller: &Caller) -> Result<(), LaunchError> {
    let ends_with_owner = matches!(caller.on_owner_exit, Some(OwnerAction::Kill | OwnerAction::Stop));
    let flags =
        [(spec.remove_at_end, "--rm"), (caller.outside, "--outside"), (ends_with_owner, "--on-owner-exit")];
    match flags.into_iter().find(|(given, _)| *given && spec.restart.is_some()) {
        None => Ok(()),
        Some((_, flag)) => {
            Err(LaunchError::new(format!("`--restart` cannot be used together with `{flag}`")))
        }
    }
}

/// Refuses a command where it would run outside of the pid namespace: the pids that members have written somewhere would mean other
/// processes.
pub fn refuse_stop_command(spec: &SandboxSpec) -> Result<(), LaunchError> {
    if spec.contain == Some(Containment::Pidns) && matches!(spec.stop, Some(StopChannel::Command(_))) {
        let sentence = "`--stop-command` cannot be used together with `--contain pidns`: the command would run \
            outside of the pid namespace";
        return Err(LaunchError::new(sentence).hint("`stop.qmp` and `stop.http` can"));
    }
    Ok(())
}

/// Refuses rules and sandboxes outside where the kernel ends every process.
///
/// # Errors
/// When there are some.
pub fn refuse_spare(spec: &SandboxSpec, means: &str) -> Result<(), LaunchError> {
    let flags = [(!spec.spare.is_empty(), "--spare"), (spec.allow_outside, "--allow-outside")];
    let Some((_, flag)) = flags.into_iter().find(|(given, _)| *given) else { return Ok(()) };
    let sentence = format!(
        "`{flag}` cannot be used together with `{means}`: the kernel ends every process of a pid namespace"
    );
    Err(LaunchError::new(sentence))
}

/// Refuses what belongs to penfold's user alone, together with another user for the command.
pub fn refuse_callers_directories(spec: &SandboxSpec, is_jailed: bool) -> Result<(), LaunchError> {
    let flags = [
        (is_jailed, "--profile jail"),
        (spec.workspace.is_some(), "--workspace"),
        (spec.sockets.is_some(), "--sockets"),
    ];
    match flags.into_iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, flag)) => Err(LaunchError::new(format!(
            "`--user` cannot be used together with `{flag}`: its directory belongs to the caller"
        ))),
    }
}

/// Refuses another working directory than the home of the jail's user.
///
/// # Errors
/// When there is one.
pub fn refuse_directory_of_jail_user(spec: &SandboxSpec) -> Result<(), LaunchError> {
    let Some(user) = spec.jail_user() else { return Ok(()) };
    let flags = [(spec.dir.is_some(), "--workdir"), (spec.workspace.is_some(), "--workspace")];
    match flags.into_iter().find(|(given, _)| *given) {
        None => Ok(()),
        Some((_, flag)) => Err(LaunchError::new(format!(
            "`--jail-user` cannot be used together with `{flag}`: the working directory is `/home/{user}`"
        ))),
    }
}

/// Refuses the flag if the standard input can never hang up, such as a file. The flag would have no effect.
pub fn refuse_stdin_close(action: Option<StdinClose>) -> Result<(), LaunchError> {
    if action.is_none() {
        return Ok(());
    }
    let stdin = std::io::stdin();
    let stdin = stdin.as_fd();
    let Ok(stat) = fstat(stdin) else { return Err(no_stdin_close("it is closed")) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Fifo | FileType::Socket => Ok(()),
        FileType::CharacterDevice if isatty(stdin) => Ok(()),
        FileType::RegularFile => Err(no_stdin_close("it is a file, which never hangs up")),
        FileType::CharacterDevice => {
            Err(no_stdin_close("it is a device such as `/dev/null`, which never hangs up"))
        }
        _ => Err(no_stdin_close("it is no pipe, socket or terminal")),
    }
}

/// The error of a standard input that cannot hang up, for this reason.
pub fn no_stdin_close(reason: &str) -> LaunchError {
    LaunchError::new("cannot watch the standard input for `--on-stdin-close`")
        .because(reason)
        .hint("leave out the flag, or give penfold a pipe")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> SandboxSpec {
        serde_json::from_str(text).unwrap()
    }

    fn refusal(result: Result<(), LaunchError>) -> String {
        result.unwrap_err().sentence
    }

    #[test]
    fn settings_of_detached_sandboxes_are_refused_in_the_foreground() {
        let in_front = Caller::default();
        let detached = Caller { detach: true, ..Caller::default() };
        for (text, flag) in [
            (r#"{"lease_ms":1}"#, "--ttl"),
            (r#"{"idle_timeout_ms":1}"#, "--idle-timeout"),
            (r#"{"ready":"port:1"}"#, "--ready"),
            (r#"{"restart":"on-failure"}"#, "--restart"),
            (r#"{"survive_supervisor":true}"#, "--on-supervisor-exit keep"),
        ] {
            let expected = format!("`{flag}` works for detached sandboxes only");
            assert_eq!(refusal(refuse_detached_flags(&spec(text), &in_front)), expected);
            assert!(refuse_detached_flags(&spec(text), &detached).is_ok(), "{text}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_by_name() {
        let limited = spec(r#"{"contain":"subreaper","pids":5}"#);
        assert!(refusal(refuse_limits(&limited)).starts_with("`--pids` cannot be used"));
        let stop = spec(r#"{"contain":"pidns","stop":{"command":["true"]}}"#);
        assert!(refusal(refuse_stop_command(&stop)).starts_with("`--stop-command` cannot be used"));
        let spared = spec(r#"{"spare":["ssh-agent"]}"#);
        assert!(refusal(refuse_spare(&spared, "--contain pidns")).contains("`--spare`"));
        let own = spec(r#"{"sockets":{}}"#);
        assert!(refusal(refuse_callers_directories(&own, false)).contains("`--sockets`"));
        for (text, flag) in
            [(r#""dir":"/d""#, "`--workdir`"), (r#""workspace":{"path":"/w"}"#, "`--workspace`")]
        {
            let own = spec(&format!(r#"{{"jail":{{"user":"ann"}},{text}}}"#));
            let said = refusal(refuse_directory_of_jail_user(&own));
            assert!(said.contains(flag) && said.contains("`/home/ann`"), "{said}");
        }
        let detached = Caller { detach: true, ..Caller::default() };
        let removed = spec(r#"{"restart":"on-failure","remove_at_end":true}"#);
        assert!(refusal(check_detached(&removed, &detached)).contains("`--rm`"));
        let keep = spec(r#"{"contain":"pidns","survive_supervisor":true}"#);
        assert!(refusal(check_detached(&keep, &detached)).contains("`--on-supervisor-exit keep`"));
        for check in [refuse_limits, refuse_stop_command, refuse_directory_of_jail_user] {
            assert!(check(&SandboxSpec::default()).is_ok());
        }
    }
}
