//! `penfold attach`: what it does.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use penfold_sandbox::Outcome;
use penfold_sandbox::control::Client;
use penfold_sandbox::wire::{Answer, Received, Request};
use penfold_sys::signal::{self, SignalSet};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;

use crate::args::Global;
use crate::args::attach::AttachArgs;
use crate::exec::{ANSWER, connect};
use crate::failure::Failure;
use crate::pump::{self, End, Pump, Raw};
use crate::{exit_codes, output, run};

/// Sits down at the terminal of a sandbox.
pub(crate) fn attach(global: &Global, args: &AttachArgs) -> Result<u8, Failure> {
    let client = connect(global, &args.id)?;
    let id = client.id().to_owned();
    let failed = |error: io::Error| {
        Failure::new(exit_codes::NOT_STARTED, format!("cannot attach to {id}")).because(error)
    };
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| failed(error.into()))?;
    let seated = client
        .request_with(&Request::Attach(pump::size()), &[theirs.as_fd()], ANSWER)
        .map_err(|error| failed(io::Error::other(error)))?;
    drop(theirs);
    if let Answer::Refused(reason) = seated {
        return Err(Failure::new(exit_codes::NOT_STARTED, format!("cannot attach to {id}: {reason}"))
            .hint("a terminal is given with `penfold run -d -t`"));
    }
    let _ = signal::block(&SignalSet::of([Signal::WINCH.as_raw()]));
    let typed = !args.no_stdin;
    let raw = (typed && io::stdin().is_terminal()).then(Raw::enter).and_then(Result::ok);
    let pump = Pump { inside: ours.as_fd(), typed, leave: true, over: None };
    let end = pump.run(|size| {
        let _ = client.request(&Request::Resize(size), ANSWER);
    });
    drop(raw);
    match end.map_err(failed)? {
        End::Left => {
            output::talk(&format!("penfold: left {id}, which goes on\n"));
            Ok(exit_codes::SUCCESS)
        }
        End::Closed => match outcome(&client).map_err(failed)? {
            Some(outcome) => run::conclude(&outcome, &id, None, false, false),
            None => Err(Failure::new(exit_codes::UNVERIFIED, format!("the supervisor of {id} is gone"))
                .hint(format!("`penfold wait {id}` tells how it ended"))),
        },
    }
}

/// Waits for the outcome of the sandbox; none if its supervisor goes without telling.
fn outcome(client: &Client) -> io::Result<Option<Outcome>> {
    loop {
        match client.take().map_err(io::Error::other)? {
            Received::Message(Answer::Outcome(outcome)) => return Ok(Some(*outcome)),
            Received::Message(_) => {}
            Received::End => return Ok(None),
            Received::Nothing => {
                let mut fds = [PollFd::new(client, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            }
        }
    }
}
