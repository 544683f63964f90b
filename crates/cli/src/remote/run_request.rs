//! `run` on a server: each flag goes into the request, is done by this client, or is refused by name.

use std::ffi::{OsStr, OsString};

use penfold_state::Limits;
use penfold_state::time::millis;
use serde_json::{Map, Value, json};

use super::foreground::LEASE;
use crate::args::bounds::{self, Bounds};
use crate::args::event_log::EventLogArgs;
use crate::args::spare::SpareArgs;
use crate::args::user::UserArgs;
use crate::commands::run::detached::DetachedArgs;
use crate::commands::run::profile::{Network, Profile, ProfileArgs};
use crate::commands::run::ready::ReadyArgs;
use crate::commands::run::{OnOwnerExit, OnSupervisorExit, RunArgs, spec, stdin_close};
use crate::failure::{Failure, FailureKind};
use crate::variables;

/// Checks the flags, and makes the body of the request.
///
/// # Errors
/// When flags contradict each other, a server cannot follow one, or a text is not UTF-8.
pub(super) fn check(args: &RunArgs) -> Result<Map<String, Value>, Failure> {
    if args.detach {
        bounds::refuse_code_flags(args.bounds.preserve_status, args.fail_on_leak)?;
    }
    refuse_local_flags(args)?;
    spec::refuse_detached_flags(args)?;
    spec::refuse_limits(args)?;
    spec::detach(args)?;
    describe(args)
}

