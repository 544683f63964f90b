//! A process group with a number for a shell that is cut off from the group of its caller.
//!
//! In a pid namespace of its own, a command sees 0 in place of the caller's process group. An interactive shell gives the terminal
//! back to the group in which it was started before it exits, and dash(1) then fails: its exit code is lost. So such a shell is started
//! in a group of its own. It would make this group by itself, so the keys of the terminal mean the same as before.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::process::{Pid, setpgid};
use rustix::termios::tcgetpgrp;

use super::of_caller::{open_terminal, set_foreground_group};

/// The shells that do job control.
const SHELLS: [&str; 9] = ["sh", "ash", "bash", "dash", "ksh", "mksh", "yash", "zsh", "fish"];

/// Opens the terminal if this process is in its foreground, and the command is a shell that would take the terminal. `group` is the
/// process group of this process.
pub fn open_for_shell(command: &[OsString], group: i32) -> Option<OwnedFd> {
    if !is_interactive_shell(command) {
        return None;
    }
    let terminal = open_terminal()?;
    let foreground = tcgetpgrp(&terminal).ok()?;
    (foreground.as_raw_nonzero().get() == group).then_some(terminal)
}

/// Puts a child that has not called execve(2) into a group of its own, or this process with `None`, and makes the group the foreground
/// group of the terminal.
///
/// # Errors
/// Those of setpgid(2) and tcsetpgrp(3).
pub fn lead_foreground_group(terminal: &OwnedFd, child: Option<Pid>) -> std::io::Result<()> {
    setpgid(child, child)?;
    set_foreground_group(terminal, child.unwrap_or_else(rustix::process::getpid))
}

/// Tells whether a command is an interactive shell, perhaps behind env(1): with the option `-i`, or with neither a script nor `-c`.
fn is_interactive_shell(command: &[OsString]) -> bool {
    let Some((program, arguments)) = command.split_first() else { return false };
    let name = Path::new(program).file_name().and_then(|name| name.to_str());
    if name == Some("env") {
        let is_of_env =
            |word: &&OsString| word.as_bytes().starts_with(b"-") || word.as_bytes().contains(&b'=');
        return is_interactive_shell(
            arguments.get(arguments.iter().take_while(is_of_env).count()..).unwrap_or_default(),
        );
    }
    if !name.is_some_and(|name| SHELLS.contains(&name)) {
        return false;
    }
    let options = arguments.iter().map(|word| word.to_string_lossy());
    let options: Vec<_> = options.take_while(|word| word.starts_with(['-', '+'])).collect();
    let has = |letter| options.iter().any(|word| !word.starts_with("--") && word.contains(letter));
    has('i') || (options.len() == arguments.len() && !has('c'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_shells_are_known_by_name_and_options() {
        for (line, expected) in [
            ("sh", true),
            ("/bin/dash -i", true),
            ("bash --norc --noprofile -ic true", true),
            ("bash -l", true),
            ("/usr/bin/env -i PS1=> dash -i", true),
            ("env A=1 sh -c exit", false),
            ("env", false),
            ("sh -c exit", false),
            ("sh script -i", false),
            ("ls -i", false),
            ("", false),
        ] {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            assert_eq!(is_interactive_shell(&words), expected, "{line}");
        }
    }
}
