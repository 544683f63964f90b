//! In place of the events of an answer, where the feature `http` is off: there is no answer.

use crate::client::Client;
use crate::error::Error;
use crate::event_parser::Received;

#[derive(Debug)]
pub(crate) enum Events {}

impl Events {
    pub(crate) fn open(client: &Client, _path: &str, _last_id: Option<&str>) -> Result<Events, Error> {
        match *client {}
    }

    pub(crate) fn next(&mut self, _: &Client) -> Result<Option<Received>, Error> {
        match *self {}
    }
}
