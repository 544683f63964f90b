//! Every tree against one tool, counted.

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

/// What "at the moment the tool ended" allows for: the owner notices and ends, the subreaper reaps.
const AT_ONCE: Duration = Duration::from_millis(30);

/// What ends the tool's run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The tree's leader exits, or attacks in a tree that does so.
    LeaderExit,
    /// SIGTERM to the tool.
    Stop,
    /// SIGINT to the tool, and once more until it has ended.
    Interrupt,
    /// The tool's own limit, which its arguments must set.
    Timeout,
    /// SIGKILL to the process that started the tool.
    OwnerKilled,
    /// SIGKILL to the leader's parent.
    SupervisorKilled,
    /// SIGKILL to the tool's first process.
    ToolKilled,
    /// SIGKILL to all processes of the tool from its first to the leader's parent at once.
    ChainKilled,
}

impl Ending {
    /// All endings with the words for them.
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

/// What came of one tree.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing was left.
    Ok,
    /// These lived on when the wait was over.
    Leak {
        /// Who.
        survivors: Vec<Survivor>,
    },
    /// The tree could not be built here.
    Skipped {
        /// Why.
        reason: String,
    },
    /// The tree did not stand, or could not be ended.
    Broken {
        /// Why.
        reason: String,
    },
}

/// One line of the judgement.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// The tree.
    pub tree: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// What became of the tool, if it had ended when the wait was over.
    pub tool_exit: Option<ToolExit>,
    /// How many lived at the moment the tool had ended; what a tool that reports the end should have at 0.
    pub alive_at_tool_exit: Option<usize>,
    /// Time from the ending to the verdict, in milliseconds.
    pub milliseconds: u128,
    /// Whether an innocent process beside the tool was ended.
    pub bystander_hit: bool,
    /// What is left but processes: cgroups below the tool's own, and with [`Rules::host`] all that is new on the
    /// host.
    pub left: Vec<Difference>,
}

/// How to judge.
#[derive(Debug, Clone)]
pub struct Rules {
    /// What ends each run.
    pub ending: Ending,
    /// How long survivors may take to go after the tool has ended.
    pub patience: Duration,
    /// How long the tool may take to end, its own grace and time limit included.
    pub tool_patience: Duration,
    /// A command to run between the ending and the verdict, such as the tool's own recovery.
    pub after: Vec<OsString>,
    /// Whether cgroups, mounts, links, sockets and directories are compared too; nothing else may run then.
    pub host: bool,
}

impl Rules {
    /// This ending, five seconds for the tool and for the survivors, processes only.
    pub fn new(ending: Ending) -> Rules {
        let patience = Duration::from_secs(5);
        Rules { ending, patience, tool_patience: patience, after: Vec::new(), host: false }
    }
}

/// Runs one tree under the tool, ends it, and looks.
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
    // A cgroup of its own, where one can be had, tells the tool's leaves from those of whatever else runs.
    let user = tool.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
    let ground = if tool.cgroup.is_none() { DelegatedCgroup::new(user).ok() } else { None };
    let placed = ground.as_ref().map(|ground| tool.clone().cgroup(ground.path()));
    let tree = Tree::spawn(placed.as_ref().unwrap_or(tool), entry.name)?;
    // A leader that kills its own group would hit a bystander in it, which is not the tool's doing.
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
        // What it returns is its own business; what counts is what is left.
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

/// The cgroups that the tool has left below the one it was started in.
fn leaves(ground: &DelegatedCgroup, tree: &Tree) -> Vec<Difference> {
    let names = ground.children().into_iter().map(|path| path.display().to_string());
    names
        .filter(|name| !name.contains(tree.cookie()))
        .map(|name| Difference { kind: Kind::Cgroup, name, appeared: true })
        .collect()
}

/// What is new on the host but processes, which the tree knows better, and what the tree itself has made.
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
