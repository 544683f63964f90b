//! The terminal of a detached sandbox, and its viewers.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::pty::OpenptFlags;
use rustix::termios::{Winsize, tcsetwinsize};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use self::modes::Modes;
use crate::wire::Size;

pub(crate) mod modes;
pub(crate) mod of_caller;
pub(crate) mod own_group;

/// The size of one read, and of the typed text that waits for a program that does not read.
const READ_BYTES: usize = 4096;
/// The most reads per poll round: a program may write without end.
const MAX_READS: usize = 16;
/// The most viewers of one terminal.
const MAX_VIEWERS: usize = 64;
/// The time that programs wait for a viewer that does not read, before it misses their output.
const VIEWER_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// The pause in the output after which a redraw counts as complete.
const REDRAW_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };
/// The time that programs may take to redraw.
const REDRAW_LIMIT: Duration = Duration::from_millis(500);

/// A pseudo-terminal, see pty(7), with its master side.
pub(crate) struct Terminal {
    master: OwnedFd,
    /// Keeps the slave side open while no program has it: a program with this controlling terminal may open it again.
    _slave: OwnedFd,
    viewers: Vec<Viewer>,
    /// A FIFO whose bytes are typed, and those that wait for a program that does not read.
    input: Option<(OwnedFd, Vec<u8>)>,
    /// The modes that the programs have set.
    modes: Modes,
    /// A memfd with these modes, for the process that takes over.
    saved_modes: OwnedFd,
    /// A timer: the patience with a viewer, or with programs that redraw.
    patience: OwnedFd,
    /// The size to restore after a redraw, and the start of the redraw.
    restore_size: Option<(Size, Instant)>,
    /// No viewer is waited for any more.
    no_waiting: bool,
}

/// A viewer: output is written to its stream, typed text is read from it.
struct Viewer {
    /// The number of the viewer's client.
    client: u64,
    size: Size,
    /// The modes that the viewer's terminal is in.
    modes: Modes,
    stream: OwnedFd,
    typed: Vec<u8>,
    /// The viewer has closed its writing side.
    input_closed: bool,
    /// The viewer has disconnected, perhaps before all its typed text was read.
    disconnected: bool,
    /// The output that did not fit into the stream; `since` is the time at which the viewer last made progress.
    unsent: Vec<u8>,
    since: Instant,
    /// The number of bytes that were dropped because the viewer did not read.
    dropped: usize,
}

impl Terminal {
    /// Creates a terminal, and returns its slave side for the command.
    pub(crate) fn open() -> io::Result<(Terminal, OwnedFd)> {
        let (master, slave) = open_pty()?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let patience =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let mut terminal = Terminal {
            master,
            _slave: slave.try_clone()?,
            viewers: Vec::new(),
            input: None,
            modes: Modes::default(),
            saved_modes: memfd_create(c"penfold-modes", MemfdFlags::CLOEXEC)?,
            patience,
            restore_size: None,
            no_waiting: false,
        };
        terminal.resize(Size { rows: 24, columns: 80 })?;
        Ok((terminal, slave))
    }

    /// Restores the modes that a killed supervisor has saved.
    pub(crate) fn inherit(&mut self) {
        let mut saved = [0_u8; 256];
        let length = rustix::io::pread(&self.saved_modes, &mut saved, 0).unwrap_or(0);
        self.modes.read(saved.get(..length).unwrap_or_default());
    }

    /// Sets the size of a client's terminal. The smallest viewer decides the common size.
    pub(crate) fn client_resized(&mut self, client: u64, size: Size) -> io::Result<()> {
        for viewer in self.viewers.iter_mut().filter(|viewer| viewer.client == client) {
            viewer.size = size;
        }
        self.resize(self.smallest().unwrap_or(size))
    }

    /// Returns the largest size that fits all viewers.
    fn smallest(&self) -> Option<Size> {
        let sizes = self.viewers.iter().filter(|viewer| !viewer.disconnected).map(|viewer| viewer.size);
        sizes.reduce(|a, b| Size { rows: a.rows.min(b.rows), columns: a.columns.min(b.columns) })
    }

    /// Sets the window size. The kernel sends SIGWINCH to the foreground group if the size changes.
    fn resize(&mut self, size: Size) -> io::Result<()> {
        self.restore_size = None;
        Ok(tcsetwinsize(&self.master, window(size))?)
    }

    /// Makes the programs redraw for a new viewer.
    ///
    /// The kernel sends SIGWINCH only for a changed size, and without a redraw a returning viewer would see nothing.
    /// The terminal gets one row less for a moment, also with a new size, which a starting program may miss. The size
    /// is restored only after the redraw:
    /// - restored at once, programs would see no change;
    /// - restored while they draw, some programs lose the second signal.
    fn redraw(&mut self, size: Size) -> io::Result<()> {
        if size.rows < 2 {
            return self.resize(size);
        }
        self.resize(Size { rows: size.rows - 1, ..size })?;
        self.restore_size = Some((size, Instant::now()));
        self.set_patience(REDRAW_PAUSE);
        Ok(())
    }

