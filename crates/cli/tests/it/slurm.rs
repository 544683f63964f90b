//! `penfold slurm` on cgroups with the names that Slurm gives, and on a `slurmstepd` that is a copy of a shell.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use penfold_cgroup::mountinfo;

use crate::end::reap::{Frozen, enter, v1_freezer};
use crate::end::standing::{Directory, await_running, await_state_d, frozen, write_to};
use crate::support::{Finished, Running, TestEnv, USER, entries, fresh_id, is_root, skip, wait_until};

/// Job ids that no other test has.
fn job(number: u32) -> u32 {
    1_000_000 + std::process::id() * 8 + number
}

/// Directories as Slurm makes them, deepest first: so they go.
struct Groups(Vec<Directory>);

impl Groups {
    fn make(hierarchy: &Path, parts: &[String]) -> Groups {
        let mut path = hierarchy.join(format!("slurm-test-{}", fresh_id()));
        let mut made = vec![Directory::make(path.clone()).unwrap()];
        for part in parts {
            path.push(part);
            made.insert(0, Directory::make(path.clone()).unwrap());
        }
        Groups(made)
    }

    /// The group of a job in the freezer hierarchy of v1, and a step below it.
    fn v1(freezer: &Path, job: u32) -> Groups {
        let user = format!("uid_{USER}");
        Groups::make(freezer, &["slurm".into(), user, format!("job_{job}"), "step_0".into()])
    }

    /// The group of a job in v2, and a step below it.
    fn v2(job: u32) -> Option<Groups> {
        let text = std::fs::read("/proc/self/mountinfo").unwrap();
        let unified =
            mountinfo::parse_mountinfo(&text).unwrap().into_iter().find(|mount| mount.fs_type == "cgroup2");
        let Some(unified) = unified.filter(|_| is_root()) else {
            skip("no cgroup2 to write to");
            return None;
        };
        let parts = ["node1_slurmstepd.scope".into(), format!("job_{job}"), "step_0".into()];
        Some(Groups::make(&unified.mount_point, &parts))
    }

    fn step(&self) -> &Path {
        self.0[0].path()
    }
}

/// A process of a job: of the user, in a group of its own.
fn member(env: &TestEnv, job: u32, seconds: &str) -> Command {
    let mut command = env.command("sleep");
    command.arg(seconds).env("SLURM_JOB_ID", job.to_string()).uid(USER).gid(USER).process_group(0);
    command
}

/// `penfold slurm` with these words, as slurmd runs it for this job.
#[track_caller]
fn slurm(env: &TestEnv, job: u32, words: &[&str]) -> Finished {
    let mut command = env.penfold(["slurm"].iter().chain(words));
    command.env("SLURM_JOB_ID", job.to_string()).env("SLURM_JOB_UID", USER.to_string());
    Running::start(&mut command).finish()
}

/// A `slurmstepd` of this job that runs a script.
fn slurmstepd(env: &TestEnv, job: u32, script: &str) -> Running {
    let program: PathBuf = env.path("slurmstepd");
    std::fs::copy("/bin/bash", &program).unwrap();
    let mut command = env.command(&program);
    Running::start(command.arg0(format!("slurmstepd: [{job}.batch]")).args(["-c", script]).process_group(0))
}

/// Panics if the prolog names a process of this job. A host on which others have left something is refused whatever this test does.
#[track_caller]
fn assert_not_named(done: &Finished, job: u32) {
    let (said, code) = (done.err(), done.code());
    assert!(!said.contains(&format!("left by job {job}:")), "{said}");
    assert_eq!(code == Some(0), said.is_empty(), "{code:?}: {said}");
}

