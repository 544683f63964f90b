//! Requests, each on a connection of its own.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use penfold_api::{Sandbox, SandboxPage};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};

pub use hyper::Method;

use crate::address::ServerAddress;
use crate::encode::encode_word;
use crate::error::{Error, Problem, RECONNECT};

/// The time limit of a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The longest answer that is read whole.
const LONGEST: usize = 64 << 20;
/// The pause between two attempts to reach a server that is away.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A client of one server. Calls block.
#[derive(Debug)]
pub struct Client {
    pub(crate) host: ServerAddress,
    token: Option<String>,
    pub(crate) runtime: Runtime,
}

impl Client {
    /// Makes a client. Connects only when a request is sent.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new(host: ServerAddress, token: Option<String>) -> Result<Client, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Client)?;
        Ok(Client { host, token, runtime })
    }

    /// Makes another client of the same server, for another thread.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn again(&self) -> Result<Client, Error> {
        Client::new(self.host.clone(), self.token.clone())
    }

    /// The address of the server.
    pub fn host(&self) -> &ServerAddress {
        &self.host
    }

    /// Sends a request without a body, and reads the answer.
    ///
    /// # Errors
    /// When there is no answer, or one that is an error.
    pub fn get<A: DeserializeOwned>(&self, path: &str) -> Result<A, Error> {
        self.send(Method::GET, path, &[], Bytes::new())
    }

    /// Sends a request with a body of JSON, and reads the answer.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn call<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: &impl Serialize,
    ) -> Result<A, Error> {
        let body = serde_json::to_vec(body).map_err(|error| self.foreign(&error))?;
        let headers: Vec<(&str, &str)> =
            headers.iter().copied().chain([("content-type", "application/json")]).collect();
        self.send(method, path, &headers, body.into())
    }

    /// Sends a request, and reads the answer.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn send<A: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<A, Error> {
        self.runtime.block_on(async {
            let response = self.open(method, path, headers, body).await?;
            let text = self.read(response).await?;
            serde_json::from_slice(&text).map_err(|error| self.foreign(&error))
        })
    }

    /// Sends a request, and reads only whether the server carried it out. A body is JSON.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn order(&self, method: Method, path: &str, body: String, limit: Duration) -> Result<(), Error> {
        let headers: &[(&str, &str)] =
            if body.is_empty() { &[] } else { &[("content-type", "application/json")] };
        self.runtime.block_on(async {
            let answer = self.open(method, path, headers, body.into());
            match tokio::time::timeout(limit, answer).await {
                Ok(answer) => answer.map(drop),
                Err(elapsed) => Err(self.lost(elapsed)),
            }
        })
    }

    /// Sends a request without a body, and reads only the status of the answer, at most for `limit`.
    ///
    /// # Errors
    /// When there is no answer.
    pub fn status(&self, path: &str, limit: Duration) -> Result<u16, Error> {
        self.runtime.block_on(async {
            let answer = self.request(Method::GET, path, &[], Bytes::new());
            match tokio::time::timeout(limit, answer).await {
                Ok(answer) => answer.map(|response| response.status().as_u16()),
                Err(elapsed) => Err(self.lost(elapsed)),
            }
        })
    }

    /// Repeats a request that may be sent twice, for up to [`RECONNECT`] while the server is away. With `is_new`, a server
    /// that was not there at the first attempt is an error at once.
    ///
    /// # Errors
    /// The last error of the request.
    pub fn persist<A>(
        &self,
        is_new: bool,
        mut request: impl FnMut(&Client) -> Result<A, Error>,
    ) -> Result<A, Error> {
        let begun = Instant::now();
        let mut first = is_new;
        loop {
            match request(self) {
                Err(error @ Error::Unreachable { .. }) if first => return Err(error),
                Err(error) if error.is_passing() && begun.elapsed() < RECONNECT => self.pause(),
                done => return done,
            }
            first = false;
        }
    }

    pub(crate) fn pause(&self) {
        self.runtime.block_on(async { tokio::time::sleep(RETRY_INTERVAL).await });
    }

    /// Describes the sandbox that a word means: an id, a unique prefix of an id, or a name.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn sandbox(&self, word: &str) -> Result<Sandbox, Error> {
        self.get(&format!("/v1/sandboxes/{}", encode_word(word)))
    }

    /// Lists the living sandboxes, or all of them; the youngest last.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn list(&self, all: bool) -> Result<Vec<Sandbox>, Error> {
        let mut sandboxes = Vec::new();
        let mut cursor = String::new();
        loop {
            let page: SandboxPage = self.get(&format!("/v1/sandboxes?all={all}&limit=1000{cursor}"))?;
            sandboxes.extend(page.sandboxes);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={}", encode_word(&next)),
                None => return Ok(sandboxes),
            }
        }
    }

    /// Sends a request; the answer is none that is an error, and its body is not read yet.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let response = self.request(method, path, headers, body).await?;
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let status = response.status();
        let text = self.read(response).await?;
        Err(serde_json::from_slice::<Problem>(&text)
            .map_or_else(|_| self.unexpected(status), |problem| Error::Problem(Box::new(problem))))
    }

    /// Sends a request; the answer may be one that is an error.
    async fn request(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Response<Incoming>, Error> {
        let mut request =
            Request::builder().method(method).uri(path).header(header::HOST, self.host.authority());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).map_err(|error| self.foreign(&error))?;
        let unreachable = |source| Error::Unreachable { host: self.host.clone(), source };
        let sent = match &self.host {
            ServerAddress::Unix(path) => {
                let stream = connect_unix(path).map_err(unreachable)?;
                stream.set_nonblocking(true).map_err(unreachable)?;
                let stream = tokio::net::UnixStream::from_std(stream).map_err(unreachable)?;
                exchange(stream, request).await
            }
            ServerAddress::Tcp(name, port) => {
                let stream = dial(name, *port).map_err(unreachable)?;
                let stream = tokio::net::TcpStream::from_std(stream).map_err(unreachable)?;
                exchange(stream, request).await
            }
        };
        sent.map_err(|error| self.lost(error))
    }

    async fn read(&self, response: Response<Incoming>) -> Result<Vec<u8>, Error> {
        let mut body = response.into_body();
        let mut text = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| self.lost(error))?;
            text.extend_from_slice(frame.data_ref().map_or(&[], |bytes| bytes));
            if text.len() > LONGEST {
                return Err(self.foreign(&"it is too long"));
            }
        }
        Ok(text)
    }

    fn unexpected(&self, status: StatusCode) -> Error {
        self.foreign(&format!("status {}", status.as_u16()))
    }

    pub(crate) fn lost(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Lost { host: self.host.clone(), source: source.into() }
    }

    pub(crate) fn foreign(&self, reason: &dyn std::fmt::Display) -> Error {
        Error::Foreign { host: self.host.clone(), reason: reason.to_string() }
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Runs for as long as the answer is read; its errors reach the reader of the answer.
    tokio::spawn(connection.with_upgrades());
    sender.send_request(request).await
}

/// Tries each address of a name.
fn dial(name: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (name, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects to a socket. A path that is too long for an address, unix(7), is reached through a descriptor of the socket.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    /// The longest path of an address.
    const LONGEST: usize = 107;
    if path.as_os_str().len() <= LONGEST {
        return UnixStream::connect(path);
    }
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    UnixStream::connect(format!("/proc/self/fd/{}", file.as_raw_fd()))
}
