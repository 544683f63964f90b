//! Processes that jobs of Slurm have left on this node.
//!
//! Slurm runs each step of a job below a `slurmstepd`. With its cgroup plugin each job has groups: `slurm/uid_U/job_J` in
//! hierarchies of v1, `slurmstepd.scope/job_J` in v2. A process cannot leave these by itself, so they are the evidence where
//! they are. Elsewhere it is the variable `SLURM_JOB_ID` in the environment. Any user can set that variable, so the prolog counts only processes of the
//! user of a [job that began here](Jobs), which started after it.

mod jobs;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use penfold_cgroup::{Leaf, mountinfo, v1group};
use penfold_process::{EnvironmentMatch, Pid, ProcFs, Stat};
use penfold_teardown::Selector;

pub use jobs::Jobs;

/// The number of a job.
pub type JobId = u32;

/// A process of a job that has ended.
#[derive(Debug)]
pub struct Leftover {
    /// The job.
    pub job: JobId,
    /// The process.
    pub stat: Stat,
}

/// Selects what is left of a job that has ended; `None` if nothing is.
///
/// `user` is the user of the job. Where the job has groups, no environment is read.
///
/// # Errors
/// When the cgroups or /proc cannot be read: this does not mean "nothing".
pub fn left_of(proc: &mut ProcFs, job: JobId, user: u32) -> io::Result<Option<Selector>> {
    let groups = Groups::find()?;
    let own: Vec<&Group> = groups.found.iter().filter(|group| group.job == job).collect();
    if !own.is_empty() {
        for group in &own {
            if group.is_populated()? {
                return Ok(Some(Selector::Any(own.iter().map(|group| group.selector()).collect())));
            }
        }
        return Ok(None);
    }
    let mut left = HashSet::new();
    for (found, stat) in carriers(proc)? {
        let is_of_user = proc.status(stat.pid)?.is_some_and(|status| status.uids[0] == user);
        if found != job || !is_of_user || groups.holds(proc, stat.pid)? {
            continue;
        }
        let is_left = match daemon_above(proc, &stat)? {
            Some(Daemon::Step(of)) => of == Some(job) && daemon(proc, &stat)?.is_none(),
            // A script of slurmd, such as the one that runs this program.
            Some(Daemon::Slurmd) => user != 0,
            None => true,
        };
        if is_left {
            left.insert(stat.id());
        }
    }
    Ok((!left.is_empty()).then_some(Selector::Processes(left)))
}

/// Finds the processes of jobs that have ended.
///
/// A job runs while it has a `slurmstepd`. Where Slurm keeps groups, no environment is read. Elsewhere, only `begun` jobs have processes.
///
/// # Errors
/// When the cgroups or /proc cannot be read: this does not mean "none".
pub fn find_leftovers(proc: &mut ProcFs, begun: &Jobs) -> io::Result<Vec<Leftover>> {
    let groups = Groups::find()?;
    let mut jobs: HashMap<JobId, Vec<Stat>> = HashMap::new();
    if groups.are_kept {
        let mut seen = HashSet::new();
        for group in &groups.found {
            for pid in group.processes()? {
                if let Some(stat) = proc.stat(pid)?.filter(|stat| !stat.is_dead())
                    && seen.insert((group.job, pid))
                {
                    jobs.entry(group.job).or_default().push(stat);
                }
            }
        }
    } else {
        let begun = begun.all()?;
        for (job, stat) in carriers(proc)? {
            let Some(user) = proc.status(stat.pid)?.map(|status| status.uids[0]) else { continue };
            if begun.get(&job).is_some_and(|begun| begun.may_have_started(&stat, user)) {
                jobs.entry(job).or_default().push(stat);
            }
        }
    }
    let mut left = Vec::new();
    for (job, stats) in jobs {
        let mut suspects = Vec::new();
        let mut runs = false;
        for stat in stats {
            match daemon_above(proc, &stat)? {
                // Another job's step says nothing about this job.
                Some(Daemon::Step(of)) => runs |= of.is_none_or(|of| of == job),
                Some(Daemon::Slurmd) if proc.status(stat.pid)?.is_none_or(|status| status.uids[0] == 0) => {}
                _ => suspects.push(Leftover { job, stat }),
            }
        }
        if !runs {
            left.extend(suspects);
        }
    }
    // The step of a job may be in none of its groups, and above none of its daemons.
    if !left.is_empty() {
        let running = running(proc)?;
        left.retain(|one| !running.contains(&one.job));
    }
    left.sort_unstable_by_key(|one| (one.job, one.stat.id()));
    Ok(left)
}

