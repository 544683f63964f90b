//! The terminal of a detached sandbox, and those who sit at it.

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

/// How much is read at once, and how much typed text waits for a program that does not read.
const AT_ONCE: usize = 4096;
/// How often that is done before others have their turn: a program may write without end.
const TURNS: usize = 16;
/// How many may sit at it.
const SEATS: usize = 64;
/// How long the programs wait for a viewer that does not look, until it misses what they write.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// How long nothing must be drawn until the programs have drawn for another size.
const QUIET: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };
/// How long they may take for it.
const REDRAW: Duration = Duration::from_millis(500);

/// A pseudo-terminal, pty(7), on the side that shows and types.
pub(crate) struct Terminal {
    master: OwnedFd,
    /// Keeps it in being while no program has it open: one that has it as its terminal may open it again.
    _slave: OwnedFd,
    viewers: Vec<Viewer>,
    /// How the programs have set it up.
    modes: Modes,
    /// The same, for who takes the supervisor's place.
    noted_modes: OwnedFd,
    /// Readable when the patience with a viewer, or with programs that are to draw, is over.
    patience: OwnedFd,
    /// The size that it is to get back once they have drawn, and since when.
    back_to: Option<(Size, Instant)>,
    /// There is none any more.
    hurried: bool,
}

/// Who sits at it: shown is written to the stream, typed is read from it.
struct Viewer {
    /// The number of the client that it belongs to.
    client: u64,
    size: Size,
    /// The modes that it was shown.
    modes: Modes,
    stream: OwnedFd,
    typed: Vec<u8>,
    /// It types nothing more.
    silent: bool,
    /// It has gone away, perhaps before all that it typed was read.
    left: bool,
    /// What it is still to be shown, and since when it has not looked.
    rest: Vec<u8>,
    since: Instant,
    /// How many bytes it was not shown, because it did not look.
    missed: usize,
}

impl Terminal {
    /// Makes a terminal, and gives the side that the command gets.
    pub(crate) fn open() -> io::Result<(Terminal, OwnedFd)> {
        let (master, slave) = open()?;
        rustix::io::ioctl_fionbio(&master, true)?;
        let patience =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        let mut terminal = Terminal {
            master,
            _slave: slave.try_clone()?,
            viewers: Vec::new(),
            modes: Modes::default(),
            noted_modes: memfd_create(c"penfold-modes", MemfdFlags::CLOEXEC)?,
            patience,
            back_to: None,
            hurried: false,
        };
        terminal.resize(Size { rows: 24, columns: 80 })?;
        Ok((terminal, slave))
    }

    /// Takes on the modes that a supervisor that was killed has noted.
    pub(crate) fn inherit(&mut self) {
        let mut noted = [0_u8; 256];
        let length = rustix::io::pread(&self.noted_modes, &mut noted, 0).unwrap_or(0);
        self.modes.read(noted.get(..length).unwrap_or_default());
    }

    /// A client has room of another size. The smallest viewer decides how much there is.
    pub(crate) fn client_resized(&mut self, client: u64, size: Size) -> io::Result<()> {
        for viewer in self.viewers.iter_mut().filter(|viewer| viewer.client == client) {
            viewer.size = size;
        }
        self.resize(self.smallest().unwrap_or(size))
    }

    /// The room that all viewers have.
    fn smallest(&self) -> Option<Size> {
        let sizes = self.viewers.iter().filter(|viewer| !viewer.left).map(|viewer| viewer.size);
        sizes.reduce(|a, b| Size { rows: a.rows.min(b.rows), columns: a.columns.min(b.columns) })
    }

    /// Tells the programs at it how much room there is.
    fn resize(&mut self, size: Size) -> io::Result<()> {
        self.back_to = None;
        Ok(tcsetwinsize(&self.master, window(size))?)
    }

