//! `penfold doctor`: its flags.

use clap::Args;

use super::Verb;
use crate::exit_codes;

/// The verb `doctor`.
pub(crate) const VERB: Verb = Verb {
    name: "doctor",
    aliases: &[],
    about: "Show what this host can do and what was left on it; changes nothing",
    description: "Looks at the host: kernel, cgroup mounts and delegation, pidfd, namespaces, limits, and what \
        each of them means for the guarantee. Then looks for what outlived its sandbox and names the command \
        that removes it. Changes nothing.",
    examples: &[
        ("penfold doctor", "why is the containment weaker here than elsewhere?"),
        ("penfold doctor --json", "the same for a script; the exit code tells: 0 clean, 1 found, 2 blind"),
    ],
    usage_exit: exit_codes::DOCTOR_BLIND,
    define: DoctorArgs::augment_args,
    call: |global, matches| crate::doctor::doctor(global, &super::read(&VERB, matches)?),
};

/// What `penfold doctor` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
