//! Where a detached sandbox is asked and answers: its control socket, its output, its files.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use penfold_process::ProcessId;
use penfold_state::events::{Journal, What};
use penfold_state::log::{Drained, PipeState, Stream, Writer};
use penfold_state::record::{Record, SCHEMA};
use penfold_state::state::{Exited, State, Word, now_ms};
use penfold_state::{Detach, Files, Intent, Report, Status};
use penfold_sys::launch::{Apart, Program};
use penfold_teardown::{Cause, Level, Resource};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;

use crate::execs::Execs;
use crate::policy::Activity;
use crate::terminal::Terminal;
use crate::wire::{self, Answer, PROTOCOL, Received, Request, Size};

/// The file name of the control socket.
const SOCKET: &str = "control.sock";
/// How many may wait to be let in.
const BACKLOG: i32 = 64;
/// How many are let in at a time: nobody needs more.
const CLIENTS: usize = 256;
/// How long nobody is let in where there is no descriptor for anybody: nothing tells when there is one again.
const CLOSED: Duration = Duration::from_millis(100);
/// The longest path that fits a `sockaddr_un`, unix(7).
const LONGEST: usize = 107;

/// Output of which so many bytes come at once comes from a command that waits for its pipe.
const BUSY: u64 = 256 << 10;
/// As large as a pipe may be made without privilege, unless the host says otherwise (pipe(7)).
const WIDE: usize = 1 << 20;

/// What a detached sandbox has besides what every sandbox has.
pub(crate) struct Desk {
    files: Files,
    id: String,
    listener: OwnedFd,
    clients: Vec<Client>,
    /// How many are let in at a time.
    most: usize,
    /// The number of the next client.
    next: u64,
    /// Until when nobody is let in, for there is no descriptor for anybody.
    closed_until: Option<Instant>,
    /// None where the other process writes it.
    log: Option<Writer>,
    log_limit: u64,
    pipes: Vec<Pipe>,
    terminal: Option<Terminal>,
    /// What the command gets; gone once it has it.
    given: Option<Apart>,
    /// When the lease ends that the sandbox was made with, or that was renewed before a takeover.
    lease: Option<Instant>,
    /// Where whoever takes over reads of a lease that was renewed: when it ends, in milliseconds since `opened`. Empty while
    /// none was.
    renewed: OwnedFd,
    opened: Instant,
    expires_at_ms: Option<u64>,
    active: Instant,
    supervisors: Vec<ProcessId>,
    leader: Option<ProcessId>,
    started_at_ms: u64,
    kept: Rc<Cell<bool>>,
    remove: bool,
    /// The command has run: there is something to tell of.
    ran: bool,
    /// How the command ended, once it was told.
    told: Cell<Option<Exited>>,
    /// A process of ours before this one may have told it.
    believes: bool,
    /// Somebody else has told it.
    tampered: Cell<bool>,
    journal: Journal,
    /// The commands that were put into the sandbox.
    pub(crate) execs: Execs,
}

struct Client {
    number: u64,
    socket: OwnedFd,
    /// It has asked for what comes later, and is there for that.
    waits: bool,
    /// When it has come, or has last said something.
    spoke: Instant,
}

/// What a client said.
pub(crate) struct Said {
    pub(crate) client: u64,
    pub(crate) request: Request,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The record of a sandbox, which stays when a detached one has run.
pub(crate) struct KeptRecord {
    record: Record,
    kept: Rc<Cell<bool>>,
}

impl Resource for KeptRecord {
    fn describe(&self) -> String {
        self.record.describe()
    }

    fn is_record(&self) -> bool {
        true
    }

    fn release(&mut self, forced: bool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if self.kept.get() { Ok(()) } else { self.record.release(forced) }
    }
}

/// What a command writes to.
struct Pipe {
    stream: Stream,
    fd: OwnedFd,
    wide: bool,
}

impl Pipe {
    /// Lets a command that writes much go on while what it wrote is put into the log. Its user may not have the room.
    fn widen(&mut self) {
        if !std::mem::replace(&mut self.wide, true) {
            let _ = rustix::pipe::fcntl_setpipe_size(&self.fd, WIDE);
        }
    }

