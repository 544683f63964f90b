//! `penfold as-user`: becomes another user, and then the command. `run --user` and `exec --user` start it; users do not.

use std::ffi::OsString;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::process::{Gid, Uid};

use crate::args::usage;
use crate::args::user::User;
use crate::args::verb::Verb;
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{execute, surroundings, variables};

/// The verb `as-user`.
pub(crate) const VERB: Verb = Verb {
    name: "as-user",
    aliases: &[],
    about: "Become another user, and a command",
    description: "Becomes another user, and then the command, for `penfold run --user`.",
    examples: &[
        ("penfold as-user --uid=1000 --gid=100 --groups=29,100 -- id", "run id as user 1000"),
        ("penfold as-user --uid=1000 --gid=100 --groups=100 --scratch -- id", "the same, with TMPDIR"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: AsUserArgs::augment_args,
    call: |_, matches| as_user(&usage::read(&VERB, matches)?),
};

/// The words in front of a command that make it run as this user; `scratch` if it gets a scratch directory.
pub(super) fn words(user: &User, scratch: bool) -> Vec<OsString> {
    let groups: Vec<String> = user.groups.iter().map(u32::to_string).collect();
    let mut words: Vec<OsString> = vec![
        surroundings::program().into(),
        VERB.name.into(),
        format!("--uid={}", user.uid).into(),
        format!("--gid={}", user.gid).into(),
        format!("--groups={}", groups.join(",")).into(),
    ];
    words.extend(scratch.then(|| "--scratch".into()));
    words.push("--".into());
    words
}

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
    /// Make a directory of the user in TMPDIR, which takes its place.
    #[arg(long)]
    scratch: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The name of the user's directory in the scratch directory, which stays penfold's: only its owner finds it after a crash.
const OWN: &str = "user";

fn as_user(args: &AsUserArgs) -> Result<u8, Failure> {
    let sentence = format!("cannot become user {}", args.uid);
    let own =
        args.scratch.then(|| own_scratch(args)).transpose().or_fail(FailureKind::NotStarted, &sentence)?;
    become_user(args).map_err(std::io::Error::from).or_fail(FailureKind::NotStarted, &sentence)?;
    let changed: Vec<_> = own.map(|own| ("TMPDIR".into(), own.into_os_string())).into_iter().collect();
    Err(execute::with(&args.command, &changed, Vec::new(), Vec::new()))
}

/// Makes the directory of the user, and enters it if the scratch directory is the working directory.
fn own_scratch(args: &AsUserArgs) -> std::io::Result<PathBuf> {
    let scratch = variables::get("TMPDIR".as_ref()).map(PathBuf::from).unwrap_or_default();
    let own = scratch.join(OWN);
    std::fs::create_dir(&own)?;
    chown(&own, Some(args.uid), Some(args.gid))?;
    std::fs::set_permissions(&own, PermissionsExt::from_mode(0o700))?;
    // Others may go through it, and see nothing.
    std::fs::set_permissions(&scratch, PermissionsExt::from_mode(0o711))?;
    if is_here(&scratch) {
        rustix::process::chdir(&own)?;
    }
    Ok(own)
}

fn is_here(directory: &Path) -> bool {
    std::env::current_dir().is_ok_and(|here| here == directory)
}

/// Gives up root, for good: the groups first, which only root may change.
fn become_user(args: &AsUserArgs) -> rustix::io::Result<()> {
    let groups: Vec<Gid> = args.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(args.uid), Gid::from_raw(args.gid));
    rustix::thread::set_thread_groups(&groups)?;
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    rustix::thread::set_thread_res_uid(uid, uid, uid)
}
