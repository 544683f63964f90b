//! The table of commands: what each prints, how it ends, and the state that the next one needs. One source for the tests of
//! the session host, those of the Cloudflare API, and `docs/session-commands.md`.

/// A command, and what comes of it.
pub struct Case {
    pub text: &'static str,
    /// Whether the shell ends; the next command then has a fresh one.
    pub ends_shell: bool,
    pub code: i32,
    /// Standard output, this many times.
    pub out: (&'static str, usize),
    /// What standard error contains; nothing means that it is empty.
    pub err: &'static str,
}

impl Case {
    /// Standard output.
    pub fn out(&self) -> String {
        self.out.0.repeat(self.out.1)
    }

    /// Whether what came on standard error is what is expected.
    pub fn fits(&self, err: &str) -> bool {
        if self.err.is_empty() { err.is_empty() } else { err.contains(self.err) }
    }
}

const fn case(text: &'static str, code: i32, out: &'static str, err: &'static str) -> Case {
    Case { text, ends_shell: false, code, out: (out, 1), err }
}

/// The shell ends; the next command has a fresh one.
const fn exits(text: &'static str, code: i32, out: &'static str, err: &'static str) -> Case {
    Case { text, ends_shell: true, code, out: (out, 1), err }
}

/// Cases follow each other: some need the one before.
pub const TABLE: &[Case] = &[
    case("true", 0, "", ""),
    case("false", 1, "", ""),
    case("echo hi", 0, "hi\n", ""),
    case("printf 'no end'", 0, "no end", ""),
    case("printf 'a\\0b'", 0, "a\0b", ""),
    case("printf '\\377\\376' | od -An -tx1", 0, " ff fe\n", ""),
    case("echo out; echo err >&2", 0, "out\n", "err\n"),
    case("(exit 42)", 42, "", ""),
    case("return 4", 4, "", ""),
    case("", 0, "", ""),
    case("# nothing", 0, "", ""),
    case("no-such-command", 127, "", "no-such-command: command not found"),
    case("echo 'unbalanced", 2, "", "unexpected EOF"),
    case("echo \"unbalanced", 2, "", "unexpected EOF"),
    case("if true; then echo half", 2, "", "syntax error"),
    case("echo a; )", 2, "", "syntax error"),
    case("cat <<EOF\nhere $((1+1))\nEOF", 0, "here 2\n", ""),
    case("cat <<EOF\nopen", 0, "open\n", "here-document"),
    case("cat <<'EOF'\n$x 'quoted\nEOF", 0, "$x 'quoted\n", ""),
    case("cat", 0, "", ""),
    Case { out: ("x", 50_000_000), ..case("head -c 50000000 /dev/zero | tr '\\0' x", 0, "", "") },
    case("read line; echo $?", 0, "1\n", ""),
    case("head -c 3 /dev/zero | tr '\\0' x", 0, "xxx", ""),
    case("exec 0<&- 1>&- 2>&-; echo lost", 1, "", ""),
    case("exec 0<&-; read line; echo $?; exec 1>&-", 0, "1\n", "read error"),
    case("exec >/dev/null; echo lost", 0, "", ""),
    case("exec 3>&1; echo three >&3; exec 3>&-", 0, "three\n", ""),
    case("PS1=x PS2=y PROMPT_COMMAND='echo prompt'; echo p; unset PS1 PROMPT_COMMAND", 0, "p\n", ""),
    case("set -C; echo c; set +C", 0, "c\n", ""),
    case("set -x; : x; set +x", 0, "", "++ : x\n++ set +x\n"),
    case("set -v\necho v; set +v", 0, "v\n", "echo v; set +v\n"),
    case("set -o posix; no-such", 127, "", "not found"),
    case("set +o posix", 0, "", ""),
    case("set -f; echo *x; set +f", 0, "*x\n", ""),
    case("set -u; echo u; set +u", 0, "u\n", ""),
    case("trap 'echo dbg' DEBUG; echo with", 0, "dbg\nwith\n", ""),
    case("echo again; trap - DEBUG", 0, "again\n", ""),
    case("trap 'echo err' ERR; false; trap - ERR", 0, "err\n", ""),
    case("trap 'echo err' ERR; true; (exit 3)", 3, "err\n", ""),
    case("trap - ERR; false; true", 0, "", ""),
    case("trap 'echo ret' RETURN; f() { echo f; }; f; trap - RETURN; unset -f f", 0, "f\n", ""),
    case("umask 777; true", 0, "", ""),
    case("umask 022; echo u", 0, "u\n", ""),
    case("echo $((1/0)); echo more", 1, "", "division by 0"),
    case("break; continue; echo still", 0, "still\n", "loop"),
    case("for i in 1 2; do echo $i; done", 0, "1\n2\n", ""),
    case("cd /; alias builtin=false cd=false export=false; true", 0, "", ""),
    case("unalias -a; echo ok", 0, "ok\n", ""),
    case(FUNCTIONS, 5, "mine\nmine\n", ""),
    case(". x; export A; false", 1, "mine\nmine\n", ""),
    case("builtin() { command builtin \"$@\"; }; . x", 0, "mine\n", ""),
    case(
        "unset -f builtin . exit return : trap shopt set export declare alias cd unset; echo ok",
        0,
        "ok\n",
        "",
    ),
    case("IFS=/; echo i; unset IFS", 0, "i\n", ""),
    case("sleep 0.001 & wait $!; echo $?", 0, "0\n", ""),
    exits("exit 7", 7, "", ""),
    exits("exit", 0, "", ""),
    exits("trap 'echo bye' EXIT; exit 3", 3, "bye\n", ""),
    exits("set -e; false; echo more", 1, "", ""),
    exits("set -e; true; exit 0", 0, "", ""),
    exits("exec echo replaced", 0, "replaced\n", ""),
    exits("set -u; echo $nope; echo more", 1, "", "unbound variable"),
    exits("echo ${nope?message}; echo more", 1, "", "message"),
    exits("kill -9 $$", 137, "", ""),
    exits("exec no-such-program", 127, "", "not found"),
];

/// Functions with the names of all builtins that the lines of the host use.
pub const FUNCTIONS: &str = ".() { echo mine; }; exit() { .; }; return() { .; }; :() { .; }; trap() { .; }
shopt() { .; }; set() { .; }; export() { .; }; declare() { .; }; alias() { .; }; cd() { .; }; . x; exit
f() { builtin return 5; }; f";