/// A cgroup of a job.
#[derive(Debug)]
struct Group {
    job: JobId,
    path: PathBuf,
    is_v1: bool,
}

impl Group {
    fn selector(&self) -> Selector {
        let path = self.path.clone();
        if self.is_v1 { Selector::CgroupV1(path) } else { Selector::Cgroup(path) }
    }

    fn processes(&self) -> io::Result<Vec<Pid>> {
        let mut inside = Vec::new();
        if self.is_v1 {
            v1group::v1_processes(&self.path, &mut inside)?;
        } else if let Some(leaf) = Leaf::open(&self.path).map_err(io::Error::other)? {
            leaf.processes(&mut inside).map_err(io::Error::other)?;
        }
        Ok(inside)
    }

    fn is_populated(&self) -> io::Result<bool> {
        if self.is_v1 {
            return Ok(!self.processes()?.is_empty());
        }
        let leaf = Leaf::open(&self.path).map_err(io::Error::other)?;
        leaf.map_or(Ok(false), |leaf| leaf.populated().map_err(io::Error::other))
    }
}

/// The cgroups of all jobs, in every hierarchy.
#[derive(Debug, Default)]
struct Groups {
    found: Vec<Group>,
    /// Whether Slurm keeps groups on this node.
    are_kept: bool,
}

impl Groups {
    /// Slurm makes its groups at the top of a hierarchy or, below systemd or in a container, one level deeper.
    fn find() -> io::Result<Groups> {
        let text = std::fs::read("/proc/self/mountinfo")?;
        let mut groups = Groups::default();
        for mount in mountinfo::parse_mountinfo(&text).map_err(io::Error::other)? {
            let is_v1 = match mount.fs_type.as_str() {
                "cgroup" => true,
                "cgroup2" => false,
                _ => continue,
            };
            for (name, path) in below(&mount.mount_point)? {
                if is_slurms(&name, is_v1) {
                    groups.add(&path, is_v1)?;
                    continue;
                }
                for (name, path) in below(&path)? {
                    if is_slurms(&name, is_v1) {
                        groups.add(&path, is_v1)?;
                    }
                }
            }
        }
        Ok(groups)
    }

    fn add(&mut self, top: &Path, is_v1: bool) -> io::Result<()> {
        self.are_kept = true;
        let parents = if is_v1 {
            below(top)?
                .into_iter()
                .filter(|(name, _)| name.starts_with("uid_"))
                .map(|(_, path)| path)
                .collect()
        } else {
            vec![top.to_owned()]
        };
        for parent in parents {
            let jobs = below(&parent)?.into_iter().filter_map(|(name, path)| {
                let job = name.strip_prefix("job_")?.parse().ok()?;
                Some(Group { job, path, is_v1 })
            });
            self.found.extend(jobs);
        }
        Ok(())
    }

    /// Tells whether a process is in the group of a job.
    fn holds(&self, proc: &mut ProcFs, pid: Pid) -> io::Result<bool> {
        if self.found.is_empty() {
            return Ok(false);
        }
        let text = proc.cgroups(pid)?.unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let in_job = |path: &str| path.split('/').any(|part| part.starts_with("job_"));
        Ok(text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(in_job))
    }
}

/// With several slurmd on a host, the names have the node: `slurm_NODE`, `NODE_slurmstepd.scope`.
fn is_slurms(name: &str, is_v1: bool) -> bool {
    if is_v1 { name == "slurm" || name.starts_with("slurm_") } else { name.ends_with("slurmstepd.scope") }
}

