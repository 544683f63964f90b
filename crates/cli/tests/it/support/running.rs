//! A command that a test talks to while it runs, always with a deadline.

use std::io::{Read, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};

use penfold_testkit::proc;
use rustix::process::Signal;

use super::{DEADLINE, Process};

/// What a stream has said so far, and whether it is at its end.
#[derive(Default)]
struct CapturedOutput {
    bytes: Mutex<(Vec<u8>, bool)>,
    more: Condvar,
}

impl CapturedOutput {
    fn of(mut stream: impl Read + Send + 'static) -> Arc<CapturedOutput> {
        let said = Arc::new(CapturedOutput::default());
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

    /// Waits until it is so; what was said by then, as an error if it never was.
    fn wait_until(&self, so: impl Fn(&[u8], bool) -> bool) -> Result<Vec<u8>, Vec<u8>> {
        let bytes = self.bytes.lock().unwrap();
        let (bytes, waited) =
            self.more.wait_timeout_while(bytes, DEADLINE, |(bytes, end)| !so(bytes, *end) && !*end).unwrap();
        let text = bytes.0.clone();
        if !waited.timed_out() && so(&bytes.0, bytes.1) { Ok(text) } else { Err(text) }
    }
}

/// A running command. Dropping it kills and reaps it.
pub struct Running {
    child: Child,
    process: Process,
    input: Option<ChildStdin>,
    out: Option<Arc<CapturedOutput>>,
    err: Option<Arc<CapturedOutput>>,
}

impl Running {
    /// Starts with standard output and error heard.
    #[track_caller]
    pub fn start(command: &mut Command) -> Running {
        Running::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Starts with the streams as they are set; those that are pipes are heard.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Running {
        Running::of(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Takes a child that was just started.
    #[track_caller]
    pub fn of(mut child: Child) -> Running {
        let pid = i32::try_from(child.id()).unwrap();
        // A child that nobody has reaped: its stat is there, and its pid is its own.
        let process = Process::open(proc::stat(pid).expect("a child").id).expect("a child");
        let (out, err) =
            (child.stdout.take().map(CapturedOutput::of), child.stderr.take().map(CapturedOutput::of));
        let input = child.stdin.take();
        Running { child, process, input, out, err }
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Its handle.
    pub fn process(&self) -> &Process {
        &self.process
    }

    pub fn is_alive(&self) -> bool {
        !self.process.has_ended()
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Writes to the command's standard input, which must be a pipe.
    #[track_caller]
    pub fn say(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Closes the command's standard input, which must be a pipe.
    pub fn hang_up(&mut self) {
        drop(self.input.take().unwrap());
    }

    /// Waits until it has printed this, as often as that.
    #[track_caller]
    pub fn hear(&self, text: &str, times: usize) {
        let so = |bytes: &[u8], _: bool| String::from_utf8_lossy(bytes).matches(text).count() >= times;
        if let Err(bytes) = self.out.as_ref().unwrap().wait_until(so) {
            panic!("no {times} x `{text}` in: {}", String::from_utf8_lossy(&bytes));
        }
    }

    /// Waits until it has printed this to standard error, as often as that; gives all that it has printed there.
    #[track_caller]
    pub fn hear_error(&self, text: &str, times: usize) -> String {
        let so = |bytes: &[u8], _: bool| String::from_utf8_lossy(bytes).matches(text).count() >= times;
        match self.err.as_ref().unwrap().wait_until(so) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(bytes) => panic!("no {times} x `{text}` in: {}", String::from_utf8_lossy(&bytes)),
        }
    }

    /// What it has printed so far.
    pub fn heard(&self) -> String {
        let bytes = self.out.as_ref().unwrap().bytes.lock().unwrap();
        String::from_utf8_lossy(&bytes.0).into_owned()
    }

    /// Waits for its end, and for the end of its output: nobody may still hold that.
    #[track_caller]
    pub fn finish(mut self) -> Finished {
        drop(self.input.take());
        self.process.await_end();
        let status = self.child.wait().unwrap();
        let whole = |said: Option<&Arc<CapturedOutput>>| match said.map(|said| said.wait_until(|_, end| end))
        {
            None => Vec::new(),
            Some(Ok(bytes)) => bytes,
            Some(Err(bytes)) => {
                panic!("somebody still holds the output: {}", String::from_utf8_lossy(&bytes))
            }
        };
        let (out, err) = (whole(self.out.as_ref()), whole(self.err.as_ref()));
        Finished { status, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// How a command ended and what it said.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub err: Vec<u8>,
}

impl Finished {
    /// The code as a shell has it in `$?`: 128+N for one that signal N has ended.
    pub fn code(&self) -> Option<i32> {
        self.status.code().or(self.signal().map(|signal| 128 + signal))
    }

    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.out)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.out(), self.err()))
    }

    /// Checks the code, and shows all if it is another.
    #[track_caller]
    pub fn with_code(self, code: i32) -> Finished {
        assert_eq!(self.code(), Some(code), "{:?}: {} {}", self.status, self.out(), self.err());
        self
    }

    /// Checks for a failure as the contract wants it: the code, one sentence on standard error, hints at most after it.
    #[track_caller]
    pub fn refused(self, code: i32, part: &str) {
        let said = self.err();
        assert_eq!(self.code(), Some(code), "{said}");
        assert_eq!(self.out(), "", "{said}");
        let mut lines = said.lines();
        let first = lines.next().unwrap_or_default();
        assert!(first.starts_with("penfold: ") && first.contains(part), "no `{part}` in: {said}");
        assert!(
            !first.ends_with('.') && !said.contains("panicked") && !said.contains("internal error"),
            "{said}"
        );
        assert!(lines.all(|line| line.starts_with("hint: ")), "more than a sentence: {said}");
    }
}
