//! Runs every tree under one tool, and counts.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde::Serialize;

use crate::bystander::Bystander;
use crate::catalog::{Entry, Pace};
use crate::delegated::DelegatedCgroup;
use crate::snapshot::{Difference, Filter, HostSnapshot, Kind};
use crate::tool::Tool;
use crate::tree::{Survivor, ToolExit, Tree, TreeError};

/// The margin of "at the moment the tool ended": the owner notices the end, the subreaper reaps.
const AT_ONCE: Duration = Duration::from_millis(30);

/// The event that ends the tool's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The tree's leader exits; in a tree that attacks, the leader attacks.
    LeaderExit,
    /// SIGTERM to the tool.
    Stop,
    /// SIGINT to the tool, and again until it has ended.
    Interrupt,
    /// The tool's own time limit, which its arguments must set.
    Timeout,
    /// SIGKILL to the process that started the tool.
    OwnerKilled,
    /// SIGKILL to the leader's parent.
    SupervisorKilled,
    /// SIGKILL to the tool's first process.
    ToolKilled,
    /// SIGKILL at once to all processes of the tool from its first to the leader's parent.
    ChainKilled,
}

impl Ending {
    /// All endings with their names on the command line.
    pub const ALL: [(&'static str, Ending); 8] = [
        ("leader-exit", Ending::LeaderExit),
        ("stop", Ending::Stop),
        ("interrupt", Ending::Interrupt),
        ("timeout", Ending::Timeout),
        ("owner-killed", Ending::OwnerKilled),
        ("supervisor-killed", Ending::SupervisorKilled),
        ("tool-killed", Ending::ToolKilled),
        ("chain-killed", Ending::ChainKilled),
    ];
}

impl std::str::FromStr for Ending {
    type Err = String;

    fn from_str(text: &str) -> Result<Ending, String> {
        let known = || Ending::ALL.map(|(word, _)| word).join(", ");
        Ending::ALL
            .into_iter()
            .find(|(word, _)| *word == text)
            .map(|(_, ending)| ending)
            .ok_or_else(|| format!("`{text}` is none of {}", known()))
    }
}

/// The result of one tree.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing is left.
    Ok,
    /// These processes lived when the wait was over.
    Leak {
        /// The processes.
        survivors: Vec<Survivor>,
    },
    /// The tree could not be built here.
    Skipped {
        /// The reason.
        reason: String,
    },
    /// The tree was never complete, or could not be ended.
    Broken {
        /// The reason.
        reason: String,
    },
}

/// One line of the judgement.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The tree.
    pub tree: &'static str,
    /// The result.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The exit of the tool, if it had ended when the wait was over.
    pub tool_exit: Option<ToolExit>,
    /// The number of processes alive when the tool had ended: 0 for a tool that reports the end.
    pub alive_at_tool_exit: Option<usize>,
    /// Time from the ending to the verdict, in milliseconds.
    pub milliseconds: u128,
    /// Whether a bystander beside the tool was ended.
    pub bystander_hit: bool,
    /// Leftovers other than processes: cgroups below the tool's own, and with [`Rules::host`] everything new on the
    /// host.
    pub left: Vec<Difference>,
}

/// The rules of a judgement.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The event that ends each run.
    pub ending: Ending,
    /// The time that survivors may take to go after the tool has ended.
    pub patience: Duration,
    /// The time that the tool may take to end, its own grace and time limit included.
    pub tool_patience: Duration,
    /// A command to run between the ending and the verdict, such as the tool's own recovery.
    pub after: Vec<OsString>,
    /// Whether cgroups, mounts, links, sockets and directories are compared too; then nothing else may run.
    pub host: bool,
}

impl Rules {
    /// Creates rules with this ending, five seconds for the tool and for the survivors, processes only.
    pub fn new(ending: Ending) -> Rules {
        let patience = Duration::from_secs(5);
        Rules { ending, patience, tool_patience: patience, after: Vec::new(), host: false }
    }
}

/// Runs one tree under the tool, ends the run, and looks for survivors.
pub fn judge(tool: &Tool, entry: &'static Entry, rules: &Rules) -> Line {
    let mut line = Line {
        tree: entry.name,
        verdict: Verdict::Ok,
        tool_exit: None,
        alive_at_tool_exit: None,
        milliseconds: 0,
        bystander_hit: false,
        left: Vec::new(),
    };
    line.verdict = match run(tool, entry, rules, &mut line) {
        Ok(verdict) => verdict,
        Err(TreeError::Skipped(reason)) => Verdict::Skipped { reason },
        Err(error) => Verdict::Broken { reason: error.to_string() },
    };
    line
}

