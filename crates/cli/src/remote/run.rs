//! `run` on a server.

use std::ffi::{OsStr, OsString};

use penfold_api::Sandbox;
use penfold_client::{Client, Error, Method};
use penfold_state::time::millis;
use penfold_state::{Id, Limits, Outcome, Report, ReportFile};
use serde_json::{Map, Value, json};

use super::foreground::{LEASE, Signals, copy_output};
use super::{ending, failure, wait};
use crate::args::bounds::{self, Bounds};
use crate::args::verb::Global;
use crate::commands::run::profile::{Network, Profile};
use crate::commands::run::{Codes, OnOwnerExit, OnSupervisorExit, RunArgs, spec, stdin_close, tell};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, output, variables};

/// Runs a command on a server: in the foreground to its end, or detached.
pub(super) fn run(client: &Client, global: &Global, args: RunArgs) -> Result<u8, Failure> {
    let codes = Codes { preserve: args.bounds.preserve_status, fail_on_leak: args.fail_on_leak };
    if args.detach {
        bounds::refuse_code_flags(codes.preserve, codes.fail_on_leak)?;
    }
    spec::refuse_detached_flags(&args)?;
    spec::refuse_limits(&args)?;
    spec::detach(&args)?;
    refuse_local_flags(&args)?;
    let report = spec::report_file(&args)?;
    let body = describe(&args)?;
    if args.detach {
        let sandbox = create(client, &args, &body)?;
        output::data(format!("{}\n", sandbox.id).as_bytes()).map_err(Failure::not_started)?;
        return Ok(exit_codes::SUCCESS);
    }
    let leased = args.on_owner_exit != Some(OnOwnerExit::Keep);
    let signals = Signals::watch(client, leased)?;
    let id = create(client, &args, &body)?.id;
    let path = ending::path(&id);
    signals.aim(client, &path);
    let lost = |error| {
        failure(error)
            .with_kind(FailureKind::Unverified)
            .hint(format!("sandbox {id} may still run; `penfold wait {id}` returns its exit code"))
    };
    copy_output(client, &path, &signals).map_err(lost)?;
    let end = wait::end(client, &id, None).map_err(lost)?;
    let ended = client.persist(false, |client| client.get::<Report>(&format!("{path}/report")));
    let mut ended = match ended {
        Ok(ended) => ended,
        Err(Error::Problem(_)) => {
            let sentence = format!(
                "cannot tell how sandbox {id} ended: {}",
                if end == Some(penfold_control::End::Unverified) {
                    "something of it is left"
                } else {
                    "it has no report"
                }
            );
            return Err(Failure::new(FailureKind::Unverified, sentence));
        }
        Err(error) => return Err(lost(error)),
    };
    let unwritten = report.and_then(|file| write_report(&file, &ended).err().map(|error| error.to_string()));
    // Nobody else knows this sandbox. What cannot be removed now, `gc` removes.
    let _ = client.send::<Value>(Method::DELETE, &path, &[], Vec::new().into());
    signals.attribute(&mut ended);
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    tell(global, &Outcome::of(&ended, unwritten), &name, args.bounds.workdir, codes)
}

/// Refuses the flags that a server does not have.
fn refuse_local_flags(args: &RunArgs) -> Result<(), Failure> {
    let refused = |sentence: &str| Failure::new(FailureKind::NotStarted, sentence.to_owned());
    if args.status_fd.is_some() {
        let failure = refused("`--status-fd` works on this host only, not on a server");
        return Err(failure.hint("use `--report FILE`"));
    }
    if args.user.user.is_some() {
        return Err(refused("`--user` works on this host only, not on a server"));
    }
    if args.event_log.log.is_some() {
        return Err(refused("`--log` works on this host only, not on a server"));
    }
    if args.owner.is_some() {
        return Err(refused("`--owner` works on this host only, not on a server"));
    }
    if args.detach && args.report.is_some() {
        let failure = refused("`--report` cannot be used together with `--detach` on a server");
        return Err(failure.hint("`penfold inspect ID` has the report after the end"));
    }
    args.ready.refuse()?;
    stdin_close::refuse(args.on_stdin_close)
}

fn write_report(file: &ReportFile, report: &Report) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    file.write(&text)
}

