//! Copies between the caller's terminal and one inside of a sandbox.

use std::io::{self, IsTerminal as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use penfold_control::ANSWER;
use penfold_state::wire::Size;
use penfold_supervisor::Modes;
use penfold_sys::signal::{SignalFd, SignalSet};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetwinsize, tcsetattr};

const AT_ONCE: usize = 16 * 1024;
/// How much that is typed waits for a program that does not read. The keys that leave may be behind it.
const MOST_WAITING: usize = 1 << 20;

/// The caller's terminal in raw mode: keys go through as they are. Put back when dropped.
pub(crate) struct Raw {
    saved: Termios,
}

impl Raw {
    /// Takes the terminal at standard input.
    ///
    /// # Errors
    /// When it is none.
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

/// The size of the caller's terminal, or the usual one.
pub(crate) fn size() -> Size {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 => Size { rows: size.ws_row, columns: size.ws_col },
        _ => Size { rows: 24, columns: 80 },
    }
}

/// The same for the kernel.
pub(crate) fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

/// How the copying ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// The other side is closed.
    Closed,
    /// The keys that leave were typed.
    Left,
    /// There is nothing more to type.
    InputEnded,
}

/// What is copied from and to.
pub(crate) struct Relay<'a> {
    /// The terminal inside, or a stream to it.
    pub(crate) inside: BorrowedFd<'a>,
    /// Whether what is typed goes there.
    pub(crate) typed: bool,
    /// Whether it ends when there is nothing more to type.
    pub(crate) ends_with_input: bool,
    /// What is typed to leave without ending anything; nothing if that cannot be.
    pub(crate) leave: &'a [u8],
    /// Readable when no more output will come but what is there.
    pub(crate) over: Option<BorrowedFd<'a>>,
}

impl Relay<'_> {
    /// Copies until one side ends. `resize` is told of every new size. The caller's terminal is put back into its usual
    /// modes: an editor inside that goes on does not do it.
    ///
    /// # Errors
    /// Those of poll(2). SIGWINCH is blocked by the caller.
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
        let window = SignalFd::open(&SignalSet::of([Signal::WINCH.as_raw()]))?;
        let (stdin, stdout) = (io::stdin(), io::stdout());
        // A program that does not read what is typed must not keep us from showing what it writes.
        rustix::io::ioctl_fionbio(self.inside, true)?;
        let mut typed = self.typed;
        let mut waiting = Vec::new();
        let mut buffer = vec![0_u8; AT_ONCE];
        let mut keys = Keys::default();
        loop {
            let mut flags = PollFlags::IN;
            flags.set(PollFlags::OUT, !waiting.is_empty());
            let mut fds =
                vec![PollFd::from_borrowed_fd(self.inside, flags), PollFd::new(&window, PollFlags::IN)];
            fds.extend(self.over.map(|over| PollFd::from_borrowed_fd(over, PollFlags::IN)));
            let listens = typed && waiting.len() < MOST_WAITING;
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
                    // EIO of a terminal: nobody has its other side open any more.
                    Ok(_) | Err(_) => return Ok(End::Closed),
                }
            } else if self.over.is_some() && is_ready(2) {
                return Ok(End::Closed);
            }
            if is_ready(1) {
                while let Ok(Some(_)) = window.take() {}
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

    /// Passes on what was typed, as far as there is room. That the other side is gone is seen by reading.
    fn type_in(&self, waiting: &mut Vec<u8>) {
        if !waiting.is_empty()
            && let Ok(length) = rustix::io::write(self.inside, waiting)
        {
            waiting.drain(..length);
        }
    }

    /// Passes on all that was typed, within as long as a supervisor may take to answer.
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

/// Looks for the keys that leave in what is typed.
#[derive(Default)]
struct Keys {
    /// The first of them were typed, and are held back.
    held: Vec<u8>,
}

impl Keys {
    /// What is to be passed on, and whether the rest was the keys that leave.
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

/// Writes all, waiting for room where the other side does not block.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
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

/// A new terminal: the side that is shown and typed at, and the one that a command gets.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    penfold_supervisor::open_terminal()
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
