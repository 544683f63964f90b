//! Trees that change all the time. Each has a limit for the number of live processes and for its time.

use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use penfold_sys::signal::{SignalFd, SignalSet, block_signals};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::WaitOptions;

use super::env::{Never, Step, TestEnv, Trouble};
use super::slots::{Slot, Slots, seed};

const TERM: i32 = 15;

/// Waits for the mark that the moving part is at work, then publishes the leader alone.
fn lead_moving(env: &TestEnv) -> Result<(), Trouble> {
    env.until(|| env.is_marked("moving")).step("nothing moves")?;
    env.stands(1)
}

pub(super) fn comet(env: &TestEnv) -> Never {
    env.child(|env| {
        for generation in 0_u32.. {
            if generation == 20 {
                env.mark("moving")?;
            }
            // In bursts, so that unreaped processes do not fill the host's pid space.
            if generation.is_multiple_of(50) {
                sleep(Duration::from_millis(5));
            }
            if env.is_over() || generation > 200_000 {
                break;
            }
            match penfold_sys::fork().step("cannot fork")? {
                penfold_sys::ForkSide::Parent(_) => std::process::exit(0),
                penfold_sys::ForkSide::Child => {}
            }
        }
        env.linger()
    })?;
    lead_moving(env)?;
    env.lead()
}

pub(super) fn storm(env: &TestEnv) -> Never {
    start_storm(env)?;
    env.lead()
}

pub(super) fn storm_exit(env: &TestEnv) -> Never {
    start_storm(env)?;
    env.lead_to(5)
}

fn start_storm(env: &TestEnv) -> Result<(), Trouble> {
    let slots = Slots::new(env, env.number_or(40, 200));
    env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        storming(env, &slots, None)
    })?;
    lead_moving(env)
}

fn storming(env: &TestEnv, slots: &Slots, mut own: Option<Slot>) -> Never {
    let mut seed = seed();
    let mut forks = 0_u32;
    while !env.is_over() {
        let Some(slot) = slots.take(&mut seed) else {
            env.mark("moving")?;
            sleep(Duration::from_millis(5));
            continue;
        };
        match penfold_sys::fork() {
            Ok(penfold_sys::ForkSide::Child) => {
                own = Some(slot);
                seed = super::slots::seed();
                forks = 0;
            }
            // Parents exit now and then, so that the tree keeps losing its shape.
            Ok(penfold_sys::ForkSide::Parent(_)) if forks >= 8 => break,
            Ok(penfold_sys::ForkSide::Parent(_)) => forks += 1,
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
    drop(own);
    std::process::exit(0)
}

/// A pipe; the read end shows when the holder of the write end is gone.
fn lifeline() -> Result<(OwnedFd, OwnedFd), Trouble> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step("cannot make a pipe")
}

/// Tells whether the other end of a lifeline is gone, after at most 5 ms.
fn is_cut(line: &OwnedFd) -> bool {
    let mut set = [PollFd::new(line, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    rustix::event::poll(&mut set, Some(&wait)).is_ok_and(|count| count > 0)
}

pub(super) fn hydra(env: &TestEnv) -> Never {
    let slots = Slots::new(env, env.number_or(40, 200));
    env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        head(env, &slots)
    })?;
    lead_moving(env)?;
    env.lead()
}

/// Runs three children; when this process dies, each of them replaces it.
fn head(env: &TestEnv, slots: &Slots) -> Never {
    let mut seed = seed();
    let (mut read, mut write) = lifeline()?;
    let mut necks = 0;
    while !env.is_over() {
        while rustix::process::wait(WaitOptions::NOHANG).is_ok_and(|ended| ended.is_some()) {
            necks -= 1;
        }
        if necks < 3
            && let Some(slot) = slots.take(&mut seed)
        {
            if penfold_sys::fork().step("cannot fork")? == penfold_sys::ForkSide::Child {
                drop(write);
                while !is_cut(&read) {
                    if env.is_over() {
                        std::process::exit(0);
                    }
                }
                // From here on this process is a head, and holds the slot until it dies.
                let _ = rustix::process::setsid();
                (read, write) = lifeline()?;
                necks = 0;
                seed = super::slots::seed();
                std::mem::forget(slot);
            } else {
                necks += 1;
            }
            continue;
        }
        env.mark("moving")?;
        sleep(Duration::from_millis(2));
    }
    std::process::exit(0)
}

pub(super) fn watchers(env: &TestEnv) -> Never {
    env.child(|env| {
        rustix::process::setsid().step("cannot start a session")?;
        watcher(env)
    })?;
    lead_moving(env)?;
    env.lead()
}

/// Has one partner; when one of the two dies, the other replaces it.
fn watcher(env: &TestEnv) -> Never {
    for _ in 0..20_000 {
        let (read, write) = lifeline()?;
        match penfold_sys::fork().step("cannot fork")? {
            penfold_sys::ForkSide::Child => {
                drop(write);
                while !is_cut(&read) {
                    if env.is_over() {
                        std::process::exit(0);
                    }
                }
                // The watched process is gone: this process takes its place.
                let _ = rustix::process::setsid();
            }
            penfold_sys::ForkSide::Parent(partner) => {
                drop(read);
                env.mark("moving")?;
                let _ = rustix::process::waitpid(Some(partner), WaitOptions::empty());
                drop(write);
                sleep(Duration::from_millis(1));
            }
        }
        if env.is_over() {
            break;
        }
    }
    std::process::exit(0)
}

pub(super) fn fork_on_term(env: &TestEnv) -> Never {
    let slots = Slots::new(env, env.number_or(40, 200));
    env.child(|env| {
        let term = SignalSet::of([TERM]);
        block_signals(&term).step("cannot block TERM")?;
        let mut seed = seed();
        let mut signals = SignalFd::open(&term).step("cannot open a signal descriptor")?;
        env.mark("moving")?;
        while !env.is_over() {
            let mut set = [PollFd::new(&signals, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let _ = rustix::event::poll(&mut set, Some(&wait));
            while signals.take().step("cannot read a signal")?.is_some() {
                let Some(slot) = slots.take(&mut seed) else { continue };
                if penfold_sys::fork().step("cannot fork")? == penfold_sys::ForkSide::Child {
                    let _ = rustix::process::setsid();
                    std::mem::forget(slot);
                    seed = super::slots::seed();
                    signals = SignalFd::open(&term).step("cannot open a signal descriptor")?;
                }
            }
        }
        std::process::exit(0)
    })?;
    lead_moving(env)?;
    env.lead()
}
