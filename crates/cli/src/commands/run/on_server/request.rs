//! `run` on a server: each part of a request goes to the server, is done by this client, or is refused by name.

use std::ffi::OsStr;

use penfold_launch::caller::{Caller, Codes};
use penfold_launch::profile::refuse_other_profiles;
use penfold_launch::{checks, spec};
use penfold_process::path_text::path_of_text;
use penfold_request::{LocalField, SandboxSpec};
use penfold_state::time::whole_millis;

use crate::args::bounds;
use crate::commands::run::{OnOwnerExit, stdin_close};
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::on_server::foreground::LEASE;
use crate::variables;

/// Checks what is asked for, and returns what the server is asked for.
///
/// # Errors
/// When parts contradict each other, a server cannot follow one, or a text is not UTF-8.
pub(super) fn body(spec: SandboxSpec, caller: &Caller) -> Result<SandboxSpec, Failure> {
    let spec = spec::with_env_files(spec, &variables::all().collect())?;
    if caller.detach {
        bounds::refuse_code_flags(caller.codes.preserve, caller.codes.fail_on_leak)?;
    }
    refuse_callers_flags(&spec, caller)?;
    refuse_local_field(&spec)?;
    checks::refuse_detached_flags(&spec, caller)?;
    checks::refuse_limits(&spec)?;
    checks::check_detached(&spec, caller)?;
    refuse_other_profiles(&spec)?;
    checks::refuse_directory_of_jail_user(&spec)?;
    refuse_bytes(&spec)?;
    if caller.detach {
        let time = |ms: Option<u64>| ms.filter(|ms| *ms > 0);
        let (lease_ms, idle_timeout_ms) = (time(spec.lease_ms), time(spec.idle_timeout_ms));
        return Ok(SandboxSpec { lease_ms, idle_timeout_ms, ..spec });
    }
    let spec = with_kind_of_terminal(spec);
    let is_leased = caller.on_owner_exit != Some(OnOwnerExit::Keep);
    // The record of a foreground sandbox is in nobody's way: this client removes it.
    Ok(SandboxSpec { lease_ms: is_leased.then(|| whole_millis(LEASE)), remove_at_end: false, ..spec })
}

/// Gives a command with a terminal the kind of this one.
fn with_kind_of_terminal(mut spec: SandboxSpec) -> SandboxSpec {
    let kind = variables::get(OsStr::new("TERM")).and_then(|kind| kind.into_string().ok());
    if let Some(kind) = kind.filter(|_| spec.terminal) {
        spec.env.entry("TERM".to_owned()).or_insert(kind);
    }
    spec
}

/// Refuses what a server cannot do for its caller.
///
/// Every field is named, so that a new one does not compile before it is done or refused.
fn refuse_callers_flags(spec: &SandboxSpec, caller: &Caller) -> Result<(), Failure> {
    let &Caller {
        // Done by this client: the exit code, and the name that is free.
        codes: Codes { preserve: _, fail_on_leak: _ },
        replace: _,
        // No flag: only the next life of a sandbox of this host has an id before it starts.
        id: _,
        detach,
        interactive,
        outside,
        stop_on_interrupt,
        on_owner_exit,
        owner,
        on_stdin_close,
        ref report,
        status_fd,
    } = caller;
    let kills = on_owner_exit == Some(OnOwnerExit::Kill);
    let stops = on_owner_exit == Some(OnOwnerExit::Stop);
    refuse(&[
        (status_fd.is_some(), "--status-fd", "use `--report FILE`"),
        (owner.is_some(), "--owner", ""),
        (outside, "--outside", UNRELATED),
        (stop_on_interrupt, "--stop-on-interrupt", INTERRUPT),
        (interactive && !detach && !spec.terminal, "--interactive", EMPTY_INPUT),
        (kills && !detach, "--on-owner-exit kill", LEASED),
        (kills && detach, "--on-owner-exit kill", OWNERLESS),
        (stops && detach, "--on-owner-exit stop", OWNERLESS),
    ])?;
    if detach && report.is_some() {
        let sentence = "`--report` cannot be used together with `--detach` on a server";
        return Err(Failure::new(FailureKind::NotStarted, sentence)
            .hint("`penfold inspect ID` has the report after the end"));
    }
    stdin_close::refuse(on_stdin_close)
}

/// Refuses what only this host can give to a sandbox.
fn refuse_local_field(spec: &SandboxSpec) -> Result<(), Failure> {
    let field = spec.local_field().map(|field| match field {
        LocalField::EventLog => ("--log", ""),
        LocalField::Unit => ("--unit", ""),
        LocalField::User => ("--user", ""),
        LocalField::Ready => ("--ready", FOLLOW),
        LocalField::Restart => ("--restart", ""),
        // This client has read them.
        LocalField::EnvFiles => ("--env-file", ""),
    });
    let (flag, hint) = field.unwrap_or_default();
    refuse(&[(field.is_some(), flag, hint), (spec.allow_outside, "--allow-outside", "")])
}

