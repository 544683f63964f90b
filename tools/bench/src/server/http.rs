//! A connection to a server: one request after the other, without a library, whose work would be part of the measurement.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use crate::error::Error;

/// The longest wait for a part of an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A connection that stays open between requests.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
    address: SocketAddr,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Result<Connection, Error> {
        let failed = |source| Error::io("cannot connect to the server", source);
        let stream = TcpStream::connect(address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        Ok(Connection { stream: BufReader::new(stream), address })
    }

    /// Sends a request and returns the body of its answer, which must have a status of success.
    pub(crate) fn call(&mut self, method: &str, path: &str, body: &Value) -> Result<Value, Error> {
        let failed = |source| Error::io("cannot talk to the server", source);
        self.send(method, path, body)?;
        let text = self.body(&format!("{method} {path}"))?;
        if text.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&text).map_err(|error| failed(error.into()))
    }

    /// Sends a request with these headers, each with its line end, and returns the body of its answer.
    pub(crate) fn exchange(&mut self, what: &str, headers: &str, body: &[u8]) -> Result<Vec<u8>, Error> {
        self.begin(what, headers, body)?;
        self.body(what)
    }

    /// Sends a request with these headers; its answer is a stream.
    pub(crate) fn open_stream(&mut self, what: &str, headers: &str, body: &[u8]) -> Result<(), Error> {
        self.begin(what, headers, body)?;
        let head = self.head()?;
        if head.status == 200 { Ok(()) } else { Err(Error::odd(format!("`{what}` is no stream"))) }
    }

    fn begin(&mut self, what: &str, headers: &str, body: &[u8]) -> Result<(), Error> {
        let (length, address) = (body.len(), self.address);
        let head = format!("{what} HTTP/1.1\r\nhost: {address}\r\n{headers}content-length: {length}\r\n\r\n");
        let stream = self.stream.get_mut();
        let sent = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        sent.map_err(|source| Error::io("cannot talk to the server", source))
    }

    /// Reads the rest of an answer, which must have a status of success.
    fn body(&mut self, what: &str) -> Result<Vec<u8>, Error> {
        let failed = |source| Error::io("cannot talk to the server", source);
        let head = self.head()?;
        let mut text = Vec::new();
        if let Some(length) = head.length {
            text.resize(length, 0);
            self.stream.read_exact(&mut text).map_err(failed)?;
        } else if head.status != 204 {
            while let Some(mut chunk) = self.chunk()? {
                text.append(&mut chunk);
            }
        }
        if !matches!(head.status, 200..=299) {
            let said = String::from_utf8_lossy(&text).into_owned();
            return Err(Error::odd(format!("`{what}` was answered with {}: {said}", head.status)));
        }
        Ok(text)
    }

    /// Sends a request whose answer is a stream of events; the answer must have the status 200.
    pub(crate) fn follow(&mut self, path: &str) -> Result<(), Error> {
        self.send("GET", path, &Value::Null)?;
        let head = self.head()?;
        if head.status == 200 { Ok(()) } else { Err(Error::odd(format!("`{path}` is not to be followed"))) }
    }

    /// Returns the next part of a stream.
    pub(crate) fn next_part(&mut self) -> Result<Option<String>, Error> {
        Ok(self.chunk()?.map(|chunk| String::from_utf8_lossy(&chunk).into_owned()))
    }

    fn send(&mut self, method: &str, path: &str, body: &Value) -> Result<(), Error> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (length, address) = (body.len(), self.address);
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        let sent = self.stream.get_mut().write_all(request.as_bytes());
        sent.map_err(|source| Error::io("cannot talk to the server", source))
    }

    fn head(&mut self) -> Result<Head, Error> {
        let mut status = 0;
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok(Head { status, length });
            }
            if let Some(rest) = line.strip_prefix("HTTP/1.1 ") {
                status = rest.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
            }
            if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().ok();
            }
        }
    }

    /// Returns the next chunk of a body of unknown length; `None` at its end.
    fn chunk(&mut self) -> Result<Option<Vec<u8>>, Error> {
        let line = self.line()?;
        let length = usize::from_str_radix(&line, 16)
            .map_err(|_| Error::odd(format!("the server sent `{line}` as the length of a chunk")))?;
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).map_err(|source| Error::io("cannot read a chunk", source))?;
        self.line()?;
        Ok(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        match read.map_err(|source| Error::io("cannot read an answer", source))? {
            0 => Err(Error::odd("the server closed the connection".to_owned())),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}

struct Head {
    status: u16,
    length: Option<usize>,
}
