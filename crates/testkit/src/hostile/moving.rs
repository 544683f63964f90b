//! Trees that do not hold still. Each is bounded in the number of live processes and in time.

use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::Duration;

use penfold_sys::signal::{SignalFd, SignalSet, block};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use rustix::process::WaitOptions;

use super::slots::{Slot, Slots, seed};
use super::yard::{Never, Step, Trouble, Yard};

const TERM: i32 = 15;

/// Waits for the mark that the moving part is at work, then publishes the leader alone.
fn lead_moving(yard: &Yard) -> Result<(), Trouble> {
    yard.until(|| yard.is_marked("moving")).step("nothing moves")?;
    yard.stands(1)
}

pub(super) fn comet(yard: &Yard) -> Never {
    yard.child(|yard| {
        for generation in 0_u32.. {
            if generation == 20 {
                yard.mark("moving")?;
            }
            // In bursts, lest an unreaped trail fill the host's pid space.
            if generation.is_multiple_of(50) {
                sleep(Duration::from_millis(5));
            }
            if yard.is_over() || generation > 200_000 {
                break;
            }
            match penfold_sys::fork().step("cannot fork")? {
                penfold_sys::Forked::Parent(_) => std::process::exit(0),
                penfold_sys::Forked::Child => {}
            }
        }
        yard.linger()
    })?;
    lead_moving(yard)?;
    yard.lead()
}

pub(super) fn storm(yard: &Yard) -> Never {
    start_storm(yard)?;
    yard.lead()
}

pub(super) fn storm_exit(yard: &Yard) -> Never {
    start_storm(yard)?;
    yard.lead_to(5)
}

fn start_storm(yard: &Yard) -> Result<(), Trouble> {
    let slots = Slots::new(yard, yard.number_or(40, 200));
    yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        storming(yard, &slots, None)
    })?;
    lead_moving(yard)
}

fn storming(yard: &Yard, slots: &Slots, mut own: Option<Slot>) -> Never {
    let mut seed = seed();
    let mut forks = 0_u32;
    while !yard.is_over() {
        let Some(slot) = slots.take(&mut seed) else {
            yard.mark("moving")?;
            sleep(Duration::from_millis(5));
            continue;
        };
        match penfold_sys::fork() {
            Ok(penfold_sys::Forked::Child) => {
                own = Some(slot);
                seed = super::slots::seed();
                forks = 0;
            }
            // Parents go now and then, so that the tree keeps losing its shape.
            Ok(penfold_sys::Forked::Parent(_)) if forks >= 8 => break,
            Ok(penfold_sys::Forked::Parent(_)) => forks += 1,
            Err(_) => sleep(Duration::from_millis(5)),
        }
    }
    drop(own);
    std::process::exit(0)
}

/// A pipe whose read end says when the holder of the write end is gone.
fn lifeline() -> Result<(OwnedFd, OwnedFd), Trouble> {
    rustix::pipe::pipe_with(PipeFlags::CLOEXEC).step("cannot make a pipe")
}

/// Whether the other end of a lifeline is gone, after at most 5 ms.
fn is_cut(line: &OwnedFd) -> bool {
    let mut set = [PollFd::new(line, PollFlags::IN)];
    let wait = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
    rustix::event::poll(&mut set, Some(&wait)).is_ok_and(|count| count > 0)
}

pub(super) fn hydra(yard: &Yard) -> Never {
    let slots = Slots::new(yard, yard.number_or(40, 200));
    yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        head(yard, &slots)
    })?;
    lead_moving(yard)?;
    yard.lead()
}

/// Keeps three children, each of which takes its place when it dies.
fn head(yard: &Yard, slots: &Slots) -> Never {
    let mut seed = seed();
    let (mut read, mut write) = lifeline()?;
    let mut necks = 0;
    while !yard.is_over() {
        while rustix::process::wait(WaitOptions::NOHANG).is_ok_and(|ended| ended.is_some()) {
            necks -= 1;
        }
        if necks < 3
            && let Some(slot) = slots.take(&mut seed)
        {
            if penfold_sys::fork().step("cannot fork")? == penfold_sys::Forked::Child {
                drop(write);
                while !is_cut(&read) {
                    if yard.is_over() {
                        std::process::exit(0);
                    }
                }
                // From here on this process is a head; the slot stays its own until it dies.
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
        yard.mark("moving")?;
        sleep(Duration::from_millis(2));
    }
    std::process::exit(0)
}

pub(super) fn watchers(yard: &Yard) -> Never {
    yard.child(|yard| {
        rustix::process::setsid().step("cannot start a session")?;
        watcher(yard)
    })?;
    lead_moving(yard)?;
    yard.lead()
}

/// Has one partner; whichever of the two dies is replaced by the other.
fn watcher(yard: &Yard) -> Never {
    for _ in 0..20_000 {
        let (read, write) = lifeline()?;
        match penfold_sys::fork().step("cannot fork")? {
            penfold_sys::Forked::Child => {
                drop(write);
                while !is_cut(&read) {
                    if yard.is_over() {
                        std::process::exit(0);
                    }
                }
                // The watched one is gone: this process takes its place.
                let _ = rustix::process::setsid();
            }
            penfold_sys::Forked::Parent(partner) => {
                drop(read);
                yard.mark("moving")?;
                let _ = rustix::process::waitpid(Some(partner), WaitOptions::empty());
                drop(write);
                sleep(Duration::from_millis(1));
            }
        }
        if yard.is_over() {
            break;
        }
    }
    std::process::exit(0)
}

pub(super) fn fork_on_term(yard: &Yard) -> Never {
    let slots = Slots::new(yard, yard.number_or(40, 200));
    yard.child(|yard| {
        let term = SignalSet::of([TERM]);
        block(&term).step("cannot block TERM")?;
        let mut seed = seed();
        let mut signals = SignalFd::open(&term).step("cannot open a signal descriptor")?;
        yard.mark("moving")?;
        while !yard.is_over() {
            let mut set = [PollFd::new(&signals, PollFlags::IN)];
            let wait = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
            let _ = rustix::event::poll(&mut set, Some(&wait));
            while signals.take().step("cannot read a signal")?.is_some() {
                let Some(slot) = slots.take(&mut seed) else { continue };
                if penfold_sys::fork().step("cannot fork")? == penfold_sys::Forked::Child {
                    let _ = rustix::process::setsid();
                    std::mem::forget(slot);
                    seed = super::slots::seed();
                    signals = SignalFd::open(&term).step("cannot open a signal descriptor")?;
                }
            }
        }
        std::process::exit(0)
    })?;
    lead_moving(yard)?;
    yard.lead()
}
