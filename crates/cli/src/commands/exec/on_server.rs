//! `exec` on a server.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal as _};

use penfold_client::{Client, Error, Method};
use penfold_state::time::whole_millis;
use penfold_state::wire::Size;
use penfold_state::{Outcome, Report};
use penfold_teardown::Survivor;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::ExecArgs;
use crate::args::bounds::{self, Bounds};
use crate::args::user::UserArgs;
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind};
use crate::relay;
use crate::sandboxes::Sandboxes as _;
use crate::sandboxes::conclude::conclude;
use crate::sandboxes::find::Miss;
use crate::sandboxes::on_server::foreground::{Signals, copy_output};
use crate::sandboxes::on_server::terminal::{RemoteTerminal, exchange};
use crate::sandboxes::on_server::{OnServer, path as path_of, tell_removed};
use crate::text::{lines, summary};
use crate::{exit_codes, output, variables};

/// An exec, as the server describes it.
#[derive(Debug, Deserialize)]
struct Exec {
    number: u32,
    #[serde(default)]
    report: Option<Report>,
}

/// The end of an exec, as far as the server knows it.
#[derive(Debug, Deserialize)]
struct Waited {
    ended: bool,
    #[serde(default)]
    remaining: Vec<Survivor>,
}

/// Runs a command in a running sandbox.
pub(super) fn exec(global: &Global, sandboxes: &OnServer, args: &ExecArgs) -> Result<u8, Failure> {
    let client = &sandboxes.0;
    if args.detach {
        bounds::refuse_code_flags(args.bounds.preserve_status, false)?;
    }
    if args.tty && args.interactive && !io::stdin().is_terminal() {
        let sentence = "standard input is not a terminal; leave out `-t`";
        return Err(Failure::new(FailureKind::NotStarted, sentence));
    }
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let id = sandboxes.find(&args.id).map_err(Miss::into_failure)?.id;
    let body = body(args)?;
    let signals = if args.detach { None } else { Some(Signals::watch(client, false)?) };
    let execs = format!("{}/execs", path_of(&id));
    let started: Exec =
        client.call(Method::POST, &execs, &[], &body).map_err(|error| not_started(error, &name, args))?;
    let Some(signals) = signals else { return Ok(exit_codes::SUCCESS) };
    let path = format!("{execs}/{}", started.number);
    signals.aim(client, &path);
    let lost = |failure: Failure| match tell_removed(client, &id) {
        Some(code) => Ok(code),
        None => Err(failure.with_kind(FailureKind::Unverified)),
    };
    let hint = format!("`{name}` may still run in sandbox {id}");
    let unknown = |error| lost(Failure::from(error).hint(hint.clone()));
    if let Err(failure) = converse(client, args, &path, &signals) {
        return lost(failure.or_hint(hint));
    }
    let left = match wait(client, &path) {
        Ok(left) => left,
        Err(error) => return unknown(error),
    };
    if let Some(left) = left {
        let mut text = String::new();
        for survivor in left {
            lines::say(&mut text, &format!("exec in {id} not gone: {survivor}"));
        }
        output::message(&text);
        return Ok(exit_codes::UNVERIFIED);
    }
    let ended = match client.persist(false, |client| client.get::<Exec>(&path)) {
        Ok(ended) => ended,
        Err(error) => return unknown(error),
    };
    let _ = client.send::<Value>(Method::DELETE, &path, &[], Vec::new().into());
    let Some(mut report) = ended.report else {
        let sentence = format!("cannot tell how `{name}` ended: the exec has no report");
        return Err(Failure::new(FailureKind::Unverified, sentence));
    };
    // The summary must name the exec: the sandbox itself keeps running.
    report.id = format!("exec in {id}");
    signals.attribute(&mut report);
    let outcome = Outcome::of(&report, None);
    if !args.tty {
        output::message(&summary::of(&outcome, global.verbose > 0, global.quiet));
    }
    conclude(&outcome, &name, args.bounds.workdir.clone(), args.bounds.preserve_status, false)
}

/// Copies output, and input if there is any, until the command has ended.
fn converse(client: &Client, args: &ExecArgs, path: &str, signals: &Signals) -> Result<(), Failure> {
    // Without its client, nobody would end its input.
    let attach = format!("{path}/attach?ends_with_client=true");
    if args.tty {
        let terminal = RemoteTerminal {
            client,
            path: attach,
            from_start: false,
            typed: args.interactive,
            is_viewer: false,
            keys: &[],
        };
        return terminal.show().map(drop);
    }
    let copied =
        if args.interactive { exchange(client, attach, signals) } else { copy_output(client, path, signals) };
    let Err(error) = copied else { return Ok(()) };
    if args.interactive {
        // The command must not wait for the rest of its input for ever, nor take a part of it for the whole.
        let killed = client.persist(false, |client| {
            client.call::<Value>(Method::POST, &format!("{path}/kill"), &[], &json!({}))
        });
        if killed.is_ok() {
            let sentence = "the command was killed: a part of its input may be lost";
            return Err(Failure::new(FailureKind::Unverified, sentence)
                .because(error)
                .hint("nothing of it runs; start it again"));
        }
    }
    Err(error.into())
}

