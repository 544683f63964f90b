//! `penfold session-host`: holds a session's shell. The server starts it as the leader of a sandbox; users do not.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use penfold_session::host::{self, Config, HostError};

use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind};
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
    /// The shell, a bash.
    #[arg(long, value_name = "PROGRAM", default_value = "bash")]
    shell: OsString,
}

fn session_host(global: &Global, args: SessionHostArgs) -> Result<u8, Failure> {
    let sentence = "cannot hold a session";
    let failed = |kind: FailureKind, why: &str| Failure::new(kind, sentence).because(why.to_owned());
    let sandboxes = surroundings::outer_sandboxes();
    let innermost =
        sandboxes.last().ok_or_else(|| failed(FailureKind::Usage, "this process runs in no sandbox"))?;
    let known = find::resolver(global).resolve(innermost)?;
    let files = known.record.ok_or_else(|| failed(FailureKind::Other, "the sandbox has no record"))?;
    let config =
        Config { record: files.path().to_owned(), name: args.name, directory: args.cwd, shell: args.shell };
    drop(files);
    match host::run(config) {
        Ok(never) => match never {},
        Err(error @ HostError::Shell { .. }) => {
            Err(Failure::new(FailureKind::NotExecutable, sentence).because(error))
        }
        Err(error) => Err(Failure::new(FailureKind::Other, sentence).because(error)),
    }
}
