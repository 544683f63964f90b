//! `run` on a server.

mod request;

use std::io::{self, IsTerminal as _};

use penfold_api::Sandbox;
use penfold_client::{Client, Error, Method};
use penfold_control::SandboxEnd;
use penfold_launch::caller::{Caller, Codes};
use penfold_launch::spec;
use penfold_request::SandboxSpec;
use penfold_state::{Id, Outcome, Report, ReportFile};
use serde_json::{Value, json};

use super::{OnOwnerExit, tell};
use crate::args::verb::Global;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::sandboxes::conclude::conclude;
use crate::sandboxes::on_server::foreground::{Signals, copy_output};
use crate::sandboxes::on_server::terminal::{RemoteTerminal, terminal_path};
use crate::sandboxes::on_server::{path, request_end, tell_removed, wait_for_end};
use crate::{exit_codes, output};

/// Runs a command on a server: in the foreground to its end, or detached.
pub(super) fn run(
    global: &Global,
    client: &Client,
    asked: SandboxSpec,
    caller: &Caller,
) -> Result<u8, Failure> {
    let body = request::body(asked, caller)?;
    let report = spec::report_file(caller)?;
    if caller.detach {
        let sandbox = create(client, caller, &body)?;
        output::data(format!("{}\n", sandbox.id).as_bytes()).map_err(Failure::not_started)?;
        return Ok(exit_codes::SUCCESS);
    }
    if body.terminal && caller.interactive && !io::stdin().is_terminal() {
        let sentence = "standard input is not a terminal; leave out `-i`";
        return Err(Failure::new(FailureKind::NotStarted, sentence));
    }
    let leased = caller.on_owner_exit != Some(OnOwnerExit::Keep);
    let signals = Signals::watch(client, leased)?;
    let id = create(client, caller, &body)?.id;
    let path = path(&id);
    signals.aim(client, &path);
    let shown = if body.terminal {
        show_terminal(client, &id, caller.interactive)
    } else {
        copy_output(client, &path, &signals).map_err(Failure::from)
    };
    let lost = |failure: Failure| match tell_removed(client, &id) {
        Some(code) => Ok(code),
        None => Err(failure
            .with_kind(FailureKind::Unverified)
            .hint(format!("sandbox {id} may still run; `penfold wait {id}` returns its exit code"))),
    };
    if let Err(failure) = shown {
        return lost(failure);
    }
    let end = match wait_for_end(client, &id, None) {
        Ok(end) => end,
        Err(error) => return lost(error.into()),
    };
    let ended = client.persist(false, |client| client.get::<Report>(&format!("{path}/report")));
    let mut ended = match ended {
        Ok(ended) => ended,
        Err(Error::Problem(_)) => {
            return tell_removed(client, &id).ok_or_else(|| without_report(&id, end.as_ref()));
        }
        Err(error) => return lost(error.into()),
    };
    let unwritten = report.and_then(|file| write_report(&file, &ended).err().map(|error| error.to_string()));
    // Nobody else knows this sandbox. What cannot be removed now, `gc` removes.
    let _ = client.send::<Value>(Method::DELETE, &path, &[], Vec::new().into());
    signals.attribute(&mut ended);
    let name = body.command.first().cloned().unwrap_or_default();
    let outcome = Outcome::of(&ended, unwritten);
    let Codes { preserve, fail_on_leak } = caller.codes;
    tell(global, false, &outcome, || {
        conclude(&outcome, &name, spec::working_directory(&body), preserve, fail_on_leak)
    })
}

/// Shows the terminal of a sandbox to its end.
fn show_terminal(client: &Client, id: &str, typed: bool) -> Result<(), Failure> {
    let path = terminal_path(id);
    // From the beginning of its output: the command may have ended before.
    let terminal = RemoteTerminal { client, path, from_start: true, typed, is_viewer: false, keys: &[] };
    terminal.show().map(drop)
}

fn without_report(id: &str, end: Option<&SandboxEnd>) -> Failure {
    let is_left = end == Some(&SandboxEnd::Unverified);
    let why = if is_left { "something of it is left" } else { "it has no report" };
    Failure::new(FailureKind::Unverified, format!("cannot tell how sandbox {id} ended: {why}"))
}

fn write_report(file: &ReportFile, report: &Report) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(report)?;
    text.push(b'\n');
    file.write(&text)
}

/// Starts the sandbox. The key makes a repeated request harmless.
fn create(client: &Client, caller: &Caller, body: &SandboxSpec) -> Result<Sandbox, Failure> {
    let mut replaced = 0;
    loop {
        let key = Id::new().or_fail(FailureKind::NotStarted, "cannot make a key")?.to_string();
        let headers = [("idempotency-key", key.as_str())];
        let created =
            client.persist(true, |client| client.call(Method::POST, "/v1/sandboxes", &headers, body));
        match created {
            Err(Error::Problem(problem))
                if problem.kind() == "name_taken" && caller.replace && replaced < MOST_REPLACED =>
            {
                let holder = problem.holder.clone().unwrap_or_default();
                request_end(client, &holder, "stop", &json!({})).map_err(|error| {
                    let name = body.name.as_deref().unwrap_or_default();
                    let sentence = format!("cannot replace `{name}`: cannot end sandbox {holder}");
                    Failure::new(FailureKind::NotStarted, sentence).because(error)
                })?;
                replaced += 1;
            }
            created => return created.map_err(Failure::from),
        }
    }
}

/// Other clients may take the name too, each in turn.
const MOST_REPLACED: usize = 100;
