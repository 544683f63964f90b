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
        that removes it. With --foreign also for strays of other tools: processes that lost their parent, have a \
        session of their own and no terminal and are no service, or name a session in their environment whose owner \
        is dead. Changes nothing.",
    examples: &[
        ("penfold doctor", "why is the containment weaker here than elsewhere?"),
        ("penfold doctor --foreign", "what did agents, editors and builds leave running here?"),
        ("penfold doctor --json", "the same for a script; the exit code tells: 0 clean, 1 found, 2 blind"),
    ],
    usage_exit: exit_codes::DOCTOR_BLIND,
    define: DoctorArgs::augment_args,
    call: |global, matches| crate::doctor::doctor(global, &super::read(&VERB, matches)?),
};

/// What `penfold doctor` was asked to do.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Show also what other tools left behind; it is never touched.
    #[arg(long)]
    pub(crate) foreign: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