/// spec: 31.2
#[test]
fn epilog_ends_the_members_of_the_jobs_groups_and_no_other_job() {
    let Some(freezer) = v1_freezer() else { return };
    let env = TestEnv::new();
    let mine = Groups::v1(&freezer, job(0));
    let Some(unified) = Groups::v2(job(0)) else { return };
    let others = Groups::v1(&freezer, job(1));
    let start = |job, seconds| Running::spawn(&mut member(&env, job, seconds));
    let (one, two) = (start(job(0), "3201"), start(job(0), "3202"));
    let mut stray = env.command("env");
    stray.args(["-i", "sleep", "3203"]).uid(USER).gid(USER).process_group(0);
    let stray = Running::spawn(&mut stray);
    let other = start(job(1), "3204");
    // Its child has been moved to the group of another job.
    let mut parent = env.command("sh");
    parent.args(["-c", "sleep 3206 & exec sleep 3205"]).uid(USER).gid(USER).process_group(0);
    let parent = Running::spawn(&mut parent);
    await_running(&env, &[3201, 3202, 3204, 3205, 3206]);
    let child = env.running("sleep 3206").remove(0);
    enter(mine.step(), parent.pid());
    enter(others.step(), child.pid());
    enter(mine.step(), one.pid());
    enter(unified.step(), two.pid());
    enter(unified.step(), stray.pid());
    enter(others.step(), other.pid());
    let _frozen = Frozen::freeze(mine.step());
    assert!([&one, &two, &stray, &other].iter().all(|one| one.is_alive()));
    slurm(&env, job(0), &["epilog", "-t", "100ms"]).with_code(0);
    let alive = [&one, &two, &stray, &parent, &other].map(Running::is_alive);
    assert_eq!((alive, child.has_ended()), ([false, false, false, false, true], false));
    child.signal(rustix::process::Signal::KILL);
    child.await_end();
    // Nothing is left: nothing to do.
    assert_eq!(slurm(&env, job(0), &["epilog"]).with_code(0).err(), "");
}

/// spec: 2.2, 31.3
#[test]
fn member_that_leaves_the_groups_when_it_is_asked_is_ended() {
    let Some(freezer) = v1_freezer() else { return };
    let env = TestEnv::new();
    let (mine, others) = (Groups::v1(&freezer, job(0)), Groups::v1(&freezer, job(1)));
    let left = others.step().join("cgroup.procs");
    let script = format!(
        "trap 'echo $$ > {}; touch asked' TERM; touch up; while :; do sleep 0.05; done",
        left.display()
    );
    let mut member = env.command("sh");
    let member = Running::spawn(member.args(["-c", &script]).process_group(0));
    wait_until("it runs", || env.path("work/up").is_file());
    enter(mine.step(), member.pid());
    assert!(member.is_alive());
    slurm(&env, job(0), &["epilog", "-t", "1s"]).with_code(0);
    assert!(!member.is_alive());
    assert!(env.path("work/asked").is_file(), "it had no time to leave");
}

/// spec: 31.2
#[test]
fn without_groups_the_environment_tells_and_other_jobs_and_users_are_spared() {
    if !is_root() {
        return skip("slurmd runs as root");
    }
    let env = TestEnv::new();
    let one = Running::spawn(&mut member(&env, job(0), "3211"));
    let other_job = Running::spawn(&mut member(&env, job(1), "3212"));
    let other_user = Running::spawn(member(&env, job(0), "3213").uid(USER + 1));
    // A job that another job started has its variables, and may have its number.
    let script = format!("SLURM_JOB_ID={} setpriv --reuid {USER} sleep 3214 & wait", job(0));
    let running = slurmstepd(&env, job(1), &script);
    await_running(&env, &[3211, 3212, 3213, 3214]);
    slurm(&env, job(0), &["epilog"]).with_code(0);
    assert!(!one.is_alive());
    assert!(other_job.is_alive() && other_user.is_alive() && running.is_alive());
    assert!(env.is_running("sleep 3214"));
}

/// spec: 31.3
#[test]
fn epilog_fails_and_names_who_cannot_be_ended() {
    let Some(freezer) = v1_freezer() else { return };
    let Some(blocked) = frozen() else { return };
    let env = TestEnv::new();
    let group = Groups::v1(&freezer, job(0));
    let mut stuck = env.command("sh");
    let stuck = Running::spawn(stuck.args(["-c", &write_to(&blocked)]).process_group(0));
    await_state_d(stuck.process());
    enter(group.step(), stuck.pid());
    let done = slurm(&env, job(0), &["epilog", "-t", "0", "--patience", "300ms"]);
    assert_eq!(done.code(), Some(5), "{}", done.err());
    assert!(done.err().contains(&stuck.pid().to_string()), "{}", done.err());
    assert!(stuck.is_alive());
    drop(blocked);
    slurm(&env, job(0), &["epilog"]).with_code(0);
    assert!(!stuck.is_alive());
}

