//! `penfold as-user`: becomes another user, and then the command. `run --user` and `exec --user` start it; users do not.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_launch::user::AS_USER;
use penfold_state::USER_SCRATCH;
use penfold_sys::launch::Credentials;
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;

use crate::args::usage;
use crate::args::verb::{Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{execute, variables};

/// The verb `as-user`.
pub(crate) const VERB: Verb = Verb {
    name: AS_USER,
    aliases: &[],
    about: "Become another user, and a command",
    description: "Becomes another user, and then the command, for `penfold run --user`.",
    examples: &[
        ("penfold as-user --uid=1000 --gid=100 --groups=29,100 -- id", "run id as user 1000"),
        ("penfold as-user --uid=1000 --gid=100 --groups=100 --scratch -- id", "the same, with TMPDIR"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: AsUserArgs::augment_args,
    places: Places::Here,
    call: |_, matches| as_user(&usage::read(&VERB, matches)?),
};

#[derive(Args, Clone, Debug)]
struct AsUserArgs {
    /// The user.
    #[arg(long, value_name = "UID")]
    uid: u32,
    /// The group.
    #[arg(long, value_name = "GID")]
    gid: u32,
    /// All groups.
    #[arg(long, value_name = "GID", value_delimiter = ',')]
    groups: Vec<u32>,
    /// Use the directory of the user in TMPDIR in its place.
    #[arg(long)]
    scratch: bool,
    /// Give the terminal on standard input to the user.
    #[arg(long)]
    terminal: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

fn as_user(args: &AsUserArgs) -> Result<u8, Failure> {
    let sentence = format!("cannot become user {}", args.uid);
    let own = args.scratch.then(own_scratch).transpose().or_fail(FailureKind::NotStarted, &sentence)?;
    if args.terminal {
        // So that the user can open the terminal by its name.
        let (user, group) = (Uid::from_raw(args.uid), Gid::from_raw(args.gid));
        let given = rustix::fs::fchown(std::io::stdin(), Some(user), Some(group));
        given.map_err(std::io::Error::from).or_fail(FailureKind::NotStarted, &sentence)?;
    }
    let user = Credentials::new(args.uid, args.gid, &args.groups).ok_or(Errno::INVAL);
    let became = user.and_then(|user| user.become_user()).map_err(std::io::Error::from);
    became.or_fail(FailureKind::NotStarted, &sentence)?;
    let changed: Vec<_> = own.map(|own| ("TMPDIR".into(), own.into_os_string())).into_iter().collect();
    Err(execute::with(&args.command, &changed, Vec::new(), Vec::new()))
}

/// Returns the directory of the user, and enters it if the scratch directory is the working directory.
fn own_scratch() -> std::io::Result<PathBuf> {
    let scratch = variables::get("TMPDIR".as_ref()).map(PathBuf::from).unwrap_or_default();
    let own = scratch.join(USER_SCRATCH);
    if is_here(&scratch) {
        rustix::process::chdir(&own)?;
    }
    Ok(own)
}

fn is_here(directory: &Path) -> bool {
    std::env::current_dir().is_ok_and(|here| here == directory)
}