/// The directories below a directory, with their names; none if it is gone.
fn below(dir: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    Ok(found)
}

/// The processes with `SLURM_JOB_ID` in their environment, without this process, those above it and those of its group.
fn carriers(proc: &mut ProcFs) -> io::Result<Vec<(JobId, Stat)>> {
    let mut all = Vec::new();
    let _ = proc.scan(|stat| {
        if !stat.is_kernel_thread() && !stat.is_dead() {
            all.push(stat);
        }
    })?;
    let own = rustix::process::getpid();
    let parents: HashMap<Pid, Option<Pid>> = all.iter().map(|stat| (stat.pid, stat.parent)).collect();
    let mut above = HashSet::new();
    let mut next = Some(own);
    while let Some(pid) = next
        && above.insert(pid)
    {
        next = parents.get(&pid).copied().flatten();
    }
    let own_group = all.iter().find(|stat| stat.pid == own).map(|stat| stat.group);
    let mut found = Vec::new();
    for stat in all {
        if above.contains(&stat.pid) || Some(stat.group) == own_group {
            continue;
        }
        let job = Cell::new(None);
        let read = |value: &[u8]| {
            job.set(std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()));
            true
        };
        if proc.environ_has(stat.pid, b"SLURM_JOB_ID", read) == EnvironmentMatch::Yes
            && let Some(job) = job.get()
        {
            found.push((job, stat));
        }
    }
    Ok(found)
}

/// A daemon of Slurm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Daemon {
    /// `slurmd`.
    Slurmd,
    /// `slurmstepd`, and the job that its title names.
    Step(Option<JobId>),
}

/// Tells whether a process is a daemon of Slurm: by its name, its program, and root as its user.
fn daemon(proc: &mut ProcFs, stat: &Stat) -> io::Result<Option<Daemon>> {
    let is_step = stat.comm == "slurmstepd";
    if !is_step && stat.comm != "slurmd" {
        return Ok(None);
    }
    let is_roots = proc.status(stat.pid)?.is_some_and(|status| status.uids[0] == 0);
    let is_program = proc.executable(stat.pid).is_ok_and(|program| {
        program.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&stat.comm))
    });
    if !is_roots || !is_program {
        return Ok(None);
    }
    if !is_step {
        return Ok(Some(Daemon::Slurmd));
    }
    let title = proc.command_line(stat.pid).unwrap_or_default();
    Ok(Some(Daemon::Step(job_in(&title))))
}

/// The job in a title such as `slurmstepd: [17.batch]`.
fn job_in(title: &str) -> Option<JobId> {
    let (_, rest) = title.split_once('[')?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// The nearest daemon of Slurm above a process, or the process itself.
fn daemon_above(proc: &mut ProcFs, stat: &Stat) -> io::Result<Option<Daemon>> {
    let mut here = stat.clone();
    let mut seen = HashSet::new();
    while seen.insert(here.pid) {
        if let Some(daemon) = daemon(proc, &here)? {
            return Ok(Some(daemon));
        }
        let Some(parent) = here.parent else { break };
        let Some(stat) = proc.stat(parent)? else { break };
        here = stat;
    }
    Ok(None)
}

/// The jobs that have a `slurmstepd`.
fn running(proc: &mut ProcFs) -> io::Result<HashSet<JobId>> {
    let mut steps = Vec::new();
    let _ = proc.scan(|stat| {
        if stat.comm == "slurmstepd" {
            steps.push(stat);
        }
    })?;
    let mut jobs = HashSet::new();
    for stat in &steps {
        if let Some(Daemon::Step(Some(job))) = daemon(proc, stat)? {
            jobs.insert(job);
        }
    }
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_names_its_job() {
        for (title, job) in [
            ("slurmstepd: [17.batch]", Some(17)),
            ("slurmstepd: [4.extern]", Some(4)),
            ("slurmstepd: [9.0]", Some(9)),
            ("/usr/sbin/slurmstepd infinity", None),
            ("slurmstepd", None),
        ] {
            assert_eq!(job_in(title), job, "{title}");
        }
    }
}
