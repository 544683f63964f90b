//! The input of a command on a server: from a terminal, or from any other standard input.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;

use penfold_client::{Attach, Client, Error, LogEvent, TerminalSize};
use penfold_state::wire::Size;
use penfold_sys::signal::{self, SignalSet};
use rustix::process::Signal;

use super::foreground::{Signals, copy_events};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::relay::{self, End, Raw, Relay};

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
    pub(crate) ends_with_input: bool,
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
        let _ = signal::block_signals(&SignalSet::of([Signal::WINCH.as_raw()]));
        let raw = self.typed.then(Raw::enter).and_then(Result::ok);
        let (client, path, from_start) = (self.client.again()?, self.path.clone(), self.from_start);
        let (sender, size) = std::sync::mpsc::channel();
        let ended = theirs.try_clone().or_fail(FailureKind::NotStarted, failed)?;
        let copying = std::thread::Builder::new().spawn(move || {
            let done = copy(&client, path, &theirs, |attached, size| {
                // Without a receiver, the viewer has left.
                let _ = sender.send(size);
                if from_start { attached.from_start() } else { attached }
            });
            // The relay sees the end.
            let _ = theirs.shutdown(Shutdown::Both);
            done
        });
        let copying = copying.or_fail(FailureKind::NotStarted, failed)?;
        let relay = Relay {
            inside: inside.as_fd(),
            typed: self.typed,
            ends_with_input: self.ends_with_input,
            leave: self.keys,
            over: None,
        };
        let size = size.recv().ok();
        let end = relay.run(|now| size.iter().for_each(|size| size.set(now)));
        drop(raw);
        match end.or_fail(FailureKind::Unverified, failed)? {
            End::Closed => {
                let done = copying.join().map_err(|_| Failure::new(FailureKind::Unverified, failed))?;
                done.map(|()| Left::Ended).map_err(Failure::from)
            }
            end => {
                let _ = ended.shutdown(Shutdown::Both);
                Ok(Left::Viewer(end))
            }
        }
    }
}

/// Copies in both directions until the command has ended.
fn copy(
    client: &Client,
    path: String,
    stream: &UnixStream,
    begin: impl FnOnce(Attach<'_>, TerminalSize) -> Attach<'_>,
) -> Result<(), Error> {
    let input = stream.try_clone().map_err(Error::Client)?;
    let (attached, size) = Attach::new(client, path, input, true)?;
    let mut attached = begin(attached, size);
    loop {
        match attached.next_event()? {
            LogEvent::Output(frame) => {
                let shown = relay::write_all(stream.as_fd(), &frame.bytes());
                // The viewer has left.
                if shown.is_err() {
                    return Ok(());
                }
            }
            LogEvent::End(_) => return Ok(()),
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
