//! Copies bytes between the caller's terminal and the terminal of a sandbox.

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use penfold_control::ANSWER;
use penfold_state::wire::Size;
use penfold_supervisor::Modes;
use penfold_sys::signal::{self, SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr};

const BUFFER: usize = 16 * 1024;
/// Limit of the typed bytes kept for a program that does not read. Reading continues up to this limit, because the
/// detach keys may follow.
const MAX_PENDING: usize = 1 << 20;

/// The caller's terminal in raw mode. Dropping this value restores the previous mode.
pub(crate) struct Raw {
    saved: Termios,
}

impl Raw {
    /// Sets the terminal at standard input to raw mode.
    ///
    /// # Errors
    /// If standard input is not a terminal.
    pub(crate) fn enter() -> io::Result<Raw> {
        let stdin = io::stdin();
        let saved = tcgetattr(&stdin)?;
        let mut raw = saved.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Raw { saved })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.saved);
    }
}

/// The size of the caller's terminal; 24 by 80 if unknown.
pub(crate) fn size() -> Size {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 => Size { rows: size.ws_row, columns: size.ws_col },
        _ => Size { rows: 24, columns: 80 },
    }
}

/// Converts a size for tcsetwinsize(3).
pub(crate) fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// The reason why copying ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side is closed.
    Closed,
    /// The user typed the detach keys.
    Left,
    /// Standard input is at EOF.
    InputEnded,
    /// This signal came, of which the caller dies once its terminal is as before.
    Signalled(i32),
}

/// The signals that end a viewer.
const ENDING: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// Blocks the signals that [`Relay::run`] waits for: SIGWINCH, and with `ends_by_signal` those that end a viewer. Returns them.
pub(crate) fn block_signals(ends_by_signal: bool) -> SignalSet {
    let ending = ENDING.into_iter().filter(|_| ends_by_signal).map(Signal::as_raw);
    // A signal that the caller ignores, as nohup(1) does, stays ignored.
    let ending = ending.filter(|&number| !signal::is_ignored(number));
    let set = SignalSet::of(ending.chain([Signal::WINCH.as_raw()]));
    let _ = signal::block_signals(&set);
    set
}

/// The parameters of a copy loop between two terminals.
pub(crate) struct Relay<'a> {
    /// The terminal of the sandbox, or a stream to it.
    pub(crate) inside: BorrowedFd<'a>,
    /// Whether standard input is copied to `inside`.
    pub(crate) typed: bool,
    /// Whether EOF on standard input ends the loop.
    pub(crate) ends_with_input: bool,
    /// The detach keys; empty if there are none.
    pub(crate) leave: &'a [u8],
    /// Becomes readable when the command has ended: no new output follows.
    pub(crate) over: Option<BorrowedFd<'a>>,
    /// The signals to wait for, which are blocked: SIGWINCH, and those that end the copying.
    pub(crate) signals: SignalSet,
}