/// Refuses texts that are not UTF-8: an older server would take their signs for themselves.
fn refuse_bytes(spec: &SandboxSpec) -> Result<(), Failure> {
    let variables = spec.env.iter().flat_map(|(key, value)| [key, value]);
    for text in spec.command.iter().chain(variables).chain(&spec.dir) {
        refuse_text_of_bytes(text)?;
    }
    Ok(())
}

fn refuse_text_of_bytes(text: &str) -> Result<(), Failure> {
    let word = path_of_text(text);
    if word.to_str().is_some() {
        return Ok(());
    }
    let sentence = format!("`{}` is not UTF-8, and a server takes UTF-8 only", word.display());
    Err(Failure::new(FailureKind::NotStarted, sentence))
}

const FOLLOW: &str = "`penfold logs -f ID` follows the output until the command says that it is ready";
const INTERRUPT: &str =
    "leave it out: on a server the first Ctrl-C stops the sandbox and the second kills it";
const EMPTY_INPUT: &str = "the standard input of `run` on a server is empty; `penfold exec -i` sends it";
const LEASED: &str =
    "`--on-owner-exit stop`: a server stops the sandbox when its client has been gone for a minute";
const OWNERLESS: &str = "leave it out: a detached sandbox of a server has no owner; `--ttl` limits its time";
const UNRELATED: &str = "leave it out: a server's sandbox is no member of the one around its client";

