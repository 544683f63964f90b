//! `penfold run --profile`: a command in something ready-made, or of a kind that penfold knows.

pub(crate) mod jail;
pub(crate) mod system_calls;
mod vmm;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::{OnSupervisorExit, RunArgs};
use penfold_state::JAIL_PROGRAM;

use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{surroundings, variables};

/// The flags of profiles.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Profiles")]
pub(crate) struct ProfileArgs {
    /// jail: run the command under bubblewrap, see docs/jail.md; vmm: the command is a virtual machine monitor, see docs/microvm.md.
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    pub(crate) profile: Option<Profile>,
    /// Root directory of the jail, instead of that of the host; read-only as well.
    #[arg(long, value_name = "DIR", requires = "profile")]
    pub(crate) rootfs: Option<PathBuf>,
    /// Network of the jail [default: none; new with --netns and --address].
    #[arg(long, value_enum, value_name = "NETWORK", requires = "profile")]
    pub(crate) network: Option<Network>,
    #[arg(
        long,
        value_enum,
        value_name = "VMM",
        hide_possible_values = true,
        requires = "profile",
        help = "The monitor of the profile vmm: qemu, firecracker, cloud-hypervisor [default: the first that CMD names]"
    )]
    pub(crate) vmm: Option<vmm::Vmm>,
    /// Let the command in the jail make all system calls; otherwise a filter denies those that a jail does not need.
    #[arg(long, requires = "profile")]
    pub(crate) no_seccomp: bool,
}

/// The value of `--profile`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// Namespaces of bubblewrap.
    Jail,
    /// A virtual machine monitor.
    Vmm,
}

impl Profile {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Profile::Jail => "jail",
            Profile::Vmm => "vmm",
        }
    }
}

impl From<Profile> for penfold_state::Profile {
    fn from(profile: Profile) -> penfold_state::Profile {
        match profile {
            Profile::Jail => penfold_state::Profile::Jail,
            Profile::Vmm => penfold_state::Profile::Vmm,
        }
    }
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

impl ProfileArgs {
    /// Refuses the flags of another profile.
    pub(crate) fn refuse_others(&self) -> Result<(), Failure> {
        let ProfileArgs { profile, rootfs, network, vmm, no_seccomp } = self;
        let flags = [
            (rootfs.is_some(), "--rootfs", Profile::Jail),
            (network.is_some(), "--network", Profile::Jail),
            (*no_seccomp, "--no-seccomp", Profile::Jail),
            (vmm.is_some(), "--vmm", Profile::Vmm),
        ];
        match flags.into_iter().find(|(given, _, of)| *given && *profile != Some(*of)) {
            None => Ok(()),
            Some((_, flag, of)) => {
                Err(not_started(format!("`{flag}` is a flag of the profile `{}`", of.word())))
            }
        }
    }
}

fn not_started(sentence: String) -> Failure {
    Failure::new(FailureKind::NotStarted, sentence)
}

/// Applies the profile to the arguments. Returns the words in front of the command, if there are any.
pub(super) fn apply(args: &mut RunArgs) -> Result<Vec<OsString>, Failure> {
    match args.profile.profile {
        None => Ok(Vec::new()),
        Some(Profile::Jail) => jail(args),
        Some(Profile::Vmm) => prepare_vmm(args).map(|()| Vec::new()),
    }
}

/// Returns the path of penfold's own program, as the commands of the sandbox see it.
pub(super) fn program(args: &ProfileArgs) -> PathBuf {
    if args.profile == Some(Profile::Jail) { JAIL_PROGRAM.into() } else { surroundings::program() }
}

/// Returns what an exec needs to enter the jail of the sandbox.
pub(super) fn jail_of(args: &ProfileArgs) -> Result<Option<penfold_state::Jail>, Failure> {
    if args.profile != Some(Profile::Jail) {
        return Ok(None);
    }
    let filter = (!args.no_seccomp).then(system_calls::filter).transpose();
    let filter = filter.or_fail(FailureKind::NotStarted, "cannot make a jail")?;
    Ok(Some(penfold_state::Jail { filter, temporary: jail::TEMPORARY.into() }))
}

/// Adds a directory of sockets, and the stop request of the monitor.
fn prepare_vmm(args: &mut RunArgs) -> Result<(), Failure> {
    args.profile.refuse_others()?;
    let vmm = args.profile.vmm.or_else(|| vmm::Vmm::find(&args.command)).ok_or_else(|| {
        not_started("the command names no virtual machine monitor that penfold knows".to_owned())
            .hint("`--vmm qemu`, `--vmm firecracker`, `--vmm cloud-hypervisor`")
    })?;
    let named = |text: &str| args.command.iter().any(|word| word.to_string_lossy().contains(text));
    let is_direct = args.command.first().and_then(|word| vmm::Vmm::of(word)) == Some(vmm);
    if is_direct && vmm != vmm::Vmm::Qemu && named(vmm.option()) {
        let sentence = format!("the profile `vmm` adds `{}`, and the command has it already", vmm.option());
        return Err(not_started(sentence).hint("leave it out; `$PENFOLD_VMM_SOCKET` is the path"));
    }
    if !is_direct && !args.stop.is_given() && !named(vmm::VARIABLE) {
        let sentence = "the monitor runs below another command, and does not listen on `$PENFOLD_VMM_SOCKET`";
        let option =
            vmm.arguments("$PENFOLD_VMM_SOCKET".as_ref()).map(|word| word.to_string_lossy().into_owned());
        return Err(
            not_started(sentence.to_owned()).hint(format!("add `{}` to its arguments", option.join(" ")))
        );
    }
    args.profile.vmm = Some(vmm);
    args.stop.default_to(vmm.stop_channel());
    args.resources.add_sockets();
    Ok(())
}

/// Adds what depends on the directory of sockets: the variable, and the arguments of a monitor that is the command itself.
pub(super) fn complete_vmm(args: &mut RunArgs, sockets: Option<&Path>) -> Option<(OsString, OsString)> {
    let (Some(Profile::Vmm), Some(vmm), Some(sockets)) = (args.profile.profile, args.profile.vmm, sockets)
    else {
        return None;
    };
    let socket = vmm::socket(sockets);
    if args.command.first().and_then(|word| vmm::Vmm::of(word)) == Some(vmm) {
        // The words after `--` are not for the monitor itself.
        let end = args.command.iter().position(|word| word == "--").unwrap_or(args.command.len());
        args.command.splice(end..end, vmm.arguments(&socket));
    }
    Some((vmm::VARIABLE.into(), socket.into()))
}

/// Returns the words in front of a command in a jail. May add a network namespace to the resources.
fn jail(args: &mut RunArgs) -> Result<Vec<OsString>, Failure> {
    args.spare.refuse_namespace("--profile jail")?;
    args.profile.refuse_others()?;
    let has_namespace = args.resources.request().network.is_some_and(|network| network.namespace);
    let network = args.profile.network.unwrap_or(if has_namespace { Network::New } else { Network::None });
    if network == Network::New {
        args.resources.add_namespace();
    } else if has_namespace {
        let sentence =
            format!("`--network {}` leaves the network namespace without a command", network.word());
        return Err(not_started(sentence).hint("`--network new`"));
    }
    let bwrap = jail::find_bwrap(variables::get("PATH".as_ref()).as_deref()).ok_or_else(|| {
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
        (args.detached.on_supervisor_exit == OnSupervisorExit::Keep, "--outlives-parent"),
    ];
    words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.into()));
    words.push("--".into());
    Ok(words)
}
