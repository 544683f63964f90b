//! `penfold jail-outside` and `penfold jail-inside`: the two ends of a jail. `penfold run --profile jail` starts them; users do
//! not.
//!
//! bubblewrap stays above the jail, and a signal that ends it would end the command at once. The end outside therefore ignores
//! the signals that ask a process to end. The end inside gives them their actions again, and executes the command.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_supervisor::{lead_foreground_group, open_for_shell};
use penfold_sys::signal;
use rustix::process::Signal;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{execute, surroundings, variables};
use penfold_launch::profile::jail::{Accounts, Jail, JailUser, TEMPORARY};
use penfold_launch::profile::{JAIL_OUTSIDE, memory_file, system_calls};
use penfold_request::JailNetwork as Network;

/// The verb `jail-outside`.
pub(crate) const OUTSIDE: Verb = Verb {
    name: JAIL_OUTSIDE,
    aliases: &[],
    about: "Become bubblewrap with a command in it",
    description: "Becomes bubblewrap, in the working directory and environment of the command, for `penfold run --profile jail`.",
    examples: &[
        ("penfold jail-outside --bwrap=/usr/bin/bwrap --network=none -- make", "run make in a jail"),
        ("penfold jail-outside --bwrap=/usr/bin/bwrap --network=host -- make", "the same with a network"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: OutsideArgs::augment_args,
    places: Places::Here,
    call: |_, matches| outside(&usage::read(&OUTSIDE, matches)?),
};

/// The verb `jail-inside`.
pub(crate) const INSIDE: Verb = Verb {
    name: "jail-inside",
    aliases: &[],
    about: "Become the command of a jail",
    description: "Restores signals and becomes the command, inside a jail of `penfold run --profile jail`.",
    examples: &[
        ("penfold jail-inside --default=15 -- make", "run make, which TERM ends"),
        ("penfold jail-inside -- make", "run make with the signals as they are"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: InsideArgs::augment_args,
    places: Places::Here,
    call: |_: &Global, matches| inside(&usage::read(&INSIDE, matches)?),
};

#[derive(Args, Clone, Debug)]
struct OutsideArgs {
    /// The program of bubblewrap.
    #[arg(long, value_name = "FILE")]
    bwrap: PathBuf,
    /// Network of the jail.
    #[arg(long, value_enum, value_name = "NETWORK")]
    network: Network,
    /// Root directory of the jail.
    #[arg(long, value_name = "DIR")]
    rootfs: Option<PathBuf>,
    /// User of the jail, whose home is this directory.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Directories that a user of the jail's own finds empty.
    #[arg(long, value_name = "DIR")]
    hide: Vec<PathBuf>,
    /// Let the command write to TMPDIR.
    #[arg(long)]
    scratch: bool,
    /// Filter system calls.
    #[arg(long)]
    seccomp: bool,
    /// Go on when the parent dies.
    #[arg(long)]
    outlives_parent: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
struct InsideArgs {
    /// Signals that get their default action.
    #[arg(long, value_name = "NUMBER")]
    default: Vec<i32>,
    /// Give the command a process group of its own, in the foreground of the terminal.
    #[arg(long)]
    foreground: bool,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The signals that ask a process to end.
const ASKING: [Signal; 7] =
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::TERM];

fn outside(args: &OutsideArgs) -> Result<u8, Failure> {
    let failed = "cannot make a jail";
    let directory = std::env::current_dir().or_fail(FailureKind::NotStarted, failed)?;
    let variable = |key: &str| variables::get(OsStr::new(key)).map(PathBuf::from);
    let sockets = variable("PENFOLD_SOCKETS");
    let scratch = variable("TMPDIR").filter(|_| args.scratch);
    let program = std::fs::read_link(surroundings::program()).or_fail(FailureKind::NotStarted, failed)?;
    let scratch = scratch.filter(|_| args.user.is_none());
    let work = Some(&directory).filter(|_| args.user.is_none());
    let writable = [work, sockets.as_ref(), scratch.as_ref()];
    // Stays open until this process has become bubblewrap.
    let filter =
        args.seccomp.then(system_calls::filter_file).transpose().or_fail(FailureKind::NotStarted, failed)?;
    let accounts = args.user.as_deref().map(|user| account_files(args, user)).transpose();
    let accounts = accounts.or_fail(FailureKind::NotStarted, failed)?;
    let user = args.user.as_deref().zip(accounts.as_ref());
    let jail = Jail {
        user: user.map(|(name, (passwd, group))| JailUser {
            name,
            home: &directory,
            hidden: &args.hide,
            accounts: (passwd.as_fd(), group.as_fd()),
        }),
        filter: filter.as_ref().map(AsFd::as_fd),
        rootfs: args.rootfs.as_deref(),
        network: args.network,
        writable: writable.into_iter().flatten().map(PathBuf::as_path).collect(),
        temporary: scratch.as_deref().unwrap_or(TEMPORARY.as_ref()),
        outlives_parent: args.outlives_parent,
        is_root: rustix::process::geteuid().is_root(),
        program: &program,
    };
    let mut words = vec![args.bwrap.clone().into_os_string()];
    words.extend(jail.arguments().or_fail(FailureKind::NotStarted, failed)?);
    words.push(INSIDE.name.into());
    let asking = ASKING.map(Signal::as_raw).into_iter().filter(|&signal| !signal::is_ignored(signal));
    let asking: Vec<i32> = asking.collect();
    words.extend(asking.iter().map(|signal| OsString::from(format!("--default={signal}"))));
    if open_for_shell(&args.command, penfold_sys::fork::own_group()).is_some() {
        words.push("--foreground".into());
    }
    words.push("--".into());
    words.extend(args.command.iter().cloned());
    Err(execute::program(&words, asking, Vec::new()).with_kind(FailureKind::NotStarted))
}

/// Makes the files of the accounts. They stay open until this process has become bubblewrap.
fn account_files(args: &OutsideArgs, user: &str) -> io::Result<(OwnedFd, OwnedFd)> {
    let Accounts { passwd, group } = Accounts::of(args.rootfs.as_deref().unwrap_or(Path::new("/")), user);
    Ok((memory_file("penfold-passwd", &passwd)?, memory_file("penfold-group", &group)?))
}

fn inside(args: &InsideArgs) -> Result<u8, Failure> {
    // The group of the caller has no number in the pid namespace of the jail, so it cannot be compared here.
    if args.foreground
        && let Ok(terminal) = File::options().read(true).write(true).open("/dev/tty")
    {
        // Without a group of its own, the command has the terminal together with its caller.
        let _ = lead_foreground_group(&terminal.into(), None);
    }
    Err(execute::program(&args.command, Vec::new(), args.default.clone()))
}
