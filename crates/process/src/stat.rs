//! `/proc/<pid>/stat`.

use std::fmt;

use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::id::{ProcessId, StartTime};
use crate::numbers::{self, ParseError};

/// The scheduler's state of a process's main thread: field 3 of `/proc/<pid>/stat`, proc(5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulerState {
    /// `R`: on a CPU or waiting for one.
    Running,
    /// `S`: waits and can be interrupted.
    Sleeping,
    /// `D`: waits in the kernel; no signal has an effect until the wait is over.
    DiskSleep,
    /// `T`: stopped by a signal.
    Stopped,
    /// `t`: stopped by a tracer.
    Traced,
    /// `Z`: the main thread has exited. Other threads may live: see [`Stat::is_dead`].
    Zombie,
    /// `X`: about to vanish.
    Dead,
    /// `I`: an idle kernel thread.
    Idle,
    /// `P`: a parked kernel thread.
    Parked,
    /// A letter unknown to this crate.
    Other(u8),
}

impl SchedulerState {
    /// Converts from the letter of proc(5).
    pub fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => Self::Running,
            b'S' => Self::Sleeping,
            b'D' => Self::DiskSleep,
            b'T' => Self::Stopped,
            b't' => Self::Traced,
            b'Z' => Self::Zombie,
            b'X' | b'x' => Self::Dead,
            b'I' => Self::Idle,
            b'P' => Self::Parked,
            other => Self::Other(other),
        }
    }

    /// Returns the letter of proc(5).
    pub fn letter(self) -> char {
        match self {
            Self::Running => 'R',
            Self::Sleeping => 'S',
            Self::DiskSleep => 'D',
            Self::Stopped => 'T',
            Self::Traced => 't',
            Self::Zombie => 'Z',
            Self::Dead => 'X',
            Self::Idle => 'I',
            Self::Parked => 'P',
            Self::Other(letter) => char::from(letter),
        }
    }
}

impl fmt::Display for SchedulerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.letter())
    }
}

/// The fields of `/proc/<pid>/stat`, proc(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The pid.
    pub pid: Pid,
    /// The name of the main thread, at most 15 bytes (64 for kernel threads).
    ///
    /// The process chooses the name, which may hold control characters. Bytes that are not UTF-8 are replaced.
    pub comm: String,
    /// The state of the main thread.
    pub state: SchedulerState,
    /// The parent; `None` for the init of a pid namespace and for a process whose parent is outside it.
    pub parent: Option<Pid>,
    /// The process group; 0 when its leader is outside the pid namespace, -1 while the process vanishes.
    pub group: i32,
    /// The session; 0 when its leader is outside the pid namespace, -1 while the process vanishes.
    pub session: i32,
    /// The kernel's `PF_*` flags, `include/linux/sched.h`.
    pub flags: u32,
    /// CPU time spent in user mode, in clock ticks.
    pub utime: u64,
    /// CPU time spent in the kernel, in clock ticks.
    pub stime: u64,
    /// CPU time of the children that the process has reaped, with theirs, in clock ticks.
    pub children_time: u64,
    /// The number of threads, including an exited main thread; 0 while the process vanishes.
    pub threads: u32,
    /// The start time.
    pub start: StartTime,
    /// The resident set, in pages.
    pub resident: u64,
    /// The signals up to 31 that are pending for the main thread alone, bit `n - 1` for signal `n`. A signal that ends the process
    /// makes SIGKILL pending for each of its threads.
    pub pending: u64,
}

/// Flags of `include/linux/sched.h`.
const PF_EXITING: u32 = 0x0000_0004;
const PF_FORKNOEXEC: u32 = 0x0000_0040;
const PF_KTHREAD: u32 = 0x0020_0000;

impl Stat {
    /// Parses the text of the file.
    ///
    /// The name may hold spaces, newlines and `)`, so the fields are counted from the last `)`.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let missing = |field| ParseError { file: "stat", field };
        let open = text.iter().position(|&byte| byte == b'(').ok_or(missing("the name"))?;
        let close = text.iter().rposition(|&byte| byte == b')').ok_or(missing("the name"))?;
        let comm = text.get(open + 1..close).ok_or(missing("the name"))?;
        let pid = text
            .get(..open)
            .and_then(|head| numbers::parse_pid(head.trim_ascii()))
            .ok_or(missing("the pid"))?;
        let rest = text.get(close + 1..).unwrap_or_default().trim_ascii();
        let mut fields = Fields { rest: rest.split(|&byte| byte == b' ') };