    /// Moves into the log what members have left in it: as much as it holds, and not more from who writes to it from
    /// outside.
    fn empty(&self, log: &mut Writer) {
        let left = rustix::pipe::fcntl_getpipe_size(&self.fd).unwrap_or(WIDE);
        let mut left = u64::try_from(left).unwrap_or(u64::MAX);
        while let Ok(Drained { bytes, state: PipeState::Open }) = log.drain(self.stream, self.fd.as_fd())
            && bytes < left
        {
            left -= bytes;
        }
    }
}

impl Desk {
    /// Makes the socket, the log and the pipes, before anything is started.
    pub(crate) fn open(record: &Record, intent: &Intent, detach: &Detach) -> io::Result<Desk> {
        let files = record.files().clone();
        let listener = listen(files.dir(), files.path())?;
        let log = Writer::create(files.dir(), detach.log_limit).map_err(io::Error::other)?;
        let (terminal, pipes, given) = if detach.terminal { with_terminal()? } else { with_pipes()? };
        let now = Instant::now();
        Ok(Desk {
            id: files.name().to_owned(),
            journal: Journal::of(&files, intent),
            files,
            listener,
            clients: Vec::new(),
            most: most_clients(),
            next: 1,
            closed_until: None,
            log: Some(log),
            log_limit: detach.log_limit,
            pipes,
            terminal,
            given: Some(given),
            lease: detach.ttl.and_then(|ttl| now.checked_add(ttl)),
            renewed: rustix::fs::memfd_create(c"lease", MemfdFlags::CLOEXEC)?,
            opened: now,
            expires_at_ms: detach.ttl.map(|ttl| now_ms().saturating_add(millis(ttl))),
            active: now,
            supervisors: Vec::new(),
            leader: None,
            started_at_ms: now_ms(),
            kept: Rc::new(Cell::new(false)),
            remove: detach.remove,
            ran: false,
            told: Cell::new(None),
            believes: false,
            tampered: Cell::new(false),
            execs: Execs::default(),
        })
    }

    /// The record as a resource: it goes only if the command never ran, or if that was wanted.
    pub(crate) fn keep(&self, record: Record) -> KeptRecord {
        KeptRecord { record, kept: Rc::clone(&self.kept) }
    }

    /// Gives the command a session of its own, and the log or the terminal to write to.
    pub(crate) fn equip(&mut self, program: &mut Program) {
        if let Some(given) = self.given.take() {
            program.apart(given);
        }
    }

    /// The command runs: from now on the record stays.
    pub(crate) fn has_run(&mut self) {
        self.kept.set(!self.remove);
        self.given = None;
        self.ran = true;
    }

    /// Leaves the output to the supervisor, which has copies of all this.
    pub(crate) fn let_go(&mut self) {
        self.given = None;
        self.log = None;
    }

    /// Goes on in the place of a supervisor that was killed. A log that cannot be gone on with ends where it is.
    pub(crate) fn inherit(&mut self) {
        self.log = Writer::reopen(self.files.dir(), self.log_limit).ok();
        self.active = Instant::now();
        if let Some(terminal) = &mut self.terminal {
            terminal.inherit();
        }
        self.inherit_lease();
        self.believes = true;
        self.has_run();
    }

    fn inherit_lease(&mut self) {
        let mut end = [0; 8];
        if rustix::io::pread(&self.renewed, &mut end, 0) != Ok(end.len()) {
            return;
        }
        let end = Some(u64::from_ne_bytes(end)).filter(|&end| end > 0).map(Duration::from_millis);
        self.lease = end.and_then(|end| self.opened.checked_add(end));
        let left = self.lease.map(|lease| lease.saturating_duration_since(Instant::now()));
        self.expires_at_ms = left.map(|left| now_ms().saturating_add(millis(left)));
    }

    /// Whether `exit.json`, if there is one, is the word of the supervisor before this one.
    pub(crate) fn believe_exit(&mut self, believes: bool) {
        self.believes = believes;
    }

