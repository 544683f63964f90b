//! A private sshd on loopback, and a link to it that delays and can be cut.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::support::{MARK, Running, TestEnv, has_program, is_root, penfold, skip, wait_until};

const SSHD: &str = "/usr/sbin/sshd";

/// An sshd, for as long as this value lives.
pub struct Sshd {
    port: u16,
    _running: Running,
}

impl Sshd {
    /// Starts an sshd that lets the tester in by key. `None`, and the reason said, where that cannot be.
    pub fn start(env: &TestEnv) -> Option<Sshd> {
        if !is_root() {
            skip("sshd needs root");
            return None;
        }
        if !has_program(&["ssh", "-V"]) || !has_program(&[SSHD, "-V"]) {
            return None;
        }
        // sshd keeps its separated part there, sshd(8).
        std::fs::create_dir_all("/run/sshd").unwrap();
        let dir = env.path("work/sshd");
        std::fs::create_dir_all(dir.join("bin")).unwrap();
        for key in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)).stdin(Stdio::null());
            assert!(keygen.status().unwrap().success());
        }
        std::fs::copy(dir.join("user.pub"), dir.join("authorized")).unwrap();
        let port = free_port();
        let (at, mark) = (dir.display(), env.dir().display());
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nPidFile none\n\
             UsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\nMaxStartups 100\nSetEnv {MARK}={mark} TMPDIR={mark}/tmp\n"
        );
        std::fs::write(dir.join("config"), config).unwrap();
        let ssh = format!(
            "#!/bin/sh\necho ssh >> {at}/count\n[ -z \"$NOISE\" ] || echo \"$NOISE\"\nexec /usr/bin/ssh -F none -i {at}/user \
             -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \"$@\"\n"
        );
        std::fs::write(dir.join("bin/ssh"), ssh).unwrap();
        std::fs::set_permissions(dir.join("bin/ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut sshd = Command::new(SSHD);
        sshd.args(["-D", "-e", "-f"]).arg(dir.join("config"));
        sshd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let running = Running::spawn(&mut sshd);
        wait_until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Sshd { port, _running: running })
    }

    /// The address of penfold here.
    pub fn host(&self) -> String {
        host(self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

/// The address of penfold behind a port.
pub fn host(port: u16) -> String {
    format!("ssh://127.0.0.1:{port}{}", penfold().display())
}

/// `penfold` with these words at a host, and the ssh of the test.
#[expect(clippy::disallowed_methods, reason = "the ssh of the test comes before others")]
pub fn command(env: &TestEnv, host: &str, words: &[&str]) -> Command {
    let mut command = env.penfold([&["--host", host], words].concat());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(env.path("work/sshd/bin")).chain(std::env::split_paths(&path));
    command.env("PATH", std::env::join_paths(all).unwrap());
    command
}

pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// A link to a port of loopback.
pub struct Link {
    port: u16,
    clock: Arc<Clock>,
    ends: Arc<Mutex<Vec<TcpStream>>>,
}

impl Link {
    /// Lets bytes pass after a delay in each direction.
    pub fn new(to: u16, delay: Duration) -> Link {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let ends = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&ends);
        let clock = Arc::new(Clock::default());
        let ticks = Arc::clone(&clock);
        // The thread ends with the process of the test.
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                for end in [&near, &far] {
                    end.set_nodelay(true).unwrap();
                    kept.lock().unwrap().push(end.try_clone().unwrap());
                }
                let there = Direction { clock: Arc::clone(&ticks), from: 0, to: 1, delay };
                let back = Direction { clock: Arc::clone(&ticks), from: 1, to: 0, delay };
                there.pass(near.try_clone().unwrap(), far.try_clone().unwrap());
                back.pass(far, near);
            }
        });
        Link { port, clock, ends }
    }

    pub fn host(&self) -> String {
        host(self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often one side has waited for the other: however long a side takes to answer, this does not count.
    pub fn round_trips(&self) -> f64 {
        f64::from(self.clock.0.iter().map(|count| count.load(Ordering::SeqCst)).max().unwrap()) / 2.0
    }

    /// Cuts all connections: both sides see them closed.
    pub fn cut(&self) {
        for end in self.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// For each side of a link, the number of messages that led one to the next and to this side, as Lamport counts.
#[derive(Default)]
struct Clock([AtomicU32; 2]);

/// One direction of a link.
struct Direction {
    clock: Arc<Clock>,
    from: usize,
    to: usize,
    delay: Duration,
}

impl Direction {
    fn pass(self, mut from: TcpStream, mut to: TcpStream) {
        let (sender, receiver) = mpsc::channel::<(Instant, u32, Vec<u8>)>();
        let clock = Arc::clone(&self.clock);
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count) = from.read(&mut buffer) {
                let number = clock.0[self.from].load(Ordering::SeqCst) + 1;
                let message = (Instant::now() + self.delay, number, buffer[..count].to_vec());
                if count == 0 || sender.send(message).is_err() {
                    return;
                }
            }
        });
        std::thread::spawn(move || {
            for (due, number, bytes) in receiver {
                // The delay of the link.
                std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
                self.clock.0[self.to].fetch_max(number, Ordering::SeqCst);
                if to.write_all(&bytes).is_err() {
                    return;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        });
    }
}