        let state = match fields.next() {
            Some(&[letter]) => SchedulerState::from_letter(letter),
            _ => return Err(missing("the state")),
        };
        let parent = fields.small().ok_or(missing("the parent"))?;
        let group = fields.small().ok_or(missing("the process group"))?;
        let session = fields.small().ok_or(missing("the session"))?;
        // tty_nr, tpgid
        fields.skip(2);
        let flags = fields.unsigned().and_then(|n| u32::try_from(n).ok()).ok_or(missing("the flags"))?;
        // minflt, cminflt, majflt, cmajflt
        fields.skip(4);
        let utime = fields.unsigned().ok_or(missing("the user time"))?;
        let stime = fields.unsigned().ok_or(missing("the system time"))?;
        // Both are signed in the kernel, and never negative.
        let mut children = || Some(fields.unsigned()?.saturating_add(fields.unsigned()?));
        let children_time = children().ok_or(missing("the time of the children"))?;
        // priority, nice
        fields.skip(2);
        let threads =
            fields.unsigned().and_then(|n| u32::try_from(n).ok()).ok_or(missing("the number of threads"))?;
        // itrealvalue
        fields.skip(1);
        let start = StartTime(fields.unsigned().ok_or(missing("the start time"))?);
        // vsize
        fields.skip(1);
        let resident = fields.unsigned().ok_or(missing("the resident set"))?;
        // rsslim, startcode, endcode, startstack, kstkesp, kstkeip
        fields.skip(6);
        let pending = fields.unsigned().unwrap_or(0);
        Ok(Self {
            pid,
            comm: String::from_utf8_lossy(comm).into_owned(),
            state,
            parent: crate::pid_from_raw(parent),
            group,
            session,
            flags,
            utime,
            stime,
            children_time,
            threads,
            start,
            resident,
            pending,
        })
    }

    /// Returns the CPU time of the process and of all children that it has reaped, in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        self.utime.saturating_add(self.stime).saturating_add(self.children_time)
    }

    /// Returns the identity.
    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start: self.start }
    }

    /// Tells whether the process runs no more and only waits to be reaped.
    ///
    /// A main thread that exited while other threads live shows `Z` as well. Such a process is not dead: it runs, holds
    /// its memory and files, and can fork.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, SchedulerState::Zombie | SchedulerState::Dead) && self.threads <= 1
    }

    /// Tells whether the main thread is exiting or has exited.
    ///
    /// An exiting process releases its files, and the locks held through them, before its end can be observed.
    pub fn is_exiting(&self) -> bool {
        self.flags & PF_EXITING != 0
    }

    /// Tells whether the process executes no instruction of its program any more: it has ended, is exiting, or has a signal before it
    /// that ends it.
    pub fn is_ending(&self) -> bool {
        let is_killed = self.pending & 1 << (Signal::KILL.as_raw() - 1) != 0;
        self.is_dead() || is_killed || self.is_exiting() && self.threads <= 1
    }

    /// Tells whether the process has executed no program since it was forked: its name and command line are still its parent's.
    pub fn is_unexecuted(&self) -> bool {
        self.flags & PF_FORKNOEXEC != 0
    }

    /// Tells whether the process is a kernel thread, which has no command line and cannot be signalled.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }
}

struct Fields<I> {
    rest: I,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Fields<I> {
    fn next(&mut self) -> Option<&'a [u8]> {
        self.rest.next()
    }

    fn skip(&mut self, count: usize) {
        for _ in 0..count {
            self.rest.next();
        }
    }

    fn unsigned(&mut self) -> Option<u64> {
        numbers::parse_unsigned(self.next()?)
    }

