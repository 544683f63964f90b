//! `penfold run --profile`: a command in something ready-made, or of a kind that penfold knows.

pub(crate) mod jail;
pub(crate) mod system_calls;
mod vmm;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_process::path_text::path_of_text;
use penfold_request::{JailNetwork, Profile, SandboxSpec, Vmm, VmmKind};
use penfold_state::JAIL_PROGRAM;

use crate::args::spare;
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
    pub(crate) network: Option<JailNetwork>,
    #[arg(
        long,
        value_enum,
        value_name = "VMM",
        hide_possible_values = true,
        requires = "profile",
        help = "The monitor of the profile vmm: qemu, firecracker, cloud-hypervisor [default: the first that CMD names]"
    )]
    pub(crate) vmm: Option<VmmKind>,
    /// Let the command in the jail make all system calls; otherwise a filter denies those that a jail does not need.
    #[arg(long, requires = "profile")]
    pub(crate) no_seccomp: bool,
}

/// Refuses the settings of another profile.
///
/// # Errors
/// When there is one, or one without a profile.
pub(crate) fn refuse_others(spec: &SandboxSpec) -> Result<(), Failure> {
    let jail = spec.jail.clone().unwrap_or_default();
    let flags = [
        (jail.rootfs.is_some(), "--rootfs", Profile::Jail),
        (jail.network.is_some(), "--network", Profile::Jail),
        (jail.seccomp == Some(false), "--no-seccomp", Profile::Jail),
        (spec.vmm.as_ref().is_some_and(|vmm| vmm.kind.is_some()), "--vmm", Profile::Vmm),
    ];
    match flags.into_iter().find(|(given, _, of)| *given && spec.profile != Some(*of)) {
        None => Ok(()),
        Some((_, flag, of)) => Err(not_started(format!("`{flag}` is a flag of the profile `{}`", of.word()))),
    }
}

fn not_started(sentence: String) -> Failure {
    Failure::new(FailureKind::NotStarted, sentence)
}

/// Applies the profile to the specification. Returns the words in front of the command, if there are any.
pub(super) fn apply(spec: &mut SandboxSpec, command: &[OsString]) -> Result<Vec<OsString>, Failure> {
    refuse_others(spec)?;
    match spec.profile {
        None => Ok(Vec::new()),
        Some(Profile::Jail) => jail(spec),
        Some(Profile::Vmm) => prepare_vmm(spec, command).map(|()| Vec::new()),
    }
}

/// Returns the path of penfold's own program, as the commands of the sandbox see it.
pub(super) fn program(spec: &SandboxSpec) -> PathBuf {
    if spec.profile == Some(Profile::Jail) { JAIL_PROGRAM.into() } else { surroundings::program() }
}

/// Returns what an exec needs to enter the jail of the sandbox.
pub(super) fn jail_of(spec: &SandboxSpec) -> Result<Option<penfold_state::Jail>, Failure> {
    if spec.profile != Some(Profile::Jail) {
        return Ok(None);
    }
    let filter = is_filtered(spec).then(system_calls::filter).transpose();
    let filter = filter.or_fail(FailureKind::NotStarted, "cannot make a jail")?;
    Ok(Some(penfold_state::Jail { filter, temporary: jail::TEMPORARY.into() }))
}

/// Whether a filter denies the system calls that a jail does not need.
fn is_filtered(spec: &SandboxSpec) -> bool {
    spec.jail.as_ref().and_then(|jail| jail.seccomp) != Some(false)
}

