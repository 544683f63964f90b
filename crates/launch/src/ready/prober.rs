//! Tries a probe until it succeeds. Runs on a thread: some of its steps wait, and signals must not wait for them.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penfold_client::{Client, ServerAddress};
use penfold_control::execs::{self, ExecStart};
use penfold_control::{Resolver, SandboxRef, view};
use penfold_process::{Listeners, Pid};
use penfold_state::evidence::fingerprints;
use penfold_state::log::{LogEntry, LogPosition, LogReader, LogWaitEnd, Stream};
use penfold_state::{ExitStatus, Files, Intent, Life, error_chain};
use regex_lite::Regex;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::probe::{Probe, ProbeKind};

/// The pause between two looks at ports, at least, and as a multiple of the time that a look takes.
const LOOK: Duration = Duration::from_millis(25);
const LOOK_SHARE: u32 = 4;
const LONGEST_LOOK: Duration = Duration::from_millis(500);
/// Members that have left the leaf are looked for each so many looks.
const WIDE_LOOK: u32 = 8;
/// The pause between two requests, and the time limit of one.
const REQUEST_PAUSE: Duration = Duration::from_millis(50);
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// The time between the starts of two commands.
const COMMAND_PAUSE: Duration = Duration::from_millis(200);
/// A longer line is matched in parts of this length.
const LONGEST_LINE: usize = 64 << 10;

/// The result of a probe.
#[derive(Debug)]
pub(super) enum Probed {
    /// The sandbox is ready.
    Ready,
    /// The time is over, or the sandbox has ended.
    Over,
    /// The probe can never succeed, for this reason.
    Never(String),
}

/// The sandbox that is probed, and the deadline.
pub(super) struct Prober {
    pub(super) resolver: Resolver,
    pub(super) known: SandboxRef,
    pub(super) files: Files,
    pub(super) deadline: Instant,
    /// The pipe from the command.
    pub(super) pipe: Option<OwnedFd>,
    /// Why the last try did not succeed.
    pub(super) last: Arc<Mutex<String>>,
}

impl Prober {
    /// Tries until the probe succeeds, the time is over or the sandbox has ended.
    pub(super) fn run(&self, probe: &Probe) -> Probed {
        match &probe.kind {
            ProbeKind::Port(port) => self.port(*port),
            ProbeKind::Log(regex) => self.log(regex),
            ProbeKind::Http(host, path) => self.http(host.clone(), path),
            ProbeKind::Command(line) => self.command(line),
            ProbeKind::Descriptor(number) => self.descriptor(*number),
        }
    }