/// Refuses the first flag that was given. Each has its name, and a hint or none.
fn refuse(flags: &[(bool, &'static str, &'static str)]) -> Result<(), Failure> {
    let Some((_, flag, hint)) = flags.iter().find(|(given, ..)| *given) else { return Ok(()) };
    let sentence = format!("`{flag}` works on this host only, not on a server");
    let failure = Failure::new(FailureKind::NotStarted, sentence);
    Err(if hint.is_empty() { failure } else { failure.hint(*hint) })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Command;
    use serde_json::{Map, Value};

    use super::*;
    use crate::args::usage;
    use crate::commands::run::request::Given;
    use crate::commands::run::{RunArgs, VERB, definition};

    /// What becomes of a flag.
    #[derive(Debug, PartialEq, Eq)]
    enum Answer {
        /// The request has this key, with another value than without the flag.
        Sent(&'static str),
        /// This client does it, and the request is the same.
        Here,
        Refused,
    }

    use Answer::{Here, Refused, Sent};

    /// Every flag of `run --help`, hidden ones included: the flag, further words, and what becomes of it in the foreground and
    /// with `--detach`.
    const FLAGS: &[(&str, &[&str], Answer, Answer)] = &[
        ("timeout=7s", &[], Sent("timeout_ms"), Sent("timeout_ms")),
        ("grace=7s", &[], Sent("grace_ms"), Sent("grace_ms")),
        ("signal=INT", &[], Sent("signal"), Sent("signal")),
        ("preserve-status", &[], Here, Refused),
        ("env=A=b", &[], Sent("env"), Sent("env")),
        ("env-file=FILE", &[], Sent("env"), Sent("env")),
        ("workdir=/", &[], Sent("dir"), Sent("dir")),
        ("contain=pidns", &[], Sent("contain"), Sent("contain")),
        ("ipc=private", &[], Sent("ipc"), Sent("ipc")),
        ("unit=none", &[], Refused, Refused),
        ("detach", &[], Sent("lease_ms"), Here),
        ("tty", &[], Sent("terminal"), Sent("terminal")),
        ("interactive", &[], Refused, Refused),
        ("interactive", &["--tty"], Sent("terminal"), Sent("terminal")),
        ("rm", &[], Here, Sent("remove_at_end")),
        ("on-owner-exit=keep", &[], Sent("lease_ms"), Here),
        ("on-owner-exit=stop", &[], Here, Refused),
        ("on-owner-exit=kill", &[], Refused, Refused),
        ("owner=7", &["--on-owner-exit=stop"], Refused, Refused),
        ("on-stdin-close=stop", &[], Refused, Refused),
        ("patience=7s", &[], Sent("patience_ms"), Sent("patience_ms")),
        ("outside", &[], Refused, Refused),
        ("scratch", &[], Sent("scratch"), Sent("scratch")),
        ("stop-on-interrupt", &[], Refused, Refused),
        ("log=journald", &[], Refused, Refused),
        ("fail-on-leak", &[], Here, Refused),
        ("report=FILE", &[], Here, Refused),
        ("status-fd=9", &[], Refused, Refused),
        ("name=web", &[], Sent("name"), Sent("name")),
        ("replace", &["--name=web"], Sent("name"), Sent("name")),
        ("label=a=b", &[], Sent("labels"), Sent("labels")),
        // Its flags were added to the others.
        ("spec=FILE", &[], Here, Here),
        ("ttl=7s", &[], Refused, Sent("lease_ms")),
        ("ttl-pauses", &["--ttl=7s"], Refused, Sent("lease_pauses")),
        ("idle-timeout=7s", &[], Refused, Sent("idle_timeout_ms")),
        ("restart=on-failure", &[], Refused, Refused),
        ("log-size=1M", &[], Sent("log_size"), Sent("log_size")),
        ("on-supervisor-exit=keep", &[], Refused, Sent("survive_supervisor")),
        ("ready=port:80", &[], Refused, Refused),
        ("ready-timeout=7s", &["--ready=port:80"], Refused, Refused),
        ("user=nobody", &[], Refused, Refused),
        ("memory=64M", &[], Sent("memory_bytes"), Sent("memory_bytes")),
        ("pids=64", &[], Sent("pids"), Sent("pids")),
        ("cpus=1.5", &[], Sent("cpus"), Sent("cpus")),
        ("workspace=/w", &[], Sent("workspace"), Sent("workspace")),
        ("keep", &["--workspace=/w"], Sent("workspace"), Sent("workspace")),
        ("sockets", &[], Sent("sockets"), Sent("sockets")),
        ("netns", &[], Sent("network"), Sent("network")),
        ("netns-outside", &[], Sent("network"), Sent("network")),
        ("address=10.0.0.2/30", &[], Sent("network"), Sent("network")),
        ("gateway=10.0.0.1", &["--address=10.0.0.2/30"], Sent("network"), Sent("network")),
        ("peer-address=10.0.0.1/30", &["--address=10.0.0.2/30"], Sent("network"), Sent("network")),
        ("tap", &[], Sent("network"), Sent("network")),
        ("mount=type=tmpfs,target=/m", &[], Sent("mounts"), Sent("mounts")),
        ("own=path=/p", &[], Sent("own"), Sent("own")),
        ("profile=jail", &[], Sent("profile"), Sent("profile")),
        ("rootfs=/r", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("rootfs=/r", &["--profile=vmm"], Refused, Refused),
        ("network=host", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("network=host", &["--profile=vmm"], Refused, Refused),
        ("vmm=qemu", &["--profile=vmm"], Sent("vmm"), Sent("vmm")),
        ("vmm=qemu", &["--profile=jail"], Refused, Refused),
        ("no-seccomp", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("no-seccomp", &["--profile=vmm"], Refused, Refused),
        ("jail-user=ann", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("jail-user=ann", &["--profile=vmm"], Refused, Refused),
        ("stop-command=true", &[], Sent("stop"), Sent("stop")),
        ("spare=ssh-agent", &[], Sent("spare"), Sent("spare")),
        ("allow-outside", &[], Refused, Refused),
    ];

    fn request(words: &[&str], file: &str) -> Result<Map<String, Value>, Failure> {
        let words: Vec<OsString> =
            words.iter().map(|word| word.replace("FILE", file).into()).chain(["x".into()]).collect();
        let command = definition::all(Command::new(VERB.name).no_binary_name(true).args_override_self(true));
        let matches =
            command.try_get_matches_from(words).map_err(|error| usage::failure(&error, Some(&VERB)))?;
        let given = Given::of(&matches);
        let args: RunArgs = usage::read(&VERB, matches).map_err(Failure::not_started)?;
        let (spec, caller) = args.into_request(given)?;
        match serde_json::to_value(body(spec, &caller)?) {
            Ok(Value::Object(body)) => Ok(body),
            _ => panic!("no body"),
        }
    }

    /// spec: 15.10
    #[test]
    fn every_flag_of_run_is_sent_to_a_server_or_done_by_the_client_or_refused_by_name() {
        let file = std::env::temp_dir().join(format!("penfold-flags-{}", std::process::id()));
        std::fs::write(&file, "IN_FILE=1\n").unwrap();
        let path = file.to_str().unwrap();
        let mut wrong = Vec::new();
        for (flag, others, in_front, detached) in FLAGS {
            for (answer, mode) in [(in_front, None), (detached, Some("--detach"))] {
                let name = flag.split('=').next().unwrap();
                let given = format!("--{flag}");
                let base: Vec<&str> = mode.into_iter().chain(others.iter().copied()).collect();
                let words: Vec<&str> = base.iter().copied().chain([given.as_str()]).collect();
                let is_right = match (answer, request(&words, path)) {
                    (Refused, Err(failure)) => {
                        let sentence = format!("{failure:?}");
                        sentence.contains(&format!("`--{name}"))
                            || others.iter().any(|other| sentence.contains(other.split('=').next().unwrap()))
                    }
                    (Sent(key), Ok(body)) => {
                        let without = mode.map_or(vec![], |mode| vec![mode]);
                        body.get(*key) != request(&without, path).unwrap().get(*key)
                    }
                    (Here, Ok(body)) => body == request(&base, path).unwrap(),
                    _ => false,
                };
                if !is_right {
                    wrong.push(format!("{words:?} should be {answer:?}"));
                }
            }
        }
        std::fs::remove_file(&file).unwrap();
        assert_eq!(wrong, Vec::<String>::new());
        let listed = |name: &str| FLAGS.iter().any(|(flag, ..)| flag.split('=').next() == Some(name));
        let all = definition::all(Command::new("run"));
        let flags = all.get_arguments().filter_map(|flag| flag.get_long());
        let missing: Vec<&str> = flags.filter(|name| !listed(name)).collect();
        assert_eq!(missing, Vec::<&str>::new(), "say what a server does with a new flag");
    }
}