/// Starts the sandbox. The key makes a repeated request harmless.
fn create(client: &Client, args: &RunArgs, body: &Value) -> Result<Sandbox, Failure> {
    let mut replaced = 0;
    loop {
        let key = Id::new().or_fail(FailureKind::NotStarted, "cannot make a key")?.to_string();
        let headers = [("idempotency-key", key.as_str())];
        let created =
            client.persist(true, |client| client.call(Method::POST, "/v1/sandboxes", &headers, body));
        match created {
            Err(Error::Problem(problem))
                if problem.kind() == "name_taken" && args.replace && replaced < MOST_REPLACED =>
            {
                let holder = problem.holder.clone().unwrap_or_default();
                ending::order(client, &holder, "stop", &json!({})).map_err(|error| {
                    let name = args.name.as_deref().unwrap_or_default();
                    let sentence = format!("cannot replace `{name}`: cannot end sandbox {holder}");
                    Failure::new(FailureKind::NotStarted, sentence).because(error)
                })?;
                replaced += 1;
            }
            created => return created.map_err(failure),
        }
    }
}

/// Other clients may take the name too, each in turn.
const MOST_REPLACED: usize = 100;

/// The body of the request.
fn describe(args: &RunArgs) -> Result<Value, Failure> {
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
    put("command", json!(texts(&args.command)?));
    put("env", json!(environment(&args.bounds)?));
    put("labels", args.label.iter().map(|label| (label.key.clone(), json!(label.value))).collect());
    put("name", json!(args.name));
    if let Some(dir) = &args.bounds.workdir {
        put("dir", json!(text(dir.as_os_str())?));
    }
    put("timeout_ms", json!(args.bounds.timeout().map(millis)));
    put("grace_ms", json!(millis(args.bounds.grace)));
    put("patience_ms", json!(millis(args.patience.patience)));
    if !args.bounds.leaves_signal() {
        put("signal", json!(args.bounds.signal().to_string()));
    }
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
    put("profile", json!(args.profile.profile.map(Profile::word)));
    put("vmm", json!(args.profile.vmm.map(|vmm| json!({ "kind": vmm.word() }))));
    if args.profile.profile == Some(Profile::Jail) {
        let rootfs = args.profile.rootfs.as_ref().map(|dir| text(dir.as_os_str())).transpose()?;
        let network = args.profile.network.map(Network::word);
        let seccomp = args.profile.no_seccomp.then_some(false);
        put("jail", json!({ "rootfs": rootfs, "network": network, "seccomp": seccomp }));
    }
    if args.detach {
        put("lease_ms", json!(args.detached.ttl.filter(|ttl| !ttl.is_zero()).map(millis)));
        put("idle_timeout_ms", json!(args.detached.idle_timeout.filter(|idle| !idle.is_zero()).map(millis)));
        put("remove_at_end", json!(args.rm));
        put("survive_supervisor", json!(args.detached.on_supervisor_exit == OnSupervisorExit::Keep));
        put("terminal", json!(args.tty));
    } else if args.on_owner_exit != Some(OnOwnerExit::Keep) {
        put("lease_ms", json!(millis(LEASE)));
    }
    Ok(Value::Object(body))
}

fn put_limits(limits: &Limits, put: &mut impl FnMut(&str, Value)) {
    put("memory_bytes", json!(limits.memory_bytes));
    put("pids", json!(limits.pids));
    put("cpus", json!(limits.cpus.map(|cpus| cpus.as_secs_f64())));
}

/// The words of a command, as the API carries them.
pub(super) fn texts(words: &[OsString]) -> Result<Vec<&str>, Failure> {
    words.iter().map(|word| text(word)).collect()
}

/// A text of the command line, as the API carries it.
pub(super) fn text(word: &OsStr) -> Result<&str, Failure> {
    word.to_str().ok_or_else(|| {
        let sentence = format!("`{}` is not UTF-8, and a server takes UTF-8 only", word.to_string_lossy());
        Failure::new(FailureKind::NotStarted, sentence)
    })
}

/// The variables of `-e`; without a value, the caller's. The server adds only a few of its own.
pub(super) fn environment(bounds: &Bounds) -> Result<Map<String, Value>, Failure> {
    let mut variables = Map::new();
    for setting in &bounds.env()? {
        let value = setting.value.clone().or_else(|| variables::get(&setting.key));
        if let Some(value) = value {
            variables.insert(text(&setting.key)?.to_owned(), json!(text(&value)?));
        }
    }
    Ok(variables)
}
