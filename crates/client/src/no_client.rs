//! In place of the client, where the feature `http` is off: none can be made, and the reason is told.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use penfold_api::Sandbox;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::address::ServerAddress;
use crate::error::Error;

/// A client. There is none, so that the compiler leaves out what would be done with one.
#[derive(Debug)]
pub enum Client {}

/// The method of a request.
#[derive(Debug, Clone)]
pub struct Method(());

/// The body of a request.
#[derive(Debug, Clone)]
pub struct Bytes(());

impl From<Vec<u8>> for Bytes {
    fn from(_: Vec<u8>) -> Bytes {
        Bytes(())
    }
}

#[allow(missing_docs, reason = "as in the client")]
impl Method {
    pub const DELETE: Method = Method(());
    pub const GET: Method = Method(());
    pub const POST: Method = Method(());
    pub const PUT: Method = Method(());

    pub fn from_bytes(_: &[u8]) -> Result<Method, Infallible> {
        Ok(Method(()))
    }
}

#[allow(missing_docs, reason = "as in the client")]
impl Client {
    pub fn new(_: ServerAddress, _token: Option<String>) -> Result<Client, Error> {
        Err(Error::Client(io::Error::other("penfold-init speaks no HTTP; the whole penfold does")))
    }

    pub fn again(&self) -> Result<Client, Error> {
        match *self {}
    }

    pub fn host(&self) -> &ServerAddress {
        match *self {}
    }

    pub fn get<A: DeserializeOwned>(&self, _path: &str) -> Result<A, Error> {
        match *self {}
    }

    pub fn call<A: DeserializeOwned>(
        &self,
        _: Method,
        _path: &str,
        _headers: &[(&str, &str)],
        _body: &impl Serialize,
    ) -> Result<A, Error> {
        match *self {}
    }

    pub fn send<A: DeserializeOwned>(
        &self,
        _: Method,
        _path: &str,
        _headers: &[(&str, &str)],
        _: Bytes,
    ) -> Result<A, Error> {
        match *self {}
    }

    pub fn order(&self, _: Method, _path: &str, _body: String, _limit: Duration) -> Result<(), Error> {
        match *self {}
    }

    pub fn status(&self, _path: &str, _limit: Duration) -> Result<u16, Error> {
        match *self {}
    }

    pub fn persist<A>(
        &self,
        _is_new: bool,
        _request: impl FnMut(&Client) -> Result<A, Error>,
    ) -> Result<A, Error> {
        match *self {}
    }

    pub(crate) fn pause(&self) {
        match *self {}
    }

    pub(crate) fn lost(&self, _: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        match *self {}
    }

    pub(crate) fn foreign(&self, _reason: &dyn std::fmt::Display) -> Error {
        match *self {}
    }

    pub fn sandbox(&self, _word: &str) -> Result<Sandbox, Error> {
        match *self {}
    }

    pub fn list(&self, _all: bool) -> Result<Vec<Sandbox>, Error> {
        match *self {}
    }
}
