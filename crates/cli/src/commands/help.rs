//! `penfold help`: help on commands and topics.

use std::fmt::Write as _;
use std::io;

use clap::Args;

use super::{command_line, screen};
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::{exit_codes, output};

/// The verb `help`.
pub(crate) const VERB: Verb = Verb {
    name: "help",
    aliases: &[],
    about: "Explain a command or a topic",
    description: "Prints the help of a command, as its --help does, with `all` the list of all commands, or a topic: `config`, `exit-codes`, `guarantees` or `remote`.",
    examples: &[
        ("penfold help all", "every command"),
        ("penfold help run", "the flags of `penfold run`"),
        ("penfold help exit-codes", "the meaning of every exit code"),
        ("penfold help guarantees", "the guarantees of penfold"),
        ("penfold help remote", "the commands that work on a server"),
        ("penfold help config", "the files and variables with defaults"),
    ],
    usage_failure: FailureKind::Usage,
    define: HelpArgs::augment_args,
    places: Places::Here,
    call: |global, matches| help(global, &usage::read(&VERB, matches)?),
};

/// The topics that are no commands.
pub(super) const TOPICS: [&str; 4] = ["config", "exit-codes", "guarantees", "remote"];
/// Asks for the list of all commands.
pub(super) const ALL: &str = "all";

/// The variables that penfold reads.
pub(super) const VARIABLES: &[(&str, &str)] = &[
    ("PENFOLD_ROOT", "state root, as --root"),
    ("PENFOLD_HOST", "server in place of this host, as --host"),
    ("PENFOLD_TOKEN_FILE", "file with the token for the server, as --token-file"),
    ("PENFOLD_COLOR", "auto, always or never, as --color; NO_COLOR and CLICOLOR_FORCE count for auto"),
    ("PENFOLD_UNIT", "systemd scope of sandboxes: auto, none, user, system; as --unit of run"),
    ("PENFOLD_SH_SCOPE", "call or session, as --scope of sh"),
    ("PENFOLD_CONFIG", "the only configuration file; none if empty"),
    ("PENFOLD_TEST", "name of the test that a process belongs to, for guard"),
];

/// The files that penfold reads and writes.
pub(super) const FILES: &[(&str, &str)] = &[
    ("/etc/penfold/config.toml", "configuration of the host"),
    ("~/.config/penfold/config.toml", "configuration of the user; $XDG_CONFIG_HOME in place of ~/.config"),
    ("/run/penfold, /run/user/UID/penfold, /tmp/penfold-UID", "state root: the records of sandboxes"),
];

const GUARANTEES: &str = "\
What penfold promises:

1. A sandbox ends when its command exits, on a stop or kill, at a time limit, or when its owner or supervisor
   dies. In each case everything that the sandbox owned is gone before penfold reports the end.
2. `gone` means observed gone: a sent signal is no proof. penfold names each survivor with its pid, state and
   wait channel, and uses an exit code of its own for survivors.
3. penfold never signals a process by name, or by a pid that may have been reused. A process outside the sandbox
   never gets a signal.
4. `kill -9` of any one penfold process leaves no process running that was to end.
5. Damaged, missing or forged state on disk never makes a live sandbox look stopped, and never deletes files of
   other users. If penfold cannot tell, the sandbox counts as alive.
6. There is no global lock: any number of penfold commands work at the same time, and a frozen one blocks no other.
7. Every wait has a deadline: for a process that is stuck in the kernel penfold reports instead of hanging.
";

