//! `penfold oci`, also under the name `penfold-oci`: an OCI runtime in front of another one.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction};
use penfold_oci::{
    Annotations, CommandWords, Delegate, DelegateEnvironment, LogLevel, NextStep, Runtime, VerbError,
};

use crate::args::verb::{Global, Places, Verb};
use crate::config::Config;
use crate::failure::{Failure, FailureKind};
use crate::output::Colour;
use crate::{execute, output, surroundings, value, variables};

/// The name under which penfold is this verb.
const PROGRAM: &str = "penfold-oci";
/// The variable that names the delegate.
const DELEGATE: &str = "PENFOLD_OCI_DELEGATE";

/// The variables that hold where a container has no annotation `dev.penfold.leak` or `dev.penfold.exec`.
const LEAK: &str = "PENFOLD_OCI_LEAK";
const EXEC: &str = "PENFOLD_OCI_EXEC";

/// The verb `oci`.
pub(crate) const VERB: Verb = Verb {
    name: "oci",
    aliases: &[],
    about: "Stand in front of runc or crun for containerd, Docker, Podman",
    description: "Takes the command line of runc and passes it on to the delegate: $PENFOLD_OCI_DELEGATE, else crun on hosts with \
        cgroup v2 alone, else runc. `create` and `run` also note the container in the state root. `delete` fails and names what is left if a process of \
        the container lives. `delete --force` kills all processes in the container's cgroups, has the delegate delete the container, and \
        looks again. `kill ID KILL` does the same to processes if the container has no pid namespace of its own. `kill` and `delete` answer \
        within 5 s, for Docker and Podman within 1.5 s. With the annotation `dev.penfold.exec=contain`, what an `exec` leaves ends with its command. The same is a link to penfold with the name `penfold-oci`. `oci` is the first word: all others are for the delegate. The state root \
        is $PENFOLD_ROOT, else the default.",
    examples: &[
        ("penfold oci --version", "print the version of the delegate"),
        ("penfold oci create --bundle /srv/web web", "note the container, and have the delegate create it"),
        ("penfold oci delete web", "delete an ended container, if nothing of it is left"),
        ("penfold oci delete --force web", "end all processes of the container, and delete it"),
    ],
    usage_failure: FailureKind::Usage,
    define: |command| {
        let words = Arg::new("words").value_name("WORD").help("The command line of an OCI runtime.");
        command.arg(
            words
                .action(ArgAction::Append)
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(clap::value_parser!(OsString)),
        )
    },
    places: Places::Hosts,
    call: |_: &Global, _| {
        Err(Failure::new(FailureKind::Usage, "`oci` is not the first word").hint("penfold oci VERB ID"))
    },
};

/// Returns the words for an OCI runtime if this call is one.
pub(crate) fn words() -> Option<Vec<OsString>> {
    let mut words = std::env::args_os();
    let program = words.next()?;
    let is_link = Path::new(&program).file_name() == Some(OsStr::new(PROGRAM));
    if !is_link && words.next()? != VERB.name {
        return None;
    }
    let words: Vec<OsString> = words.collect();
    // The command of an `exec` may have such a word, too.
    let asks_for_help = words.first().is_none_or(|word| word == "--help" || word == "-h");
    (is_link || !asks_for_help).then_some(words)
}

/// Runs the verb of an OCI runtime.
pub(crate) fn call(words: &[OsString]) -> u8 {
    let parsed = CommandWords::parse(words);
    let log = parsed.as_ref().and_then(|parsed| parsed.log.clone());
    let failure = match runtime(words, parsed) {
        Ok(code) => return code,
        Err(failure) => failure,
    };
    let logged =
        log.map_or(Ok(()), |log| penfold_oci::append_log(&log, LogLevel::Error, &failure.sentence()));
    if let Err(error) = logged {
        output::message(&format!("penfold: cannot write the file of `--log`: {error}\n"));
    }
    failure.report(Colour::Never.wanted(&std::io::stderr()));
    1
}

fn runtime(words: &[OsString], parsed: Option<CommandWords>) -> Result<u8, Failure> {
    let path = variables::get(OsStr::new("PATH"));
    let delegate =
        Delegate::find(variables::get(OsStr::new(DELEGATE)), path.as_deref()).map_err(|error| {
            let failure = Failure::new(FailureKind::Other, error.to_string());
            failure.hint(format!("install runc or crun, or set {DELEGATE} to the path of an OCI runtime"))
        })?;
    let program = delegate.program().as_os_str().to_owned();
    let answer = match parsed {
        None => NextStep::PassOn(words.to_vec()),
        Some(parsed) => {
            let variable = |name: &str| variables::get(OsStr::new(name));
            let surroundings = DelegateEnvironment::here(variable("XDG_RUNTIME_DIR"), variable("USER"));
            let usual = Annotations::usual(variable(LEAK).as_deref(), variable(EXEC).as_deref());
            let words = words.to_vec();
            let runtime = Runtime::new(delegate, parsed, words, state_root()?, &surroundings);
            let runtime = runtime
                .with_usual(usual)
                .with_reporter(|text| output::message(&format!("penfold: {text}\n")));
            runtime.call().map_err(|refused| failure(&refused))?
        }
    };
    match answer {
        NextStep::Exit(code) => Ok(code),
        NextStep::PassOn(words) => {
            let all: Vec<OsString> = std::iter::once(program).chain(words).collect();
            Err(execute::program(&all, Vec::new(), Vec::new()))
        }
    }
}

/// The state root. Engines give no flag of penfold's, and what decides whether a container is gone reads no configuration.
fn state_root() -> Result<PathBuf, Failure> {
    let given = variables::get(OsStr::new("PENFOLD_ROOT")).filter(|root| !root.is_empty());
    let root = given.map(|root| value::root(&root)).transpose();
    let root = root.map_err(|error| Failure::new(FailureKind::Other, format!("PENFOLD_ROOT: {error}")))?;
    let global = Global {
        root,
        host: Vec::new(),
        token_file: None,
        color: Colour::Never,
        quiet: false,
        verbose: 0,
        config: Config::default(),
    };
    Ok(surroundings::root(&global))
}

fn failure(refused: &VerbError) -> Failure {
    let failure = Failure::new(FailureKind::Other, refused.to_string());
    match refused {
        VerbError::Left { id, forced: false, .. } => failure.hint(format!("penfold oci delete --force {id}")),
        _ => failure,
    }
}
