//! `penfold sh`, also under the name `penfold-sh`: a shell whose every command is a sandbox.

use std::ffi::{OsStr, OsString};
use std::iter::once;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use penfold_control::descent::{self, ProcessSandbox};
use penfold_launch::caller::Caller;
use penfold_process::path_text::path_text;
use penfold_request::SandboxSpec;

use super::run;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::{execute, output, surroundings, variables};

/// The name under which penfold is this verb.
pub(crate) const PROGRAM: &str = "penfold-sh";
/// The variable that names the shell.
const SHELL: &str = "PENFOLD_SHELL";
/// The variable that names the scope, for callers that can give no flag.
const SCOPE: &str = "PENFOLD_SH_SCOPE";
/// The shells that `SHELL` may name. Others have another syntax, and the caller has written its text for one of these.
const SHELLS: [&str; 5] = ["bash", "zsh", "sh", "dash", "ksh"];

/// The verb `sh`.
pub(crate) const VERB: Verb = Verb {
    name: "sh",
    aliases: &[],
    about: "Run a shell command as a sandbox, for programs that can be given a shell only",
    description: "Runs TEXT with `SHELL -c` as `penfold run` does: the sandbox ends with the shell, and nothing that TEXT \
        started is left. The same is a link to penfold with the name `penfold-sh`, for programs that take a single \
        program, such as CLAUDE_CODE_SHELL_PREFIX. Several words are joined by spaces. If the first word begins with a \
        hyphen, all words are arguments of the shell, as in `penfold-sh -c TEXT`. The shell is $PENFOLD_SHELL, else \
        $SHELL if that is bash, zsh, sh, dash or ksh, else sh. With `--scope session`, or PENFOLD_SH_SCOPE=session, background \
        jobs live until the session ends: the sandbox around the caller, such as that of `penfold run -- claude`.",
    examples: &[
        ("penfold sh 'npm run dev & sleep 5; curl localhost:3000'", "the server ends with the shell"),
        ("penfold sh -- -lc 'make test'", "the same with a login shell"),
        ("penfold sh -q 'make test'", "say nothing about ended processes"),
        ("penfold sh --scope session 'npm run dev &'", "the server ends with the sandbox around the caller"),
    ],
    usage_failure: FailureKind::NotStarted,
    define: ShArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| sh(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold sh`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ShArgs {
    #[arg(
        long,
        value_enum,
        value_name = "SCOPE",
        help = "How long background jobs live: until the end of the call, or of the session, the sandbox around the caller \
            [default: $PENFOLD_SH_SCOPE, else call]"
    )]
    scope: Option<BackgroundLife>,
    /// The text for the shell, or arguments of the shell.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "TEXT")]
    text: Vec<OsString>,
}

/// How long what a text starts may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BackgroundLife {
    /// Until the shell has ended.
    Call,
    /// Until the sandbox around the caller ends.
    Session,
}

impl BackgroundLife {
    /// The scope that the caller's environment asks for.
    fn of_caller() -> Result<BackgroundLife, Failure> {
        let word = variables::get(SCOPE.as_ref()).unwrap_or_default();
        match word.to_str() {
            Some("" | "call") => Ok(BackgroundLife::Call),
            Some("session") => Ok(BackgroundLife::Session),
            _ => {
                let sentence = format!("{SCOPE} is `{}`", word.to_string_lossy());
                Err(Failure::new(FailureKind::NotStarted, sentence).hint("it may be `call` or `session`"))
            }
        }
    }
}

/// Returns the words of the command line, beginning with the name of the program. Under the name `penfold-sh` they are those
/// of the verb.
pub(crate) fn words() -> impl Iterator<Item = OsString> {
    let mut words = std::env::args_os().peekable();
    let program = words.next();
    let is_shell =
        program.as_deref().is_some_and(|path| Path::new(path).file_name() == Some(OsStr::new(PROGRAM)));
    let help = ["--help", "-h"];
    let is_text = words.peek().is_some_and(|word| !help.iter().any(|help| word == help));
    let verb = is_shell.then(|| VERB.name.into());
    let end = (is_shell && is_text).then(|| "--".into());
    // clap shows the name of the program in the usage line.
    let program = if is_shell { Some("penfold".into()) } else { program };
    program.into_iter().chain(verb).chain(end).chain(words)
}

/// Runs a text with a shell, as a sandbox.
fn sh(global: &Global, args: &ShArgs) -> Result<u8, Failure> {
    let command = once(shell()).chain(shell_arguments(&args.text));
    if args.scope.map_or_else(BackgroundLife::of_caller, Ok)? == BackgroundLife::Session {
        if is_in_session()? {
            return Err(execute::program(&command.collect::<Vec<_>>(), Vec::new(), Vec::new()));
        }
        if !global.quiet {
            let told = "penfold: no session: no sandbox is around the caller, so background jobs end with this command; \
                `penfold run -- AGENT` starts one\n";
            output::message(told);
        }
    }
    let command = command.map(|word| path_text(word.as_ref())).collect();
    let spec = global.config.over_defaults(SandboxSpec { command, ..SandboxSpec::default() }, false);
    run::run(global, global.config.with_event_log(spec), &Caller::default())
}

/// Tells whether the caller is in a sandbox with a supervisor. What the shell starts is then a member, too.
fn is_in_session() -> Result<bool, Failure> {
    let Some(caller) = rustix::process::getppid() else { return Ok(false) };
    let belongs = descent::find_owner(caller)
        .or_fail(FailureKind::NotStarted, "cannot tell whether the caller is in a sandbox")?;
    Ok(matches!(belongs, ProcessSandbox::Sandbox(_)))
}

/// Returns the arguments of the shell for these words.
fn shell_arguments(text: &[OsString]) -> Vec<OsString> {
    if text.first().is_some_and(|word| word.as_bytes().starts_with(b"-")) {
        return text.to_vec();
    }
    vec!["-c".into(), text.join(OsStr::new(" "))]
}

/// Returns the shell.
fn shell() -> OsString {
    let given = |name: &str| variables::get(OsStr::new(name)).filter(|value| !value.is_empty());
    let is_known = |shell: &OsString| {
        let name = Path::new(shell).file_name();
        SHELLS.iter().any(|known| name == Some(OsStr::new(known)))
    };
    // This program as its own shell would run itself for ever.
    let is_other = |shell: &OsString| {
        let path = Path::new(shell);
        let is_own = |own: PathBuf| path.canonicalize().is_ok_and(|path| path == own);
        path.file_name() != Some(OsStr::new(PROGRAM))
            && !std::fs::read_link(surroundings::program()).is_ok_and(is_own)
    };
    given(SHELL).filter(is_other).or_else(|| given("SHELL").filter(is_known)).unwrap_or_else(|| "sh".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Vec<OsString> {
        shell_arguments(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn words_are_a_text_unless_the_first_is_an_option() {
        assert_eq!(arguments(&["echo a; echo b"]), ["-c", "echo a; echo b"]);
        assert_eq!(arguments(&["echo", "a  b", "-n"]), ["-c", "echo a  b -n"]);
        assert_eq!(arguments(&[""]), ["-c", ""]);
        assert_eq!(arguments(&["-lc", "echo $0", "x"]), ["-lc", "echo $0", "x"]);
    }
}
