//! A defect of penfold leaves the terminal as it was. The view runs in a process of its own, on a pseudoterminal.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use penfold_control::StopResult;
use penfold_sys::signal::{self, SignalFd, SignalSet};
use penfold_top::{Actions, Detail, Ending, Sandbox, Settings, Source};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, tcgetattr};

/// The code of the process that panicked.
const CODE: i32 = 93;

struct Defect;

impl Source for Defect {
    fn list(&mut self) -> Result<Vec<Sandbox>, String> {
        panic!("a defect");
    }

    fn ended(&mut self, _id: &str) -> Option<Sandbox> {
        None
    }

    fn detail(&mut self, _id: &str) -> Detail {
        Detail::default()
    }

    fn tree(&mut self, _id: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    fn log(&mut self, _id: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }
}

impl Actions for Defect {
    fn end(&self, _id: &str, _ending: Ending) -> Result<StopResult, String> {
        Ok(StopResult::Gone)
    }
}

#[test]
#[ignore = "runs in the process that the next test starts"]
#[expect(clippy::disallowed_methods, reason = "as the hook of the binary ends the process")]
fn panics_on_a_terminal() {
    std::panic::set_hook(Box::new(|_| {
        penfold_top::restore_terminal();
        std::process::exit(CODE);
    }));
    let set = SignalSet::of([rustix::process::Signal::TSTP.as_raw()]);
    signal::block_signals(&set).unwrap();
    let signals = SignalFd::open(&set).unwrap();
    let settings = Settings {
        source: Box::new(Defect),
        actions: Arc::new(Defect),
        open: None,
        has_colour: false,
        signals,
    };
    let _ = penfold_top::run_view(settings);
}

/// spec: 24.4
#[test]
fn a_panic_restores_the_terminal() {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
    let open = || File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    let terminal = open();
    let before = tcgetattr(&terminal).unwrap();
    assert!(before.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "panics_on_a_terminal", "--ignored", "--nocapture"]);
    command.stdin(OwnedFd::from(open())).stdout(OwnedFd::from(open())).stderr(Stdio::null()).process_group(0);
    let status = command.status().unwrap();
    assert_eq!(status.code(), Some(CODE));
    let after = tcgetattr(&terminal).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
    // All was written before the end: the terminal holds it.
    let mut master = File::from(master);
    let mut written = Vec::new();
    while rustix::event::poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&Timespec::default())).unwrap()
        > 0
    {
        let mut part = [0; 4096];
        let length = master.read(&mut part).unwrap();
        written.extend_from_slice(&part[..length]);
    }
    let written = String::from_utf8_lossy(&written);
    let (taken, given) = (written.find("\u{1b}[?1049h"), written.rfind("\u{1b}[?1049l"));
    assert!(taken.is_some() && taken < given, "{written:?}");
}
