//! `penfold agent`: puts penfold into the settings of coding agents, and takes it out again.

mod edits;
mod file;
mod servers;
mod shell;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use self::edits::Edits;
use self::file::SettingsFile;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::text::table;
use crate::{exit_codes, output, surroundings, variables};

/// The verb `agent`.
pub(crate) const VERB: Verb = Verb {
    name: "agent",
    aliases: &[],
    about: "Put penfold into the settings of coding agents",
    description: "Edits the settings of coding agents, so that the agents run their commands and MCP servers as sandboxes. \
        Each action prints its changes as a diff and then makes them, or with -n only prints them. Comments, order and \
        layout stay, the file as it was is kept beside it with the ending `.penfold-backup`, and a repeated action \
        changes nothing.",
    examples: &[
        ("penfold agent install claude", "Claude Code runs each shell command with `penfold-sh`"),
        ("penfold agent wrap -n .mcp.json", "show what would change, to end MCP servers with their client"),
        ("penfold agent status .mcp.json", "tell whether penfold is in the settings"),
        ("penfold agent uninstall claude", "undo `install claude`"),
        ("penfold agent uninstall .mcp.json", "undo `wrap .mcp.json`"),
    ],
    usage_failure: FailureKind::Usage,
    define: AgentArgs::augment_args,
    places: Places::Here,
    call: |global, matches| agent(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold agent`.
#[derive(Args, Clone, Debug)]
struct AgentArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand, Clone, Debug)]
enum Action {
    /// Let an agent run its shell commands with `penfold-sh`.
    Install {
        /// The agent.
        #[arg(value_enum, value_name = "AGENT")]
        agent: Agent,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Put `penfold run --on-stdin-close stop` in front of each MCP server that a file of settings starts.
    Wrap {
        /// File of settings: JSON, also with comments.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
        /// Print the changes and make none.
        #[arg(short = 'n', long)]
        dry_run: bool,
    },
    /// Undo `install` or `wrap`.
    Uninstall {
        /// An agent, or a file of settings.
        #[arg(value_name = "AGENT|FILE")]
        target: PathBuf,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Tell which settings contain penfold.
    Status {
        /// Files of settings, besides those of the known agents.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

#[derive(Args, Clone, Copy, Debug)]
struct ChangeArgs {
    /// Change the settings of the project in the working directory, not those of the user.
    #[arg(long)]
    project: bool,
    /// Print the changes and make none.
    #[arg(short = 'n', long)]
    dry_run: bool,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Agent {
    /// Claude Code.
    Claude,
}

impl Agent {
    /// Returns the file with the settings of the agent.
    fn settings(self, project: bool) -> Result<PathBuf, Failure> {
        let Agent::Claude = self;
        // The shared settings of a project are for other machines too, which have penfold elsewhere or not at all.
        if project {
            return Ok(PathBuf::from(".claude/settings.local.json"));
        }
        let variable = |name: &str| variables::get(OsStr::new(name)).filter(|value| !value.is_empty());
        let directory = variable("CLAUDE_CONFIG_DIR")
            .map(PathBuf::from)
            .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".claude")));
        directory.map(|directory| directory.join("settings.json")).ok_or_else(|| {
            Failure::new(FailureKind::Other, "cannot find the settings of Claude Code: `HOME` is not set")
        })
    }
}

fn agent(global: &Global, args: &AgentArgs) -> Result<u8, Failure> {
    match &args.action {
        Action::Install { agent, change } => install(*agent, *change)?,
        Action::Wrap { files, dry_run } => {
            let program = surroundings::executable()?;
            return Ok(each(global, files, |file| wrap(file, &program, *dry_run)));
        }
        Action::Uninstall { target, change } => uninstall(target, *change)?,
        Action::Status { files } => return status(global, files),
    }
    Ok(exit_codes::SUCCESS)
}

/// Acts on all files, reports each failure, and returns the exit code of the first.
fn each(global: &Global, files: &[PathBuf], mut act: impl FnMut(&Path) -> Result<(), Failure>) -> u8 {
    let mut code = exit_codes::SUCCESS;
    for failure in files.iter().filter_map(|file| act(file).err()) {
        let failed = failure.report(global.color.wanted(&std::io::stderr()));
        code = if code == exit_codes::SUCCESS { failed } else { code };
    }
    code
}

fn install(agent: Agent, change: ChangeArgs) -> Result<(), Failure> {
    let link = shell::Link::find(&surroundings::executable()?)?;
    let file = SettingsFile::open_or_new(&agent.settings(change.project)?)?;
    let root = file.parse()?;
    let mut edits = Edits::of(file.text());
    shell::install(root.as_ref(), &link.path, &mut edits).map_err(|reason| file.refuse(&reason))?;
    if !change.dry_run {
        link.make()?;
    }
    file.change(&edits.applied(), change.dry_run)
}

fn wrap(path: &Path, program: &Path, dry_run: bool) -> Result<(), Failure> {
    let file = SettingsFile::open(path)?;
    let root = file.parse()?;
    let servers = servers::find(root.as_ref());
    if servers.is_empty() {
        return Err(file.refuse("it names no MCP server with a `command`"));
    }
    let mut edits = Edits::of(file.text());
    for server in servers {
        server.wrap(program, &mut edits).map_err(|reason| file.refuse(&reason))?;
    }
    file.change(&edits.applied(), dry_run)
}

fn uninstall(target: &Path, change: ChangeArgs) -> Result<(), Failure> {
    let agent = target.to_str().and_then(|name| Agent::from_str(name, false).ok());
    let Some(agent) = agent else {
        if change.project {
            let sentence = "`--project` is for agents, and the target is a file";
            return Err(Failure::new(FailureKind::Usage, sentence));
        }
        let file = SettingsFile::open(target)?;
        let root = file.parse()?;
        let mut edits = Edits::of(file.text());
        for server in servers::find(root.as_ref()) {
            server.unwrap(&mut edits);
        }
        return file.change(&edits.applied(), change.dry_run);
    };
    let file = SettingsFile::open_or_new(&agent.settings(change.project)?)?;
    if file.is_new() {
        return Ok(());
    }
    let root = file.parse()?;
    let mut edits = Edits::of(file.text());
    shell::uninstall(root.as_ref(), &mut edits);
    file.change(&edits.applied(), change.dry_run)
}

/// Prints a line for each file of settings of an agent, and for each MCP server of the files.
fn status(global: &Global, files: &[PathBuf]) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    for project in [false, true] {
        let file = SettingsFile::open_or_new(&Agent::Claude.settings(project)?)?;
        let state = shell::state(file.parse()?.as_ref());
        rows.push([file.name(), "claude".to_owned(), state.to_string()]);
    }
    let code = each(global, files, |path| {
        let file = SettingsFile::open(path)?;
        let root = file.parse()?;
        for server in servers::find(root.as_ref()) {
            let word = if server.is_wrapped() { "wrapped" } else { "not wrapped" };
            rows.push([file.name(), server.name.to_owned(), word.to_owned()]);
        }
        Ok(())
    });
    let heading = ["FILE", "AGENT OR SERVER", "STATUS"].map(str::to_owned);
    let heading = (!global.quiet).then_some(heading);
    let rows: Vec<Vec<String>> = heading.into_iter().chain(rows).map(Vec::from).collect();
    output::data(table::aligned(&rows).as_bytes())?;
    Ok(code)
}