const CONFIG: &str = "
A file is TOML, with these keys; an unknown key is an error:

  root = \"/run/penfold\"          host = \"unix:/run/penfold/api.sock\"
  token_file = \"/etc/token\"      color = \"auto\"
  [run]                           keys of a file for `run --spec`, as defaults of `run` and `sh`:
  grace_ms = 5000
  spare = [\"ssh-agent\"]
  [guard]
  ignore = [\"sccache\"]
";

const REMOTE: &str = "\
With `--host ssh://[USER@]HOST[:PORT][/PATH]`, or the variable PENFOLD_HOST, a command runs on another host that has
penfold, by one ssh. PATH is that of penfold there; without it, the PATH of that host leads to it:

  penfold --host ssh://build run -- make test
  penfold --host ssh://me@build/opt/penfold logs -f web
  penfold ps --host ssh://a --host ssh://b

Every command that acts on sandboxes works, with the streams, signals, terminal and exit codes of that host. Paths
mean files of that host, also those of --report, --env-file and --spec; `-e NAME` copies a variable of that host. What
runs in the foreground is killed when ssh, penfold or the connection dies; `run -d` goes on. If the connection is lost
after the start, `run`, `exec` and `wait` exit with 120. On a terminal, ssh's own code for a lost connection is 255.

With `--host unix:PATH` or `http://HOST:PORT`, penfold is a client of a `penfold serve`:

  penfold --host unix:/run/penfold/api.sock ps
  penfold --host http://127.0.0.1:3000 --token-file token run -- make test
  PENFOLD_HOST=http://127.0.0.1:3000 PENFOLD_TOKEN_FILE=token penfold logs -f web

run, exec, attach, ps, inspect, logs, wait, pause, unpause, stop, kill, rm and extend work on a server, with the output and exit codes that
they have on its host. Every other command that acts on sandboxes refuses. The differences:

- The server has no TLS. Reach another host by `ssh://`, or through a tunnel (`ssh -L 3000:127.0.0.1:3000 HOST`).
- A command gets a few variables of the server and those of -e, and starts in the directory of the server or of -w.
- The standard input of `run` is empty, unless it has a terminal: `run -it`. `exec -i` and `exec -it` send standard input as it comes.
- A foreground `run` stops its sandbox at the first Ctrl-C or SIGTERM, and kills it at the second. The sandbox has a
  lease: it is stopped when its client has been dead or suspended for a minute. With `--on-owner-exit keep`, not.
- An `exec` goes on when its client dies; it ends with the sandbox at the latest. One with -i or -t ends with its client.
- What a server cannot do is refused by name, and nothing starts: `run` with --restart, --allow-outside, --unit, --outside,
  --stop-on-interrupt, --user, --log, --owner, --ready and --on-stdin-close; in the foreground also -i without -t, and `--on-owner-exit kill`;
  detached --report, and --on-owner-exit other than `keep`. `kill` with another signal than KILL. `inspect` has the report and no other file.
- `logs -f`, `wait`, `run`, `exec` and `attach` survive a restart of the server: they try for 10 s to reach it again, and lose no
  output. After that, they exit with 120, because the command may still run. `exec -i` without -t does not: its command is killed,
  because a part of its input may be lost, and it exits with 120.
";

#[derive(Args, Clone, Debug)]
struct HelpArgs {
    /// Command or topic.
    #[arg(value_name = "COMMAND|TOPIC")]
    topic: Option<String>,
}

fn help(global: &Global, args: &HelpArgs) -> Result<u8, Failure> {
    let text = match args.topic.as_deref() {
        None => command_help(global, None),
        Some(ALL) => {
            command_line::painted(&command_line::root().render_help(), global.color.wanted(&io::stdout()))
        }
        Some(word) => match (topic(word), super::find(word)) {
            (Some(text), _) => text,
            (None, Some(verb)) => command_help(global, Some(verb)),
            (None, None) if super::is_lacking(word) => return Err(command_line::lacking_verb(word)),
            (None, None) => {
                let sentence = format!("no command or topic is called `{word}`");
                let (last, topics) = TOPICS.split_last().unwrap_or((&"", &[]));
                let topics = topics.iter().map(|topic| format!("`{topic}`")).collect::<Vec<_>>().join(", ");
                return Err(Failure::new(FailureKind::Usage, sentence).hint(format!(
                    "`penfold help all` lists the commands; topics are {topics} and `{last}`"
                )));
            }
        },
    };
    output::data(text.as_bytes())?;
    Ok(exit_codes::SUCCESS)
}

/// The text of a topic.
pub(super) fn topic(word: &str) -> Option<String> {
    match word {
        "config" => Some(config_text()),
        "exit-codes" => Some(exit_codes_text()),
        "guarantees" => Some(GUARANTEES.to_owned()),
        "remote" => Some(REMOTE.to_owned()),
        _ => None,
    }
}

/// What a topic is about.
pub(super) fn about(topic: &str) -> &'static str {
    match topic {
        "config" => "files and variables with defaults",
        "exit-codes" => "the meaning of every exit code",
        "guarantees" => "what penfold promises",
        _ => "the commands that work on a server",
    }
}

fn config_text() -> String {
    let mut text = String::from(
        "Defaults come from files, then from variables, then from flags: the later goes before.\n\nFiles:\n",
    );
    // Writing to a String cannot fail.
    for (name, meaning) in FILES {
        let _ = writeln!(text, "  {name}\n      {meaning}");
    }
    text.push_str("\nVariables:\n");
    for (name, meaning) in VARIABLES {
        let _ = writeln!(text, "  {name:<20} {meaning}");
    }
    text.push_str(CONFIG);
    text
}

fn command_help(global: &Global, verb: Option<&Verb>) -> String {
    let text = verb.map_or_else(screen::first, |verb| screen::of(verb, true));
    command_line::painted(&text, global.color.wanted(&io::stdout()))
}

fn exit_codes_text() -> String {
    let mut text = String::from("Exit codes:\n");
    for group in exit_codes::TABLE {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{}\n", group.verbs);
        for (code, meaning) in group.codes {
            let _ = writeln!(text, "  {code:<6} {meaning}");
        }
    }
    text
}
