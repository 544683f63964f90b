//! The terminal of a detached sandbox, and those who sit at it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pty::OpenptFlags;

use crate::wire::Size;

/// How much is read at once, and how much typed text waits for a program that does not read.
const AT_ONCE: usize = 4096;

/// A pseudo-terminal, pty(7), on the side that shows and types.
pub(crate) struct Terminal {
    master: OwnedFd,
    /// Some program has it open, as far as is known.
    open: bool,
    viewers: Vec<Viewer>,
}

/// Who sits at it: shown is written to the stream, typed is read from it.
struct Viewer {
    stream: OwnedFd,
    typed: Vec<u8>,
}

impl Terminal {
    /// Makes a terminal, and gives the side that the command gets.
    pub(crate) fn open() -> io::Result<(Terminal, OwnedFd)> {
        let (master, slave) = open()?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let terminal = Terminal { master, open: true, viewers: Vec::new() };
        terminal.resize(Size { rows: 24, columns: 80 })?;
        Ok((terminal, slave))
    }

    /// Tells the programs at it how much room there is.
    pub(crate) fn resize(&self, size: Size) -> io::Result<()> {
        let size =
            rustix::termios::Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(rustix::termios::tcsetwinsize(&self.master, size)?)
    }

    /// Seats somebody.
    pub(crate) fn seat(&mut self, stream: OwnedFd, size: Size) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&stream, true)?;
        self.resize(size)?;
        self.viewers.push(Viewer { stream, typed: Vec::new() });
        Ok(())
    }

    /// What to poll: the terminal, then those who sit at it.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let waits = self.viewers.iter().any(|viewer| !viewer.typed.is_empty());
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.open);
        flags.set(PollFlags::OUT, waits);
        let master = (self.open || waits).then(|| PollFd::new(&self.master, flags));
        let viewers = self.viewers.iter().map(|viewer| {
            let flags = if viewer.typed.is_empty() { PollFlags::IN } else { PollFlags::empty() };
            PollFd::new(&viewer.stream, flags)
        });
        master.into_iter().chain(viewers)
    }

    /// Shows and types what there is; `keep` gets what is shown. True if there was anything.
    pub(crate) fn serve(&mut self, mut keep: impl FnMut(&[u8])) -> bool {
        let mut moved = false;
        let mut buffer = [0_u8; AT_ONCE];
        while self.open {
            match rustix::io::read(&self.master, &mut buffer) {
                Ok(length @ 1..) => {
                    let shown = buffer.get(..length).unwrap_or_default();
                    keep(shown);
                    self.show(shown);
                    moved = true;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                // EIO: nobody has the other side open any more.
                Ok(_) | Err(_) => self.open = false,
            }
        }
        for viewer in &mut self.viewers {
            if viewer.typed.is_empty()
                && let Ok(length @ 1..) = rustix::io::read(&viewer.stream, &mut buffer)
            {
                viewer.typed.extend_from_slice(buffer.get(..length).unwrap_or_default());
            }
            if let Ok(length) = rustix::io::write(&self.master, &viewer.typed) {
                moved |= length > 0;
                viewer.typed.drain(..length);
            }
        }
        self.viewers.retain(|viewer| !has_left(viewer));
        moved
    }

    /// Who does not look for so long that there is no room for more loses the seat, and holds up nobody.
    fn show(&mut self, shown: &[u8]) {
        self.viewers.retain(|viewer| rustix::io::write(&viewer.stream, shown) == Ok(shown.len()));
    }
}

/// Makes a pseudo-terminal, pty(7): the side that shows and types, and the one that programs get.
///
/// # Errors
/// When there is no devpts, or no room in it.
pub fn open() -> io::Result<(OwnedFd, OwnedFd)> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok((master, rustix::fs::open(name, flags, Mode::empty())?))
}

fn has_left(viewer: &Viewer) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(viewer.stream.as_fd(), PollFlags::empty())];
    let now = rustix::event::Timespec::default();
    matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
}
