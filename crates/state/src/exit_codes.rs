//! The exit codes of penfold. No other file writes one as a number.

use crate::outcome::ExitStatus;

/// Success. For verbs that end sandboxes or processes: all targets were observed gone.
pub const SUCCESS: u8 = 0;
/// A failure without a code of its own.
pub const FAILURE: u8 = 1;
/// The command line is wrong, or penfold refused to act without `-f`.
pub const USAGE: u8 = 2;
/// No sandbox has this id or name.
pub const NO_SUCH_ID: u8 = 3;
/// The prefix of an id matches more than one sandbox.
pub const AMBIGUOUS: u8 = 4;
/// At least one target is still there.
pub const STILL_THERE: u8 = 5;
/// The kernel refused a system call for lack of a privilege.
pub const NOT_PERMITTED: u8 = 7;

/// `doctor`: no leak; without `--strict` also with warnings.
pub const DOCTOR_CLEAN: u8 = 0;
/// `doctor`: leaks, an incomplete search, or penfold does not work here; with `--strict` also warnings.
pub const DOCTOR_FOUND: u8 = 1;
/// `doctor`: the host could not be examined, or the command line is wrong.
pub const DOCTOR_CHECKS_FAILED: u8 = 2;

/// The command has ended, but the end of all members could not be verified.
pub const UNVERIFIED: u8 = 120;
/// `--fail-on-leak`: the command exited with 0 but left strays; penfold ended them.
pub const LEAKED: u8 = 123;
/// A time limit ended the sandbox.
pub const TIMED_OUT: u8 = 124;
/// penfold failed before the command started. This includes a wrong command line and an unknown or ambiguous id.
pub const NOT_STARTED: u8 = 125;
/// The command was found but cannot be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended the command.
pub const SIGNALLED: u8 = 128;

impl ExitStatus {
    /// Returns the code as a shell has it: that of the command, or 128 plus the signal.
    pub fn shell_code(self) -> i32 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal(signal) => i32::from(SIGNALLED) + signal,
        }
    }

    /// Returns the code with which a process exits that stands for the command. A code that does not fit is a failure.
    pub fn process_code(self) -> u8 {
        u8::try_from(self.shell_code()).unwrap_or(FAILURE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_the_code_of_a_shell() {
        let codes = |status: ExitStatus| (status.shell_code(), status.process_code());
        assert_eq!(codes(ExitStatus::Code(3)), (3, 3));
        assert_eq!(codes(ExitStatus::Signal(15)), (143, 143));
        assert_eq!(codes(ExitStatus::Signal(64)), (192, 192));
        assert_eq!(codes(ExitStatus::Code(256)), (256, 1));
        assert_eq!(codes(ExitStatus::Code(-1)), (-1, 1));
    }
}