/// Waits until the exec has ended; returns what is left of it after the patience.
fn wait(client: &Client, path: &str) -> Result<Option<Vec<Survivor>>, Error> {
    loop {
        let url = format!("{path}/wait?timeout_ms=30000");
        let waited = client.persist(false, |client| client.get::<Waited>(&url))?;
        if waited.ended {
            return Ok(None);
        }
        if !waited.remaining.is_empty() {
            return Ok(Some(waited.remaining));
        }
    }
}

fn not_started(error: Error, name: &str, args: &ExecArgs) -> Failure {
    match error.problem().map(penfold_client::Problem::kind) {
        Some("command_not_found") => {
            let why = if name.contains('/') { "no such file" } else { "not found in PATH" };
            Failure::new(FailureKind::NotFound, format!("cannot run `{name}`: {why}"))
        }
        Some("command_not_executable") => {
            Failure::new(FailureKind::NotExecutable, format!("cannot run `{name}`: it is not executable"))
        }
        Some(_) => Failure::new(FailureKind::NotStarted, format!("cannot run `{name}` in {}", args.id))
            .because(error),
        // After the request was sent the command may run.
        None if matches!(error, Error::Lost { .. }) => {
            Failure::from(error).with_kind(FailureKind::Unverified)
        }
        None => Failure::from(error),
    }
}

/// The body of the request.
fn body(args: &ExecArgs) -> Result<Value, Failure> {
    // A detached command is one for whose end the client does not wait. The path has the id.
    let ExecArgs { interactive, tty, detach: _, bounds, user: UserArgs { user }, beside, id: _, command } =
        args;
    if user.is_some() {
        let sentence = "`--user` works on this host only, not on a server";
        return Err(Failure::new(FailureKind::NotStarted, sentence));
    }
    if *beside {
        let sentence = "`--beside` works on this host only: a server never leads beside a jail";
        return Err(Failure::new(FailureKind::NotStarted, sentence));
    }
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
    put("command", json!(texts(command)?));
    put_bounds(bounds, *tty, &mut put)?;
    // An older server does not know the field.
    if *interactive {
        put("open_input", json!(true));
    }
    if *tty {
        let Size { rows, columns } = relay::size();
        put("terminal", json!({ "rows": rows, "columns": columns }));
    }
    Ok(Value::Object(body))
}

/// Adds environment, directory, time limit and stop.
fn put_bounds(bounds: &Bounds, has_terminal: bool, put: &mut impl FnMut(&str, Value)) -> Result<(), Failure> {
    // The client exits with the code that `--preserve-status` asks for.
    let Bounds { timeout: _, grace, signal, preserve_status: _, env: _, env_file: _, workdir } = bounds;
    put("env", json!(environment(bounds, has_terminal)?));
    if let Some(dir) = workdir {
        put("dir", json!(text(dir.as_os_str())?));
    }
    put("timeout_ms", json!(bounds.timeout().map(whole_millis)));
    put("grace_ms", json!(whole_millis(*grace)));
    if signal.is_some() {
        put("signal", json!(bounds.signal().to_string()));
    }
    Ok(())
}

/// The words of a command, as the API carries them.
fn texts(words: &[OsString]) -> Result<Vec<&str>, Failure> {
    words.iter().map(|word| text(word)).collect()
}

/// A text of the command line, as the API carries it.
fn text(word: &OsStr) -> Result<&str, Failure> {
    word.to_str().ok_or_else(|| {
        let sentence = format!("`{}` is not UTF-8, and a server takes UTF-8 only", word.to_string_lossy());
        Failure::new(FailureKind::NotStarted, sentence)
    })
}

/// The variables of `-e`; without a value, the caller's. The server adds only a few of its own. A command with a terminal gets the kind of
/// the caller's.
fn environment(bounds: &Bounds, has_terminal: bool) -> Result<Map<String, Value>, Failure> {
    let mut variables = Map::new();
    if let Some(kind) = variables::get(OsStr::new("TERM")).filter(|_| has_terminal) {
        variables.insert("TERM".to_owned(), json!(text(&kind)?));
    }
    for setting in &bounds.env()? {
        let value = setting.value.clone().or_else(|| variables::get(&setting.key));
        if let Some(value) = value {
            variables.insert(text(&setting.key)?.to_owned(), json!(text(&value)?));
        }
    }
    Ok(variables)
}
