//! A command with its input: the output that comes, and input that a local stream gives, over a WebSocket.

use std::os::unix::net::UnixStream;
use std::time::Instant;

use crate::client::Client;
use crate::error::{Error, RECONNECT};
use crate::follow::{LogEnd, LogEvent, parse};
use crate::socket::{Input, Socket, TerminalSize};

/// A command to which this client is attached.
#[derive(Debug)]
pub struct Attach<'a> {
    client: &'a Client,
    /// The path of the route, with its query.
    path: String,
    input: Input,
    /// Whether the input may have gaps, as that of a terminal: then a lost connection is made again.
    is_terminal: bool,
    socket: Option<Socket>,
    last_id: Option<String>,
    has_input_ended: bool,
    /// When the server was found away.
    away: Option<Instant>,
}

/// Whether the supervisor of the sandbox is gone, and another one may take over.
fn is_takeover(error: &Error) -> bool {
    error.problem().is_some_and(|problem| problem.kind() == "unanswered")
}

fn has_ended(error: &Error) -> bool {
    error.problem().is_some_and(|problem| problem.kind() == "has_ended")
}

impl<'a> Attach<'a> {
    /// Shows all output from the beginning on, also where the server would otherwise leave the past out.
    #[must_use]
    pub fn from_start(mut self) -> Attach<'a> {
        self.last_id = Some("0".to_owned());
        self
    }

    /// Attaches at a path that has a query. Returns what sets the size of the terminal, too. `input` is one end of a local stream; its end is the end of the input.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new(
        client: &'a Client,
        path: String,
        input: UnixStream,
        is_terminal: bool,
    ) -> Result<(Attach<'a>, TerminalSize), Error> {
        let (input, size) = Input::new(client, input)?;
        let attach = Attach {
            client,
            path,
            input,
            is_terminal,
            socket: None,
            last_id: None,
            has_input_ended: false,
            away: None,
        };
        Ok((attach, size))
    }

    /// Waits for the next event.
    ///
    /// # Errors
    /// When the server has been away for [`RECONNECT`], or was never there, or answers with an error. If the connection is lost
    /// while the input is open and is that of no terminal: a part of it may be lost.
    pub fn next_event(&mut self) -> Result<LogEvent, Error> {
        loop {
            match self.try_next() {
                Ok(Some(event)) => {
                    self.away = None;
                    return Ok(event);
                }
                Ok(None) => {}
                Err(error) if (error.is_passing() || is_takeover(&error)) && self.may_retry() => {
                    self.socket = None;
                    self.client.pause();
                }
                // It has ended with its supervisor.
                Err(error) if self.away.is_some() && has_ended(&error) => {
                    return Ok(LogEvent::End(LogEnd::default()));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the socket now, so that what the server refuses is told before anything else happens.
    ///
    /// # Errors
    /// When the server is not there, or refuses.
    pub fn open(&mut self) -> Result<(), Error> {
        self.opened().map(drop)
    }

    fn opened(&mut self) -> Result<&mut Socket, Error> {
        if self.socket.is_none() {
            let from = self.last_id.as_ref().map(|id| format!("&offset={id}")).unwrap_or_default();
            self.socket = Some(Socket::open(self.client, &format!("{}{from}", self.path), &self.input)?);
        }
        self.socket.as_mut().ok_or_else(|| self.client.lost("the socket is gone"))
    }

    fn may_retry(&mut self) -> bool {
        let was_open = self.socket.is_some() || self.away.is_some();
        let is_whole = self.is_terminal || self.has_input_ended;
        was_open && is_whole && self.away.get_or_insert_with(Instant::now).elapsed() < RECONNECT
    }

    fn try_next(&mut self) -> Result<Option<LogEvent>, Error> {
        let client = self.client;
        let socket = self.opened()?;
        let Some(event) = socket.next(client)? else {
            return Err(client.lost("the stream ended before the command did"));
        };
        match event.name.as_str() {
            "input_ended" => {
                self.has_input_ended = true;
                return Ok(Some(LogEvent::InputEnded));
            }
            // The command reads no more, which is its matter.
            "refused" => {}
            _ => {
                let parsed = parse(self.client, &event)?;
                self.last_id = event.id.or(self.last_id.take());
                return Ok(parsed);
            }
        }
        Ok(None)
    }
}
