//! In place of a WebSocket, where the feature `http` is off: there is none.

use std::os::unix::net::UnixStream;

use penfold_state::wire::Size;

use crate::client::Client;
use crate::error::Error;
use crate::event_parser::Event;

/// Sets the size of a terminal. There is none.
#[derive(Debug)]
pub enum TerminalSize {}

impl TerminalSize {
    /// Nobody can call it.
    pub fn set(&self, _: Size) {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum Input {}

#[derive(Debug)]
pub(crate) enum Socket {}

impl Input {
    pub(crate) fn new(client: &Client, _: UnixStream) -> Result<(Input, TerminalSize), Error> {
        match *client {}
    }
}

impl Socket {
    pub(crate) fn open(client: &Client, _path: &str, _: &Input) -> Result<Socket, Error> {
        match *client {}
    }

    pub(crate) fn next(&mut self, _: &Client) -> Result<Option<Event>, Error> {
        match *self {}
    }
}
