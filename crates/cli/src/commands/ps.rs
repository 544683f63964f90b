//! `penfold ps`.

mod all_users;
mod containers;

use std::io::IsTerminal;

use clap::Args;
use penfold_client::Client;
use penfold_control::{Resolver, SandboxRef, SandboxView, view};
use penfold_process::{Listeners, Port};
use penfold_state::time::now_ms;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::args::ids::Filters;
use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind};
use crate::output::{self, WriteError};
use crate::sandboxes::find::{self, Among};
use crate::sandboxes::on_server;
use crate::sandboxes::other_roots;
use crate::sandboxes::sampler::Sampler;
use crate::text::row::{self, Numbers, Row, UserHome};
use crate::text::table::{self, Narrow};
use crate::text::template::{self, Format};
use crate::text::usage as columns;
use crate::{exit_codes, value};

/// The verb `ps`.
pub(crate) const VERB: Verb = Verb {
    name: "ps",
    aliases: &["ls"],
    about: "List sandboxes",
    description: "Lists the sandboxes that may have live members; with -a also ended sandboxes. A sandbox without a \
        supervisor is `orphaned` while members live, `running (elsewhere)` if its supervisor and its record are in \
        another mount namespace, such as that of a container or a service with PrivateTmp=, and `lost` if no members were found and no supervisor saw the end. \
        `running (not ready)` means that the probe of `run --ready` has not succeeded, `paused` that all members are frozen, and `waiting` that \
        the command failed and the next start by `run --restart` is to come. \
        A sandbox is `stopped` if a stop ended its command without SIGKILL; the filter `status=killed` finds it, too. \
        -q prints ids only. Sandboxes below other state roots of this user are not listed; a line on standard error \
        names each such root with living sandboxes. Root lists the sandboxes of all users with --all-users. \
        --containers lists the containers of `penfold oci` instead: `running`, `stopped` without a process, `lost` if the OCI runtime does not \
        know them any more.",
    examples: &[
        ("penfold ps", "list the running sandboxes"),
        ("penfold ps -a --filter label=job=17", "list all sandboxes of a job, ended ones included"),
        ("penfold ps --stats --ports", "also show CPU, memory, processes and TCP ports"),
        ("penfold ps --format {{.ID}}:{{.Status}}", "print two fields of each sandbox on a line"),
        ("penfold ps --containers", "list the containers that an engine has created through `penfold oci`"),
        ("penfold --host unix:/run/penfold/api.sock ps", "list the sandboxes of a server"),
        ("penfold ps -q --filter status=orphaned", "print ids as input for another command"),
    ],
    usage_failure: FailureKind::Usage,
    define: |command| PsArgs::augment_args(command).mut_arg("filters", |filters| filters.short('f')),
    places: Places::All(|global, client, matches| {
        list_on_server(global, &client, &usage::read(&VERB, matches)?)
    }),
    call: |global, matches| ps(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold ps`.
#[derive(Args, Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "flags are")]
pub(crate) struct PsArgs {
    /// Also list ended sandboxes.
    #[arg(short, long)]
    pub(crate) all: bool,
    /// List only the sandbox that was started last, even if it has ended.
    #[arg(short, long)]
    pub(crate) latest: bool,
    /// List only the N sandboxes that were started last, ended ones included.
    #[arg(short = 'n', long, value_name = "N", value_parser = value::number, conflicts_with = "latest")]
    pub(crate) last: Option<u64>,
    #[command(flatten)]
    pub(crate) filters: Filters,
    /// List the sandboxes in the state roots of all users; only for root.
    #[arg(long)]
    pub(crate) all_users: bool,
    /// List the containers of `penfold oci` instead.
    #[arg(long, conflicts_with_all = ["all", "latest", "last", "filters", "all_users", "format", "stats", "ports", "watch"])]
    pub(crate) containers: bool,
    /// Print the result as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print each sandbox in this format: `json` is an array, `{{json .}}` an object per line, else a template with fields such as `{{.ID}}`; `table` first adds headings.
    #[arg(long, value_name = "FORMAT", value_parser = template::format, conflicts_with = "json")]
    pub(crate) format: Option<Format>,
    /// Also show the use of CPU, the memory and the number of processes; takes 200 ms.
    #[arg(long, conflicts_with_all = ["all_users", "format"])]
    pub(crate) stats: bool,
    /// Also show the TCP ports on which members listen.
    #[arg(long, conflicts_with_all = ["all_users", "format"])]
    pub(crate) ports: bool,
    /// Do not cut commands, and leave out no columns, to fit the terminal.
    #[arg(long)]
    pub(crate) no_trunc: bool,
    /// List again every second until interrupted.
    #[arg(long)]
    pub(crate) watch: bool,
}

impl PsArgs {
    /// The flags that select sandboxes.
    pub(crate) fn selection(&self) -> Vec<String> {
        let mut flags: Vec<String> =
            self.filters.filters.iter().map(|filter| format!("--filter={filter}")).collect();
        flags.extend(self.all.then(|| "--all".to_owned()));
        flags.extend(self.latest.then(|| "--latest".to_owned()));
        flags.extend(self.last.map(|last| format!("--last={last}")));
        flags
    }
}

/// What makes room for commands in a narrow terminal.
const NARROW: Narrow<'_> = Narrow { left_out: &["STARTED", "MEM", "CPU"], cut: "NAME" };

/// A sandbox in a list.
pub(crate) struct ListedRow {
    view: SandboxView,
    home: Option<UserHome>,
    usage: Option<Numbers>,
    ports: Option<Vec<Port>>,
}

impl From<SandboxView> for ListedRow {
    fn from(view: SandboxView) -> ListedRow {
        ListedRow { view, home: None, usage: None, ports: None }
    }
}

/// Lists sandboxes of a server.
fn list_on_server(global: &Global, client: &Client, args: &PsArgs) -> Result<u8, Failure> {
    let &PsArgs {
        all_users,
        containers,
        stats,
        ports,
        // These select among what the server lists, and show it.
        all: _,
        latest: _,
        last: _,
        filters: _,
        json: _,
        format: _,
        no_trunc: _,
        watch: _,
    } = args;
    for (is_given, flag) in
        [(all_users, "--all-users"), (containers, "--containers"), (stats, "--stats"), (ports, "--ports")]
    {
        if is_given {
            let sentence = format!("`penfold ps {flag}` works on this host only, not on a server");
            return Err(Failure::new(FailureKind::Usage, sentence));
        }
    }
    list(global, args, |among| Ok(on_server::list(client, among)?.into_iter().map(Into::into).collect()))
}

/// Lists sandboxes.
pub(crate) fn ps(global: &Global, args: &PsArgs) -> Result<u8, Failure> {
    if args.containers {
        return containers::ps(global, args);
    }
    if args.all_users {
        return all_users::ps(global, args);
    }
    other_roots::name(global);
    let mut sampler = args.stats.then(Sampler::new).transpose()?;
    list(global, args, |among| {
        let resolver = find::resolver(global);
        let found = find::list(&resolver, among)?;
        let numbers =
            sampler.as_mut().map(|sampler| sampler.look_twice(&resolver, &found)).unwrap_or_default();
        let mut listeners = args.ports.then(Listeners::default);
        let listed = |(known, view): (SandboxRef, SandboxView)| {
            let usage = numbers.get(&known.id).copied();
            let ports = listeners.as_mut().map(|listeners| ports(listeners, &resolver, &known, &view));
            ListedRow { usage, ports, ..view.into() }
        };
        Ok(found.into_iter().map(listed).collect())
    })
}

/// The ports on which the members of a sandbox listen.
fn ports(
    listeners: &mut Listeners,
    resolver: &Resolver,
    known: &SandboxRef,
    seen: &SandboxView,
) -> Vec<Port> {
    let members = view::list_members(resolver, known, seen, false).unwrap_or_default();
    listeners.of(&members.into_iter().map(|member| member.id.pid).collect::<Vec<_>>())
}

/// Lists the sandboxes that `look` finds.
pub(crate) fn list(
    global: &Global,
    args: &PsArgs,
    mut look: impl FnMut(Among) -> Result<Vec<ListedRow>, Failure>,
) -> Result<u8, Failure> {
    loop {
        let found = found(args, &mut look)?;
        let views = || found.iter().map(|listed| &listed.view);
        let mut text = match &args.format {
            _ if global.quiet => views().flat_map(|view| [view.id.as_str(), "\n"]).collect(),
            Some(Format::Json) => json(&found)?,
            Some(Format::JsonLines) => json_lines(&found)?.into_iter().map(|line| line + "\n").collect(),
            None if args.json => json(&found)?,
            Some(Format::Lines(template)) => views().map(|view| template.line(view, now_ms())).collect(),
            Some(Format::Table(template)) => template.table(views(), now_ms()),
            None => table(&found, args, global.color.wanted(&std::io::stdout())),
        };
        if args.watch && std::io::stdout().is_terminal() {
            text.insert_str(0, "\u{1b}[H\u{1b}[2J");
        }
        output::data(text.as_bytes())?;
        if !args.watch || !another() {
            return Ok(exit_codes::SUCCESS);
        }
    }
}

fn found(
    args: &PsArgs,
    look: impl FnOnce(Among) -> Result<Vec<ListedRow>, Failure>,
) -> Result<Vec<ListedRow>, Failure> {
    let among = if args.all || args.latest || args.last.is_some() || args.filters.wants_ended() {
        Among::Every
    } else {
        Among::Living
    };
    let mut found: Vec<ListedRow> = look(among)?;
    found.retain(|listed| args.filters.match_all(&listed.view));
    // The newest first, as in docker.
    found.reverse();
    if let Some(most) = args.last.or(args.latest.then_some(1)) {
        found.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    }
    Ok(found)
}

/// A JSON array with one sandbox per line.
fn json(found: &[ListedRow]) -> Result<String, WriteError> {
    Ok(format!("[{}]\n", json_lines(found)?.join(",\n")))
}

/// Each sandbox as a JSON object in a line.
fn json_lines(found: &[ListedRow]) -> Result<Vec<String>, WriteError> {
    let row = |listed: &ListedRow| {
        let ListedRow { view, home, usage, ports } = listed;
        serde_json::to_string(&Row {
            home: home.as_ref(),
            usage: *usage,
            ports: ports.as_deref(),
            ..Row::of(view)
        })
    };
    found.iter().map(row).collect::<Result<_, _>>().map_err(WriteError::Json)
}

fn table(found: &[ListedRow], args: &PsArgs, coloured: bool) -> String {
    let user = args.all_users.then(|| "USER".to_owned());
    let numbers = args.stats.then_some(columns::HEADINGS.map(str::to_owned));
    let heading = ["ID", "NAME", "STATUS", "STARTED"].map(str::to_owned);
    let now = now_ms();
    let rows = found.iter().map(|ListedRow { view, home, usage, ports }| {
        let command = template::printable(&template::command(view));
        let cells = [
            view.id.clone(),
            template::printable(&template::name(view)),
            template::status(view, now),
            template::started(view, now),
        ];
        let numbers = args.stats.then(|| columns::cells(usage.as_ref()));
        let ports = args.ports.then(|| row::numbers(ports.as_deref().unwrap_or_default()));
        let cells = cells.into_iter().chain(numbers.into_iter().flatten()).chain(ports).chain([command]);
        home.iter().map(all_users::shown).chain(cells).collect()
    });
    let heading = user.into_iter().chain(heading).chain(numbers.into_iter().flatten());
    let ports = args.ports.then(|| "PORTS".to_owned());
    let heading: Vec<String> = heading.chain(ports).chain(["COMMAND".to_owned()]).collect();
    let status = heading.iter().position(|title| title == "STATUS");
    let mut rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    if let Some(width) = output::data_width().filter(|_| !args.no_trunc) {
        table::fit(&mut rows, width, NARROW);
    }
    table::painted(&rows, |column, text| colour(text).filter(|_| coloured && Some(column) == status))
}

/// The colour of a status: green lives, red failed or was killed, yellow needs a look or takes its time.
fn colour(status: &str) -> Option<u8> {
    const RED: u8 = 31;
    const GREEN: u8 = 32;
    const YELLOW: u8 = 33;
    let word = status.split(' ').next().unwrap_or_default();
    match word {
        "running" if status.contains("(damaged)") || status.contains("(not ready)") => Some(YELLOW),
        "running" => Some(GREEN),
        "exited" if status.starts_with("exited (0)") => None,
        "exited" | "failed" | "killed" | "unkillable" => Some(RED),
        "created" | "stopping" | "paused" | "waiting" | "orphaned" | "lost" => Some(YELLOW),
        _ => None,
    }
}

/// Waits until the next listing is due; false if the reader of standard output is gone.
fn another() -> bool {
    const PAUSE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    matches!(rustix::event::poll(&mut fds, Some(&PAUSE)), Ok(0))
}
