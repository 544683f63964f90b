//! Children that leave the ways everybody knows.

use std::fs::OpenOptions;
use std::os::fd::AsFd;

use penfold_sys::signal::{SignalSet, block, set_ignored};
use rustix::pty::OpenptFlags;

use super::yard::{Never, Step, Yard};

const HUP: i32 = 1;
const INT: i32 = 2;
const TERM: i32 = 15;

pub(super) fn plain(yard: &Yard) -> Never {
    yard.child(Yard::sleeper)?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn ignore_term(yard: &Yard) -> Never {
    [TERM, INT, HUP].into_iter().for_each(set_ignored);
    plain(yard)
}

pub(super) fn block_all(yard: &Yard) -> Never {
    block(&SignalSet::of(1..=64)).step("cannot block all signals")?;
    plain(yard)
}

pub(super) fn own_group(yard: &Yard) -> Never {
    yard.child(|yard| {
        rustix::process::setpgid(None, None).step("cannot make a process group")?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn setsid(yard: &Yard) -> Never {
    yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn daemon(yard: &Yard) -> Never {
    yard.daemon(Yard::sleeper)?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn daemon_closed_fds(yard: &Yard) -> Never {
    yard.daemon(|yard| {
        rustix::process::chdir("/").step("cannot go to /")?;
        penfold_sys::hostile::close_all().step("cannot close all descriptors")?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn daemon_holds_pipe(yard: &Yard) -> Never {
    yard.daemon(|yard| {
        let null =
            OpenOptions::new().read(true).write(true).open("/dev/null").step("cannot open /dev/null")?;
        rustix::stdio::dup2_stdin(&null).step("cannot replace stdin")?;
        rustix::stdio::dup2_stderr(&null).step("cannot replace stderr")?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn thread_child(yard: &Yard) -> Never {
    let mut command = yard.member(&[])?;
    let thread = yard.clone();
    std::thread::spawn(move || {
        if let Err(error) = command.spawn() {
            thread.report(&error.into());
        }
        // The child's parent is this thread: it stays, so that only a look at all threads finds the child.
        thread.linger()
    });
    yard.stands(2)?;
    yard.lead()
}

pub(super) fn pty(yard: &Yard) -> Never {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags).or_skip("cannot open a pseudo-terminal")?;
    rustix::pty::unlockpt(&master).step("cannot unlock the pseudo-terminal")?;
    yard.child(|yard| {
        let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags).step("cannot open the terminal")?;
        // The terminal hangs up when the leader, who holds the other end, is gone.
        set_ignored(HUP);
        rustix::process::setsid().step("cannot start a session")?;
        rustix::process::ioctl_tiocsctty(slave.as_fd()).step("cannot take the terminal")?;
        rustix::stdio::dup2_stdin(&slave).step("cannot replace stdin")?;
        rustix::stdio::dup2_stdout(&slave).step("cannot replace stdout")?;
        yard.sleeper()
    })?;
    yard.stands(2)?;
    yard.lead()
}

fn three_strays(yard: &Yard) -> Result<(), super::yard::Trouble> {
    yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        yard.sleeper()
    })?;
    yard.daemon(Yard::sleeper)?;
    yard.child(Yard::sleeper)?;
    yard.stands(4)
}

pub(super) fn strays_exit_3(yard: &Yard) -> Never {
    three_strays(yard)?;
    yard.lead_to(3)
}

pub(super) fn hasty(yard: &Yard) -> Never {
    three_strays(yard)?;
    std::process::exit(3)
}
