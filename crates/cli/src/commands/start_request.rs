//! `penfold start-request`: starts the detached sandbox that its standard input asks for. `serve` and `mcp` run it; users do not.

use std::io::{self, Read as _};

use clap::{ArgMatches, Command};
use penfold_control::START_REQUEST;
use penfold_launch::caller::Caller;
use penfold_request::{StartAnswer, StartRequest};
use rustix::fs::{Mode, OFlags};

use super::run;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, output};

/// The verb `start-request`.
pub(crate) const VERB: Verb = Verb {
    name: START_REQUEST,
    aliases: &[],
    about: "Start the detached sandbox that standard input asks for",
    description: "Reads a request from standard input, as JSON, starts the sandbox without a configuration, and writes the answer to \
        standard output, as JSON. The environment and the directory are those of the command.",
    examples: &[
        ("penfold start-request", "start what standard input asks for"),
        ("penfold start-request --root /run/penfold", "the same below another state root"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: |command: Command| command,
    places: Places::Here,
    call: start_request,
};

/// The largest request: a server takes bodies of 16 MiB, and JSON may need more for the same texts.
const LARGEST: u64 = 64 << 20;

fn start_request(global: &Global, _: ArgMatches) -> Result<u8, Failure> {
    let started = read_request().and_then(|request| {
        let (spec, caller) = Caller::of(request);
        let tell_id = |id: &str| output::json(&StartAnswer::Started { id: id.to_owned() });
        run::run_detached(global, spec, &caller, |_| (), tell_id)
    });
    match started {
        Ok(()) => Ok(exit_codes::SUCCESS),
        Err(failure) => {
            tell(&StartAnswer::Refused(failure.refusal()))?;
            Ok(failure.exit_code())
        }
    }
}

fn tell(answer: &StartAnswer) -> Result<(), Failure> {
    output::json(answer).map_err(Failure::not_started)
}

/// Reads the request. Standard input is empty then, as that of the command.
fn read_request() -> Result<StartRequest, Failure> {
    let cannot = "cannot read the request on standard input";
    let mut text = Vec::new();
    let count = io::stdin().lock().take(LARGEST).read_to_end(&mut text);
    let count = count.or_fail(FailureKind::NotStarted, cannot)?;
    if u64::try_from(count).unwrap_or(LARGEST) >= LARGEST {
        return Err(Failure::new(FailureKind::NotStarted, cannot).because("it has 64 MiB or more"));
    }
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null = null.or_fail(FailureKind::NotStarted, "cannot open `/dev/null`")?;
    rustix::stdio::dup2_stdin(&null).or_fail(FailureKind::NotStarted, "cannot open `/dev/null`")?;
    serde_json::from_slice(&text).or_fail(FailureKind::NotStarted, cannot)
}
