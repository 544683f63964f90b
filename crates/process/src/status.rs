//! `/proc/<pid>/status`: the users, the tracer and the signals of a process.

use rustix::process::{Pid, Signal};

use crate::numbers::{self, ParseError};

/// The part of `/proc/<pid>/status` (proc(5)) that explains why a process could not be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStatus {
    /// The pid of the process; for a thread, the pid of the main thread.
    pub process: Pid,
    /// The pid of the tracer.
    pub tracer: Option<Pid>,
    /// Real, effective, saved and file system user id.
    pub uids: [u32; 4],
    /// Real, effective, saved and file system group id.
    pub gids: [u32; 4],
    /// The pid in each pid namespace, the reader's first; empty on kernels without this line.
    pub namespace_pids: Vec<Pid>,
    /// The signals that the process ignores, bit `n - 1` for signal `n`.
    pub ignored: u64,
    /// The signals with a handler, bit `n - 1` for signal `n`.
    pub caught: u64,
    /// The signals that the main thread blocks, bit `n - 1` for signal `n`.
    pub blocked: u64,
}

impl ProcessStatus {
    /// Tells whether this signal has no effect on the process.
    ///
    /// A blocked signal may have an effect later, through sigwait(3) or a signalfd, even if the signal is ignored.
    pub fn ignores(&self, signal: Signal) -> bool {
        let bit = 1 << (signal.as_raw() - 1);
        self.ignored & bit != 0 && self.blocked & bit == 0
    }

    /// Tells whether this signal ends the process: the signal is not handled, not ignored and not blocked.
    pub fn dies_of(&self, signal: Signal) -> bool {
        let bit = 1 << (signal.as_raw() - 1);
        (self.ignored | self.caught | self.blocked) & bit == 0
    }

    /// Parses the text of the file. Unknown lines are skipped, and also the name, which the kernel escapes.
    pub fn parse(text: &[u8]) -> Result<Self, ParseError> {
        let missing = |field| ParseError { file: "status", field };
        let (mut process, mut tracer, mut uids, mut gids) = (None, None, None, None);
        let mut namespace_pids = Vec::new();
        let (mut ignored, mut caught, mut blocked) = (0, 0, 0);
        for line in text.split(|&byte| byte == b'\n') {
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                continue;
            };
            let value = line[colon + 1..].trim_ascii();
            match &line[..colon] {
                b"Tgid" => process = numbers::parse_pid(value),
                b"TracerPid" => tracer = numbers::parse_pid(value),
                b"Uid" => uids = four(value),
                b"Gid" => gids = four(value),
                b"NSpid" => namespace_pids = words(value).map_while(numbers::parse_pid).collect(),
                b"SigIgn" => ignored = mask(value).ok_or(missing("the ignored signals"))?,
                b"SigCgt" => caught = mask(value).ok_or(missing("the caught signals"))?,
                b"SigBlk" => blocked = mask(value).ok_or(missing("the blocked signals"))?,
                _ => {}
            }
        }
        Ok(Self {
            process: process.ok_or(missing("the process"))?,
            tracer,
            uids: uids.ok_or(missing("the user ids"))?,
            gids: gids.ok_or(missing("the group ids"))?,
            namespace_pids,
            ignored,
            caught,
            blocked,
        })
    }
}

fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn four(value: &[u8]) -> Option<[u32; 4]> {
    let mut ids = [0; 4];
    let mut words = words(value);
    for id in &mut ids {
        *id = u32::try_from(numbers::parse_unsigned(words.next()?)?).ok()?;
    }
    Some(ids)
}

fn mask(value: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(value).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"Name:\tTgid:\\n9\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t4121\nNgid:\t0\nPid:\t4121\n\
        PPid:\t1\nTracerPid:\t0\nUid:\t1000\t0\t0\t0\nGid:\t1000\t1000\t1000\t1000\nFDSize:\t64\nGroups:\t \n\
        NStgid:\t4121\t7\nNSpid:\t4121\t7\nThreads:\t1\nSigBlk:\t0000000000010000\nSigIgn:\t0000000000004000\n\
        SigCgt:\t000000004b817efb\nSeccomp:\t0\n";

    #[test]
    fn fields_are_where_proc_5_says() {
        let status = ProcessStatus::parse(TEXT).expect("a recorded text");
        assert_eq!(status.process.as_raw_pid(), 4121);
        assert_eq!(status.tracer, None);
        assert_eq!(status.uids, [1000, 0, 0, 0]);
        assert_eq!(status.namespace_pids.len(), 2);
        assert_eq!(status.ignored, 1 << 14, "SIGTERM");
        assert_eq!(status.blocked, 1 << 16, "SIGCHLD");
    }

    /// spec: 1.2.1
    #[test]
    fn what_a_signal_does_follows_from_the_three_masks() {
        let of = |blocked: u64, ignored: u64, caught: u64| ProcessStatus {
            ignored,
            caught,
            blocked,
            ..ProcessStatus::parse(TEXT).expect("a recorded text")
        };
        let int = 1 << 1;
        let judged = |status: ProcessStatus| (status.ignores(Signal::INT), status.dies_of(Signal::INT));
        assert_eq!(judged(of(0, 0, 0)), (false, true));
        assert_eq!(judged(of(!int, !int, !int)), (false, true));
        assert_eq!(judged(of(0, int, 0)), (true, false));
        assert_eq!(judged(of(0, 0, int)), (false, false));
        // This is how penfold, and every user of a signalfd or sigwait(3), treats the signal.
        assert_eq!(judged(of(int, 0, 0)), (false, false));
        assert_eq!(judged(of(int, int, 0)), (false, false));
    }

    #[test]
    fn a_text_without_owner_is_an_error() {
        assert!(ProcessStatus::parse(b"Tgid:\t1\n").is_err());
        assert!(ProcessStatus::parse(b"").is_err());
    }

    proptest! {
        #[test]
        fn parse_never_panics(text in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = ProcessStatus::parse(&text);
        }

        #[test]
        fn parse_survives_any_damage(at in 0..TEXT.len(), byte in any::<u8>(), cut in 0..TEXT.len()) {
            let mut text = TEXT.to_vec();
            text[at] = byte;
            text.truncate(cut);
            let _ = ProcessStatus::parse(&text);
        }
    }
}
