//! The signals of the launcher: the signals in its signalfd, and the request that each one becomes.

use std::io;

use penfold_state::Requester;
use penfold_sys::signal::{self, SignalFd, SignalRecord, SignalSet};
use rustix::process::Signal;

use super::{InterruptMeaning, Launcher, SupervisorHandle};
use crate::signals::CHILD;
use crate::wire::{self, Request};

/// The signals that keep their disposition: they cannot be caught, report faults of this process, or are job control.
/// Job control stops this process together with the command.
const UNHANDLED: [Signal; 14] = [
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

/// The signals besides INT that a terminal sends to its whole foreground group.
const TERMINAL_SIGNALS: [Signal; 3] = [Signal::QUIT, Signal::WINCH, Signal::HUP];

/// The signalfd of a launcher and its signal mask. Created before any process, so that a failure leaves no sandbox
/// without a launcher.
pub(crate) struct LauncherSignals {
    pub(super) signals: SignalFd,
    pub(super) mask: SignalSet,
}

impl LauncherSignals {
    /// Opens a signalfd for all signals but those in `left`, which belong to the caller. All of these signals are
    /// blocked.
    pub(crate) fn open(left: &[Signal]) -> io::Result<LauncherSignals> {
        // A signal that the caller ignores, as with nohup(1), stays ignored in the launcher and in the command.
        let handled = SignalSet::of((1..=64).filter(|&number| {
            let kept = UNHANDLED.iter().chain(left).any(|kept| kept.as_raw() == number);
            !kept && (number == CHILD || !signal::is_ignored(number))
        }));
        let blocked = (1..=64).filter(|&n| handled.contains(n) || left.iter().any(|left| left.as_raw() == n));
        Ok(LauncherSignals { signals: SignalFd::open(&handled)?, mask: SignalSet::of(blocked) })
    }
}

impl Launcher {
    /// Forwards all queued signals to the supervisor.
    pub(super) fn forward_signals(&mut self) {
        while let Ok(Some(signalled)) = self.signals.take() {
            if signalled.signal == CHILD {
                self.wake_supervisor();
                // An orphan of the supervisor may be the leader, whose exit a takeover needs. No orphan is reaped
                // before the supervisor's exit is known.
                if matches!(self.supervisor, SupervisorHandle::Standby { .. }) {
                    Self::reap();
                }
            } else if let Some(request) = self.request(signalled)
                // A supervisor that does not read has hundreds of requests queued. Equal requests merge, as standard
                // signals do.
                && !self.pending.contains(&request)
            {
                // The supervisor of an exec may be older, and the report of an exec needs no sender.
                let is_end = !matches!(request, Request::Forward(_));
                if is_end && !matches!(self.supervisor, SupervisorHandle::Remote) {
                    self.pending.push_back(Request::By(sender(&signalled)));
                }
                self.pending.push_back(request);
                self.send_pending();
            }
        }
    }

    /// Sends the requests of all signals so far, and then `Heard`.
    pub(super) fn send_all(&mut self) {
        self.forward_signals();
        self.pending.push_back(Request::Heard);
        self.send_pending();
    }

    /// Sends the pending requests that fit. The kernel reports POLLOUT once most of the channel is free again.
    pub(super) fn send_pending(&mut self) {
        self.no_memory = false;
        while let Some(request) = self.pending.front() {
            match wire::offer_message(&self.channel, request) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // ENOBUFS or ENOMEM, see unix(7). The kernel does not report when memory is free again. A stop request
                // is never dropped.
                Err(error) if !wire::is_final(&error) => {
                    self.no_memory = true;
                    return;
                }
                // A dead supervisor shows as EOF on the channel.
                Ok(()) | Err(_) => drop(self.pending.pop_front()),
            }
        }
    }

    /// Continues the supervisor. A command can stop any process of its user, and SIGCHLD reports a stopped child like a
    /// dead one.
    fn wake_supervisor(&self) {
        if let SupervisorHandle::Direct { pidfd, .. } | SupervisorHandle::Standby { pidfd: Some(pidfd), .. } =
            &self.supervisor
        {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::CONT);
        }
    }

    fn request(&mut self, signalled: SignalRecord) -> Option<Request> {
        let SignalRecord { signal, from_kernel, sender, carried, .. } = signalled;
        // This process caused the signal itself: a record larger than `RLIMIT_FSIZE` raises SIGXFSZ.
        if u32::try_from(rustix::process::getpid().as_raw_nonzero().get()) == Ok(sender) {
            return None;
        }
        let is = |signals: [Signal; 2]| signals.iter().any(|one| one.as_raw() == signal);
        let group = penfold_sys::fork::own_group();
        if from_kernel && self.settings.keys == InterruptMeaning::Command && is([Signal::INT, Signal::QUIT]) {
            return Some(Request::Key { signal, group });
        }
        let stops = is([Signal::INT, Signal::TERM]);
        if stops && self.stop_requested {
            return Some(Request::Kill);
        }
        if stops {
            self.stop_requested = true;
            // If the group's leader is in another pid namespace, the group reads as 0, which matches no process.
            let spared_group = Some(group).filter(|&group| from_kernel && group != 0);
            let signal = match carried {
                Some(carried) => carried.as_raw(),
                None if from_kernel || self.settings.keys == InterruptMeaning::Client => signal,
                // 0 means the polite signal of the sandbox.
                None => 0,
            };
            return Some(Request::Stop { signal, spared_group, grace_ms: None });
        }
        if signal == Signal::HUP.as_raw() && self.settings.terminal.is_some() {
            return Some(Request::OwnerGone);
        }
        // The command gets a terminal's signal too. SIGALRM or a kernel limit's signal is for this process only.
        let from_terminal = from_kernel && TERMINAL_SIGNALS.iter().any(|sent| sent.as_raw() == signal);
        (!from_terminal).then_some(Request::Forward(signal))
    }
}

/// Returns who sent a signal.
fn sender(signalled: &SignalRecord) -> Requester {
    let key = match signalled.signal {
        number if number == Signal::INT.as_raw() => Some("Ctrl-C"),
        number if number == Signal::QUIT.as_raw() => Some("Ctrl-\\"),
        _ => None,
    };
    let is_process = !signalled.from_kernel;
    Requester {
        signal: Some(signalled.signal),
        key: key.filter(|_| !is_process).map(str::to_owned),
        pid: i32::try_from(signalled.sender).ok().filter(|&pid| is_process && pid > 0),
        uid: is_process.then_some(signalled.uid),
        ..Requester::default()
    }
}