    fn small(&mut self) -> Option<i32> {
        i32::try_from(numbers::parse_signed(self.next()?)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LINE: &str = "4121 (node) S 1 4121 4121 0 -1 4194560 2 0 0 0 11 7 5 2 20 0 3 0 8812345 1000 42 \
                        18446744073709551615 1 1 0 0 0 0 0 0 0 1 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn fields_are_where_proc_5_says() {
        let stat = Stat::parse(LINE.as_bytes()).expect("a recorded line");
        assert_eq!(stat.pid.as_raw_pid(), 4121);
        assert_eq!(stat.comm, "node");
        assert_eq!(stat.state, SchedulerState::Sleeping);
        assert_eq!(stat.parent.map(Pid::as_raw_pid), Some(1));
        assert_eq!((stat.group, stat.session), (4121, 4121));
        assert_eq!((stat.utime, stat.stime, stat.threads), (11, 7, 3));
        assert_eq!((stat.children_time, stat.cpu_ticks(), stat.resident), (7, 25, 42));
        assert_eq!(stat.start, StartTime(8_812_345));
        assert!(!stat.is_dead() && !stat.is_kernel_thread());
    }

    #[test]
    fn a_name_may_look_like_the_fields_after_it() {
        let line = LINE.replace("(node)", "(a) Z 1 1\n(b)) R 2)");
        let stat = Stat::parse(line.as_bytes()).expect("a hostile name");
        assert_eq!(stat.comm, "a) Z 1 1\n(b)) R 2");
        assert_eq!(stat.state, SchedulerState::Sleeping);
        assert_eq!(stat.start, StartTime(8_812_345));
    }

    /// spec: 2.2
    #[test]
    fn a_zombie_leader_with_live_threads_is_not_dead() {
        let zombie = |threads: &str| {
            let line = LINE.replace(") S ", ") Z ").replace(" 20 0 3 0 ", &format!(" 20 0 {threads} 0 "));
            Stat::parse(line.as_bytes()).expect("a zombie")
        };
        assert!(!zombie("2").is_dead());
        assert!(zombie("1").is_dead());
        assert!(zombie("0").is_dead());
    }

    #[test]
    fn a_process_is_ending_once_nothing_of_its_program_runs() {
        let of = |pending: &str, flags: &str, threads: &str| {
            let line = LINE.replace(" 1 1 0 0 0 0 0 ", &format!(" 1 1 0 0 0 {pending} 0 "));
            let line = line
                .replace(" 4194560 ", &format!(" {flags} "))
                .replace(" 20 0 3 ", &format!(" 20 0 {threads} "));
            Stat::parse(line.as_bytes()).expect("a line").is_ending()
        };
        assert!(!of("0", "4194560", "3"));
        // SIGKILL, and SIGTERM that a handler will take.
        assert!(of("256", "4194560", "3"));
        assert!(!of("16384", "4194560", "3"));
        // Other threads may live after the main thread.
        assert!(of("0", "4194564", "1"));
        assert!(!of("0", "4194564", "3"));
    }

    #[test]
    fn a_vanishing_process_has_no_group() {
        let line = LINE.replace(" 1 4121 4121 0 -1 ", " 0 -1 -1 0 -1 ");
        let stat = Stat::parse(line.as_bytes()).expect("a vanishing process");
        assert_eq!((stat.parent, stat.group, stat.session), (None, -1, -1));
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Stat::parse(&text);
        }

        #[test]
        fn parse_survives_any_cut_and_name(cut in 0..400usize, name in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut line = b"4121 (".to_vec();
            line.extend_from_slice(&name);
            line.extend_from_slice(&LINE.as_bytes()[10..]);
            let whole = Stat::parse(&line).expect("any name is legal");
            prop_assert_eq!(whole.comm, String::from_utf8_lossy(&name).into_owned());
            prop_assert_eq!(whole.start, StartTime(8_812_345));
            line.truncate(cut);
            let _ = Stat::parse(&line);
        }

        #[test]
        fn letters_round_trip(letter in any::<u8>()) {
            let state = SchedulerState::from_letter(letter);
            prop_assert!(state.letter() == char::from(letter) || (state == SchedulerState::Dead && letter == b'x'));
        }
    }
}
