//! `penfold slurm`: programs for the prolog and the epilog of Slurm.

use std::ffi::OsStr;
use std::time::Duration;

use clap::{Args, Subcommand};
use penfold_doctor::slurm::{self, JobId, Jobs};
use penfold_process::ProcFs;

use crate::args::patience::Patience;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::foreign;
use crate::text::lines::say;
use crate::{exit_codes, output, surroundings, value, variables};

/// The verb `slurm`.
pub(crate) const VERB: Verb = Verb {
    name: "slurm",
    aliases: &[],
    about: "End what a job of Slurm has left on its node",
    description: "Two programs for slurm.conf, which slurmd runs as root. `epilog` ends what is left of the job in \
        SLURM_JOB_ID: the processes in its cgroups (v1 and v2), or where it has none, its user's processes with SLURM_JOB_ID \
        in their environment. Exit code 0 means that all were observed gone. With any other code Slurm drains the node, and \
        standard error names the survivors. `prolog` ends nothing; it fails if the node has processes of jobs that have ended, and \
        names them. Without cgroups of jobs these are processes with SLURM_JOB_ID that have the user of the job and started after the prolog of that job. Processes of other jobs, slurmd and slurmstepd are left alone. slurm.conf takes a path without words, so each \
        line names a script of one line: `exec penfold slurm epilog`, `exec penfold slurm prolog`. docs/slurm.md has the set-up.",
    examples: &[
        ("penfold slurm epilog", "in slurm.conf: Epilog=/etc/slurm/penfold-epilog"),
        ("penfold slurm prolog", "in slurm.conf: Prolog=/etc/slurm/penfold-prolog"),
    ],
    usage_failure: FailureKind::Usage,
    define: SlurmArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| slurm(global, &usage::read(&VERB, matches)?),
};

/// The variables with the job, and with its user.
const JOB: [&str; 2] = ["SLURM_JOB_ID", "SLURM_JOBID"];
const USER: [&str; 2] = ["SLURM_JOB_UID", "SLURM_UID"];

const CANNOT_SEARCH: &str = "cannot search for the processes of jobs";
/// More rounds than this mean that new processes keep coming from outside of those that were ended.
const ROUNDS: usize = 8;

/// The arguments of `penfold slurm`.
#[derive(Args, Clone, Debug)]
struct SlurmArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// End what is left of a job.
    Epilog {
        /// Time between SIGTERM and KILL.
        #[arg(
            short = 't',
            long,
            value_name = "DURATION",
            value_parser = value::duration,
            allow_hyphen_values = true,
            default_value = "1s"
        )]
        grace: Duration,
        #[command(flatten)]
        patience: Patience,
    },
    /// Fail if the node has processes of jobs that have ended.
    Prolog,
}

fn slurm(global: &Global, args: &SlurmArgs) -> Result<u8, Failure> {
    match args.action {
        Action::Epilog { grace, patience } => epilog(global, grace, patience.patience),
        Action::Prolog => prolog(global),
    }
}

fn epilog(global: &Global, grace: Duration, patience: Duration) -> Result<u8, Failure> {
    let job: JobId = number(&JOB)?;
    let user = number(&USER)?;
    for _ in 0..ROUNDS {
        let mut proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
        let left = slurm::left_of(&mut proc, job, user).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
        let Some(selector) = left else {
            // A job that stays noted costs nothing: no process of it is there.
            let _ = Jobs::below(&surroundings::root(global)).end(job);
            return Ok(exit_codes::SUCCESS);
        };
        let code = foreign::end_selected(global, proc, selector, grace, patience)?;
        if code != exit_codes::SUCCESS {
            return Ok(code);
        }
    }
    Err(Failure::new(FailureKind::StillThere, format!("new processes of job {job} kept coming")))
}

fn prolog(global: &Global) -> Result<u8, Failure> {
    let mut proc = ProcFs::open().or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let jobs = Jobs::below(&surroundings::root(global));
    let left = slurm::find_leftovers(&mut proc, &jobs).or_fail(FailureKind::Other, CANNOT_SEARCH)?;
    let mut text = String::new();
    for one in &left {
        let (state, channel) = proc.waits(&one.stat);
        let command = proc.command_line(one.stat.pid).unwrap_or_else(|| one.stat.comm.clone());
        let channel = channel.map(|channel| format!(", wait channel {channel}")).unwrap_or_default();
        let pid = one.stat.pid.as_raw_pid();
        say(
            &mut text,
            &format!("left by job {}: {pid} (`{command}`), state {}{channel}", one.job, state.letter()),
        );
    }
    output::message(&text);
    if left.is_empty()
        && let (Ok(job), Ok(user)) = (number(&JOB), number(&USER))
        && let Err(error) = jobs.begin(&mut proc, job, user)
    {
        // The node can run the job. Only what this job leaves is not told from what other users have named so.
        output::message(&format!("penfold: cannot note that job {job} begins: {error}\n"));
    }
    Ok(if left.is_empty() { exit_codes::SUCCESS } else { exit_codes::STILL_THERE })
}

/// The number in the first of these variables that is set.
fn number(names: &[&str]) -> Result<u32, Failure> {
    let found = names.iter().find_map(|name| variables::get(OsStr::new(name)));
    found.and_then(|text| text.to_str()?.parse().ok()).ok_or_else(|| {
        Failure::new(FailureKind::Usage, format!("`{}` is not set to a number", names[0]))
            .hint("slurmd sets it for the programs of Prolog= and Epilog=")
    })
}