    fn set_patience(&self, until: Timespec) {
        let timer = Itimerspec { it_interval: Timespec::default(), it_value: until };
        // `timerfd_settime(2)` also resets a pending expiration.
        let _ = timerfd_settime(&self.patience, TimerfdTimerFlags::empty(), &timer);
    }

    /// Adds a viewer, in the modes that the programs have set.
    pub(crate) fn attach(&mut self, client: u64, stream: OwnedFd, size: Size) -> io::Result<()> {
        // A descriptor of another kind could block this process, or be always ready.
        let local = rustix::net::sockopt::socket_domain(&stream)? == AddressFamily::UNIX;
        if !local || rustix::net::sockopt::socket_type(&stream)? != SocketType::STREAM {
            return Err(io::Error::other("what came with it is no stream socket"));
        }
        if self.viewers.len() >= MAX_VIEWERS {
            self.viewers.retain(|viewer| !viewer.disconnected);
        }
        if self.viewers.len() >= MAX_VIEWERS {
            return Err(io::Error::other("too many clients are attached"));
        }
        rustix::io::ioctl_fionbio(&stream, true)?;
        let others = self.smallest().unwrap_or(size);
        self.redraw(Size { rows: size.rows.min(others.rows), columns: size.columns.min(others.columns) })?;
        let (typed, unsent) = (Vec::new(), Vec::new());
        let (input_closed, disconnected) = (false, false);
        let since = Instant::now();
        let modes = Modes::default();
        let mut viewer = Viewer {
            client,
            size,
            modes,
            stream,
            typed,
            input_closed,
            disconnected,
            unsent,
            since,
            dropped: 0,
        };
        viewer.show(&self.modes.replay(), self.no_waiting);
        self.viewers.push(viewer);
        Ok(())
    }

    /// Types what comes from this FIFO, which has a writer at any time.
    pub(crate) fn type_from(&mut self, fifo: OwnedFd) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&fifo, true)?;
        self.input = Some((fifo, Vec::new()));
        Ok(())
    }

    /// Moves bytes of the FIFO to the programs.
    fn serve_input(&mut self, buffer: &mut [u8]) {
        let Some((fifo, typed)) = &mut self.input else { return };
        if typed.is_empty()
            && let Ok(length) = rustix::io::read(&*fifo, &mut *buffer)
        {
            typed.extend_from_slice(buffer.get(..length).unwrap_or_default());
        }
        if let Ok(length) = rustix::io::write(&self.master, typed) {
            typed.drain(..length);
        }
    }

    /// Returns the descriptors to poll: terminal, timer, viewers, the FIFO.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.has_unsent());
        let is_typed = self.input.as_ref().is_some_and(|(_, typed)| !typed.is_empty());
        flags.set(PollFlags::OUT, is_typed || self.viewers.iter().any(|viewer| !viewer.typed.is_empty()));
        // A disconnected viewer always reports POLLHUP.
        let polled = self.viewers.iter().filter(|viewer| !viewer.disconnected || viewer.typed.is_empty());
        let viewers = polled.map(|viewer| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, viewer.typed.is_empty() && !viewer.input_closed);
            flags.set(PollFlags::OUT, viewer.dropped > 0 || !viewer.unsent.is_empty());
            PollFd::new(&viewer.stream, flags)
        });
        let input = self.input.iter().filter(|(_, typed)| typed.is_empty());
        let input = input.map(|(fifo, _)| PollFd::new(fifo, PollFlags::IN));
        [PollFd::new(&self.master, flags), PollFd::new(&self.patience, PollFlags::IN)]
            .into_iter()
            .chain(viewers)
            .chain(input)
    }

    /// Tells whether a viewer has not read the last output. As with any terminal, programs write only as fast as the
    /// output is read.
    fn has_unsent(&self) -> bool {
        self.viewers.iter().any(|viewer| !viewer.unsent.is_empty())
    }

    fn is_patience_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.patience, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Stops waiting for viewers.
    pub(crate) fn stop_waiting(&mut self) {
        self.no_waiting = true;
    }

    /// Moves output to the viewers and typed text to the programs, up to a limit per call; `keep` gets the output. True
    /// if there was output.
    pub(crate) fn serve(&mut self, mut keep: impl FnMut(&[u8])) -> bool {
        let mut buffer = [0_u8; READ_BYTES];
        let mut any = false;
        // A write to a viewer may find that it has disconnected, so the size before is kept.
        let before = self.smallest();
        for _ in 0..MAX_READS {
            if self.has_unsent() {
                break;
            }
            // EAGAIN: no more output for now.
            let Ok(length @ 1..) = rustix::io::read(&self.master, &mut buffer) else { break };
            let shown = buffer.get(..length).unwrap_or_default();
            keep(shown);
            if self.modes.read(shown) {
                self.save_modes();
            }
            self.viewers.iter_mut().for_each(|viewer| viewer.show(shown, self.no_waiting));
            any = true;
        }
        self.serve_input(&mut buffer);
        // Text typed by disconnected viewers is written before newer text of others.
        let disconnected = self.viewers.iter().any(|viewer| viewer.disconnected);
        for viewer in &mut self.viewers {
            viewer.flush(&self.modes, self.no_waiting);
            viewer.read_typed(&mut buffer);
            if viewer.disconnected == disconnected
                && let Ok(length) = rustix::io::write(&self.master, &viewer.typed)
            {
                viewer.typed.drain(..length);
            }
            if viewer.has_disconnected() {
                viewer.disconnect();
            }
        }
        self.viewers
            .retain(|viewer| !(viewer.disconnected && viewer.input_closed && viewer.typed.is_empty()));
        if let Some(size) = self.smallest().filter(|&size| before != Some(size)) {
            let _ = self.resize(size);
        }
        self.set_timer(any);
        any
    }

    fn save_modes(&self) {
        let saved = self.modes.replay();
        let length = u64::try_from(saved.len()).unwrap_or(0);
        let _ = rustix::fs::ftruncate(&self.saved_modes, length);
        let _ = rustix::io::pwrite(&self.saved_modes, &saved, 0);
    }

    /// Sets the timer for the next poll round.
    fn set_timer(&mut self, any: bool) {
        match self.restore_size {
            Some((_, since)) if any && since.elapsed() < REDRAW_LIMIT => {
                return self.set_patience(REDRAW_PAUSE);
            }
            Some(_) if !any && !self.is_patience_over() => return,
            Some((size, _)) => {
                let _ = self.resize(size);
            }
            None => {}
        }
        self.set_patience(if self.has_unsent() { VIEWER_PATIENCE } else { Timespec::default() });
    }
}

fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Viewer {
    /// Writes output to the viewer; the rest follows later, or is dropped if viewers are not waited for.
    fn show(&mut self, shown: &[u8], no_waiting: bool) {
        if self.disconnected {
            return;
        }
        if self.dropped > 0 {
            self.dropped += shown.len();
            return;
        }
        let length = match rustix::io::write(&self.stream, shown) {
            Ok(length) => self.track_modes(shown, length),
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => return self.disconnect(),
        };
        self.unsent.extend_from_slice(shown.get(length..).unwrap_or_default());
        self.since = Instant::now();
        self.drop_unsent_if(no_waiting);
    }

    /// Updates the viewer's modes from the bytes that were written to it.
    fn track_modes(&mut self, shown: &[u8], length: usize) -> usize {
        self.modes.read(shown.get(..length).unwrap_or_default());
        length
    }

    /// Writes the rest once there is room, or a note about dropped bytes. Dropped bytes may have set modes, so the note
    /// restores them.
    fn flush(&mut self, modes: &Modes, no_waiting: bool) {
        if !self.unsent.is_empty() {
            if let Ok(length @ 1..) = rustix::io::write(&self.stream, &self.unsent) {
                let shown: Vec<u8> = self.unsent.drain(..length).collect();
                self.track_modes(&shown, length);
                self.since = Instant::now();
            }
            self.drop_unsent_if(
                no_waiting
                    || Duration::try_from(VIEWER_PATIENCE).is_ok_and(|most| self.since.elapsed() >= most),
            );
        } else if self.dropped > 0 {
            let note = format!("\r\n[penfold: {} bytes not shown]\r\n", self.dropped);
            let note = [&self.modes.reset(), note.as_bytes(), &modes.replay()].concat();
            if let Ok(length @ 1..) = rustix::io::write(&self.stream, &note) {
                self.dropped = 0;
                self.track_modes(&note, length);
                self.unsent.extend_from_slice(note.get(length..).unwrap_or_default());
                self.since = Instant::now();
            }
        }
    }

    /// Drops the rest of the output if `give_up`.
    fn drop_unsent_if(&mut self, give_up: bool) {
        if give_up {
            self.dropped += self.unsent.len();
            self.unsent.clear();
        }
    }

    fn read_typed(&mut self, buffer: &mut [u8]) {
        if !self.typed.is_empty() || self.input_closed {
            return;
        }
        match rustix::io::read(&self.stream, &mut *buffer) {
            Ok(0) => self.input_closed = true,
            Ok(length) => self.typed.extend_from_slice(buffer.get(..length).unwrap_or_default()),
            Err(_) => {}
        }
    }

    /// Marks the viewer as disconnected.
    fn disconnect(&mut self) {
        self.disconnected = true;
        self.unsent.clear();
        self.dropped = 0;
    }

    fn has_disconnected(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        let now = Timespec::default();
        matches!(rustix::event::poll(&mut fds, Some(&now)), Ok(1..))
    }
}

/// Creates a pseudo-terminal, see pty(7), and returns its master and slave side.
///
/// # Errors
/// When no devpts is mounted, or its limit is reached.
pub fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok((master, rustix::fs::open(name, flags, Mode::empty())?))
}