    /// Makes the programs draw for who has just sat down: nobody tells them of a size that is no new one, and who comes
    /// back would look at nothing. One row less for a moment: at once, programs would see no change, and while they draw
    /// some lose the second. Also for a new size, which a program that just starts may miss.
    fn redraw(&mut self, size: Size) -> io::Result<()> {
        if size.rows < 2 {
            return self.resize(size);
        }
        self.resize(Size { rows: size.rows - 1, ..size })?;
        self.back_to = Some((size, Instant::now()));
        self.set_patience(QUIET);
        Ok(())
    }

    fn set_patience(&self, until: Timespec) {
        let timer = Itimerspec { it_interval: Timespec::default(), it_value: until };
        // This empties it as well.
        let _ = timerfd_settime(&self.patience, TimerfdTimerFlags::empty(), &timer);
    }

    /// Seats a client, in the modes that the programs have set.
    pub(crate) fn attach(&mut self, client: u64, stream: OwnedFd, size: Size) -> io::Result<()> {
        // A file of another kind could make this process wait, or be always ready.
        let local = rustix::net::sockopt::socket_domain(&stream)? == AddressFamily::UNIX;
        if !local || rustix::net::sockopt::socket_type(&stream)? != SocketType::STREAM {
            return Err(io::Error::other("what came with it is no stream socket"));
        }
        if self.viewers.len() >= SEATS {
            self.viewers.retain(|viewer| !viewer.left);
        }
        if self.viewers.len() >= SEATS {
            return Err(io::Error::other("too many sit at it"));
        }
        rustix::io::ioctl_fionbio(&stream, true)?;
        let others = self.smallest().unwrap_or(size);
        self.redraw(Size { rows: size.rows.min(others.rows), columns: size.columns.min(others.columns) })?;
        let (typed, rest) = (Vec::new(), Vec::new());
        let (silent, left) = (false, false);
        let since = Instant::now();
        let modes = Modes::default();
        let mut viewer = Viewer { client, size, modes, stream, typed, silent, left, rest, since, missed: 0 };
        viewer.show(&self.modes.replay(), self.hurried);
        self.viewers.push(viewer);
        Ok(())
    }

    /// What to poll: the terminal, then those who sit at it.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, !self.is_held());
        flags.set(PollFlags::OUT, self.viewers.iter().any(|viewer| !viewer.typed.is_empty()));
        // One that has left is always ready.
        let heard = self.viewers.iter().filter(|viewer| !viewer.left || viewer.typed.is_empty());
        let viewers = heard.map(|viewer| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, viewer.typed.is_empty() && !viewer.silent);
            flags.set(PollFlags::OUT, viewer.missed > 0 || !viewer.rest.is_empty());
            PollFd::new(&viewer.stream, flags)
        });
        [PollFd::new(&self.master, flags), PollFd::new(&self.patience, PollFlags::IN)]
            .into_iter()
            .chain(viewers)
    }

    /// Whether a viewer has not seen yet what was written last: as with any terminal, programs write as fast as it is
    /// looked at.
    fn is_held(&self) -> bool {
        self.viewers.iter().any(|viewer| !viewer.rest.is_empty())
    }

    fn is_patience_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.patience, PollFlags::IN)];
        matches!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Waits for no viewer any more.
    pub(crate) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// Shows and types what there is, within reason; `keep` gets what is shown. True if anything was shown.
    pub(crate) fn serve(&mut self, mut keep: impl FnMut(&[u8])) -> bool {
        let mut buffer = [0_u8; AT_ONCE];
        let mut any = false;
        // That a viewer has left may be seen where it is shown something.
        let before = self.smallest();
        for _ in 0..TURNS {
            if self.is_held() {
                break;
            }
            // EAGAIN: nothing more for now.
            let Ok(length @ 1..) = rustix::io::read(&self.master, &mut buffer) else { break };
            let shown = buffer.get(..length).unwrap_or_default();
            keep(shown);
            if self.modes.read(shown) {
                self.note_modes();
            }
            self.viewers.iter_mut().for_each(|viewer| viewer.show(shown, self.hurried));
            any = true;
        }
        // What those typed who have left comes before what others type now.
        let left = self.viewers.iter().any(|viewer| viewer.left);
        for viewer in &mut self.viewers {
            viewer.look_again(&self.modes, self.hurried);
            viewer.listen(&mut buffer);
            if viewer.left == left
                && let Ok(length) = rustix::io::write(&self.master, &viewer.typed)
            {
                viewer.typed.drain(..length);
            }
            if viewer.has_left() {
                viewer.leave();
            }
        }
        self.viewers.retain(|viewer| !(viewer.left && viewer.silent && viewer.typed.is_empty()));
        if let Some(size) = self.smallest().filter(|&size| before != Some(size)) {
            let _ = self.resize(size);
        }
        self.wait_on(any);
        any
    }

    fn note_modes(&self) {
        let noted = self.modes.replay();
        let length = u64::try_from(noted.len()).unwrap_or(0);
        let _ = rustix::fs::ftruncate(&self.noted_modes, length);
        let _ = rustix::io::pwrite(&self.noted_modes, &noted, 0);
    }

    /// Decides what is waited for after this turn.
    fn wait_on(&mut self, any: bool) {
        match self.back_to {
            Some((_, since)) if any && since.elapsed() < REDRAW => return self.set_patience(QUIET),
            Some(_) if !any && !self.is_patience_over() => return,
            Some((size, _)) => {
                let _ = self.resize(size);
            }
            None => {}
        }
        self.set_patience(if self.is_held() { PATIENCE } else { Timespec::default() });
    }
}

