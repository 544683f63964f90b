//! `penfold watch`.

use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use clap::Args;
use penfold_control::{WatchEvent, WatchSettings};
use penfold_state::{Registry, recovery};
use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{exit_codes, output, pid_one, service_manager, surroundings};

/// The verb `watch`.
pub(crate) const VERB: Verb = Verb {
    name: "watch",
    aliases: &[],
    about: "Recover sandboxes that lose all their supervisors",
    description: "Runs in the foreground until SIGTERM or SIGINT, and watches the supervisors of the sandboxes below the state \
        root. A sandbox that loses all of them at once is ended within a second, as by `penfold gc`, and not only at the \
        next command. Sandboxes that were lost before are ended first. `penfold serve` does the same. Several watchers of \
        one state root do no harm; a sandbox that was started with `--on-supervisor-exit keep` goes on.",
    examples: &[
        ("penfold watch", "end lost sandboxes at once, for as long as this runs"),
        ("penfold watch --root /srv/penfold", "the same for the sandboxes of another state root"),
    ],
    usage_failure: FailureKind::Usage,
    define: WatchArgs::augment_args,
    places: Places::Here,
    call: |global, matches| watch(global, &usage::read(&VERB, matches)?),
};

/// The time that the members of a lost sandbox may take to die.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `penfold watch` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct WatchArgs {
    /// Recover these sandboxes if they are lost, and exit.
    #[arg(long, hide = true, value_name = "ID", num_args = 1..)]
    pub(crate) recover: Vec<String>,
    /// End containers whose `delete` was refused and of which no process lives, and exit.
    #[arg(long, hide = true)]
    pub(crate) containers: bool,
}

/// Watches until a signal.
pub(crate) fn watch(global: &Global, args: &WatchArgs) -> Result<u8, Failure> {
    let state_root = surroundings::absolute_root(global);
    if !args.recover.is_empty() {
        let Some(registry) = Registry::open_existing(&state_root)? else { return Ok(exit_codes::SUCCESS) };
        return Ok(recover(&registry, &args.recover));
    }
    if args.containers {
        let left = penfold_oci::complete_refused(&state_root, None)
            .or_fail(FailureKind::Other, "cannot read the notes of containers")?;
        return Ok(if left { exit_codes::STILL_THERE } else { exit_codes::SUCCESS });
    }
    if let Some(code) = pid_one::fork_if_init()? {
        return Ok(code);
    }
    let signals = SignalSet::of([Signal::TERM.as_raw(), Signal::INT.as_raw()]);
    signal::block_signals(&signals).or_fail(FailureKind::Other, "cannot block signals")?;
    let stop = SignalFd::open(&signals).or_fail(FailureKind::Other, "cannot wait for signals")?;
    let settings = WatchSettings { state_root, program: surroundings::program() };
    let mut tell = |event: WatchEvent<'_>| match event {
        WatchEvent::Ready => service_manager::notify_ready(),
        WatchEvent::Lost(id) => output::message(&format!("penfold: {id} has lost its supervisors\n")),
        WatchEvent::Recovered(id) => {
            output::message(&format!("penfold: {id} was recovered; nothing of it is left\n"));
        }
        WatchEvent::Unrecovered(id) => {
            output::message(&format!("penfold: something of {id} may be left; `penfold doctor` shows it\n"));
        }
    };
    let result = penfold_control::watch_sandboxes(&settings, stop.as_fd(), &mut tell);
    service_manager::notify_stopping();
    result.map_err(|error: io::Error| {
        let sentence = format!("cannot watch the state root `{}`", settings.state_root.display());
        Failure::new(FailureKind::from(&error), sentence).because(error)
    })?;
    Ok(exit_codes::SUCCESS)
}

/// Recovers those of these sandboxes that are lost.
fn recover(registry: &Registry, names: &[String]) -> u8 {
    let mut exit = exit_codes::SUCCESS;
    for name in names {
        match recovery::recover_lost(registry, name, PATIENCE) {
            Ok(findings) if findings.as_ref().is_none_or(|findings| findings.verified) => {}
            _ => exit = exit_codes::STILL_THERE,
        }
    }
    exit
}
