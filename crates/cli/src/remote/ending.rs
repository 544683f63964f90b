//! `stop`, `kill`, `rm` and `extend` on a server.

use penfold_api::{Ended, Sandbox};
use penfold_client::{Client, Error, Method, encoded};
use penfold_control::{ForgetError, StopResult, View};
use penfold_state::time::millis;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::select;
use crate::args::patience::PatienceOverride;
use crate::args::verb::Global;
use crate::commands::extend::ExtendArgs;
use crate::commands::kill::KillArgs;
use crate::commands::pause::PauseArgs;
use crate::commands::rm::RmArgs;
use crate::commands::stop::StopArgs;
use crate::failure::{Failure, FailureKind};
use crate::sandboxes::find::Among;
use crate::sandboxes::tally::Tally;
use crate::{exit_codes, output, value};

/// Stops sandboxes.
pub(super) fn stop(client: &Client, global: &Global, args: &StopArgs) -> Result<u8, Failure> {
    let &StopArgs { ref ids, grace, signal, patience: PatienceOverride { patience }, dry_run, force } = args;
    let signal = signal.map(value::Signal::sendable).transpose()?;
    let selection = select::select(client, ids, Among::Living, force || dry_run, "stop")?;
    let body = json!({
        "signal": signal.map(|signal| signal.as_raw().to_string()),
        "grace_ms": grace.map(millis),
        "patience_ms": patience.map(millis),
    });
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if dry_run {
        would_end(global, &selection.found, true, &mut tally);
        return tally.finish();
    }
    end(client, &selection.found, "stop", &body, &mut tally);
    tally.finish()
}

/// Kills sandboxes.
pub(super) fn kill(client: &Client, global: &Global, args: &KillArgs) -> Result<u8, Failure> {
    let &KillArgs { ref ids, signal, patience: PatienceOverride { patience }, dry_run, force } = args;
    if signal.sendable()? != Signal::KILL {
        let sentence = "a server kills sandboxes only: `--signal` cannot be used together with `--host`";
        return Err(Failure::new(FailureKind::Usage, sentence)
            .hint("`penfold stop -s SIGNAL` sends it, and ends the sandbox"));
    }
    let selection = select::select(client, ids, Among::Living, force || dry_run, "kill")?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    if dry_run {
        would_end(global, &selection.found, true, &mut tally);
        return tally.finish();
    }
    end(client, &selection.found, "kill", &json!({ "patience_ms": patience.map(millis) }), &mut tally);
    tally.finish()
}

/// Removes the records of ended sandboxes; with `--force` kills the sandboxes first.
pub(super) fn rm(client: &Client, global: &Global, args: &RmArgs) -> Result<u8, Failure> {
    let &RmArgs { ref ids, patience: PatienceOverride { patience }, dry_run, force } = args;
    let selection = select::select(client, ids, Among::Every, force || dry_run, "remove")?;
    let coloured = global.color.wanted(&std::io::stderr());
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    let (living, ended): (Vec<View>, Vec<View>) =
        selection.found.into_iter().partition(|view| view.status.is_living());
    let mut doomed = ended;
    if dry_run && force {
        doomed.extend(living);
    } else if force {
        // The request that removes a record takes no patience, so the kill comes first.
        let body = json!({ "patience_ms": patience.map(millis) });
        let killed = penfold_control::at_once(&living, |view| order(client, &view.id, "kill", &body));
        for (view, killed) in living.into_iter().zip(killed) {
            match killed {
                Ok(_) => doomed.push(view),
                Err(error) => conclude(&view.id, Err(error), &mut tally),
            }
        }
    } else {
        for view in living {
            let error = ForgetError::Living { id: view.id, status: view.status };
            tally.failed(&error.into(), coloured);
        }
    }
    if dry_run {
        would_end(global, &doomed, false, &mut tally);
        return tally.finish();
    }
    for view in &doomed {
        let removed = client.send::<Ended>(Method::DELETE, &path(&view.id), &[], Vec::new().into());
        conclude(&view.id, removed, &mut tally);
    }
    tally.finish()
}

/// Lists sandboxes that would be ended.
fn would_end(global: &Global, found: &[View], only_living: bool, tally: &mut Tally) {
    let found = found.iter().filter(|view| !only_living || view.status.is_living());
    tally.would_end(global, &found.map(select::shown).collect::<Vec<_>>());
}

/// Pauses or continues sandboxes, one after the other.
pub(super) fn pause(client: &Client, global: &Global, args: &PauseArgs, act: &str) -> Result<u8, Failure> {
    let PauseArgs { ids, force } = args;
    let selection = select::select(client, ids, Among::Living, *force, act)?;
    let mut tally = Tally::default();
    tally.missed(global, &selection.missed);
    for view in &selection.found {
        match client.send::<Sandbox>(
            Method::POST,
            &format!("{}/{act}", path(&view.id)),
            &[],
            Vec::new().into(),
        ) {
            Ok(_) => tally.done(&view.id),
            Err(error) => {
                let failure = Failure::new(FailureKind::Other, format!("cannot {act} sandbox {}", view.id));
                tally.failed(&failure.because(error), global.color.wanted(&std::io::stderr()));
            }
        }
    }
    tally.finish()
}

/// Renews the lease of a sandbox.
pub(super) fn extend(client: &Client, args: &ExtendArgs) -> Result<u8, Failure> {
    let &ExtendArgs { ref id, lease } = args;
    let view = select::find(client, id)?;
    let ms = if lease.is_zero() { 0 } else { millis(lease).max(1) };
    let url = format!("{}/extend", path(&view.id));
    let extended = client.call::<Sandbox>(Method::POST, &url, &[], &json!({ "lease_ms": ms }));
    extended.map_err(|error| {
        Failure::new(FailureKind::Other, format!("cannot extend the lease of sandbox {}", view.id))
            .because(error)
    })?;
    output::data(format!("{}\n", view.id).as_bytes())?;
    Ok(exit_codes::SUCCESS)
}

pub(super) fn path(id: &str) -> String {
    format!("/v1/sandboxes/{}", encoded(id))
}

/// Ends sandboxes in parallel.
fn end(client: &Client, found: &[View], act: &str, body: &Value, tally: &mut Tally) {
    let ended = penfold_control::at_once(found, |view| order(client, &view.id, act, body));
    for (view, ended) in found.iter().zip(ended) {
        conclude(&view.id, ended, tally);
    }
}

/// Requests the end of one sandbox, with a client of its own.
pub(super) fn order(client: &Client, id: &str, act: &str, body: &Value) -> Result<Ended, Error> {
    let client = client.again()?;
    // Ending twice is ending once.
    client.persist(true, |client| client.call(Method::POST, &format!("{}/{act}", path(id)), &[], body))
}

fn conclude(id: &str, ended: Result<Ended, Error>, tally: &mut Tally) {
    match ended {
        Ok(_) => tally.done(id),
        Err(Error::Problem(problem)) if !problem.remaining.is_empty() => {
            tally.stop_result(id, StopResult::Left(problem.remaining));
        }
        Err(Error::Problem(problem)) if problem.kind() == "not_found" => tally.done(id),
        Err(error) => {
            let kind = failure_kind(&error);
            let sentence = format!("cannot end sandbox {id}");
            tally.failed(&Failure::new(kind, sentence).because(error), false);
        }
    }
}

fn failure_kind(error: &Error) -> FailureKind {
    match error.problem().map(penfold_client::Problem::kind) {
        Some("unverified") => FailureKind::StillThere,
        Some("unauthorized" | "forbidden" | "not_permitted") => FailureKind::NotPermitted,
        _ => FailureKind::Other,
    }
}
