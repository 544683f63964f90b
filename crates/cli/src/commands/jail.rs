//! `penfold jail-outside` and `penfold jail-inside`: the two ends of a jail. `penfold run --profile jail` starts them; users do
//! not.
//!
//! bubblewrap stays above the jail, and a signal that ends it would end the command at once. The end outside therefore ignores
//! the signals that ask a process to end. The end inside gives them their actions again, and executes the command.

use std::ffi::{CString, OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use clap::Args;
use penfold_state::StartFailure;
use penfold_sys::launch::Program;
use penfold_sys::signal::{self, SignalSet};
use rustix::io::Errno;
use rustix::process::Signal;

use super::run::profile::Network;
use super::run::profile::jail::Jail;
use super::run::profile::system_calls;
use crate::args::usage;
use crate::args::verb::{Global, Verb};
use crate::failure::{Failure, FailureKind, NotStarted, OrFail as _};
use crate::surroundings;

/// The verb `jail-outside`.
pub(crate) const OUTSIDE: Verb = Verb {
    name: "jail-outside",
    aliases: &[],
    about: "Become bubblewrap with a command in it",
    description: "Becomes bubblewrap, in the working directory and environment of the command, for `penfold run --profile jail`.",
    examples: &[
        ("penfold jail-outside --bwrap=/usr/bin/bwrap --network=none -- make", "run make in a jail"),
        ("penfold jail-outside --bwrap=/usr/bin/bwrap --network=host -- make", "the same with a network"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: OutsideArgs::augment_args,
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
    let variable = |key: &str| surroundings::variable(OsStr::new(key)).map(PathBuf::from);
    let sockets = variable("PENFOLD_SOCKETS");
    let scratch = variable("TMPDIR").filter(|_| args.scratch);
    let program = std::fs::read_link(surroundings::program()).or_fail(FailureKind::NotStarted, failed)?;
    let writable = [Some(&directory), sockets.as_ref(), scratch.as_ref()];
    // Stays open until this process has become bubblewrap.
    let filter =
        args.seccomp.then(system_calls::file).transpose().or_fail(FailureKind::NotStarted, failed)?;
    let jail = Jail {
        filter: filter.as_ref().map(AsFd::as_fd),
        rootfs: args.rootfs.as_deref(),
        network: args.network,
        writable: writable.into_iter().flatten().map(PathBuf::as_path).collect(),
        temporary: scratch.as_deref().unwrap_or("/tmp".as_ref()),
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
    words.push("--".into());
    words.extend(args.command.iter().cloned());
    Err(execute(&words, asking, Vec::new()).with_kind(FailureKind::NotStarted))
}

fn inside(args: &InsideArgs) -> Result<u8, Failure> {
    Err(execute(&args.command, Vec::new(), args.default.clone()))
}

/// Becomes a program, with the signal mask of this process; returns only if that fails.
fn execute(words: &[OsString], mut ignored: Vec<i32>, mut defaults: Vec<i32>) -> Failure {
    let name = words.first().map(OsString::as_os_str).unwrap_or_default();
    let c_strings = |list: Vec<OsString>| -> Vec<CString> {
        list.into_iter().filter_map(|word| CString::new(word.into_vec()).ok()).collect()
    };
    let candidates = if name.as_bytes().contains(&b'/') {
        vec![name.to_owned()]
    } else {
        let path = surroundings::variable("PATH".as_ref()).unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&path).map(|dir| dir.join(name).into_os_string()).collect()
    };
    let environment = surroundings::environment().map(|(mut key, value)| {
        key.push("=");
        key.push(value);
        key
    });
    let mut program =
        Program::new(c_strings(candidates), c_strings(words.to_vec()), c_strings(environment.collect()));
    // penfold itself ignores SIGPIPE.
    let pipe = if signal::pipe_inherited_ignored() { &mut ignored } else { &mut defaults };
    pipe.push(Signal::PIPE.as_raw());
    let mask = signal::block(&SignalSet::empty()).unwrap_or_else(|_| SignalSet::empty());
    let errno = program.signals(mask, ignored, defaults).exec().errno;
    let failure = if errno == Errno::NOENT.raw_os_error() {
        StartFailure::NotFound
    } else {
        StartFailure::NotExecutable(errno)
    };
    NotStarted { failure: &failure, command: &name.to_string_lossy(), directory: None }.into()
}
