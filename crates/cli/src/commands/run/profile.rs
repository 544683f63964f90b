//! `penfold run --profile`: words in front of the command that put the command into something ready-made.

pub(crate) mod jail;
pub(crate) mod system_calls;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{OnSupervisorExit, RunArgs};
use crate::failure::{Failure, FailureKind};
use crate::surroundings;

/// The flags of profiles.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProfileArgs {
    /// Run the command in a jail of bubblewrap: own processes, read-only files, no network; see docs/jail.md.
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) profile: Option<Profile>,
    /// Root directory of the jail, instead of that of the host; read-only as well.
    #[arg(long, value_name = "DIR", requires = "profile")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Network of the jail [default: none; new with --netns and --address].
    #[arg(long, value_enum, value_name = "NETWORK", requires = "profile")]
    pub(crate) network: Option<Network>,
    /// Let the command in the jail make all system calls; otherwise a filter denies those that a jail does not need.
    #[arg(long, requires = "profile")]
    pub(crate) no_seccomp: bool,
}

/// The value of `--profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Namespaces of bubblewrap.
    Jail,
}

/// The value of `--network`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Network {
    /// A loopback device only.
    None,
    /// The network of penfold's caller.
    Host,
    /// The network namespace of the sandbox, as with --netns.
    New,
}

impl Network {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Network::None => "none",
            Network::Host => "host",
            Network::New => "new",
        }
    }
}

/// Returns the words in front of the command; none without a profile. May add a network namespace to the resources.
pub(super) fn wrapper(args: &mut RunArgs) -> Result<Vec<OsString>, Failure> {
    let Some(Profile::Jail) = args.profile.profile else { return Ok(Vec::new()) };
    let not_started = |sentence: String| Failure::new(FailureKind::NotStarted, sentence);
    let has_namespace = args.resources.request().network.is_some_and(|network| network.namespace);
    let network = args.profile.network.unwrap_or(if has_namespace { Network::New } else { Network::None });
    if network == Network::New {
        args.resources.add_namespace();
    } else if has_namespace {
        let sentence =
            format!("`--network {}` leaves the network namespace without a command", network.word());
        return Err(not_started(sentence).hint("`--network new`"));
    }
    let bwrap = jail::find_bwrap(surroundings::variable("PATH".as_ref()).as_deref()).ok_or_else(|| {
        not_started("cannot make a jail: there is no `bwrap` in PATH".to_owned()).hint("install bubblewrap")
    })?;
    let rootfs = match &args.profile.rootfs {
        None => None,
        Some(dir) => Some(dir.canonicalize().ok().filter(|dir| dir.is_dir()).ok_or_else(|| {
            not_started(format!("cannot make a jail: `{}` is no directory", dir.display()))
        })?),
    };
    if !args.scratch || args.bounds.workdir.is_some() {
        // The workspace may not exist yet, so links in it cannot matter.
        let workspace = args.resources.request().workspace.map(|workspace| workspace.path);
        let given = args.bounds.workdir.clone().or(workspace).unwrap_or_else(|| ".".into());
        let directory = given.canonicalize().unwrap_or(given);
        jail::check_directory(&directory, rootfs.as_deref()).map_err(not_started)?;
    }
    let mut words: Vec<OsString> = vec![surroundings::program().into(), "jail-outside".into()];
    let mut option = |flag: &str, value: OsString| {
        let mut word = OsString::from(format!("--{flag}="));
        word.push(value);
        words.push(word);
    };
    option("bwrap", bwrap.into());
    option("network", network.word().into());
    if let Some(rootfs) = rootfs {
        option("rootfs", rootfs.into());
    }
    let flags = [
        (args.scratch, "--scratch"),
        (!args.profile.no_seccomp, "--seccomp"),
        (args.on_supervisor_exit == OnSupervisorExit::Keep, "--outlives-parent"),
    ];
    words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.into()));
    words.push("--".into());
    Ok(words)
}
