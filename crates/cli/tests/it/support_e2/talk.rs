//! A command that a test talks to while it runs, always with a deadline.

use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{DEADLINE, Ended};

/// What a stream has said so far, and whether it is at its end.
#[derive(Default)]
struct Said {
    bytes: Mutex<(Vec<u8>, bool)>,
    more: Condvar,
}

impl Said {
    fn of(mut stream: impl Read + Send + 'static) -> Arc<Said> {
        let said = Arc::new(Said::default());
        let ours = Arc::clone(&said);
        std::thread::spawn(move || {
            let mut buffer = [0_u8; 8192];
            loop {
                let length = stream.read(&mut buffer).unwrap_or(0);
                let mut bytes = ours.bytes.lock().unwrap();
                bytes.0.extend_from_slice(&buffer[..length]);
                bytes.1 = length == 0;
                ours.more.notify_all();
                if length == 0 {
                    return;
                }
            }
        });
        said
    }

    /// Waits until it is so; what was said by then.
    fn until(&self, so: impl Fn(&[u8], bool) -> bool) -> Result<Vec<u8>, Vec<u8>> {
        let bytes = self.bytes.lock().unwrap();
        let (bytes, waited) =
            self.more.wait_timeout_while(bytes, DEADLINE, |(bytes, end)| !so(bytes, *end) && !*end).unwrap();
        let text = bytes.0.clone();
        if !waited.timed_out() && so(&bytes.0, bytes.1) { Ok(text) } else { Err(text) }
    }
}

/// A running command. Dropping it kills it.
pub struct Talk {
    child: Child,
    handle: rustix::fd::OwnedFd,
    input: Option<ChildStdin>,
    out: Option<Arc<Said>>,
    err: Option<Arc<Said>>,
    begun: Instant,
}

impl Talk {
    /// Starts with standard output and error heard.
    #[track_caller]
    pub fn start(command: &mut Command) -> Talk {
        Talk::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts with the streams as they are set; those that are pipes are heard.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Talk {
        let begun = Instant::now();
        let mut child = command.spawn().unwrap();
        let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let out = child.stdout.take().map(Said::of);
        let err = child.stderr.take().map(Said::of);
        let input = child.stdin.take();
        Talk { child, handle, input, out, err, begun }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.handle, signal).unwrap();
    }

    /// Writes to the command's standard input, which must be a pipe.
    pub fn say(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Waits until it has printed this, as often as that.
    #[track_caller]
    pub fn hear(&self, text: &str, times: usize) {
        let so = |bytes: &[u8], _: bool| String::from_utf8_lossy(bytes).matches(text).count() >= times;
        if let Err(bytes) = self.out.as_ref().unwrap().until(so) {
            panic!("no {times} x `{text}` in: {}", String::from_utf8_lossy(&bytes));
        }
    }

    /// What it has printed so far.
    pub fn heard(&self) -> String {
        let bytes = self.out.as_ref().unwrap().bytes.lock().unwrap();
        String::from_utf8_lossy(&bytes.0).into_owned()
    }

    /// Waits for its end, and for the end of its output: nobody may still hold that.
    #[track_caller]
    pub fn end(mut self) -> Ended {
        drop(self.input.take());
        let timeout = DEADLINE.try_into().unwrap();
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&timeout))).unwrap();
        assert!(
            ready > 0,
            "still running after {DEADLINE:?}; output: {:?}",
            self.out.as_ref().map(|_| self.heard())
        );
        let took = self.begun.elapsed();
        let status = self.child.wait().unwrap();
        let whole = |said: Option<&Arc<Said>>| match said.map(|said| said.until(|_, end| end)) {
            None => Vec::new(),
            Some(Ok(bytes)) => bytes,
            Some(Err(bytes)) => panic!("someone still holds the output: {}", String::from_utf8_lossy(&bytes)),
        };
        let (out, err) = (whole(self.out.as_ref()), whole(self.err.as_ref()));
        Ended { status, out, err, took }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
