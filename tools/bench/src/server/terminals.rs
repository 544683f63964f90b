//! Terminals of `penfold serve` over WebSockets: the way of a key, and a kill, beside terminals that write without end and are not read.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::Connection;
use super::{Figures, Server};
use crate::error::Error;
use crate::{Args, talk};

/// The terminals in which `yes` runs.
pub(super) const BUSY: u32 = 20;
/// Those in a quick run.
const FEW: u32 = 2;
/// The name of the sandbox.
const NAME: &str = "terminals";
/// The longest wait for a part of the output.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn measure(args: &Args, server: &Server, figures: &mut Figures) -> Result<(), Error> {
    talk("server: terminals");
    let mut caller = Connection::open(server.address)?;
    let body = json!({ "command": ["sleep", "170"], "name": NAME, "lease_ms": 170_000 });
    caller.call("POST", "/v1/sandboxes", &body)?;
    let before = server.resident()?;
    let mut silent = Vec::new();
    for _ in 0..if args.quick { FEW } else { BUSY } {
        let mut terminal = Terminal::open(server, &mut caller, "yes")?;
        terminal.shows("y\\r\\ny\\r\\n")?;
        silent.push(terminal);
    }
    let mut keys = Terminal::open(server, &mut caller, "stty raw -echo; echo up.; exec cat")?;
    keys.shows("up.")?;
    for round in 0..args.rounds(40) {
        let begun = Instant::now();
        keys.types(format!("{round}.").as_bytes())?;
        keys.shows(&format!("{round}."))?;
        figures.key.push(begun.elapsed());
        let path = start(&mut caller, &json!({ "command": ["sleep", "170"] }))?;
        let begun = Instant::now();
        caller.call("POST", &format!("{path}/kill"), &json!({}))?;
        figures.kill_beside.push(begun.elapsed());
    }
    figures.terminals_rss = server.resident()?.saturating_sub(before);
    drop(silent);
    caller.call("DELETE", &format!("/v1/sandboxes/{NAME}"), &Value::Null)?;
    Ok(())
}

/// Starts an exec; returns the path of its routes.
fn start(caller: &mut Connection, body: &Value) -> Result<String, Error> {
    let path = format!("/v1/sandboxes/{NAME}/execs");
    let number = caller.call("POST", &path, body)?["number"].as_u64();
    let number = number.ok_or_else(|| Error::odd("an exec has no number".to_owned()))?;
    Ok(format!("{path}/{number}"))
}

/// A client of the terminal of an exec.
struct Terminal {
    stream: BufReader<TcpStream>,
    /// The last part of what it has sent.
    seen: Vec<u8>,
}

impl Terminal {
    fn open(server: &Server, caller: &mut Connection, script: &str) -> Result<Terminal, Error> {
        let body = json!({ "command": ["sh", "-c", script], "open_input": true,
            "terminal": { "rows": 24, "columns": 80 } });
        let path = start(caller, &body)?;
        let failed = |source| Error::io("cannot open a WebSocket", source);
        let mut stream = TcpStream::connect(server.address).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        let request = format!(
            "GET {path}/attach HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            server.address
        );
        stream.write_all(request.as_bytes()).map_err(failed)?;
        let mut stream = BufReader::new(stream);
        let mut status = String::new();
        stream.read_line(&mut status).map_err(failed)?;
        if !status.starts_with("HTTP/1.1 101 ") {
            return Err(Error::odd(format!("`{path}/attach` was answered with {}", status.trim())));
        }
        Ok(Terminal { stream, seen: Vec::new() })
    }

    /// Sends keys, as a binary message whose mask changes nothing.
    fn types(&mut self, keys: &[u8]) -> Result<(), Error> {
        let length = u8::try_from(keys.len()).unwrap_or(125).min(125);
        let frame = [&[0x82, 0x80 | length, 0, 0, 0, 0], keys].concat();
        self.stream.get_mut().write_all(&frame).map_err(|source| Error::io("cannot type", source))
    }

    /// Reads until this text has come, as JSON has it.
    fn shows(&mut self, text: &str) -> Result<(), Error> {
        let mut part = [0; 4096];
        loop {
            if let Some(at) = self.seen.windows(text.len()).position(|window| window == text.as_bytes()) {
                self.seen.drain(..at + text.len());
                return Ok(());
            }
            let length =
                self.stream.read(&mut part).map_err(|source| Error::io("cannot read a terminal", source))?;
            if length == 0 {
                return Err(Error::odd(format!("a terminal has ended before it showed `{text}`")));
            }
            self.seen.extend_from_slice(part.get(..length).unwrap_or_default());
        }
    }
}
