//! The filter of system calls of a jail: a program of classic BPF, seccomp(2), that bubblewrap loads.
//!
//! A list of what is denied, since a jail runs any program. A denied call fails as without the privilege, or as on a kernel
//! without the call where programs then take another way. Numbers are those of the kernel's `syscall_64.tbl` and
//! `asm-generic/unistd.h`.

mod denied;

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use denied::{ARGUMENTS, Check, DENIED};

/// A processor architecture with a table of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// That of this program; `None` where there is no table.
    fn own() -> Option<Architecture> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Architecture::X86_64),
            "aarch64" => Some(Architecture::Aarch64),
            _ => None,
        }
    }

    /// `AUDIT_ARCH_…` of `linux/audit.h`.
    fn audit(self) -> u32 {
        match self {
            Architecture::X86_64 => 0xc000_003e,
            Architecture::Aarch64 => 0xc000_00b7,
        }
    }

    fn number(self, numbers: (u32, u32)) -> u32 {
        match self {
            Architecture::X86_64 => numbers.0,
            Architecture::Aarch64 => numbers.1,
        }
    }
}

/// The number of a call that an architecture does not have.
const NONE: u32 = u32::MAX;

/// An instruction, `struct sock_filter` of `linux/filter.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    value: u32,
}

/// Loads the word at an offset of `struct seccomp_data`.
const LOAD: u16 = 0x20;
/// Jumps if the word is equal, not less, or has one of the bits.
const EQUAL: u16 = 0x15;
const NOT_LESS: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
/// Ends with the value.
const RETURN: u16 = 0x06;

const NUMBER_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const ARGUMENTS_OFFSET: u32 = 16;

const ALLOW: u32 = 0x7fff_0000;
const FAIL: u32 = 0x0005_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

/// The bit of calls of the x32 ABI, which share the architecture of x86-64.
const X32: u32 = 0x4000_0000;

fn load(offset: u32) -> Instruction {
    Instruction { code: LOAD, if_true: 0, if_false: 0, value: offset }
}

fn jump(code: u16, value: u32, if_true: u8, if_false: u8) -> Instruction {
    Instruction { code, if_true, if_false, value }
}

fn end(value: u32) -> Instruction {
    Instruction { code: RETURN, if_true: 0, if_false: 0, value }
}

fn fail(errno: Errno) -> Instruction {
    end(FAIL | errno.raw_os_error().unsigned_abs())
}

/// Makes the filter as a file that bubblewrap reads and closes. A program that becomes bubblewrap passes it on.
///
/// # Errors
/// When there is no table for this architecture, or the kernel makes no file.
pub fn filter_file() -> io::Result<OwnedFd> {
    let bytes = build_filter()?;
    super::memory_file("penfold-seccomp", &bytes)
}

/// Makes the filter: the instructions, one after the other.
///
/// # Errors
/// When there is no table for this architecture.
pub fn build_filter() -> io::Result<Vec<u8>> {
    let unknown = || io::Error::other("no filter of system calls for this processor architecture");
    let architecture = Architecture::own().ok_or_else(unknown)?;
    Ok(program(architecture).into_iter().flat_map(bytes).collect())
}

fn bytes(instruction: Instruction) -> [u8; 8] {
    let Instruction { code, if_true, if_false, value } = instruction;
    let ([c0, c1], [v0, v1, v2, v3]) = (code.to_ne_bytes(), value.to_ne_bytes());
    [c0, c1, if_true, if_false, v0, v1, v2, v3]
}

/// Makes the filter for an architecture.
fn program(architecture: Architecture) -> Vec<Instruction> {
    let mut program = vec![
        load(ARCHITECTURE_OFFSET),
        jump(EQUAL, architecture.audit(), 1, 0),
        // A program of another ABI, such as 32-bit x86, has other numbers.
        end(KILL_PROCESS),
        load(NUMBER_OFFSET),
    ];
    if architecture == Architecture::X86_64 {
        program.extend([jump(NOT_LESS, X32, 0, 1), fail(Errno::NOSYS)]);
    }
    for &(_, numbers, errno) in DENIED {
        let number = architecture.number(numbers);
        if number != NONE {
            program.extend([jump(EQUAL, number, 0, 1), fail(errno)]);
        }
    }
    for (numbers, argument, check) in ARGUMENTS {
        let check = checked(*argument, check);
        let length = u8::try_from(check.len()).unwrap_or(u8::MAX);
        program.push(jump(EQUAL, architecture.number(*numbers), 0, length));
        program.extend(check);
    }
    program.push(end(ALLOW));
    program
}

