//! `penfold session-host`: holds a session's shell. The server starts it as the leader of a sandbox; users do not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_session::session_host::{self, SessionConfig, SessionHostError};
use penfold_state::Identity;
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::sandboxes::find;
use crate::surroundings;

/// The verb `session-host`, which help, completions and manual pages leave out.
pub(crate) const VERB: Verb = Verb {
    name: "session-host",
    aliases: &[],
    about: "Hold the shell of a session",
    description: "Runs in a sandbox and holds one persistent bash for `penfold serve`, until a signal ends it.",
    examples: &[
        ("penfold session-host --name main", "hold the session main of the sandbox around it"),
        ("penfold session-host --name main --cwd /srv", "with another first directory"),
    ],
    usage_failure: FailureKind::Usage,
    define: SessionHostArgs::augment_args,
    places: Places::Here,
    call: |global, matches| session_host(global, usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct SessionHostArgs {
    /// Name of the session.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// First directory of the shell.
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Directory of the sessions, made if it is missing, instead of the record of the sandbox around it.
    #[arg(long, value_name = "DIR", conflicts_with = "as_user")]
    base: Option<PathBuf>,
    /// Become the user of the sandbox around it.
    #[arg(long)]
    as_user: bool,
    /// The shell, a bash.
    #[arg(long, value_name = "PROGRAM", default_value = "bash")]
    shell: OsString,
}

const SENTENCE: &str = "cannot hold a session";

fn session_host(global: &Global, args: SessionHostArgs) -> Result<u8, Failure> {
    let (record, identity) = match args.base {
        Some(base) => {
            make_base(&base).or_fail(FailureKind::Other, SENTENCE)?;
            (base, None)
        }
        None => of_sandbox(global, args.as_user)?,
    };
    let config = SessionConfig { record, name: args.name, directory: args.cwd, shell: args.shell, identity };
    match session_host::run_session_host(config) {
        Ok(never) => match never {},
        Err(error @ SessionHostError::Shell { .. }) => {
            Err(Failure::new(FailureKind::NotExecutable, SENTENCE).because(error))
        }
        Err(error) => Err(Failure::new(FailureKind::Other, SENTENCE).because(error)),
    }
}

/// Makes a private directory, unless another host has made it.
fn make_base(base: &Path) -> std::io::Result<()> {
    match rustix::fs::mkdir(base, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the record of the sandbox around this process, and the user to become.
fn of_sandbox(global: &Global, as_user: bool) -> Result<(PathBuf, Option<Identity>), Failure> {
    let failed = |kind: FailureKind, why: &str| Failure::new(kind, SENTENCE).because(why.to_owned());
    let sandboxes = surroundings::outer_sandboxes();
    let innermost =
        sandboxes.last().ok_or_else(|| failed(FailureKind::Usage, "this process runs in no sandbox"))?;
    let known = find::resolver(global).resolve(innermost)?;
    let files = known.record.ok_or_else(|| failed(FailureKind::Other, "the sandbox has no record"))?;
    let record = files.path().to_owned();
    let identity = known.intent.and_then(|intent| intent.identity);
    match (as_user, identity) {
        (false, _) => Ok((record, None)),
        (true, Some(identity)) => Ok((record, Some(identity))),
        // Fails closed: the shell must not be root.
        (true, None) => Err(failed(FailureKind::Other, "the record of the sandbox names no user")),
    }
}
