//! The terminal of the caller: what a command that could not clean up itself has made of it.

use std::os::fd::{AsFd, OwnedFd};

use penfold_process::{Completeness, ProcFs};
use penfold_sys::{fork, signal};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The terminal of the caller, as it was before the command.
#[derive(Debug)]
pub(crate) struct CallerTerminal {
    terminal: OwnedFd,
    modes: Termios,
    /// The foreground group; `None` if it is in another pid namespace, and has no number here.
    group: Option<Pid>,
}

impl CallerTerminal {
    /// Remembers the modes and the foreground group of a terminal.
    pub(crate) fn of(terminal: impl AsFd) -> Option<CallerTerminal> {
        let terminal = terminal.as_fd().try_clone_to_owned().ok()?;
        let modes = tcgetattr(&terminal).ok()?;
        let group = tcgetpgrp(&terminal).ok();
        Some(CallerTerminal { terminal, modes, group })
    }

    /// Gives the terminal back to the group that had it before the command, if the group that has it is gone or has one of `left`
    /// in it. `modes` also restores the modes, if the job of the caller is in the foreground then.
    ///
    /// Without this, the next process of the caller that reads the terminal gets EIO or is stopped. An interactive shell
    /// takes the terminal by itself; a script does not.
    pub(crate) fn restore(&self, left: &[i32], modes: bool) {
        let Ok(foreground) = tcgetpgrp(&self.terminal) else { return };
        let is_left =
            has_ended(foreground) || left.iter().any(|&pid| fork::group_of(pid) == Some(number(foreground)));
        let is_own = number(foreground) == fork::own_group();
        let is_given_back = is_left && !is_own && self.group != Some(foreground);
        if is_given_back {
            let own = Pid::from_raw(fork::own_group());
            // The group that had the terminal may have ended meanwhile.
            let mut groups = [self.group, own].into_iter().flatten();
            let _ = groups.any(|group| set_foreground_group(&self.terminal, group).is_ok());
        }
        if modes && (is_left || is_own) {
            let _ = undisturbed(|| {
                tcsetattr(&self.terminal, OptionalActions::Now, &self.modes).map_err(Into::into)
            });
        }
    }
}

/// Opens the controlling terminal of this process, if there is one.
pub(crate) fn open_terminal() -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open("/dev/tty", flags, Mode::empty()).ok()
}

/// Makes `group` the foreground group of a terminal of this session.
///
/// # Errors
/// Those of tcsetpgrp(3): the group has ended, or the terminal has hung up.
pub(crate) fn set_foreground_group(terminal: &OwnedFd, group: Pid) -> std::io::Result<()> {
    undisturbed(|| Ok(tcsetpgrp(terminal, group)?))
}

/// Changes a terminal with SIGTTOU blocked, which would stop this process in the background.
fn undisturbed(change: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<()> {
    let mask = signal::block_signals(&signal::SignalSet::of([Signal::TTOU.as_raw()]))?;
    let changed = change();
    signal::set_mask(&mask)?;
    changed
}

/// Tells whether no process of this group lives. Zombies that wait to be reaped still answer kill(2).
fn has_ended(group: Pid) -> bool {
    if test_kill_process_group(group) == Err(Errno::SRCH) {
        return true;
    }
    let mut lives = false;
    let seen = ProcFs::open()
        .and_then(|mut proc| proc.scan(|stat| lives |= stat.group == number(group) && !stat.is_dead()));
    // What `/proc` hides may live.
    seen.is_ok_and(Completeness::is_complete) && !lives
}

fn number(group: Pid) -> i32 {
    group.as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn a_group_of_zombies_has_ended() {
        let mut living = Command::new("sleep").arg("1000").process_group(0).spawn().unwrap();
        let group = Pid::from_child(&living);
        assert!(!has_ended(group));
        living.kill().unwrap();
        waitid(WaitId::Pid(group), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap().unwrap();
        assert!(has_ended(group));
        living.wait().unwrap();
        assert!(has_ended(group));
    }
}
