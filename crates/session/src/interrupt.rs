//! Ends a command: signal to the shell, SIGTERM, grace, SIGKILL, look.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use penfold_process::{Pid, ProcFs, ProcessId, StartTime, Stat};
use penfold_teardown::report::Survivor;
use rustix::process::Signal;

use crate::members::{CommandFamily, send_signal};
use crate::protocol::EndKind;

/// The time after which a shell without a member, that has not come back, is killed.
const RESCUE: Duration = Duration::from_secs(1);
/// The time after SIGKILL after which the members that still exist are reported.
const PATIENCE: Duration = Duration::from_secs(5);
/// The interval of looks, from the first to the longest.
const FIRST: Duration = Duration::from_millis(1);
const LAST: Duration = Duration::from_millis(20);
/// The most survivors in a report.
const MOST_REPORTED: usize = 64;

/// An interrupt in progress.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// Why: a time limit or a client.
    pub(crate) kind: EndKind,
    /// When members are killed, and when those that still exist are reported.
    kill_at: Instant,
    report_at: Instant,
    /// The members that have received SIGTERM.
    asked: HashSet<ProcessId>,
    /// Since when there is no member.
    empty_since: Option<Instant>,
    /// When to look again.
    pub(crate) next_look: Instant,
    pause: Duration,
    /// The members at the last look.
    left: Vec<Stat>,
    /// Whether the last look could not read everything.
    is_unproven: bool,
}

impl Interrupt {
    pub(crate) fn begin(kind: EndKind, grace: Duration) -> Interrupt {
        let now = Instant::now();
        let kill_at = now.checked_add(grace).unwrap_or(now);
        Interrupt {
            kind,
            kill_at,
            report_at: kill_at.checked_add(PATIENCE).unwrap_or(kill_at),
            asked: HashSet::new(),
            empty_since: None,
            next_look: now,
            pause: FIRST,
            left: Vec::new(),
            is_unproven: false,
        }
    }

    /// Looks for members, and signals them.
    pub(crate) fn look(
        &mut self,
        proc: &mut ProcFs,
        family: &CommandFamily,
        shell: Option<Pid>,
        since: StartTime,
    ) {
        let (members, completeness) = family.members(proc, shell, since);
        let now = Instant::now();
        if now >= self.kill_at && !members.is_empty() {
            family.kill(proc, shell, since);
        } else {
            for member in &members {
                if self.asked.insert(member.id()) {
                    send_signal(proc, member.id(), Signal::TERM);
                    send_signal(proc, member.id(), Signal::CONT);
                }
            }
        }
        self.is_unproven = !completeness.covers_own();
        let is_empty = members.is_empty() && !self.is_unproven;
        self.empty_since = if is_empty { self.empty_since.or(Some(now)) } else { None };
        self.left = members;
        self.pause = (self.pause * 2).min(LAST);
        self.next_look = now.checked_add(self.pause).unwrap_or(now);
    }

    /// Tells whether no member is left.
    pub(crate) fn is_gone(&self) -> bool {
        self.empty_since.is_some()
    }

    /// Tells whether what is left is only to be reported.
    pub(crate) fn is_late(&self) -> bool {
        Instant::now() >= self.report_at
    }

    /// Tells whether a shell that has not come back is to be killed.
    pub(crate) fn gives_up_shell(&self) -> bool {
        self.is_late() || self.empty_since.is_some_and(|since| since.elapsed() >= RESCUE)
    }

    /// Returns the members that still exist.
    pub(crate) fn survivors(&self, proc: &mut ProcFs) -> Vec<Survivor> {
        let mut survivors: Vec<Survivor> = Vec::new();
        for stat in self.left.iter().take(MOST_REPORTED) {
            let (state, wait_channel) = proc.waits(stat);
            survivors.push(Survivor::Process {
                pid: stat.pid.as_raw_pid(),
                start_time: stat.start.0,
                name: stat.comm.clone(),
                state: state.letter(),
                wait_channel,
                reason: "it has not ended after SIGKILL".to_owned(),
            });
        }
        if self.is_unproven {
            survivors
                .push(Survivor::Unknown { reason: "cannot read all processes of the session".to_owned() });
        }
        survivors
    }
}
