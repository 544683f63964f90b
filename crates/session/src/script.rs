//! The lines that the host writes to bash. Bash reads them from a pipe, as a script.
//!
//! What a command does to its shell must not change their meaning:
//! - the status travels in the *name* of a file, which needs no builtin and no function
//! - every builtin is called as `\builtin NAME`: an alias or a function of that name is not used; `&&` keeps `set -e`
//!   and a trap on ERR away
//! - only a function named `builtin` can come between, and it usually calls the builtin. If it does not, the state of
//!   the shell comes out empty, and the host replaces the shell
//! - `>|` overwrites despite `set -C`; no line uses a variable, for `set -u`
//! - standard error of the shell is `/dev/null`: `set -x` shows nothing of these lines

use std::path::Path;

use std::os::unix::ffi::OsStrExt;

/// The preparation of a new shell.
///
/// To interrupt a command, the host sends SIGRTMAX-3. The trap stays pending while a child runs in the foreground. Then
/// the DEBUG trap returns 2 before each next command, which with `extdebug` means "return": the shell leaves functions,
/// loops and the command's file, and keeps its state. At the top, where only the host's lines are left, the trap removes
/// itself. A trap on DEBUG that the command has set is lost.
const START: &str = "shopt -s expand_aliases
__penfold_abort() { if ((${#FUNCNAME[@]} > 1)); then \\builtin return 2; fi; \\builtin trap - DEBUG
\\builtin shopt -u extdebug; \\builtin set +T; \\builtin return 0; }
trap '\\builtin set -T; \\builtin shopt -s extdebug; \\builtin trap __penfold_abort DEBUG' RTMAX-3
";

/// The signal that interrupts a shell with [`START`]: SIGRTMAX-3.
pub(crate) const INTERRUPT: i32 = 64 - 3;

/// The files of a session, as bash names them.
#[derive(Debug)]
pub(crate) struct SessionPaths {
    /// The session's directory, not yet quoted.
    session: Vec<u8>,
}

/// The parts of a command that its lines depend on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandParts<'a> {
    pub(crate) number: u64,
    /// Whether there are files `pre` and `post`.
    pub(crate) is_wrapped: bool,
    /// The status of the command before.
    pub(crate) last: i32,
    /// The names of the FIFOs for its output.
    pub(crate) out: &'a str,
    pub(crate) err: &'a str,
}

impl SessionPaths {
    pub(crate) fn new(session: &Path) -> SessionPaths {
        SessionPaths { session: session.as_os_str().as_bytes().to_vec() }
    }

    /// Quotes the path of a file of the session.
    fn file(&self, name: &str) -> Vec<u8> {
        let path = [&self.session, b"/".as_slice(), name.as_bytes()].concat();
        quote(&path)
    }

    /// Returns the lines for a new shell; `from` is the state that it takes over, and its directory.
    pub(crate) fn start(&self, from: Option<(u64, &Path)>) -> Vec<u8> {
        let mut text = START.as_bytes().to_vec();
        if let Some((state, cwd)) = from {
            add(
                &mut text,
                &[b"\\builtin . ", &self.file(&format!("state.{state}")), b" </dev/null >/dev/null 2>&1\n"],
            );
            add(&mut text, &[b"\\builtin cd -- ", &quote(cwd.as_os_str().as_bytes()), b"\n"]);
        } else {
            self.add_state(&mut text, 0);
        }
        add(&mut text, &[b">|", &self.file("ready"), b"\n"]);
        text
    }

    /// Returns the lines that run a command.
    pub(crate) fn command(&self, line: CommandParts) -> Vec<u8> {
        let CommandParts { number, is_wrapped, last, out, err } = line;
        let of = |name: &str| self.file(&format!("commands/{number}/{name}"));
        let mut text = Vec::new();
        if is_wrapped {
            // Standard error would show the trace of `set -x`.
            add(&mut text, &[b"\\builtin . ", &of("pre"), b" </dev/null >>", &self.file(err), b" && { "]);
        }
        if last != 0 {
            add(&mut text, &[b"(\\builtin exit ", last.to_string().as_bytes(), b") && \\builtin :\n"]);
        } else if is_wrapped {
            text.extend_from_slice(b"\\builtin :\n");
        }
        add(
            &mut text,
            &[b"\\builtin . ", &of("cmd"), b" </dev/null >>", &self.file(out), b" 2>>", &self.file(err)],
        );
        text.extend_from_slice(if is_wrapped { b"\n}\n" } else { b"\n" });
        add(&mut text, &[b">|", &self.file(&format!("ends/{number}.")), b"$? >|", &self.file("bell"), b"\n"]);
        if is_wrapped {
            add(&mut text, &[b"\\builtin . ", &of("post"), b" </dev/null || \\builtin :\n"]);
        }
        self.add_state(&mut text, number);
        add(&mut text, &[b">|", &self.file("ready"), b"\n"]);
        text
    }

    /// Adds the line that writes the exported variables, functions and aliases.
    fn add_state(&self, text: &mut Vec<u8>, number: u64) {
        let parts = b"{ \\builtin export -p && \\builtin declare -f && \\builtin alias -p; } >|";
        let (state, whole) = (self.file(&format!("state.{number}")), self.file("whole"));
        add(text, &[parts, &state, b" && >|", &whole, b"\n"]);
    }

    /// Returns the text of the file `pre`: enters the directory and exports the variables. Its standard output is the
    /// command's standard error.
    pub(crate) fn before(cwd: Option<&str>, env: &[(String, String)]) -> Vec<u8> {
        let mut text = Vec::new();
        if let Some(cwd) = cwd {
            let failed = quote(format!("Failed to change directory to '{cwd}'\n").as_bytes());
            text.extend_from_slice(b"__penfold_pwd=$PWD __penfold_oldpwd=${OLDPWD-}\n");
            add(&mut text, &[b"\\builtin cd -- ", &quote(cwd.as_bytes()), b" >/dev/null 2>&1 || "]);
            add(&mut text, &[b"{ \\builtin printf %s ", &failed, b"; \\builtin return 1; }\n"]);
        }
        for (name, value) in env {
            let value = quote(value.as_bytes());
            let name = name.as_bytes();
            // A shell's variable that is readonly cannot be set, and an attempt would end a shell in POSIX mode.
            add(&mut text, &[b"if [[ ! ${", name, b"+x} ]]; then __penfold_env_", name, b"=unset\n"]);
            add(&mut text, &[b"elif [[ ${", name, b"@a} == *r* ]]; then __penfold_env_", name, b"=keep\n"]);
            add(&mut text, &[b"elif [[ ${", name, b"@a} == *x* ]]; then __penfold_env_", name]);
            add(&mut text, &[b"=\"x$", name, b"\"\nelse __penfold_env_", name, b"=\"v$", name, b"\"; fi\n"]);
            add(&mut text, &[b"[[ $__penfold_env_", name, b" == keep ]] || \\builtin export ", name]);
            add(&mut text, &[b"=", &value, b"\n"]);
        }
        text.extend_from_slice(b"\\builtin return 0\n");
        text
    }

    /// Returns the text of the file `post`, which restores what `pre` has changed.
    pub(crate) fn after(has_cwd: bool, env: &[(String, String)]) -> Vec<u8> {
        let mut text = Vec::new();
        for (name, _) in env.iter().rev() {
            let name = name.as_bytes();
            add(&mut text, &[b"case ${__penfold_env_", name, b"-keep} in\n"]);
            add(&mut text, &[b"unset) \\builtin unset -v ", name, b" ;;\nkeep) ;;\n"]);
            add(&mut text, &[b"x*) \\builtin export ", name, b"=\"${__penfold_env_", name, b"#x}\" ;;\n"]);
            add(&mut text, &[b"*) ", name, b"=${__penfold_env_", name, b"#v}; \\builtin export -n ", name]);
            add(&mut text, &[b" ;;\nesac\n\\builtin unset -v __penfold_env_", name, b"\n"]);
        }
        if has_cwd {
            // A failed `cd` of `pre` leaves the variables too.
            text.extend_from_slice(
                b"if [[ ${__penfold_pwd+x} ]]; then \\builtin cd -- \"$__penfold_pwd\" >/dev/null || \\builtin :
OLDPWD=$__penfold_oldpwd; fi
\\builtin unset -v __penfold_pwd __penfold_oldpwd
",
            );
        }
        text
    }
}

fn add(text: &mut Vec<u8>, parts: &[&[u8]]) {
    for part in parts {
        text.extend_from_slice(part);
    }
}

/// Quotes a word for the shell.
fn quote(word: &[u8]) -> Vec<u8> {
    let mut quoted = Vec::with_capacity(word.len() + 2);
    quoted.push(b'\'');
    for &byte in word {
        if byte == b'\'' {
            quoted.extend_from_slice(b"'\\''");
        } else {
            quoted.push(byte);
        }
    }
    quoted.push(b'\'');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_one_word() {
        assert_eq!(quote(b""), b"''");
        assert_eq!(quote(b"a b$c"), b"'a b$c'");
        assert_eq!(quote(b"it's"), br"'it'\''s'");
    }

    #[test]
    fn a_plain_command_is_four_lines() {
        let words = SessionPaths::new(Path::new("/s"));
        let line = CommandParts { number: 7, is_wrapped: false, last: 0, out: "out.1", err: "err.2" };
        let text = String::from_utf8(words.command(line)).unwrap();
        assert_eq!(
            text,
            "\\builtin . '/s/commands/7/cmd' </dev/null >>'/s/out.1' 2>>'/s/err.2'\n\
             >|'/s/ends/7.'$? >|'/s/bell'\n\
             { \\builtin export -p && \\builtin declare -f && \\builtin alias -p; } >|'/s/state.7' && >|'/s/whole'\n\
             >|'/s/ready'\n"
        );
    }
}
