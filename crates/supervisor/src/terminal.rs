//! The terminal of a detached sandbox, and those who sit at it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::pty::OpenptFlags;

use crate::wire::Size;

/// How much is read at once, and how much typed text waits for a program that does not read.
const AT_ONCE: usize = 4096;
/// How often that is done before others have their turn: a program may write without end.
const TURNS: usize = 16;
/// How many may sit at it.
const SEATS: usize = 64;

/// A pseudo-terminal, pty(7), on the side that shows and types.
pub(crate) struct Terminal {
    master: OwnedFd,
    /// Keeps it in being while no program has it open: one that has it as its terminal may open it again.
    _slave: OwnedFd,
    viewers: Vec<Viewer>,
}

/// Who sits at it: shown is written to the stream, typed is read from it.
struct Viewer {
    stream: OwnedFd,
    typed: Vec<u8>,
    /// It types nothing more.
    silent: bool,
    /// How many bytes it was not shown, because it did not look.
    missed: usize,
}

impl Terminal {
    /// Makes a terminal, and gives the side that the command gets.
    pub(crate) fn open() -> io::Result<(Terminal, OwnedFd)> {
        let (master, slave) = open()?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let terminal = Terminal { master, _slave: slave.try_clone()?, viewers: Vec::new() };
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
        // A file of another kind could make this process wait, or be always ready.
        let local = rustix::net::sockopt::socket_domain(&stream)? == AddressFamily::UNIX;
        if !local || rustix::net::sockopt::socket_type(&stream)? != SocketType::STREAM {
            return Err(io::Error::other("what came with it is no stream socket"));
        }
        if self.viewers.len() >= SEATS {
            return Err(io::Error::other("too many sit at it"));
        }
        rustix::io::ioctl_fionbio(&stream, true)?;
        self.resize(size)?;
        self.viewers.push(Viewer { stream, typed: Vec::new(), silent: false, missed: 0 });
        Ok(())
    }

    /// What to poll: the terminal, then those who sit at it.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut flags = PollFlags::IN;
        flags.set(PollFlags::OUT, self.viewers.iter().any(|viewer| !viewer.typed.is_empty()));
        let viewers = self.viewers.iter().map(|viewer| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, viewer.typed.is_empty() && !viewer.silent);
            flags.set(PollFlags::OUT, viewer.missed > 0);
            PollFd::new(&viewer.stream, flags)
        });
        std::iter::once(PollFd::new(&self.master, flags)).chain(viewers)
    }

    /// Shows and types what there is, within reason; `keep` gets what is shown. True if anything was shown.
    pub(crate) fn serve(&mut self, mut keep: impl FnMut(&[u8])) -> bool {
        let mut buffer = [0_u8; AT_ONCE];
        let mut any = false;
        for _ in 0..TURNS {
            // EAGAIN: nothing more for now.
            let Ok(length @ 1..) = rustix::io::read(&self.master, &mut buffer) else { break };
            let shown = buffer.get(..length).unwrap_or_default();
            keep(shown);
            self.viewers.retain_mut(|viewer| viewer.show(shown));
            any = true;
        }
        for viewer in &mut self.viewers {
            viewer.look_again();
            viewer.listen(&mut buffer);
            if let Ok(length) = rustix::io::write(&self.master, &viewer.typed) {
                viewer.typed.drain(..length);
            }
        }
        self.viewers.retain(|viewer| !viewer.has_left());
        any
    }
}

impl Viewer {
    /// Shows it what there is room for. Who does not look holds up nobody and misses the rest. False if it is gone.
    fn show(&mut self, shown: &[u8]) -> bool {
        if self.missed > 0 {
            self.missed += shown.len();
            return true;
        }
        match rustix::io::write(&self.stream, shown) {
            Ok(length) => self.missed = shown.len().saturating_sub(length),
            Err(Errno::AGAIN | Errno::INTR) => self.missed = shown.len(),
            Err(_) => return false,
        }
        true
    }

    /// Tells it how much it has missed, once there is room.
    fn look_again(&mut self) {
        if self.missed > 0 {
            let note = format!("\r\n[penfold: {} bytes not shown]\r\n", self.missed);
            if rustix::io::write(&self.stream, note.as_bytes()) == Ok(note.len()) {
                self.missed = 0;
            }
        }
    }

    fn listen(&mut self, buffer: &mut [u8]) {
        if !self.typed.is_empty() || self.silent {
            return;
        }
        match rustix::io::read(&self.stream, &mut *buffer) {
            Ok(0) => self.silent = true,
            Ok(length) => self.typed.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(_) => {}
        }
    }

    fn has_left(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        let now = rustix::event::Timespec::default();
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
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
