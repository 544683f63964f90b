//! A WebSocket client that hides nothing.

use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Instant;

use serde_json::Value;

use super::{Server, Stream};
use crate::support::DEADLINE;

/// A message of the server.
#[derive(Debug, Clone, PartialEq)]
pub enum Frame {
    Text(String),
    Binary(Vec<u8>),
    /// The code and the reason.
    Close(u16, String),
    /// The connection is gone.
    Gone,
}

pub struct WebSocket {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
}

/// The head of a request for a socket, with further headers.
pub fn request(path: &str, headers: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n{headers}\r\n"
    )
}

impl WebSocket {
    #[track_caller]
    pub fn open(server: &Server, path: &str) -> WebSocket {
        WebSocket::with(server, path, "")
    }

    #[track_caller]
    pub fn with(server: &Server, path: &str, headers: &str) -> WebSocket {
        WebSocket::try_with(server, path, headers).unwrap_or_else(|head| panic!("{head}"))
    }

    /// Opens it, or returns the head of the answer.
    ///
    /// # Errors
    /// When the server refuses.
    #[track_caller]
    pub fn try_with(server: &Server, path: &str, headers: &str) -> Result<WebSocket, String> {
        let mut socket = WebSocket { stream: server.connect(), read: Vec::new() };
        socket.stream.write_all(request(path, headers).as_bytes()).unwrap();
        let head = loop {
            if let Some(at) = socket.read.windows(4).position(|window| window == b"\r\n\r\n") {
                let rest = socket.read.split_off(at + 4);
                break std::mem::replace(&mut socket.read, rest);
            }
            assert!(socket.fill(), "no answer: {}", String::from_utf8_lossy(&socket.read));
        };
        let head = String::from_utf8_lossy(&head).to_lowercase();
        if !head.starts_with("http/1.1 101 ") {
            return Err(head);
        }
        assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        Ok(socket)
    }

    /// Reads more; `false` if there is no more.
    fn fill(&mut self) -> bool {
        let mut part = vec![0; 64 << 10];
        match self.stream.read(&mut part) {
            Ok(0) => false,
            Ok(length) => {
                self.read.extend_from_slice(&part[..length]);
                true
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the server is silent"),
            Err(_) => false,
        }
    }

    /// Sends a whole message; whether it could be written.
    pub fn send(&mut self, kind: u8, payload: &[u8]) -> bool {
        self.part(0x80 | kind, payload)
    }

    /// Sends a frame that begins with this byte; whether it could be written.
    pub fn part(&mut self, first: u8, payload: &[u8]) -> bool {
        let mut frame = vec![first];
        match payload.len() {
            length @ 0..126 => frame.push(0x80 | u8::try_from(length).unwrap()),
            length @ 126..65536 => {
                frame.push(0xfe);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            length => {
                frame.push(0xff);
                frame.extend(u64::try_from(length).unwrap().to_be_bytes());
            }
        }
        // A mask of zeros leaves the payload as it is.
        frame.extend([0; 4]);
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).is_ok()
    }

    pub fn text(&mut self, text: &str) {
        self.send(1, text.as_bytes());
    }

    pub fn json(&mut self, value: &Value) {
        self.text(&value.to_string());
    }

    pub fn binary(&mut self, bytes: &[u8]) -> bool {
        self.send(2, bytes)
    }

    pub fn close(&mut self) {
        self.send(8, &1000_u16.to_be_bytes());
    }

    /// Waits for the next message.
    #[track_caller]
    pub fn receive(&mut self) -> Frame {
        let begun = Instant::now();
        loop {
            if let Some((kind, payload)) = self.take() {
                match kind {
                    1 => return Frame::Text(String::from_utf8(payload).unwrap()),
                    2 => return Frame::Binary(payload),
                    8 => {
                        let code = payload.first_chunk().map_or(1005, |code| u16::from_be_bytes(*code));
                        self.send(8, &payload);
                        let reason = payload.get(2..).unwrap_or_default();
                        return Frame::Close(code, String::from_utf8_lossy(reason).into_owned());
                    }
                    9 => {
                        self.send(10, &payload);
                        assert!(begun.elapsed() < DEADLINE, "the server has nothing to say");
                    }
                    _ => {}
                }
            } else if !self.fill() {
                return Frame::Gone;
            }
        }
    }

    /// Waits for the answer to a ping; `false` if the server has closed the socket.
    #[track_caller]
    pub fn receive_pong(&mut self) -> bool {
        loop {
            match self.take() {
                Some((10, _)) => return true,
                Some((8, _)) => return false,
                Some(_) => {}
                None => {
                    if !self.fill() {
                        return false;
                    }
                }
            }
        }
    }

    fn take(&mut self) -> Option<(u8, Vec<u8>)> {
        let [first, length, ..] = *self.read.as_slice() else { return None };
        assert_eq!((first & 0x80, length & 0x80), (0x80, 0), "a whole message without a mask");
        let (start, length) = match length {
            126 => (4, usize::from(u16::from_be_bytes(*self.read.get(2..)?.first_chunk()?))),
            127 => (10, usize::try_from(u64::from_be_bytes(*self.read.get(2..)?.first_chunk()?)).unwrap()),
            length => (2, usize::from(length)),
        };
        let payload = self.read.get(start..start + length)?.to_vec();
        self.read.drain(..start + length);
        Some((first & 15, payload))
    }

    /// Waits for the next message, which is JSON.
    #[track_caller]
    pub fn value(&mut self) -> Value {
        match self.receive() {
            Frame::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("no text: {other:?}"),
        }
    }
}
