//! Children that leave in well-known ways.

use std::fs::OpenOptions;
use std::os::fd::AsFd;

use penfold_sys::signal::{SignalSet, block_signals, set_ignored};
use rustix::pty::OpenptFlags;

use super::env::{Never, Step, TestEnv};

const HUP: i32 = 1;
const INT: i32 = 2;
const TERM: i32 = 15;

pub(super) fn plain(env: &TestEnv) -> Never {
    env.child(TestEnv::sleeper)?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn ignore_term(env: &TestEnv) -> Never {
    [TERM, INT, HUP].into_iter().for_each(set_ignored);
    plain(env)
}

pub(super) fn block_all(env: &TestEnv) -> Never {
    block_signals(&SignalSet::of(1..=64)).step("cannot block all signals")?;
    plain(env)
}

pub(super) fn own_group(env: &TestEnv) -> Never {
    env.child(|env| {
        rustix::process::setpgid(None, None).step("cannot make a process group")?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn setsid(env: &TestEnv) -> Never {
    env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn daemon(env: &TestEnv) -> Never {
    env.daemon(TestEnv::sleeper)?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn daemon_closed_fds(env: &TestEnv) -> Never {
    env.daemon(|env| {
        rustix::process::chdir("/").step("cannot go to /")?;
        penfold_sys::hostile::close_all().step("cannot close all descriptors")?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn daemon_holds_pipe(env: &TestEnv) -> Never {
    env.daemon(|env| {
        let null =
            OpenOptions::new().read(true).write(true).open("/dev/null").step("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(&null).step("cannot replace stdin")?;
        rustix::stdio::dup2_stderr(&null).step("cannot replace stderr")?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

pub(super) fn thread_child(env: &TestEnv) -> Never {
    let mut command = env.member(&[])?;
    let thread = env.clone();
    std::thread::spawn(move || {
        if let Err(error) = command.spawn() {
            thread.report(&error.into());
        }
        // The child's parent is this thread, which stays: only a search of all threads finds the child.
        thread.linger()
    });
    env.stands(2)?;
    env.lead()
}

pub(super) fn pty(env: &TestEnv) -> Never {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).or_skip("cannot open a pseudo-terminal")?;
    rustix::pty::unlockpt(&master).step("cannot unlock the pseudo-terminal")?;
    env.child(|env| {
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).step("cannot open the terminal")?;
        // The terminal hangs up when the leader, which holds the other end, is gone.
        set_ignored(HUP);
        rustix::process::setsid().step("cannot start a session")?;
        rustix::process::ioctl_tiocsctty(slave.as_fd()).step("cannot take the terminal")?;
        rustix::stdio::dup2_stdin(&slave).step("cannot replace stdin")?;
        rustix::stdio::dup2_stdout(&slave).step("cannot replace stdout")?;
        env.sleeper()
    })?;
    env.stands(2)?;
    env.lead()
}

fn three_strays(env: &TestEnv) -> Result<(), super::env::Trouble> {
    env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        env.sleeper()
    })?;
    env.daemon(TestEnv::sleeper)?;
    env.child(TestEnv::sleeper)?;
    env.stands(4)
}

pub(super) fn strays_exit_3(env: &TestEnv) -> Never {
    three_strays(env)?;
    env.lead_to(3)
}

pub(super) fn hasty(env: &TestEnv) -> Never {
    three_strays(env)?;
    std::process::exit(3)
}
