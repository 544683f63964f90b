//! What bash gets of a command: an argument, or a memory file if the command is long or has a state.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use penfold_control::execs::ExecStart;
use rustix::fs::MemfdFlags;

/// A longer argument may be refused by execve(2).
const LONGEST: usize = 100 << 10;

/// Changes to the environment; `None` removes a variable.
pub(crate) type Environment = BTreeMap<String, Option<String>>;

/// Makes a command that has a shell of its own.
///
/// # Errors
/// When there is no memory file.
pub(crate) fn plain_command(command: &str, env: Environment) -> io::Result<ExecStart> {
    let mut start = if command.len() <= LONGEST {
        ExecStart::new(["bash", "-c", command])
    } else {
        from_file(&format!("\\builtin exec </dev/null\n{command}\n"), "\\builtin . /dev/stdin")?
    };
    start.environment = env.into_iter().map(|(name, value)| (name.into(), value.map(Into::into))).collect();
    Ok(start)
}

/// Makes a command in a shell with the state of a session's shell. State and environment travel in a memory file, since
/// every user can read an argument. Bash reads the file to its end before it runs a line of it.
///
/// # Errors
/// When there is no memory file.
pub(crate) fn beside_shell(command: &str, env: &Environment, state: &str) -> io::Result<ExecStart> {
    let mut file = format!("\\builtin shopt -s expand_aliases\n{state}\n");
    // Writing to a String cannot fail.
    for (name, value) in env {
        match value {
            Some(value) => {
                let quoted = value.replace('\'', "'\\''");
                let _ = writeln!(file, "\\builtin export {name}='{quoted}'");
            }
            None => {
                let _ = writeln!(file, "\\builtin unset -v {name}");
            }
        }
    }
    if command.len() <= LONGEST {
        from_file(&file, &format!("\\builtin . /dev/stdin 2>/dev/null\n\\builtin exec </dev/null\n{command}"))
    } else {
        let _ = writeln!(file, "\\builtin exec </dev/null\n{command}");
        from_file(&file, "\\builtin . /dev/stdin")
    }
}

fn from_file(text: &str, command: &str) -> io::Result<ExecStart> {
    // The offset stays at the end: bash opens the file anew, and a command that reads standard input gets nothing.
    let mut file = File::from(rustix::fs::memfd_create(c"penfold-command", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    let mut start = ExecStart::new(["bash", "--norc", "-c", command]);
    start.stdin = Some(OwnedFd::from(file));
    Ok(start)
}
