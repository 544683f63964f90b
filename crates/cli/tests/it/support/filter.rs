//! A command under a seccomp filter, as container engines and systemd set one.

use std::process::Command;

use super::{TestEnv, has_program, penfold, skip};

/// Denies the calls of the first argument (`number=errno,…`) and becomes the rest.
const SCRIPT: &str = r"
import ctypes, os, struct, sys
code = [struct.pack('HBBI', 0x20, 0, 0, 0)]
for pair in sys.argv[1].split(','):
    number, errno = map(int, pair.split('='))
    code += [struct.pack('HBBI', 0x15, 0, 1, number), struct.pack('HBBI', 0x06, 0, 0, 0x50000 | errno)]
code.append(struct.pack('HBBI', 0x06, 0, 0, 0x7fff0000))
text = ctypes.create_string_buffer(b''.join(code))
libc = ctypes.CDLL(None, use_errno=True)
program = struct.pack('HxxxxxxQ', len(code), ctypes.addressof(text))
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program, 0, 0):
    raise OSError(ctypes.get_errno(), 'seccomp')
os.execvp(sys.argv[2], sys.argv[2:])
";

/// The number of a system call here.
fn number(call: &str) -> Option<u32> {
    let (x86, arm) = match call {
        "clone3" => (435, 435),
        "pidfd_open" => (434, 434),
        "symlinkat" => (266, 36),
        "unshare" => (272, 97),
        "flock" => (73, 32),
        _ => panic!("`{call}` is not listed"),
    };
    match std::env::consts::ARCH {
        "x86_64" => Some(x86),
        "aarch64" => Some(arm),
        _ => None,
    }
}

/// `penfold --root …` with these words, where these calls fail; nothing, and the reason said, where that cannot be.
pub fn denied(env: &TestEnv, calls: &[(&str, i32)], words: &[&str]) -> Option<Command> {
    if !has_program(&["python3", "-c", "import ctypes"]) {
        return None;
    }
    let mut list = Vec::new();
    for (call, errno) in calls {
        let Some(number) = number(call) else {
            skip("the numbers of system calls are not known here");
            return None;
        };
        list.push(format!("{number}={errno}"));
    }
    let mut command = env.command("python3");
    command.args(["-c", SCRIPT, &list.join(",")]).arg(penfold()).arg("--root").arg(env.root()).args(words);
    Some(command)
}
