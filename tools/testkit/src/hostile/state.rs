//! Processes in states that swallow or delay a signal.

use std::fs::OpenOptions;
use std::io::Write;

use crate::proc;
use penfold_sys::ForkSide;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use super::env::{Never, Step, TestEnv, Trouble};

/// Waits until this child has stopped, for a signal or a tracer. This uses wait, because in a pid namespace the pid
/// from fork differs from the pid in /proc.
fn await_stop(pid: Pid) -> Result<(), Trouble> {
    let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED)
        .step("cannot wait for the child")?
        .ok_or_else(|| Trouble::Broken("the child is not there".to_owned()))?;
    if status.stopped() { Ok(()) } else { Err(Trouble::Broken("the child has ended".to_owned())) }
}

fn stopped_child(env: &TestEnv) -> Result<Pid, Trouble> {
    // In a session of its own: the kernel continues stopped processes of an orphaned process group.
    let pid = env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        env.sleeper()
    })?;
    env.await_members(2)?;
    // An unreaped child of this process: no other process can have the pid.
    kill_process(pid, Signal::STOP).step("cannot stop the child")?;
    await_stop(pid)?;
    env.watch(pid, None)?;
    Ok(pid)
}

pub(super) fn stopped(env: &TestEnv) -> Never {
    stopped_child(env)?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn stopped_term_pending(env: &TestEnv) -> Never {
    let pid = stopped_child(env)?;
    kill_process(pid, Signal::TERM).step("cannot signal the child")?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn traced(env: &TestEnv) -> Never {
    env.child(|env| {
        let tracee = env.child(TestEnv::sleeper)?;
        env.await_members(2)?;
        penfold_sys::hostile::trace_and_stop(tracee).or_skip("cannot trace the child")?;
        await_stop(tracee)?;
        env.sleeper()
    })?;
    env.stands(3)?;
    env.lead()
}

pub(super) fn vfork(env: &TestEnv) -> Never {
    env.child(|env| {
        env.register()?;
        match penfold_sys::hostile::fork_and_wait().step("cannot vfork")? {
            ForkSide::Child => env.live(TestEnv::sleeper),
            ForkSide::Parent(_) => env.linger(),
        }
    })?;
    env.stands(3)?;
    env.lead()
}

/// A daemon in state D: it writes to a file on a frozen file system, and hangs in the kernel.
pub(super) fn frozen_writer(env: &TestEnv) -> Never {
    let directory = env
        .target()
        .ok_or_else(|| Trouble::Skip("no frozen file system was given with --path".to_owned()))?
        .to_path_buf();
    env.daemon(|env| {
        env.register()?;
        let path = directory.join("file");
        let mut file = OpenOptions::new().write(true).open(path).step("cannot open the file")?;
        file.write_all(b"y").step("cannot write the file")?;
        env.linger()
    })?;
    let writer = env
        .await_members(2)?
        .into_iter()
        .nth(1)
        .ok_or_else(|| Trouble::Broken("the writer has not registered".to_owned()))?;
    env.until(|| proc::stat(writer.pid).is_some_and(|stat| stat.state == 'D'))
        .step("the writer does not hang")?;
    env.stands(2)?;
    env.lead()
}
