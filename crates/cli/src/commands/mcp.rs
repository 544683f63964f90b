//! `penfold mcp`.

use std::io::IsTerminal as _;

use clap::Args;
use penfold_mcp::Config;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::text::lines;
use crate::{exit_codes, output, surroundings, variables};

/// The verb `mcp`.
pub(crate) const VERB: Verb = Verb {
    name: "mcp",
    aliases: &[],
    about: "Serve MCP to a coding agent, on standard input and output",
    description: "Lets a coding agent start dev servers, read their output and end them, by the tools run, ps, logs, exec, stop, \
        report and ports. A stop answers after the whole tree was verified gone. When standard input ends, everything \
        that was started here is stopped, and penfold exits once nothing of it is left. When penfold is killed, the supervisors \
        of the sandboxes do the same. Messages go to standard error. docs/mcp.md describes the tools, and how to add the \
        server to Claude Code, Cursor and VS Code.",
    examples: &[
        (
            "penfold mcp",
            "serve a client; `claude mcp add penfold -- penfold mcp` adds the server to Claude Code",
        ),
        ("penfold mcp --read-only", "offer only ps, logs, report and ports"),
        ("penfold mcp --all", "let stop and exec act on all sandboxes of the state root"),
    ],
    usage_failure: FailureKind::Usage,
    define: McpArgs::augment_args,
    places: Places::Here,
    call: |global, matches| mcp(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold mcp`.
#[derive(Args, Clone, Debug)]
pub(crate) struct McpArgs {
    /// Offer only the tools that change nothing: ps, logs, report, ports.
    #[arg(long, conflicts_with_all = ["all", "keep"])]
    pub(crate) read_only: bool,
    /// Let `stop` and `exec` act on sandboxes that this server has not started.
    #[arg(long)]
    pub(crate) all: bool,
    /// Let the sandboxes live on when the server ends.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Serves until standard input ends.
pub(crate) fn mcp(global: &Global, args: &McpArgs) -> Result<u8, Failure> {
    if std::io::stdin().is_terminal() && !global.quiet {
        output::message(
            "penfold: waiting for an MCP client on standard input; docs/mcp.md tells how to add this server\n",
        );
    }
    let config = Config {
        state_root: surroundings::absolute_root(global),
        program: surroundings::program(),
        environment: variables::all().filter(|(key, _)| !surroundings::names_a_server(key)).collect(),
        read_only: args.read_only,
        all: args.all,
        keep: args.keep,
    };
    let ended = penfold_mcp::serve(config).or_fail(FailureKind::Other, "cannot serve MCP")?;
    let mut text = String::new();
    for (id, survivors) in &ended.left {
        for survivor in survivors {
            lines::say(&mut text, &format!("{id} not gone: {survivor}"));
        }
    }
    output::message(&text);
    Ok(if ended.left.is_empty() { exit_codes::SUCCESS } else { exit_codes::UNVERIFIED })
}