/// The instructions that check an argument. The kernel takes each of these arguments as 32 bits.
fn checked(argument: u32, check: &Check) -> Vec<Instruction> {
    let mut program = vec![load(ARGUMENTS_OFFSET + 8 * argument)];
    match *check {
        Check::NoBit(bits) => program.extend([jump(ANY_BIT, bits, 0, 1), fail(Errno::PERM)]),
        Check::OnlyBits { bits, or } => {
            program.extend([jump(EQUAL, or, 2, 0), jump(ANY_BIT, !bits, 0, 1), fail(Errno::PERM)]);
        }
        Check::NoneOf(values) => {
            for &value in values {
                program.extend([jump(EQUAL, value, 0, 1), fail(Errno::PERM)]);
            }
        }
        Check::OneOf(values, errno) => {
            for &value in values {
                program.extend([jump(EQUAL, value, 0, 1), end(ALLOW)]);
            }
            program.push(fail(errno));
        }
    }
    program.push(end(ALLOW));
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel does with a program, for a call with these arguments.
    fn verdict(program: &[Instruction], audit: u32, number: u32, arguments: [u32; 2]) -> u32 {
        let (mut at, mut word) = (0, 0);
        loop {
            let Instruction { code, if_true, if_false, value } = program[at];
            at += 1;
            let mut go = |taken: bool| at += usize::from(if taken { if_true } else { if_false });
            match code {
                LOAD => {
                    word = match value {
                        NUMBER_OFFSET => number,
                        ARCHITECTURE_OFFSET => audit,
                        16 => arguments[0],
                        24 => arguments[1],
                        _ => panic!("offset {value}"),
                    }
                }
                EQUAL => go(word == value),
                NOT_LESS => go(word >= value),
                ANY_BIT => go(word & value != 0),
                RETURN => return value,
                _ => panic!("code {code}"),
            }
        }
    }

    const EPERM: u32 = FAIL + 1;
    const ENOSYS: u32 = FAIL + 38;

    /// spec: 19.5
    #[test]
    fn denied_calls_fail_and_others_are_allowed_on_each_architecture() {
        for architecture in [Architecture::X86_64, Architecture::Aarch64] {
            let program = program(architecture);
            // The kernel takes 4096 at most.
            assert!(program.len() < 300, "{}", program.len());
            let is = |number: u32, arguments| verdict(&program, architecture.audit(), number, arguments);
            let number = |numbers| architecture.number(numbers);
            let mut denied: Vec<u32> = DENIED.iter().map(|&(_, numbers, _)| number(numbers)).collect();
            for &(name, numbers, errno) in DENIED {
                if number(numbers) != NONE {
                    let expected = FAIL | errno.raw_os_error().unsigned_abs();
                    assert_eq!(is(number(numbers), [0, 0]), expected, "{name}");
                }
            }
            denied.extend(ARGUMENTS.iter().map(|&(numbers, ..)| number(numbers)));
            for other in (0..470).filter(|number| !denied.contains(number)) {
                assert_eq!(is(other, [u32::MAX, u32::MAX]), ALLOW, "{other}");
            }
        }
    }

    /// spec: 19.5
    #[test]
    fn arguments_decide() {
        for architecture in [Architecture::X86_64, Architecture::Aarch64] {
            let program = program(architecture);
            let is = |numbers, arguments| {
                verdict(&program, architecture.audit(), architecture.number(numbers), arguments)
            };
            for namespaces in [(56, 220), (272, 97)] {
                assert_eq!(is(namespaces, [0x1000_0000, 0]), EPERM, "CLONE_NEWUSER");
                assert_eq!(is(namespaces, [0x1000_0011, 0]), EPERM);
                assert_eq!(is(namespaces, [0x0001_0f00, 0]), ALLOW);
            }
            for (command, expected) in [(0x5412, EPERM), (0x541c, EPERM), (0x5401, ALLOW), (0x5413, ALLOW)] {
                assert_eq!(is((16, 29), [0, command]), expected, "ioctl {command:x}");
            }
            for (persona, expected) in [
                (0, ALLOW),
                (8, ALLOW),
                (0x2_0008, ALLOW),
                (0x4_0000, ALLOW),
                (u32::MAX, ALLOW),
                (0x40_0000, EPERM),
                (0x10_0000, EPERM),
                (1, EPERM),
            ] {
                assert_eq!(is((135, 92), [persona, 0]), expected, "personality {persona:x}");
            }
            for family in 0..50 {
                let expected = if [0, 1, 2, 10, 16].contains(&family) { ALLOW } else { FAIL + 97 };
                for numbers in [(41, 198), (53, 199)] {
                    assert_eq!(is(numbers, [family, 0]), expected, "family {family}");
                }
            }
        }
    }

    /// spec: 19.5
    #[test]
    fn other_abis_do_not_pass() {
        let program = program(Architecture::X86_64);
        let x86_64 = Architecture::X86_64.audit();
        assert_eq!(verdict(&program, x86_64, 39, [0, 0]), ALLOW);
        assert_eq!(verdict(&program, x86_64, X32 + 39, [0, 0]), ENOSYS);
        assert_eq!(verdict(&program, x86_64, X32 + 165, [0, 0]), ENOSYS);
        // 32-bit x86, whose number 21 is mount(2).
        assert_eq!(verdict(&program, 0x4000_0003, 21, [0, 0]), KILL_PROCESS);
    }
}