/// Refuses the flags that a server cannot follow.
///
/// Every field is named, here or where it is sent, so that a new flag does not compile before it is sent, done or refused.
fn refuse_local_flags(args: &RunArgs) -> Result<(), Failure> {
    let &RunArgs {
        // Sent, see `describe`.
        bounds: _,
        contain: _,
        patience: _,
        scratch: _,
        name: _,
        label: _,
        inherit_env: _,
        limits: _,
        resources: _,
        profile: _,
        stop: _,
        command: _,
        // Done by this client: a record that is in nobody's way, the exit code, the name that is free, flags of a file.
        rm: _,
        fail_on_leak: _,
        replace: _,
        spec: _,
        without_config: _,
        // No flag: only the next life of a sandbox of this host has an id before it starts.
        id: _,
        detach,
        tty,
        interactive,
        unit,
        on_owner_exit,
        owner,
        on_stdin_close,
        outside,
        stop_on_interrupt,
        event_log: EventLogArgs { ref log },
        ref report,
        status_fd,
        ref detached,
        ref ready,
        ref user,
        ref spare,
    } = args;
    let kills = on_owner_exit == Some(OnOwnerExit::Kill);
    let stops = on_owner_exit == Some(OnOwnerExit::Stop);
    refuse_rare_flags(detached, ready, user, spare)?;
    refuse(&[
        (status_fd.is_some(), "--status-fd", "use `--report FILE`"),
        (log.is_some(), "--log", ""),
        (owner.is_some(), "--owner", ""),
        (unit.is_some(), "--unit", ""),
        (outside, "--outside", UNRELATED),
        (stop_on_interrupt, "--stop-on-interrupt", INTERRUPT),
        (interactive && !detach, "--interactive", EMPTY_INPUT),
        (tty && !detach, "--tty", NO_TERMINAL),
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

fn refuse_rare_flags(
    detached: &DetachedArgs,
    ready: &ReadyArgs,
    user: &UserArgs,
    spare: &SpareArgs,
) -> Result<(), Failure> {
    // What is not looked at here is sent.
    let DetachedArgs { ttl: _, idle_timeout: _, restart, log_size: _, on_supervisor_exit: _ } = detached;
    let ReadyArgs { ready, ready_timeout: _ } = ready;
    let UserArgs { user } = user;
    let SpareArgs { spare: _, allow_outside } = spare;
    refuse(&[
        (user.is_some(), "--user", ""),
        (ready.is_some(), "--ready", FOLLOW),
        (restart.is_some(), "--restart", ""),
        (*allow_outside, "--allow-outside", ""),
    ])
}

/// Makes the body of the request.
fn describe(args: &RunArgs) -> Result<Map<String, Value>, Failure> {
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
    put("command", json!(texts(&args.command)?));
    put("labels", args.label.iter().map(|label| (label.key.clone(), json!(label.value))).collect());
    put("name", json!(args.name));
    put_bounds(&args.bounds, &mut put)?;
    put("patience_ms", json!(millis(args.patience.patience)));
    put("inherit_env", json!(args.inherit_env));
    put("scratch", json!(args.scratch));
    put("contain", json!(args.contain.word()));
    put_limits(&args.limits.limits(), &mut put);
    if let Ok(Value::Object(resources)) = serde_json::to_value(args.resources.request()) {
        for (key, value) in resources {
            put(&key, value);
        }
    }
    put("log_size", json!(args.detached.log_size));
    put("stop", json!(args.stop.request()));
    put("spare", json!(args.spare.texts()));
    put_profile(&args.profile, &mut put)?;
    if args.detach {
        put("lease_ms", json!(args.detached.ttl.filter(|ttl| !ttl.is_zero()).map(millis)));
        put("idle_timeout_ms", json!(args.detached.idle_timeout.filter(|idle| !idle.is_zero()).map(millis)));
        put("remove_at_end", json!(args.rm));
        put("survive_supervisor", json!(args.detached.on_supervisor_exit == OnSupervisorExit::Keep));
        put("terminal", json!(args.tty));
    } else if args.on_owner_exit != Some(OnOwnerExit::Keep) {
        put("lease_ms", json!(millis(LEASE)));
    }
    Ok(body)
}

const FOLLOW: &str = "`penfold logs -f ID` follows the output until the command says that it is ready";
const INTERRUPT: &str =
    "leave it out: on a server the first Ctrl-C stops the sandbox and the second kills it";
const EMPTY_INPUT: &str = "the standard input of `run` on a server is empty; `penfold exec -i` sends it";
const LEASED: &str =
    "`--on-owner-exit stop`: a server stops the sandbox when its client has been gone for a minute";
const OWNERLESS: &str = "leave it out: a detached sandbox of a server has no owner; `--ttl` limits its time";
const UNRELATED: &str = "leave it out: a server's sandbox is no member of the one around its client";
const NO_TERMINAL: &str = "leave it out: the command of a server gets no terminal of this one";

/// Refuses the first flag that was given. Each has its name, and a hint or none.
fn refuse(flags: &[(bool, &'static str, &'static str)]) -> Result<(), Failure> {
    let Some((_, flag, hint)) = flags.iter().find(|(given, ..)| *given) else { return Ok(()) };
    let sentence = format!("`{flag}` works on this host only, not on a server");
    let failure = Failure::new(FailureKind::NotStarted, sentence);
    Err(if hint.is_empty() { failure } else { failure.hint(*hint) })
}

/// Adds what `run` and `exec` have in common.
pub(super) fn put_bounds(bounds: &Bounds, put: &mut impl FnMut(&str, Value)) -> Result<(), Failure> {
    // The client exits with the code that `--preserve-status` asks for.
    let Bounds { timeout: _, grace, signal, preserve_status: _, env: _, env_file: _, workdir } = bounds;
    put("env", json!(environment(bounds)?));
    if let Some(dir) = workdir {
        put("dir", json!(text(dir.as_os_str())?));
    }
    put("timeout_ms", json!(bounds.timeout().map(millis)));
    put("grace_ms", json!(millis(*grace)));
    if signal.is_some() {
        put("signal", json!(bounds.signal().to_string()));
    }
    Ok(())
}

fn put_limits(limits: &Limits, put: &mut impl FnMut(&str, Value)) {
    let Limits { memory_bytes, pids, cpus } = limits;
    put("memory_bytes", json!(memory_bytes));
    put("pids", json!(pids));
    put("cpus", json!(cpus.map(|cpus| cpus.as_secs_f64())));
}

fn put_profile(profile: &ProfileArgs, put: &mut impl FnMut(&str, Value)) -> Result<(), Failure> {
    profile.refuse_others()?;
    let ProfileArgs { profile, rootfs, network, vmm, no_seccomp } = profile;
    put("profile", json!(profile.map(Profile::word)));
    put("vmm", json!(vmm.map(|vmm| json!({ "kind": vmm.word() }))));
    if *profile == Some(Profile::Jail) {
        let rootfs = rootfs.as_ref().map(|dir| text(dir.as_os_str())).transpose()?;
        let network = network.map(Network::word);
        put("jail", json!({ "rootfs": rootfs, "network": network, "seccomp": no_seccomp.then_some(false) }));
    }
    Ok(())
}

/// The words of a command, as the API carries them.
pub(super) fn texts(words: &[OsString]) -> Result<Vec<&str>, Failure> {
    words.iter().map(|word| text(word)).collect()
}

/// A text of the command line, as the API carries it.
fn text(word: &OsStr) -> Result<&str, Failure> {
    word.to_str().ok_or_else(|| {
        let sentence = format!("`{}` is not UTF-8, and a server takes UTF-8 only", word.to_string_lossy());
        Failure::new(FailureKind::NotStarted, sentence)
    })
}

/// The variables of `-e`; without a value, the caller's. The server adds only a few of its own.
fn environment(bounds: &Bounds) -> Result<Map<String, Value>, Failure> {
    let mut variables = Map::new();
    for setting in &bounds.env()? {
        let value = setting.value.clone().or_else(|| variables::get(&setting.key));
        if let Some(value) = value {
            variables.insert(text(&setting.key)?.to_owned(), json!(text(&value)?));
        }
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;
    use crate::args::usage;
    use crate::commands::run::{VERB, definition};

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
        ("unit=none", &[], Refused, Refused),
        ("detach", &[], Sent("terminal"), Here),
        ("tty", &[], Refused, Sent("terminal")),
        ("interactive", &[], Refused, Refused),
        ("interactive", &["--tty"], Refused, Sent("terminal")),
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
        ("inherit-env=true", &[], Sent("inherit_env"), Sent("inherit_env")),
        ("without-config", &[], Here, Here),
        ("ttl=7s", &[], Refused, Sent("lease_ms")),
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
        (r#"resources={"own":["path=/p"]}"#, &[], Sent("own"), Sent("own")),
        ("profile=jail", &[], Sent("profile"), Sent("profile")),
        ("rootfs=/r", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("rootfs=/r", &["--profile=vmm"], Refused, Refused),
        ("network=host", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("network=host", &["--profile=vmm"], Refused, Refused),
        ("vmm=qemu", &["--profile=vmm"], Sent("vmm"), Sent("vmm")),
        ("vmm=qemu", &["--profile=jail"], Refused, Refused),
        ("no-seccomp", &["--profile=jail"], Sent("jail"), Sent("jail")),
        ("no-seccomp", &["--profile=vmm"], Refused, Refused),
        ("stop-command=true", &[], Sent("stop"), Sent("stop")),
        (r#"stop={"command":["true"]}"#, &[], Sent("stop"), Sent("stop")),
        ("spare=ssh-agent", &[], Sent("spare"), Sent("spare")),
        ("allow-outside", &[], Refused, Refused),
    ];

    fn request(words: &[&str], file: &str) -> Result<Map<String, Value>, Failure> {
        let words: Vec<OsString> =
            words.iter().map(|word| word.replace("FILE", file).into()).chain(["x".into()]).collect();
        let matches = definition::parse(&words).map_err(|error| usage::failure(&error, Some(&VERB)))?;
        let args: RunArgs = usage::read(&VERB, matches).map_err(Failure::not_started)?;
        check(&args)
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
