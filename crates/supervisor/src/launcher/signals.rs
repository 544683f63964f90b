//! The signals of the launcher: which it hears, and what it asks the supervisor for when one comes.

use std::io;

use penfold_sys::signal::{self, SignalFd, SignalSet, Signalled};
use rustix::process::Signal;

use super::{Keys, Launcher, SupervisorHandle};
use crate::signals::CHILD;
use crate::wire::{self, Request};

/// Signals that stay as they are: they cannot be caught, tell of our own faults, or are the terminal's job control,
/// which stops this process together with the command.
const KEPT: [Signal; 14] = [
    Signal::KILL,
    Signal::STOP,
    Signal::ILL,
    Signal::FPE,
    Signal::SEGV,
    Signal::BUS,
    Signal::TRAP,
    Signal::ABORT,
    Signal::SYS,
    Signal::TSTP,
    Signal::TTIN,
    Signal::TTOU,
    Signal::CONT,
    Signal::PIPE,
];

/// What a terminal sends to all of its foreground group, besides INT.
const TERMINAL: [Signal; 3] = [Signal::QUIT, Signal::WINCH, Signal::HUP];

/// How a launcher hears signals: made before anything is started, so that no failure of it leaves a sandbox alone.
pub(crate) struct Hearing {
    pub(super) signals: SignalFd,
    pub(super) mask: SignalSet,
}

impl Hearing {
    /// For all signals but those in `left`, which are not ours. All of them are blocked.
    pub(crate) fn prepare(left: &[Signal]) -> io::Result<Hearing> {
        // What the caller ignores (nohup) stays ignored, here and in the command.
        let handled = SignalSet::of((1..=64).filter(|&number| {
            let kept = KEPT.iter().chain(left).any(|kept| kept.as_raw() == number);
            !kept && (number == CHILD || !signal::is_ignored(number))
        }));
        let blocked = (1..=64).filter(|&n| handled.contains(n) || left.iter().any(|left| left.as_raw() == n));
        Ok(Hearing { signals: SignalFd::open(&handled)?, mask: SignalSet::of(blocked) })
    }
}

impl Launcher {
    /// Passes on what was signalled.
    pub(super) fn pass_on(&mut self) {
        while let Ok(Some(signalled)) = self.signals.take() {
            if signalled.signal == CHILD {
                self.wake_supervisor();
                // Who comes to us from a dead supervisor is not reaped before it is known how it ended.
                if matches!(self.supervisor, SupervisorHandle::Standby { .. }) {
                    Self::reap();
                }
            } else if let Some(request) = self.request(signalled)
                // A supervisor that does not listen has hundreds of them waiting: as signals do, more of the same merge.
                && !self.pending.contains(&request)
            {
                self.pending.push_back(request);
                self.say_pending();
            }
        }
    }

    /// Says all that it was sent so far.
    pub(super) fn say_all(&mut self) {
        self.pass_on();
        self.pending.push_back(Request::Heard);
        self.say_pending();
    }

    /// Says what there is room for. The kernel tells of room once most of the channel is free again.
    pub(super) fn say_pending(&mut self) {
        self.short = false;
        while let Some(request) = self.pending.front() {
            match wire::offer(&self.channel, request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // unix(7): the kernel has no memory for it, and does not tell when there is some. A stop is never given up.
                Err(error) if !wire::is_final(&error) => {
                    self.short = true;
                    return;
                }
                // A supervisor that is gone shows as the end of the channel.
                Ok(()) | Err(_) => drop(self.pending.pop_front()),
            }
        }
    }

    /// A command can stop its supervisor as it can stop any process of its user; that is told like a death.
    fn wake_supervisor(&self) {
        if let SupervisorHandle::Direct { pidfd, .. } | SupervisorHandle::Standby { pidfd: Some(pidfd), .. } =
            &self.supervisor
        {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
        }
    }

    fn request(&mut self, signalled: Signalled) -> Option<Request> {
        let Signalled { signal, from_kernel, sender, carried } = signalled;
        // Our own doing: a record too large for RLIMIT_FSIZE.
        if u32::try_from(rustix::process::getpid().as_raw_nonzero().get()) == Ok(sender) {
            return None;
        }
        let is = |signals: [Signal; 2]| signals.iter().any(|one| one.as_raw() == signal);
        let group = penfold_sys::fork::group();
        if from_kernel && self.settings.keys == Keys::Command && is([Signal::INT, Signal::QUIT]) {
            return Some(Request::Key { signal, group });
        }
        let stops = is([Signal::INT, Signal::TERM]);
        if stops && self.asked {
            return Some(Request::Kill);
        }
        if stops {
            self.asked = true;
            // Where the group's leader is out of sight its number is 0, which is nobody's to spare.
            let spared_group = Some(group).filter(|&group| from_kernel && group != 0);
            let signal = match carried {
                Some(carried) => carried.as_raw(),
                None if from_kernel || self.settings.keys == Keys::Client => signal,
                // The sandbox's own.
                None => 0,
            };
            return Some(Request::Stop { signal, spared_group, grace_ms: None });
        }
        if signal == Signal::HUP.as_raw() && self.settings.terminal.is_some() {
            return Some(Request::OwnerGone);
        }
        // What a terminal sends goes to the command as well; an alarm or a limit of the kernel's is for us alone.
        let from_terminal = from_kernel && TERMINAL.iter().any(|sent| sent.as_raw() == signal);
        (!from_terminal).then_some(Request::Forward(signal))
    }
}