impl Relay<'_> {
    /// Copies until one side ends, and calls `resize` with each new size. The caller must have blocked the signals.
    ///
    /// Afterwards this function resets the modes of the caller's terminal, such as the alternate screen: an editor that
    /// keeps running in the sandbox does not.
    ///
    /// # Errors
    /// Errors of poll(2) and of writing to standard output.
    pub(crate) fn run(&self, resize: impl FnMut(Size)) -> io::Result<End> {
        let mut modes = Modes::default();
        let end = self.copy(resize, &mut modes);
        let stdout = io::stdout();
        if stdout.is_terminal() {
            let _ = write_all(stdout.as_fd(), &modes.reset());
        }
        end
    }

    fn copy(&self, mut resize: impl FnMut(Size), modes: &mut Modes) -> io::Result<End> {
        let signals = SignalFd::open(&self.signals)?;
        let (stdin, stdout) = (io::stdin(), io::stdout());
        // Nonblocking: a program that does not read its input must not delay the display of its output.
        rustix::io::ioctl_fionbio(self.inside, true)?;
        let mut typed = self.typed;
        let mut waiting = Vec::new();
        let mut buffer = vec![0_u8; BUFFER];
        let mut keys = Keys::default();
        loop {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !waiting.is_empty());
            let mut fds =
                vec![PollFd::from_borrowed_fd(self.inside, flags), PollFd::new(&signals, PollFlags::IN)];
            fds.extend(self.over.map(|over| PollFd::from_borrowed_fd(over, PollFlags::IN)));
            let listens = typed && waiting.len() < MAX_PENDING;
            if listens {
                fds.push(PollFd::new(&stdin, PollFlags::IN));
            }
            rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
            let ready: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            let is_ready = |index: usize| ready.get(index).is_some_and(|flags| !flags.is_empty());
            if ready.first().is_some_and(|flags| flags.intersects(!PollFlags::OUT)) {
                match rustix::io::read(self.inside, &mut buffer) {
                    Ok(length @ 1..) => {
                        let shown = buffer.get(..length).unwrap_or_default();
                        modes.read(shown);
                        write_all(stdout.as_fd(), shown)?;
                    }
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    // EIO of a pty: no process has the other side open any more.
                    Ok(_) | Err(_) => return Ok(End::Closed),
                }
            } else if self.over.is_some() && is_ready(2) {
                return Ok(End::Closed);
            }
            if is_ready(1) {
                if let Some(signal) = ending_signal(&signals) {
                    return Ok(End::Signalled(signal));
                }
                resize(size());
            }
            if listens && is_ready(ready.len() - 1) {
                match rustix::io::read(&stdin, &mut buffer) {
                    Ok(length @ 1..) => {
                        let (keys, left) = keys.pass(buffer.get(..length).unwrap_or_default(), self.leave);
                        waiting.extend(keys);
                        if left {
                            self.type_all(waiting);
                            return Ok(End::Left);
                        }
                    }
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Ok(_) | Err(_) if self.ends_with_input => {
                        self.type_all(waiting);
                        return Ok(End::InputEnded);
                    }
                    Ok(_) | Err(_) => typed = false,
                }
            }
            self.type_in(&mut waiting);
        }
    }

    /// Writes pending input as far as there is room. Ignores errors: the next read(2) detects a closed peer.
    fn type_in(&self, waiting: &mut Vec<u8>) {
        if !waiting.is_empty()
            && let Ok(length) = rustix::io::write(self.inside, waiting)
        {
            waiting.drain(..length);
        }
    }

    /// Writes all pending input; gives up after [`ANSWER`], the time that a supervisor has to answer.
    fn type_all(&self, mut waiting: Vec<u8>) {
        let begun = Instant::now();
        loop {
            self.type_in(&mut waiting);
            let left = ANSWER.saturating_sub(begun.elapsed());
            if waiting.is_empty() || left.is_zero() {
                return;
            }
            let mut fds = [PollFd::from_borrowed_fd(self.inside, PollFlags::OUT)];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
            if fds.iter().any(|fd| fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)) {
                return;
            }
        }
    }
}

/// Takes the signals that have come; one that ends a viewer, if there is one.
fn ending_signal(signals: &SignalFd) -> Option<i32> {
    let taken = std::iter::from_fn(|| signals.take().ok().flatten());
    taken.map(|taken| taken.signal).find(|&signal| signal != Signal::WINCH.as_raw())
}

/// Finds the detach keys in the typed bytes.
#[derive(Default)]
struct Keys {
    /// The bytes held back: a prefix of the detach keys.
    held: Vec<u8>,
}

impl Keys {
    /// Returns the bytes to forward, and whether the detach keys followed them.
    fn pass(&mut self, typed: &[u8], leave: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + self.held.len());
        for &key in typed {
            self.held.push(key);
            if self.held == leave {
                return (passed, true);
            }
            while !leave.starts_with(&self.held) {
                passed.push(self.held.remove(0));
            }
        }
        (passed, false)
    }
}

/// Writes all bytes; polls for room if the descriptor is nonblocking.
pub(crate) fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::AGAIN) => {
                poll(&mut [PollFd::from_borrowed_fd(to, PollFlags::OUT)], None)?;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Opens a pseudoterminal: the master for penfold, the slave for the command.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    penfold_supervisor::open_pty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_all_keys_in_a_row_leave() {
        let (mut keys, leave) = (Keys::default(), b"\x10\x11");
        assert_eq!(keys.pass(b"a\x10b", leave), (b"a\x10b".to_vec(), false));
        assert_eq!(keys.pass(b"\x10", leave), (Vec::new(), false));
        assert_eq!(keys.pass(b"\x10", leave), (b"\x10".to_vec(), false));
        assert_eq!(keys.pass(b"\x11x", leave), (Vec::new(), true));
        assert_eq!(Keys::default().pass(b"aaab", b"aab"), (b"a".to_vec(), true));
        assert_eq!(Keys::default().pass(b"\x10\x11", b""), (b"\x10\x11".to_vec(), false));
    }
}