/// spec: 31.4
#[test]
fn prolog_names_what_ended_jobs_left_and_ends_nothing() {
    let Some(freezer) = v1_freezer() else { return };
    let env = TestEnv::new();
    let (ended, runs) = (Groups::v1(&freezer, job(0)), Groups::v1(&freezer, job(1)));
    let left = Running::spawn(&mut member(&env, job(0), "3221"));
    enter(ended.step(), left.pid());
    let of_running = Running::spawn(&mut member(&env, job(1), "3222"));
    enter(runs.step(), of_running.pid());
    let step = slurmstepd(&env, job(1), "sleep 3223 & wait");
    await_running(&env, &[3221, 3222, 3223]);
    let done = slurm(&env, job(2), &["prolog"]).with_code(5);
    let said = done.err();
    assert!(said.contains(&format!("left by job {}: {} (`sleep 3221`)", job(0), left.pid())), "{said}");
    assert!(!said.contains(&job(1).to_string()), "a job that runs: {said}");
    assert!(left.is_alive() && of_running.is_alive() && step.is_alive());
    slurm(&env, job(0), &["epilog"]).with_code(0);
    assert_not_named(&slurm(&env, job(2), &["prolog"]), job(0));
    // The end of the last step is the end of the job.
    step.process().signal(rustix::process::Signal::KILL);
    step.process().await_end();
    let done = slurm(&env, job(2), &["prolog"]).with_code(5);
    assert!(done.err().contains("sleep 3222"), "{}", done.err());
}

/// spec: 31.4
#[test]
fn without_groups_prolog_reads_the_environment() {
    if !is_root() {
        return skip("slurmd runs as root");
    }
    let is_slurms = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name == "slurm" || name.starts_with("slurm_")
    };
    if v1_freezer().is_some_and(|freezer| entries(&freezer).iter().any(is_slurms)) {
        return skip("Slurm has groups on this host");
    }
    let env = TestEnv::new();
    // What only names the job: older than it, of another user, of a job that never began here.
    let older = Running::spawn(&mut member(&env, job(0), "3233"));
    await_running(&env, &[3233]);
    // The kernel counts starts in hundredths of a second.
    let ticks = || -> u64 {
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        uptime.split(' ').next().unwrap().replace('.', "").parse().unwrap()
    };
    wait_until("a later start", || ticks() > older.process().id().start + 1);
    slurm(&env, job(0), &["prolog"]).with_code(0);
    let stranger = Running::spawn(member(&env, job(0), "3234").uid(USER + 1));
    let unknown = Running::spawn(&mut member(&env, job(2), "3235"));
    await_running(&env, &[3234, 3235]);
    assert_eq!(slurm(&env, job(1), &["prolog"]).with_code(0).err(), "");
    let left = Running::spawn(&mut member(&env, job(0), "3231"));
    await_running(&env, &[3231]);
    let done = slurm(&env, job(1), &["prolog"]).with_code(5);
    let named = format!("left by job {}: {} (`sleep 3231`)", job(0), left.pid());
    assert!(done.err().contains(&named) && done.err().lines().count() == 1, "{}", done.err());
    assert!([&older, &stranger, &unknown].iter().all(|one| one.is_alive()));
    let step = slurmstepd(&env, job(0), "sleep 3232 & wait");
    await_running(&env, &[3232]);
    assert_not_named(&slurm(&env, job(1), &["prolog"]), job(0));
    assert!(left.is_alive() && step.is_alive());
}

/// spec: 31.3
#[test]
fn without_the_variables_of_slurmd_nothing_is_ended() {
    let env = TestEnv::new();
    let mut command = env.penfold(["slurm", "epilog"]);
    command.env_remove("SLURM_JOB_ID").env_remove("SLURM_JOBID");
    Running::start(&mut command).finish().refused(2, "SLURM_JOB_ID");
}
