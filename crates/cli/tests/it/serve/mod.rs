//! `penfold serve` and `penfold watch`.

mod client;
mod cloudflare;
pub mod crash;
mod drain;
pub mod e2b;
mod faults;
pub mod hostile;
mod init;
mod interactive;
mod limits;
mod listen;
mod load;
pub mod native;
mod npm;
mod promptness;
mod tenants;
mod watch;
pub mod websocket;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use crate::support::{DEADLINE, Running, TestEnv, wait_until};

/// A token, and the file that has it.
pub const TOKEN: &str = "0123456789abcdef0123";

/// A running server.
pub struct Server {
    pub running: Running,
    place: Place,
}

enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A connection of either kind.
pub trait Stream: Read + Write + Send {}

impl<S: Read + Write + Send> Stream for S {}

/// An answer of the server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Server {
    /// Starts one on a Unix socket in the working directory of the test.
    #[track_caller]
    pub fn start(env: &TestEnv, words: &[&str]) -> Server {
        Server::start_with(env, "api.sock", words, |_| ())
    }

    /// The same on a socket of this name, with a change of the command.
    #[track_caller]
    pub fn start_with(
        env: &TestEnv,
        socket: &str,
        words: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Server {
        let path = env.path("work").join(socket);
        let listen = format!("unix:{}", path.display());
        let mut command = env.penfold(["serve", "--listen", &listen].iter().chain(words));
        change(&mut command);
        let running = Running::start(&mut command);
        let server = Server { running, place: Place::Unix(path) };
        wait_until("the server listens", || server.try_connect().is_ok());
        server
    }

    /// Starts one on a port.
    #[track_caller]
    pub fn start_tcp(env: &TestEnv, words: &[&str]) -> Server {
        Server::of(env.begin(["serve", "--listen", "127.0.0.1:0"].iter().chain(words)))
    }

    /// The server of a process that listens on a port.
    #[track_caller]
    pub fn of(running: Running) -> Server {
        let said = running.hear_error("listening", 1);
        // `address=…` or `"address":"…"`.
        let address = said.split("address").nth(1).unwrap().trim_start_matches(['=', '"', ':']);
        let address = address.split([' ', '"', '\n']).next().unwrap();
        Server { running, place: Place::Tcp(address.parse().unwrap()) }
    }

    /// The address for `--host`.
    pub fn host(&self) -> String {
        match &self.place {
            Place::Unix(path) => format!("unix:{}", path.display()),
            Place::Tcp(address) => format!("http://{address}"),
        }
    }

    /// The file of the Unix socket.
    pub fn path(&self) -> &Path {
        match &self.place {
            Place::Unix(path) => path,
            Place::Tcp(_) => panic!("no Unix socket"),
        }
    }

    /// The port.
    pub fn address(&self) -> SocketAddr {
        match &self.place {
            Place::Tcp(address) => *address,
            Place::Unix(path) => panic!("not a port: {}", path.display()),
        }
    }

    fn try_connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.place {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(DEADLINE))?;
                Box::new(stream)
            }
            Place::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(DEADLINE))?;
                Box::new(stream)
            }
        })
    }

    #[track_caller]
    pub fn connect(&self) -> Box<dyn Stream> {
        self.try_connect().unwrap()
    }

    /// Sends bytes, and reads until the server closes the connection.
    #[track_caller]
    pub fn say(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // The server may close before it has read all.
        let _ = stream.write_all(bytes);
        read_all(&mut *stream)
    }

    /// Asks with GET and these headers, each with its line end.
    #[track_caller]
    pub fn get(&self, path: &str, headers: &str) -> Answer {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        Answer::parse(&self.say(request.as_bytes()))
    }

    /// Waits until the server has recovered what was lost before.
    #[track_caller]
    pub fn await_ready(&self) {
        wait_until("the server is ready", || self.get("/readyz", "").status == 200);
    }

    /// Ends it politely; it must exit with 0.
    #[track_caller]
    pub fn end(self) -> String {
        self.running.signal(Signal::TERM);
        self.running.finish().with_code(0).err()
    }
}

/// Reads until the end, or a reset.
pub fn read_all(stream: &mut dyn Stream) -> String {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Answer {
    #[track_caller]
    pub fn parse(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok());
        Answer { status: status.unwrap(), head: head.to_lowercase(), body: body.to_owned() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A file with [`TOKEN`].
pub fn token_file(env: &TestEnv) -> String {
    let path = env.path("work/tokens");
    std::fs::write(&path, format!("# ours\n{TOKEN}\n")).unwrap();
    path.to_str().unwrap().to_owned()
}