    /// The commands that were put into the sandbox, as the other process has written it down.
    pub(crate) fn written_execs(&self) -> Vec<penfold_state::state::Exec> {
        self.files.state().ok().flatten().map(|state| state.execs).unwrap_or_default()
    }

    /// Names the processes that look after the sandbox, and the first one in it.
    pub(crate) fn looked_after_by(&mut self, supervisors: Vec<ProcessId>, leader: Option<ProcessId>) {
        self.supervisors = supervisors;
        self.leader = leader;
    }

    /// Writes down how things stand. A host without room for it keeps the old word; nothing depends on it.
    pub(crate) fn say(&self, word: Word, level: Level, missing: &[String]) {
        let state = State {
            schema: SCHEMA,
            word,
            supervisors: self.supervisors.clone(),
            leader: self.leader,
            level,
            started_at_ms: self.started_at_ms,
            expires_at_ms: self.expires_at_ms,
            execs: self.execs.states(),
            missing: missing.to_vec(),
        };
        let _ = self.files.write_state(&state);
    }

    /// Writes down that the lease is so many milliseconds long, and when it ends; 0 means that it never does.
    pub(crate) fn renew(&mut self, ms: u64, end: Option<Instant>) {
        self.expires_at_ms = (ms > 0).then(|| now_ms().saturating_add(ms));
        let end = end.map_or(0, |end| millis(end.saturating_duration_since(self.opened)).max(1));
        let _ = rustix::io::pwrite(&self.renewed, &end.to_ne_bytes(), 0);
    }

    /// When the lease ends that the supervisor began with.
    pub(crate) fn lease(&self) -> Option<Instant> {
        self.lease
    }

    /// What the idle time is measured by.
    pub(crate) fn activity(&self) -> Activity {
        Activity { last: self.active, execs: self.execs.running() }
    }

    /// The sandbox is being ended. More than once does no harm.
    pub(crate) fn ends(&mut self) {
        self.execs.ends();
    }

    /// Listens on in the name of this process: the kernel tells clients who called listen(2) last, and whoever did is dead.
    pub(crate) fn listen_again(&self) {
        let _ = rustix::net::listen(&self.listener, BACKLOG);
    }