    fn note(&self, reason: impl Into<String>) {
        if let Ok(mut last) = self.last.lock() {
            *last = reason.into();
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn is_over(&self) -> bool {
        self.left().is_zero() || has_ended(&self.files)
    }

    fn pause(&self, pause: Duration) {
        let pause = Timespec::try_from(pause.min(self.left())).ok();
        let _ = rustix::event::poll(&mut [], pause.as_ref());
    }

    /// Waits until a member listens on a port. A port that another process holds does not count.
    fn port(&self, port: u16) -> Probed {
        let mut looks = 0_u32;
        while !self.is_over() {
            let began = Instant::now();
            let leaf = self.known.leaf.as_deref().and_then(fingerprints::leaf_members);
            let pids = match leaf {
                Some((_, pids)) if !looks.is_multiple_of(WIDE_LOOK) => pids,
                leaf => leaf.map(|(_, pids)| pids).into_iter().flatten().chain(self.members()).collect(),
            };
            if Listeners::default().of(&pids).iter().any(|held| held.port == port) {
                return Probed::Ready;
            }
            self.note(format!("no process of it listens on port {port}"));
            looks += 1;
            self.pause((began.elapsed() * LOOK_SHARE).clamp(LOOK, LONGEST_LOOK));
        }
        Probed::Over
    }

    /// The members, wherever they are.
    fn members(&self) -> Vec<Pid> {
        let resolver = self.resolver.again();
        let members = view::observe_sandbox(&resolver, &self.known)
            .and_then(|seen| view::list_members(&resolver, &self.known, &seen, false).ok());
        members.unwrap_or_default().into_iter().map(|member| member.id.pid).collect()
    }

    /// Waits for a line of the log, from the first line of this life on.
    fn log(&self, regex: &Regex) -> Probed {
        self.note("no line of its log matches");
        let intent = self.known.intent.as_ref();
        let own = intent.and_then(Intent::life).map(Life::number);
        let made = intent.map_or(0, |intent| intent.made_at_ms.saturating_mul(1_000_000));
        let begin = own.map_or(LogPosition::Start, |_| LogPosition::Since(made));
        let mut reader = match LogReader::open(self.files.dir(), begin) {
            Ok(reader) => reader,
            Err(error) => return Probed::Never(error_chain(&error)),
        };
        let mut lines = [Line::default(), Line::default()];
        loop {
            loop {
                match reader.next_entry() {
                    Ok(Some(LogEntry::Data { bytes, .. }))
                        if own.is_some_and(|life| Life::is_line(life, bytes)) => {}
                    Ok(Some(LogEntry::Data { stream, bytes, .. })) => {
                        let [stdout, stderr] = &mut lines;
                        let line = if stream == Stream::Stdout { stdout } else { stderr };
                        if line.matches(bytes, regex) {
                            return Probed::Ready;
                        }
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => return Probed::Never(error_chain(&error)),
                }
            }
            match reader.wait(|| self.is_over(), None) {
                Ok(LogWaitEnd::More) => {}
                Ok(LogWaitEnd::Ended | LogWaitEnd::HungUp) => return Probed::Over,
                Err(error) => return Probed::Never(error_chain(&error)),
            }
        }
    }

    /// Sends requests until one is answered with 2xx or 3xx.
    fn http(&self, host: ServerAddress, path: &str) -> Probed {
        let client = match Client::new(host, None) {
            Ok(client) => client,
            Err(error) => return Probed::Never(error_chain(&error)),
        };
        while !self.is_over() {
            match client.status(path, self.left().min(REQUEST_LIMIT)) {
                Ok(200..400) => return Probed::Ready,
                Ok(status) => self.note(format!("the answer was {status}")),
                Err(error) => self.note(error_chain(&error)),
            }
            self.pause(REQUEST_PAUSE);
        }
        Probed::Over
    }

    /// Runs a line of shell inside the sandbox, one at a time, until one exits with 0.
    fn command(&self, line: &str) -> Probed {
        while !self.is_over() {
            let began = Instant::now();
            let start = ExecStart {
                timeout: Some(self.left()),
                grace: Duration::ZERO,
                ..ExecStart::new(["sh", "-c", line])
            };
            match execs::start_exec(&self.files, start) {
                Ok(started) => match execs::wait_for_exec(&self.files, started.number, Some(self.deadline)) {
                    Ok(Some(end)) => {
                        // Nobody needs the output of a try.
                        let _ = execs::remove_exec_record(&self.files, started.number);
                        match end.exit {
                            Some(ExitStatus::Code(0)) => return Probed::Ready,
                            Some(exit) => {
                                self.note(format!("the command ended with {exit}"));
                            }
                            None => self.note("the end of the command is unknown"),
                        }
                    }
                    Ok(None) => self.note("the command did not end in time"),
                    Err(error) => self.note(error_chain(&error)),
                },
                Err(error) => self.note(error_chain(&error)),
            }
            self.pause(COMMAND_PAUSE.saturating_sub(began.elapsed()));
        }
        Probed::Over
    }

    /// Waits for a line feed from the command.
    fn descriptor(&self, number: i32) -> Probed {
        self.note(format!("it wrote no line feed to descriptor {number}"));
        let Some(pipe) = &self.pipe else { return Probed::Over };
        let mut buffer = [0_u8; 512];
        while !self.is_over() {
            let timeout = Timespec::try_from(self.left()).ok();
            if !matches!(
                rustix::event::poll(&mut [PollFd::new(pipe, PollFlags::IN)], timeout.as_ref()),
                Ok(1..)
            ) {
                continue;
            }
            match rustix::io::read(pipe, &mut buffer) {
                Ok(0) => {
                    return Probed::Never(format!("it closed descriptor {number} without a line feed"));
                }
                Ok(length) if buffer.iter().take(length).any(|&byte| byte == b'\n') => return Probed::Ready,
                Ok(_) | Err(_) => {}
            }
        }
        Probed::Over
    }
}

/// Tells whether the sandbox has ended, or has lost its supervisors.
pub(super) fn has_ended(files: &Files) -> bool {
    files.has_ended()
        || files.lock().is_free()
        || rustix::fs::fstat(files.dir()).is_ok_and(|stat| stat.st_nlink == 0)
}

/// The beginning of a line of one stream.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    /// Adds output; true if a line that is complete now matches.
    fn matches(&mut self, bytes: &[u8], regex: &Regex) -> bool {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.0.extend_from_slice(piece);
            if !piece.ends_with(b"\n") && self.0.len() < LONGEST_LINE {
                continue;
            }
            let line = self.0.strip_suffix(b"\n").unwrap_or(&self.0);
            // A terminal ends a line with a carriage return, too.
            let matched = regex.is_match(&String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)));
            self.0.clear();
            if matched {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// spec: 25.4
    #[test]
    fn only_a_complete_line_matches() {
        let regex = Regex::new("^ready$").unwrap();
        let mut line = Line::default();
        for (bytes, expected) in
            [("not ready\nrea", false), ("dy", false), ("\n", true), ("xready\n", false), ("ready\r\n", true)]
        {
            assert_eq!(line.matches(bytes.as_bytes(), &regex), expected, "{bytes:?}");
        }
        assert!(!line.matches(&vec![b'x'; LONGEST_LINE], &regex));
        assert_eq!(line.0.len(), 0);
    }
}
