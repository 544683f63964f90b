//! The flags of profiles: a command in something ready-made, or of a kind that penfold knows.

use std::path::PathBuf;

use clap::Args;
use penfold_request::{JailNetwork, Profile, VmmKind};

use crate::value;

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
    /// Give the jail a user of this name, with uid 1000, whose home is empty, removed at the end, and the working directory.
    #[arg(long, value_name = "NAME", requires = "profile", value_parser = value::jail_user)]
    pub(crate) jail_user: Option<String>,
}
