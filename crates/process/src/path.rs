//! Paths below `/proc`, written on the stack.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::process::Pid;

/// The longest path is `<10 digits>/task/<10 digits>/children` with its NUL, 36 bytes.
const CAPACITY: usize = 64;

/// A path relative to `/proc`.
pub(crate) struct ProcPath {
    bytes: [u8; CAPACITY],
    length: usize,
}

impl ProcPath {
    /// Writes `<pid>/<file>`.
    pub(crate) fn of(pid: Pid, file: &str) -> Self {
        let mut path = Self { bytes: [0; CAPACITY], length: 0 };
        path.number(pid);
        path.text("/");
        path.text(file);
        path
    }

    /// Writes `<pid>/task/<tid>/<file>`.
    pub(crate) fn of_task(pid: Pid, tid: Pid, file: &str) -> Self {
        let mut path = Self::of(pid, "task/");
        path.number(tid);
        path.text("/");
        path.text(file);
        path
    }

    /// Writes `self/fdinfo/<fd>`.
    pub(crate) fn of_descriptor(fd: BorrowedFd<'_>) -> Self {
        let mut path = Self { bytes: [0; CAPACITY], length: 0 };
        path.text("self/fdinfo/");
        path.digits(fd.as_raw_fd().unsigned_abs());
        path
    }

    /// Returns the text for a system call.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).expect("the last byte is never written")
    }

    fn number(&mut self, pid: Pid) {
        self.digits(pid.as_raw_pid().unsigned_abs());
    }

    fn digits(&mut self, number: u32) {
        let mut digits = [0_u8; 10];
        let mut rest = number;
        let mut first = digits.len();
        while first > 0 {
            first -= 1;
            digits[first] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.bytes(&digits[first..]);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        assert!(end < CAPACITY, "a path below /proc is short");
        self.bytes[self.length..end].copy_from_slice(bytes);
        self.length = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pid_from_raw;

    #[test]
    fn longest_path_fits() {
        let pid = pid_from_raw(i32::MAX).expect("a pid");
        assert_eq!(
            ProcPath::of_task(pid, pid, "children").as_c_str(),
            c"2147483647/task/2147483647/children"
        );
        let one = pid_from_raw(1).expect("a pid");
        assert_eq!(ProcPath::of(one, "stat").as_c_str(), c"1/stat");
        let round = pid_from_raw(100).expect("a pid");
        assert_eq!(ProcPath::of(round, "task").as_c_str(), c"100/task");
    }
}
