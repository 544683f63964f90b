//! Profiles: a command in something ready-made, or of a kind that penfold knows.

pub mod jail;
pub mod system_calls;
mod vmm;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use penfold_process::path_text::path_of_text;
use penfold_request::value::EnvSetting;
use penfold_request::{JailNetwork, Profile, SandboxSpec, Vmm, VmmKind};
use penfold_state::JAIL_PROGRAM;
use rustix::fs::MemfdFlags;

use crate::checks;
use crate::error::{LaunchError, OrFail as _};
use crate::surroundings::Surroundings;
use crate::user::login_variables;

/// The verb that becomes bubblewrap with a command in it.
pub const JAIL_OUTSIDE: &str = "jail-outside";

/// Refuses the settings of another profile.
///
/// # Errors
/// When there is one, or one without a profile.
pub fn refuse_other_profiles(spec: &SandboxSpec) -> Result<(), LaunchError> {
    let jail = spec.jail.clone().unwrap_or_default();
    let flags = [
        (jail.rootfs.is_some(), "--rootfs", Profile::Jail),
        (jail.network.is_some(), "--network", Profile::Jail),
        (jail.seccomp == Some(false), "--no-seccomp", Profile::Jail),
        (jail.user.is_some(), "--jail-user", Profile::Jail),
        (spec.vmm.as_ref().is_some_and(|vmm| vmm.kind.is_some()), "--vmm", Profile::Vmm),
    ];
    match flags.into_iter().find(|(given, _, of)| *given && spec.profile != Some(*of)) {
        None => Ok(()),
        Some((_, flag, of)) => {
            Err(LaunchError::new(format!("`{flag}` is a flag of the profile `{}`", of.word())))
        }
    }
}

/// Applies the profile to the specification. Returns the words in front of the command, if there are any.
pub fn apply_profile(
    spec: &mut SandboxSpec,
    command: &[OsString],
    surroundings: &Surroundings,
) -> Result<Vec<OsString>, LaunchError> {
    refuse_other_profiles(spec)?;
    match spec.profile {
        None => Ok(Vec::new()),
        Some(Profile::Jail) => jail(spec, surroundings),
        Some(Profile::Vmm) => prepare_vmm(spec, command).map(|()| Vec::new()),
    }
}

/// Returns the path of penfold's own program, as the commands of the sandbox see it.
pub fn program_inside(spec: &SandboxSpec, surroundings: &Surroundings) -> PathBuf {
    if spec.profile == Some(Profile::Jail) { JAIL_PROGRAM.into() } else { surroundings.program.clone() }
}

/// Returns what an exec needs to enter the jail of the sandbox.
pub fn jail_of(spec: &SandboxSpec) -> Result<Option<penfold_state::Jail>, LaunchError> {
    if spec.profile != Some(Profile::Jail) {
        return Ok(None);
    }
    let filter = is_filtered(spec).then(system_calls::build_filter).transpose();
    let filter = filter.or_fail("cannot make a jail")?;
    let has_user = spec.jail_user().is_some();
    Ok(Some(penfold_state::Jail { filter, temporary: jail::TEMPORARY.into(), has_user }))
}

/// Returns the variables of a login as the user of the jail's own, if it has one.
pub fn login_of_jail(spec: &SandboxSpec) -> Vec<EnvSetting> {
    let Some(name) = spec.jail_user() else { return Vec::new() };
    let rootfs = spec.jail.as_ref().and_then(|jail| jail.rootfs.as_deref()).map(path_of_text);
    let shell = jail::shell(rootfs.as_deref().unwrap_or(Path::new("/")));
    login_variables(name, jail::home(name).as_ref(), shell)
}

/// Makes a file that bubblewrap reads from the beginning and closes. A program that becomes bubblewrap passes it on.
///
/// # Errors
/// When the kernel makes no file.
pub fn memory_file(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create(name, MemfdFlags::empty())?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file.into())
}

/// Whether a filter denies the system calls that a jail does not need.
fn is_filtered(spec: &SandboxSpec) -> bool {
    spec.jail.as_ref().and_then(|jail| jail.seccomp) != Some(false)
}

