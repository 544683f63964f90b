//! The input of a command on a server: from a terminal, or from any other standard input.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::time::Duration;

use penfold_client::{Attach, Client, Error, LogEvent, TerminalSize};
use penfold_state::wire::Size;

use super::foreground::{Signals, copy_events};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::relay::{self, End, Raw, Relay};

/// The time for the last keys of a viewer that leaves.
const LAST_INPUT: Duration = Duration::from_secs(5);

/// How the view of a terminal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// The command has ended, and all that it showed was shown here.
    Ended,
    /// The user typed the keys to leave, or the input has ended; the command goes on.
    Viewer(End),
}

/// The path of the terminal of a sandbox, for one of this size.
pub(crate) fn terminal_path(id: &str) -> String {
    let Size { rows, columns } = relay::size();
    format!("{}/attach?rows={rows}&columns={columns}", super::path(id))
}

/// A terminal on a server.
pub(crate) struct RemoteTerminal<'a> {
    pub(crate) client: &'a Client,
    /// The path of the route to attach at, with its query.
    pub(crate) path: String,
    /// Whether to show the log from its beginning on.
    pub(crate) from_start: bool,
    /// Whether standard input is typed.
    pub(crate) typed: bool,
    /// Whether the end of the input, or a signal, ends the view and not the command.
    pub(crate) is_viewer: bool,
    /// The keys that leave; empty if there are none.
    pub(crate) keys: &'a [u8],
}

impl RemoteTerminal<'_> {
    /// Shows the terminal here until one side ends.
    ///
    /// # Errors
    /// When the server is lost, or this terminal cannot be read or written.
    pub(crate) fn show(&self) -> Result<Left, Failure> {
        let failed = "cannot show the terminal of a command on a server";
        let (inside, theirs) = UnixStream::pair().or_fail(FailureKind::NotStarted, failed)?;
        let signals = relay::block_signals(self.is_viewer);
        let (client, path, from_start) = (self.client.again()?, self.path.clone(), self.from_start);
        let (opened, size) = mpsc::channel();
        let (ended, end) = mpsc::channel();
        let copying = std::thread::Builder::new().spawn(move || {
            let done = copy(&client, path, &theirs, |attached, size| {
                let mut attached = if from_start { attached.from_start() } else { attached };
                attached.open()?;
                let _ = opened.send(size);
                Ok(attached)
            });
            // Before the relay sees the end. Without a receiver, the viewer has left.
            let _ = ended.send(done);
            let _ = theirs.shutdown(Shutdown::Both);
        });
        copying.or_fail(FailureKind::NotStarted, failed)?;
        let unknown = || Failure::new(FailureKind::Unverified, failed);
        let Ok(size) = size.recv() else {
            return ended_with(end.recv().map_err(|_| unknown())?);
        };
        let raw = self.typed.then(Raw::enter).and_then(Result::ok);
        let relay = Relay {
            inside: inside.as_fd(),
            typed: self.typed,
            ends_with_input: self.is_viewer,
            leave: self.keys,
            over: None,
            signals,
        };
        let left = relay.run(|now| size.set(now));
        drop(raw);
        match left.or_fail(FailureKind::Unverified, failed)? {
            End::Closed => ended_with(end.recv().map_err(|_| unknown())?),
            left => {
                // What was typed before reaches the programs.
                let _ = inside.shutdown(Shutdown::Both);
                let _ = end.recv_timeout(LAST_INPUT);
                Ok(Left::Viewer(left))
            }
        }
    }
}

/// How the view of a command has ended that the server shows no more.
fn ended_with(done: Result<(), Error>) -> Result<Left, Failure> {
    match done {
        Ok(()) => Ok(Left::Ended),
        Err(error @ (Error::Lost { .. } | Error::Unreachable { .. })) => {
            Err(Failure::from(error).with_kind(FailureKind::Unverified))
        }
        Err(error) => Err(error.into()),
    }
}

/// Copies in both directions until the command has ended, or the viewer has left and what it typed was sent.
fn copy(
    client: &Client,
    path: String,
    stream: &UnixStream,
    begin: impl FnOnce(Attach<'_>, TerminalSize) -> Result<Attach<'_>, Error>,
) -> Result<(), Error> {
    let input = stream.try_clone().map_err(Error::Client)?;
    let (attached, size) = Attach::new(client, path, input, true)?;
    let mut attached = begin(attached, size)?;
    loop {
        match attached.next_event()? {
            // A viewer that has left reads nothing.
            LogEvent::Output(frame) => drop(relay::write_all(stream.as_fd(), &frame.bytes())),
            LogEvent::End(_) | LogEvent::InputEnded => return Ok(()),
            _ => {}
        }
    }
}

/// Gives the command of an exec the standard input of this process, and copies its output, until its end.
///
/// # Errors
/// When the server is lost; while input is on its way, the command may have got a part of it.
pub(crate) fn exchange(client: &Client, path: String, signals: &Signals) -> Result<(), Error> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Client)?;
    // The thread may wait for input for ever: it ends with this process.
    let copying = std::thread::Builder::new().spawn(move || {
        let mut ours = ours;
        let _ = io::copy(&mut io::stdin().lock(), &mut ours);
        let _ = ours.shutdown(Shutdown::Write);
    });
    copying.map_err(Error::Client)?;
    let (mut attached, _size) = Attach::new(client, path, theirs, false)?;
    copy_events(client, signals, || attached.next_event())
}
