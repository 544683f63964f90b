//! `penfold completions`, and the answers to a shell that completes a line.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::builder::StyledStr;
use clap::{Arg, Args, Command, FromArgMatches as _};
use clap_complete::Shell;
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{CompleteEnv, Shells};

use super::{help, verbs};
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::config::Config;
use crate::exit_codes;
use crate::failure::{Failure, FailureKind};
use crate::output;
use crate::sandboxes::find::{self, Among};
use crate::text::lines;
use crate::variables;

/// The verb `completions`.
pub(crate) const VERB: Verb = Verb {
    name: "completions",
    aliases: &[],
    about: "Print the completion script for a shell",
    description: "Prints a script with which a shell completes commands and flags of penfold, ids and names of sandboxes, \
        values of filters, and programs. The script asks penfold itself, so it need not be renewed.",
    examples: &[
        (
            "penfold completions bash > /etc/bash_completion.d/penfold",
            "install the completions for all users of bash",
        ),
        ("penfold completions fish | source", "load the completions into this fish only"),
    ],
    usage_failure: FailureKind::Usage,
    define: CompletionsArgs::augment_args,
    places: Places::Here,
    call: |_, matches| completions(&usage::read(&VERB, matches)?),
};

/// The variable with which a shell asks for completions.
const VARIABLE: &str = "PENFOLD_COMPLETE";
/// The most programs and files that are offered.
const MOST: usize = 2000;
/// The verbs that act on living sandboxes only.
const OF_LIVING: [&str; 9] = ["attach", "exec", "extend", "kill", "pause", "stats", "stop", "top", "unpause"];
/// The statuses of `--filter`.
const STATUSES: [&str; 12] = [
    "created",
    "paused",
    "waiting",
    "running",
    "stopping",
    "unkillable",
    "exited",
    "failed",
    "stopped",
    "killed",
    "orphaned",
    "lost",
];

#[derive(Args, Clone, Debug)]
struct CompletionsArgs {
    /// The shell.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let cannot = || Failure::new(FailureKind::Other, "cannot make completions for this shell");
    let shells = Shells::builtins();
    let shell = shells.completer(&args.shell.to_string()).ok_or_else(cannot)?;
    let mut script = Vec::new();
    shell
        .write_registration(VARIABLE, "penfold", "penfold", "penfold", &mut script)
        .map_err(|error| cannot().because(error))?;
    output::data(&script)?;
    Ok(exit_codes::SUCCESS)
}

/// Answers a shell; `None` if no shell asks.
pub(crate) fn answer() -> Option<u8> {
    let asked = variables::get(OsStr::new(VARIABLE)).filter(|value| !value.is_empty())?;
    // What is no shell is no question: the variable must not keep penfold from its work.
    let shells = Shells::builtins();
    shells.completer(Path::new(&asked).file_name()?.to_str()?)?;
    let here = std::env::current_dir().ok();
    let done = CompleteEnv::with_factory(root)
        .var(VARIABLE)
        .bin("penfold")
        .try_complete(std::env::args_os(), here.as_deref());
    let done = done.map_err(std::io::Error::other).and_then(|_| std::io::stdout().flush());
    Some(if done.is_ok() { exit_codes::SUCCESS } else { exit_codes::FAILURE })
}

/// The definition of all verbs, with candidates for values.
fn root() -> Command {
    let with_flags = |command: Command| Global::augment_args(command).args_override_self(true);
    let root =
        with_flags(Command::new("penfold")).version(env!("CARGO_PKG_VERSION")).disable_help_subcommand(true);
    verbs().fold(root, |root, verb| {
        // The derive sets `about`, too.
        let command = (verb.define)(Command::new(verb.name)).about(verb.about);
        let command = command.visible_aliases(verb.aliases.iter().copied());
        root.subcommand(command.mut_args(|arg| with_candidates(arg, verb)))
    })
}

fn with_candidates(arg: Arg, verb: &'static Verb) -> Arg {
    let names: Vec<&str> =
        arg.get_value_names().unwrap_or_default().iter().map(clap::builder::Str::as_str).collect();
    match (arg.get_id().as_str(), names.as_slice()) {
        (_, ["ID"]) if OF_LIVING.contains(&verb.name) => {
            arg.add(ArgValueCandidates::new(|| sandboxes(Among::Living)))
        }
        (_, ["ID"]) => arg.add(ArgValueCandidates::new(|| sandboxes(Among::Every))),
        ("filters", _) => arg.add(ArgValueCandidates::new(filters)),
        ("topic", _) => arg.add(ArgValueCandidates::new(topics)),
        (_, ["CMD"]) => arg.add(ArgValueCompleter::new(programs_and_files)),
        _ => arg,
    }
}