    /// What to poll; [`Desk::serve`] takes the answers in the same order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = PollFd<'_>> {
        let mut comers = PollFlags::empty();
        comers.set(PollFlags::IN, self.opens_in().is_none());
        let execs = self.execs.sources();
        let clients = self.clients.iter().map(|client| client.socket.as_fd());
        let pipes = self.pipes.iter().map(|pipe| pipe.fd.as_fd());
        let others = clients.chain(pipes).chain(execs);
        std::iter::once(PollFd::new(&self.listener, comers))
            .chain(others.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)))
            .chain(self.terminal.iter().flat_map(Terminal::sources))
    }

    /// Lets clients in, hears them, moves output into the log.
    pub(crate) fn serve(&mut self, ready: &[bool]) -> Vec<Said> {
        let began = Instant::now();
        let is_ready = |index: usize| ready.get(index).copied().unwrap_or(false);
        let (clients, pipes) = (self.clients.len(), self.pipes.len());
        let ended: Vec<bool> =
            (0..pipes).map(|index| is_ready(1 + clients + index) && self.drain(index)).collect();
        let mut ended = ended.into_iter();
        self.pipes.retain(|_| !ended.next().unwrap_or(false));
        if ready.get(1 + clients + pipes..).unwrap_or_default().contains(&true) {
            self.execs.bury();
            self.serve_terminal();
            self.active = Instant::now();
        }
        let mut said = Vec::new();
        for index in (0..clients).rev().filter(|index| is_ready(1 + index)) {
            self.hear(index, &mut said);
        }
        if is_ready(0) {
            self.let_in(began);
        }
        said
    }

    /// Moves what a pipe holds into the log. True once nobody can write to it any more.
    fn drain(&mut self, index: usize) -> bool {
        let (Some(pipe), Some(log)) = (self.pipes.get_mut(index), &mut self.log) else { return true };
        self.active = Instant::now();
        let Ok(drained) = log.drain(pipe.stream, pipe.fd.as_fd()) else { return true };
        if drained.bytes >= BUSY {
            pipe.widen();
        }
        drained.state == PipeState::End
    }

    fn serve_terminal(&mut self) -> bool {
        let (Some(terminal), log) = (&mut self.terminal, &mut self.log) else { return false };
        terminal.serve(|shown| {
            if let Some(log) = log.as_mut() {
                log.append(Stream::Stdout, shown);
            }
        })
    }

    /// Does what is asked of the terminal.
    ///
    /// # Errors
    /// Why not, in a sentence.
    pub(crate) fn at_terminal(
        &mut self,
        client: u64,
        size: Size,
        seat: Option<OwnedFd>,
    ) -> Result<(), String> {
        let terminal = self.terminal.as_mut().ok_or("the sandbox has no terminal")?;
        let done = match seat {
            Some(stream) => terminal.seat(client, stream, size),
            None => terminal.client_resized(client, size),
        };
        done.map_err(|error| format!("the terminal does not take it: {error}"))
    }

    fn hear(&mut self, index: usize, said: &mut Vec<Said>) {
        let Some(client) = self.clients.get_mut(index) else { return };
        let number = client.number;
        client.spoke = Instant::now();
        match wire::receive_with(&client.socket) {
            Ok((Received::Message(request), fds)) => {
                client.waits |= matches!(request, Request::Stop { .. } | Request::Kill | Request::Attach(_));
                said.push(Said { client: number, request, fds });
            }
            Ok((Received::Nothing, _)) => {
                let reason = format!("this supervisor (protocol {PROTOCOL}) does not know that request");
                self.answer(number, &Answer::Refused(reason));
            }
            Ok((Received::End, _)) | Err(_) => {
                self.clients.swap_remove(index);
            }
        }
    }

    /// Lets in as many as there is room for beside those who were heard in this turn, which began then: they are to be
    /// answered first.
    fn let_in(&mut self, began: Instant) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let heard = self.clients.iter().filter(|client| client.spoke >= began).count();
        for _ in heard..self.most {
            let socket = match rustix::net::accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) if self.turn_out(began) => continue,
                Err(_) => {
                    self.closed_until = Instant::now().checked_add(CLOSED);
                    return;
                }
            };
            if !is_ours(socket.as_fd()) || (self.clients.len() >= self.most && !self.turn_out(began)) {
                continue;
            }
            let number = self.next;
            self.next += 1;
            self.clients.push(Client { number, socket, waits: false, spoke: Instant::now() });
            self.answer(number, &Answer::Hello { protocol: PROTOCOL, id: self.id.clone() });
        }
    }

    /// Makes room for a client that may have something to say: who has been silent for longest goes, and comes again if it
    /// wants more. Who waits for an end, or sits at the terminal, goes after all others. False if there is none.
    fn turn_out(&mut self, began: Instant) -> bool {
        let clients = self.clients.iter().enumerate().filter(|(_, client)| client.spoke < began);
        let first = clients.min_by_key(|(_, client)| (client.waits, client.spoke)).map(|(index, _)| index);
        first.map(|index| self.clients.swap_remove(index)).is_some()
    }

    /// How long it is until somebody may be let in again; none when that is so now.
    pub(crate) fn opens_in(&self) -> Option<Duration> {
        let left = self.closed_until?.saturating_duration_since(Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    /// Answers one client. One that does not listen misses it.
    pub(crate) fn answer(&self, number: u64, answer: &Answer) {
        if let Some(client) = self.clients.iter().find(|client| client.number == number) {
            let _ = wire::offer(&client.socket, answer);
        }
    }

    /// Gives away the connection to a client.
    pub(crate) fn part_with(&mut self, number: u64) -> Option<OwnedFd> {
        let index = self.clients.iter().position(|client| client.number == number)?;
        Some(self.clients.swap_remove(index).socket)
    }

    /// Tells all clients.
    pub(crate) fn tell(&self, answer: &Answer) {
        for client in &self.clients {
            let _ = wire::offer(&client.socket, answer);
        }
    }

    /// Writes down how the command ended, as soon as that is known. What one of ours has written stands.
    pub(crate) fn write_exited(&self, exit: Option<Status>, cause: Cause) {
        if self.told.get().is_some() {
            return;
        }
        let exited = Exited { schema: SCHEMA, exit, cause, at_ms: now_ms() };
        if matches!(self.files.write_exited(&exited), Ok(false)) {
            if self.believes {
                return;
            }
            let _ = self.files.replace_exited(&exited);
            self.tampered.set(true);
        }
        // Where the record is gone already, nobody else tells of it either.
        self.told.set(Some(exited));
        self.happened([What::from(&exited)]);
    }

    /// How the command ended, by our own word if we gave it: a member may have written another.
    fn truth(&self) -> Option<Exited> {
        let written = self.files.exited();
        let Some(told) = self.told.get() else { return written.ok().flatten() };
        if !matches!(written, Ok(Some(written)) if written == told) {
            self.tampered.set(self.tampered.get() || !matches!(written, Ok(None)));
            let _ = self.files.replace_exited(&told);
        }
        Some(told)
    }

    /// Tells those who follow the events; of a command that never ran there is nothing to tell.
    pub(crate) fn happened(&self, what: impl IntoIterator<Item = What>) {
        if self.ran {
            self.journal.tell(what);
        }
    }

    /// Writes down the end: all output, how the command ended, and last the report, by which the sandbox has ended.
    pub(crate) fn conclude(&mut self, report: &Report) {
        if let Some(log) = &mut self.log {
            for pipe in &self.pipes {
                pipe.empty(log);
            }
        }
        if let Some(terminal) = &mut self.terminal {
            terminal.hurry();
        }
        // As much as a terminal holds, and not more from who writes to it from outside.
        let _ = (0..CLIENTS).take_while(|_| self.serve_terminal()).count();
        if !report.findings.verified {
            return;
        }
        self.write_exited(report.exit, report.cause);
        // Before the report: who waits for the end finds all that led to it.
        self.happened(report.findings.steps.iter().map(What::from));
        let exited = Exited { schema: SCHEMA, exit: report.exit, cause: report.cause, at_ms: now_ms() };
        let exited = self.truth().unwrap_or(exited);
        let mut report = report.clone();
        if self.tampered.get() {
            report.missing.push("a record that is whole: somebody else had written `exit.json`".to_owned());
        }
        let _ = self.files.write_end(&exited, &report);
        let _ = rustix::fs::unlinkat(self.files.dir(), SOCKET, rustix::fs::AtFlags::empty());
    }
}

type Output = (Option<Terminal>, Vec<Pipe>, Apart);

fn with_terminal() -> io::Result<Output> {
    let (terminal, slave) = Terminal::open()?;
    let (output, error) = (slave.try_clone()?, slave.try_clone()?);
    Ok((Some(terminal), Vec::new(), Apart { input: slave, output, error, terminal: true }))
}

fn with_pipes() -> io::Result<Output> {
    let input = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (out, output) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    let (err, error) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    for pipe in [&out, &err] {
        rustix::io::ioctl_fionbio(pipe, true)?;
    }
    let pipe = |stream, fd| Pipe { stream, fd, wide: false };
    let pipes = vec![pipe(Stream::Stdout, out), pipe(Stream::Stderr, err)];
    Ok((None, pipes, Apart { input, output, error, terminal: false }))
}

/// Descriptors are few, and some of them are for what clients hand over.
fn most_clients() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit / 2).ok()).map_or(CLIENTS, |half| half.clamp(1, CLIENTS))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn listen(dir: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let real = path.join(SOCKET);
    let address = if real.as_os_str().len() <= LONGEST {
        SocketAddrUnix::new(&real)?
    } else {
        let number = std::os::fd::AsRawFd::as_raw_fd(&dir);
        SocketAddrUnix::new(format!("/proc/self/fd/{number}/{SOCKET}"))?
    };
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Whether who connected is the user that the sandbox belongs to, or root.
fn is_ours(socket: BorrowedFd<'_>) -> bool {
    penfold_sys::peer::peer(socket)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}