fn window(size: Size) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Viewer {
    /// Shows it what there is room for; the rest follows, or is missed where nobody waits for it.
    fn show(&mut self, shown: &[u8], hurried: bool) {
        if self.left {
            return;
        }
        if self.missed > 0 {
            self.missed += shown.len();
            return;
        }
        let length = match rustix::io::write(&self.stream, shown) {
            Ok(length) => self.told(shown, length),
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => return self.leave(),
        };
        self.rest.extend_from_slice(shown.get(length..).unwrap_or_default());
        self.since = Instant::now();
        self.miss(hurried);
    }

    /// Notes that it was shown so many of these bytes.
    fn told(&mut self, shown: &[u8], length: usize) -> usize {
        self.modes.read(shown.get(..length).unwrap_or_default());
        length
    }

    /// Shows it more, once there is room, or tells it how much it has missed. What it missed may have set modes.
    fn look_again(&mut self, modes: &Modes, hurried: bool) {
        if !self.rest.is_empty() {
            if let Ok(length @ 1..) = rustix::io::write(&self.stream, &self.rest) {
                let shown: Vec<u8> = self.rest.drain(..length).collect();
                self.told(&shown, length);
                self.since = Instant::now();
            }
            self.miss(hurried || Duration::try_from(PATIENCE).is_ok_and(|most| self.since.elapsed() >= most));
        } else if self.missed > 0 {
            let note = format!("\r\n[penfold: {} bytes not shown]\r\n", self.missed);
            let note = [&self.modes.reset(), note.as_bytes(), &modes.replay()].concat();
            if let Ok(length @ 1..) = rustix::io::write(&self.stream, &note) {
                self.missed = 0;
                self.told(&note, length);
                self.rest.extend_from_slice(note.get(length..).unwrap_or_default());
                self.since = Instant::now();
            }
        }
    }

    /// Gives up on showing it the rest, if so.
    fn miss(&mut self, so: bool) {
        if so {
            self.missed += self.rest.len();
            self.rest.clear();
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

    /// Shows it nothing more.
    fn leave(&mut self) {
        self.left = true;
        self.rest.clear();
        self.missed = 0;
    }

    fn has_left(&self) -> bool {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        let now = Timespec::default();
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