/// The state root of the line that is completed, as far as it is told.
fn global() -> Option<Global> {
    let command = Global::augment_args(Command::new("penfold").no_binary_name(true));
    let mut global = Global::from_arg_matches(&command.try_get_matches_from::<_, OsString>([]).ok()?).ok()?;
    let words: Vec<OsString> = std::env::args_os().collect();
    let of_line = words.windows(2).find_map(|pair| match pair {
        [flag, value] if flag == "--root" => Some(PathBuf::from(value)),
        [word, _] => Some(PathBuf::from(word.to_str()?.strip_prefix("--root=")?)),
        _ => None,
    });
    global.root = of_line.or_else(|| Config::read().ok()?.root().ok()?);
    Some(global)
}

/// The names and ids of sandboxes, each with its status and command.
fn sandboxes(among: Among) -> Vec<CompletionCandidate> {
    let found =
        global().and_then(|global| find::list(&find::resolver(&global), among).ok()).unwrap_or_default();
    let candidates = found.iter().rev().flat_map(|(_, view)| {
        let help =
            StyledStr::from(lines::cut(&format!("{} {}", view.status, view.command_line()), 60).into_owned());
        let words = view.name.iter().chain([&view.id]);
        words.map(|word| CompletionCandidate::new(word).help(Some(help.clone()))).collect::<Vec<_>>()
    });
    candidates.collect()
}

/// The values of `--filter`, with the names and labels that there are.
fn filters() -> Vec<CompletionCandidate> {
    let found = global()
        .and_then(|global| find::list(&find::resolver(&global), Among::Every).ok())
        .unwrap_or_default();
    let mut words: Vec<String> = STATUSES.iter().map(|status| format!("status={status}")).collect();
    for (_, view) in &found {
        words.extend(view.name.iter().map(|name| format!("name={name}")));
        words.extend(view.labels.iter().map(|(key, value)| format!("label={key}={value}")));
    }
    words.sort();
    words.dedup();
    words.into_iter().map(CompletionCandidate::new).collect()
}

/// Commands and topics of `help`.
fn topics() -> Vec<CompletionCandidate> {
    let verbs = verbs().map(|verb| CompletionCandidate::new(verb.name).help(Some(verb.about.into())));
    let others = help::TOPICS.into_iter().chain([help::ALL]);
    verbs.chain(others.map(CompletionCandidate::new)).collect()
}

/// Programs of PATH, and files.
fn programs_and_files(begun: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begun) = begun.to_str() else { return Vec::new() };
    let (directory, _) = begun.rsplit_once('/').map_or(("", begun), |(directory, rest)| (directory, rest));
    let mut words = Vec::new();
    if !begun.contains('/') {
        let path = variables::get(OsStr::new("PATH")).unwrap_or_default();
        for directory in std::env::split_paths(&path) {
            words.extend(entries(&directory, begun, "").into_iter().filter(|(_, is_program)| *is_program));
        }
    }
    let (place, shown) = match (directory, begun.starts_with('/')) {
        ("", true) => (PathBuf::from("/"), "/".to_owned()),
        ("", false) => (PathBuf::from("."), String::new()),
        _ => (PathBuf::from(directory), format!("{directory}/")),
    };
    words.extend(entries(&place, begun, &shown));
    let mut words: Vec<String> = words.into_iter().map(|(word, _)| word).collect();
    words.sort();
    words.dedup();
    words.truncate(MOST);
    words.into_iter().map(CompletionCandidate::new).collect()
}

/// The entries of a directory that begin so, and whether each can be executed; directories end with a slash.
fn entries(directory: &Path, begun: &str, shown: &str) -> Vec<(String, bool)> {
    let Ok(found) = std::fs::read_dir(directory) else { return Vec::new() };
    let entry = |entry: std::fs::DirEntry| {
        let name = format!("{shown}{}", entry.file_name().to_str()?);
        if !name.starts_with(begun) {
            return None;
        }
        let meta = std::fs::metadata(entry.path()).ok()?;
        let is_program = meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        Some((if meta.is_dir() { name + "/" } else { name }, is_program))
    };
    found.filter_map(Result::ok).filter_map(entry).collect()
}