/// Adds a directory of sockets, and the stop request of the monitor.
fn prepare_vmm(spec: &mut SandboxSpec, command: &[OsString]) -> Result<(), Failure> {
    let given = spec.vmm.as_ref().and_then(|vmm| vmm.kind);
    let vmm = given.or_else(|| vmm::find_monitor(command)).ok_or_else(|| {
        not_started("the command names no virtual machine monitor that penfold knows".to_owned())
            .hint("`--vmm qemu`, `--vmm firecracker`, `--vmm cloud-hypervisor`")
    })?;
    let named = |text: &str| command.iter().any(|word| word.to_string_lossy().contains(text));
    let is_direct = is_monitor(command, vmm);
    let option = vmm::socket_option(vmm);
    if is_direct && vmm != VmmKind::Qemu && named(option) {
        let sentence = format!("the profile `vmm` adds `{option}`, and the command has it already");
        return Err(not_started(sentence).hint("leave it out; `$PENFOLD_VMM_SOCKET` is the path"));
    }
    if !is_direct && spec.stop.is_none() && !named(vmm::VARIABLE) {
        let sentence = "the monitor runs below another command, and does not listen on `$PENFOLD_VMM_SOCKET`";
        let option = vmm::socket_arguments(vmm, "$PENFOLD_VMM_SOCKET".as_ref())
            .map(|word| word.to_string_lossy().into_owned());
        return Err(
            not_started(sentence.to_owned()).hint(format!("add `{}` to its arguments", option.join(" ")))
        );
    }
    spec.vmm = Some(Vmm { kind: Some(vmm) });
    spec.stop.get_or_insert_with(|| vmm::stop_channel(vmm));
    spec.sockets.get_or_insert_default();
    Ok(())
}

/// Whether the command is this monitor itself.
fn is_monitor(command: &[OsString], vmm: VmmKind) -> bool {
    command.first().and_then(|word| vmm::monitor_of(word)) == Some(vmm)
}

/// Adds what depends on the directory of sockets: the variable, and the arguments of a monitor that is the command itself.
pub(super) fn complete_vmm(
    spec: &SandboxSpec,
    command: &mut Vec<OsString>,
    sockets: Option<&Path>,
) -> Option<(OsString, OsString)> {
    let vmm = spec.vmm.as_ref().filter(|_| spec.profile == Some(Profile::Vmm))?.kind?;
    let socket = vmm::socket(sockets?);
    if is_monitor(command, vmm) {
        // The words after `--` are not for the monitor itself.
        let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
        command.splice(end..end, vmm::socket_arguments(vmm, &socket));
    }
    Some((vmm::VARIABLE.into(), socket.into()))
}

/// Returns the words in front of a command in a jail. May add a network namespace to the resources.
fn jail(spec: &mut SandboxSpec) -> Result<Vec<OsString>, Failure> {
    spare::refuse_namespace(spec, "--profile jail")?;
    let settings = spec.jail.clone().unwrap_or_default();
    let has_namespace = spec.network.as_ref().is_some_and(|network| network.namespace);
    let network =
        settings.network.unwrap_or(if has_namespace { JailNetwork::New } else { JailNetwork::None });
    if network == JailNetwork::New {
        spec.network.get_or_insert_default().namespace = true;
    } else if has_namespace {
        let sentence =
            format!("`--network {}` leaves the network namespace without a command", network.word());
        return Err(not_started(sentence).hint("`--network new`"));
    }
    let bwrap = jail::find_bwrap(variables::get("PATH".as_ref()).as_deref()).ok_or_else(|| {
        not_started("cannot make a jail: there is no `bwrap` in PATH".to_owned()).hint("install bubblewrap")
    })?;
    let rootfs = match settings.rootfs.as_deref().map(path_of_text) {
        None => None,
        Some(dir) => Some(dir.canonicalize().ok().filter(|dir| dir.is_dir()).ok_or_else(|| {
            not_started(format!("cannot make a jail: `{}` is no directory", dir.display()))
        })?),
    };
    if !spec.scratch || spec.dir.is_some() {
        // The workspace may not exist yet, so links in it cannot matter.
        let workspace = spec.workspace.as_ref().map(|workspace| workspace.path.clone());
        let given = spec.dir.as_deref().map(path_of_text).or(workspace).unwrap_or_else(|| ".".into());
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
        (spec.scratch, "--scratch"),
        (is_filtered(spec), "--seccomp"),
        (spec.survive_supervisor, "--outlives-parent"),
    ];
    words.extend(flags.into_iter().filter(|(given, _)| *given).map(|(_, flag)| flag.into()));
    words.push("--".into());
    Ok(words)
}