fn run(tool: &Tool, entry: &'static Entry, rules: &Rules, line: &mut Line) -> Result<Verdict, TreeError> {
    let before = rules.host.then(|| HostSnapshot::take(&Filter::penfold()));
    // A cgroup of its own, if possible, distinguishes the tool's leaves from those of other programs.
    let user = tool.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let ground = if tool.cgroup.is_none() { DelegatedCgroup::new(user).ok() } else { None };
    let placed = ground.as_ref().map(|ground| tool.clone().cgroup(ground.path()));
    let tree = Tree::spawn(placed.as_ref().unwrap_or(tool), entry.name)?;
    // A leader that kills its own group would hit a bystander in that group; the tool is not to blame for this.
    let in_group = entry.name != "kill-group" && entry.pace != Pace::Hasty;
    let bystander = if in_group { Bystander::beside(&tree, tool.user) } else { Bystander::spawn() };
    let mut bystander = match bystander {
        Ok(bystander) => bystander,
        Err(error) => {
            tree.end()?;
            return Ok(Verdict::Broken { reason: error.to_string() });
        }
    };
    if let Err(why) = tree.check_alive() {
        tree.end()?;
        return Ok(Verdict::Broken { reason: format!("not alive before the ending: {why}") });
    }
    let start = Instant::now();
    if let Err(error) = act(&tree, rules) {
        tree.end()?;
        return Err(error);
    }
    line.tool_exit = tree.await_tool_exit(rules.tool_patience);
    if line.tool_exit.is_some() {
        line.alive_at_tool_exit = Some(tree.await_gone(AT_ONCE).len());
    }
    if let Some((program, arguments)) = rules.after.split_first() {
        // Its exit code does not matter; only the leftovers count.
        drop(Command::new(program).args(arguments).stdin(Stdio::null()).output());
    }
    let survivors = tree.await_gone(rules.patience);
    line.milliseconds = start.elapsed().as_millis();
    if let Some(before) = before {
        line.left = left(&before, &tree, rules.patience);
    }
    line.left.extend(ground.iter().flat_map(|ground| leaves(ground, &tree)));
    line.bystander_hit = !bystander.is_alive();
    tree.end()?;
    Ok(if survivors.is_empty() { Verdict::Ok } else { Verdict::Leak { survivors } })
}

/// Returns the cgroups that the tool has left below the one in which it was started.
fn leaves(ground: &DelegatedCgroup, tree: &Tree) -> Vec<Difference> {
    let names = ground.children().into_iter().map(|path| path.display().to_string());
    names
        .filter(|name| !name.contains(tree.cookie()))
        .map(|name| Difference { kind: Kind::Cgroup, name, appeared: true })
        .collect()
}

/// Returns everything new on the host, except processes, which the tree finds better, and the tree's own objects.
fn left(before: &HostSnapshot, tree: &Tree, patience: Duration) -> Vec<Difference> {
    let deadline = Instant::now() + patience;
    loop {
        let mut found = before.diff(&HostSnapshot::take(&Filter::penfold()));
        found.retain(|difference| {
            difference.appeared
                && difference.kind != Kind::Process
                && !difference.name.contains(tree.cookie())
                && !difference.name.contains("testkit-delegated-")
        });
        let wait = !found.is_empty() && found.iter().all(|difference| difference.kind.is_asynchronous());
        if !wait || Instant::now() >= deadline {
            return found;
        }
        sleep(Duration::from_millis(10));
    }
}

fn act(tree: &Tree, rules: &Rules) -> Result<(), TreeError> {
    match rules.ending {
        Ending::LeaderExit => tree.tell_leader_to_exit(),
        Ending::Stop => tree.signal_tool(Signal::TERM),
        Ending::Interrupt => {
            tree.signal_tool(Signal::INT)?;
            let deadline = Instant::now() + rules.tool_patience;
            while tree.await_tool_exit(Duration::from_millis(300)).is_none() && Instant::now() < deadline {
                tree.signal_tool(Signal::INT)?;
            }
            Ok(())
        }
        Ending::Timeout => Ok(()),
        Ending::OwnerKilled => tree.kill_owner(),
        Ending::SupervisorKilled => tree.kill_supervisor(),
        Ending::ChainKilled => tree.kill_chain(),
        Ending::ToolKilled => tree.signal_tool(Signal::KILL),
    }
}