/// Adds a directory of sockets, and the stop request of the monitor.
fn prepare_vmm(spec: &mut SandboxSpec, command: &[OsString]) -> Result<(), LaunchError> {
    let given = spec.vmm.as_ref().and_then(|vmm| vmm.kind);
    let vmm = given.or_else(|| vmm::find_monitor(command)).ok_or_else(|| {
        LaunchError::new("the command names no virtual machine monitor that penfold knows".to_owned())
            .hint("`--vmm qemu`, `--vmm firecracker`, `--vmm cloud-hypervisor`")
    })?;
    let named = |text: &str| command.iter().any(|word| word.to_string_lossy().contains(text));
    let is_direct = is_monitor(command, vmm);
    let option = vmm::socket_option(vmm);
    if is_direct && vmm != VmmKind::Qemu && named(option) {
        let sentence = format!("the profile `vmm` adds `{option}`, and the command has it already");
        return Err(LaunchError::new(sentence).hint("leave it out; `$PENFOLD_VMM_SOCKET` is the path"));
    }
    if !is_direct && spec.stop.is_none() && !named(vmm::VARIABLE) {
        let sentence = "the monitor runs below another command, and does not listen on `$PENFOLD_VMM_SOCKET`";
        let option = vmm::socket_arguments(vmm, "$PENFOLD_VMM_SOCKET".as_ref())
            .map(|word| word.to_string_lossy().into_owned());
        return Err(LaunchError::new(sentence.to_owned())
            .hint(format!("add `{}` to its arguments", option.join(" "))));
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
pub fn complete_vmm(
    spec: &SandboxSpec,
    command: &mut Vec<OsString>,
    sockets: Option<&Path>,
) -> Option<(OsString, OsString)> {
    let vmm = spec.vmm.as_ref().filter(|_| spec.profile == Some(Profile::Vmm))?.kind?;
    let socket = vmm::api_socket(sockets?);
    if is_monitor(command, vmm) {
        // The words after `--` are not for the monitor itself.
        let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
        command.splice(end..end, vmm::socket_arguments(vmm, &socket));
    }
    Some((vmm::VARIABLE.into(), socket.into()))
}

/// Returns the words in front of a command in a jail. May add a network namespace to the resources.
fn jail(spec: &mut SandboxSpec, surroundings: &Surroundings) -> Result<Vec<OsString>, LaunchError> {
    checks::refuse_spare(spec, "--profile jail")?;
    let settings = spec.jail.clone().unwrap_or_default();
    let has_namespace = spec.network.as_ref().is_some_and(|network| network.namespace);
    let network =
        settings.network.unwrap_or(if has_namespace { JailNetwork::New } else { JailNetwork::None });
    if network == JailNetwork::New {
        spec.network.get_or_insert_default().namespace = true;
    } else if has_namespace {
        let sentence =
            format!("`--network {}` leaves the network namespace without a command", network.word());
        return Err(LaunchError::new(sentence).hint("`--network new`"));
    }
    let bwrap = jail::find_bwrap(surroundings.variables.value("PATH")).ok_or_else(|| {
        LaunchError::new("cannot make a jail: there is no `bwrap` in PATH".to_owned())
            .hint("install bubblewrap")
    })?;
    let rootfs = match settings.rootfs.as_deref().map(path_of_text) {
        None => None,
        Some(dir) => Some(dir.canonicalize().ok().filter(|dir| dir.is_dir()).ok_or_else(|| {
            LaunchError::new(format!("cannot make a jail: `{}` is no directory", dir.display()))
        })?),
    };
    if !spec.has_scratch() || spec.dir.is_some() {
        // The workspace may not exist yet, so links in it cannot matter.
        let workspace = spec.workspace.as_ref().map(|workspace| workspace.path.clone());
        let given = spec.dir.as_deref().map(path_of_text).or(workspace).unwrap_or_else(|| ".".into());
        let directory = given.canonicalize().unwrap_or(given);
        jail::check_directory(&directory, rootfs.as_deref()).map_err(LaunchError::new)?;
    }
    let mut words: Vec<OsString> = vec![surroundings.program.clone().into(), JAIL_OUTSIDE.into()];
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
    if let Some(user) = settings.user {
        option("user", user.into());
        // What is there of other sandboxes.
        option("hide", surroundings.state_root.clone().into());
        option("hide", surroundings.temporary.clone().into());
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
