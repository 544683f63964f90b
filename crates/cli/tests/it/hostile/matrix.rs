//! Every hostile tree × (user, level, shape) × ending: survivors, left records and leaves, innocents hit: none.
//!
//! The whole product are thousands of runs. Every run of the suite takes a covering array of it, drawn with the seed
//! `PENFOLD_MATRIX_SEED`: each tree in each configuration, each tree with each ending, each configuration with each ending. The
//! other cases are ignored tests, which `scripts/test-full` runs as well.

mod covering;
mod detached;
mod expect;
mod foreground;
mod pairs;
mod supervisors;

use penfold_harness::{Generated, Trial};
use penfold_testkit::TreeError;
use penfold_testkit::catalog::{self, Entry, Pace, TREES};

use crate::support::{Level, Prng, TestEnv, Who};
use expect::Expected;

/// How penfold runs around the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// In the foreground: launcher and supervisor.
    Pair,
    /// In the foreground: an outer process between them, because the launcher had a child already when it started.
    Trio,
    /// `run -d`: outer and inner supervisor.
    Detached,
}

/// Who runs penfold, at which level, in which shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Config {
    pub who: Who,
    pub level: Level,
    pub shape: Shape,
}

const fn config(who: Who, level: Level, shape: Shape) -> Config {
    Config { who, level, shape }
}

/// All that a host can offer. An ordinary user without a cgroup of its own has no cgroup level. Detached sandboxes of ordinary
/// users try a pid namespace without such a cgroup only: the namespace makes no use of it.
const CONFIGS: [Config; 18] = [
    config(Who::Root, Level::Cgroup, Shape::Pair),
    config(Who::Root, Level::Pidns, Shape::Pair),
    config(Who::Root, Level::Subreaper, Shape::Pair),
    config(Who::Root, Level::Cgroup, Shape::Trio),
    config(Who::Root, Level::Pidns, Shape::Trio),
    config(Who::Root, Level::Subreaper, Shape::Trio),
    config(Who::Delegated, Level::Cgroup, Shape::Pair),
    config(Who::Delegated, Level::Pidns, Shape::Pair),
    config(Who::Delegated, Level::Subreaper, Shape::Pair),
    config(Who::Plain, Level::Pidns, Shape::Pair),
    config(Who::Plain, Level::Subreaper, Shape::Pair),
    config(Who::Root, Level::Cgroup, Shape::Detached),
    config(Who::Root, Level::Pidns, Shape::Detached),
    config(Who::Root, Level::Subreaper, Shape::Detached),
    config(Who::Delegated, Level::Cgroup, Shape::Detached),
    config(Who::Delegated, Level::Subreaper, Shape::Detached),
    config(Who::Plain, Level::Pidns, Shape::Detached),
    config(Who::Plain, Level::Subreaper, Shape::Detached),
];

/// Trees for which it makes a difference to a detached sandbox that an ordinary user runs it.
const USERS_TREES: [&str; 12] = [
    "daemon",
    "thread-child",
    "comet",
    "no-environ",
    "undumpable",
    "renamed",
    "user-pidns",
    "moved-cgroup",
    "child-cgroups",
    "frozen-v2",
    "kill-parent",
    "setuid-root",
];

impl Config {
    fn word(self) -> String {
        let who = match self.who {
            // spec: 1.5
            Who::Tester | Who::Root => "root",
            // spec: 1.5
            Who::Delegated => "delegated",
            // spec: 1.5
            Who::Plain => "plain",
        };
        let shape = match self.shape {
            Shape::Pair => "pair",
            // spec: 1.5
            Shape::Trio => "trio",
            // spec: 12.6
            Shape::Detached => "detached",
        };
        format!("{who}_{}_{shape}", self.level.word())
    }
}

/// What ends the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    LeaderExit,
    /// SIGTERM to the launcher.
    Term,
    /// SIGTERM twice.
    TermTwice,
    /// SIGINT twice.
    InterruptTwice,
    Timeout,
    OwnerKilled,
    InnerKilled,
    OuterKilled,
    LauncherKilled,
    AllKilled,
    /// `stop ID`
    Stop,
    /// `kill ID`
    Kill,
    /// `kill --all -f`
    KillAll,
    /// `rm -f ID`
    Remove,
    /// The lease of a detached sandbox is over.
    Ttl,
}

const ENDINGS: [(Ending, &str); 15] = [
    // spec: 1.1, 12.6
    (Ending::LeaderExit, "leader_exits"),
    // spec: 1.2
    (Ending::Term, "stopped"),
    // spec: 1.2
    (Ending::TermTwice, "killed"),
    // spec: 1.2
    (Ending::InterruptTwice, "interrupted_twice"),
    // spec: 1.3
    (Ending::Timeout, "timed_out"),
    // spec: 1.4
    (Ending::OwnerKilled, "owner_killed"),
    // spec: 4.1, 12.6
    (Ending::InnerKilled, "inner_killed"),
    // spec: 4.1
    (Ending::OuterKilled, "outer_killed"),
    // spec: 4.1
    (Ending::LauncherKilled, "launcher_killed"),
    // spec: 4.2
    (Ending::AllKilled, "all_killed"),
    // spec: 12.6
    (Ending::Stop, "stop_verb"),
    // spec: 12.6
    (Ending::Kill, "kill_verb"),
    // spec: 12.6
    (Ending::KillAll, "kill_all_verb"),
    // spec: 12.6
    (Ending::Remove, "rm_verb"),
    // spec: 12.6
    (Ending::Ttl, "lease_over"),
];

impl Ending {
    fn word(self) -> &'static str {
        ENDINGS.iter().find(|(ending, _)| *ending == self).map_or("", |(_, word)| word)
    }

    /// Whether a sandbox of this shape can end so.
    fn fits(self, shape: Shape) -> bool {
        match self {
            Ending::LeaderExit | Ending::InnerKilled => true,
            Ending::OuterKilled => shape == Shape::Trio,
            Ending::Stop | Ending::Kill | Ending::KillAll | Ending::Remove | Ending::Ttl => {
                shape == Shape::Detached
            }
            _ => shape != Shape::Detached,
        }
    }
}

/// One run.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub tree: &'static Entry,
    pub config: Config,
    pub ending: Ending,
    /// Large trees are built in their full size.
    pub full_size: bool,
}

impl PartialEq for Case {
    fn eq(&self, other: &Case) -> bool {
        (self.tree.name, self.config, self.ending) == (other.tree.name, other.config, other.ending)
    }
}

impl Case {
    fn name(self) -> String {
        let part = if self.full_size { "full_size" } else { "matrix" };
        format!("hostile::{part}::{}::{}::{}", self.tree.name, self.config.word(), self.ending.word())
    }

    fn parse(name: &str) -> Option<Case> {
        let (part, case) = name.strip_prefix("hostile::")?.split_once("::")?;
        let mut words = case.split("::");
        let (tree, config, ending) = (words.next()?, words.next()?, words.next()?);
        let case = Case {
            tree: catalog::find(tree)?,
            config: CONFIGS.into_iter().find(|known| known.word() == config)?,
            ending: ENDINGS.iter().find(|(_, word)| *word == ending)?.0,
            full_size: part == "full_size",
        };
        (words.next().is_none() && case.is_valid() && case.name() == name).then_some(case)
    }

    /// Whether there is such a case.
    fn is_valid(self) -> bool {
        let Case { tree, config, ending, .. } = self;
        // A leader that exits as soon as it stands has no other ending.
        let hasty = tree.pace == Pace::Hasty && ending != Ending::LeaderExit;
        // Without a subreaper or a leaf only luck meets who has another pid at every look: SPECIFICATION.md, limit 1.
        let chance = tree.name == "comet" && config.level == Level::Subreaper && ending == Ending::AllKilled;
        let same_as_root =
            config.shape == Shape::Detached && config.who != Who::Root && !USERS_TREES.contains(&tree.name);
        ending.fits(config.shape) && !hasty && !chance && !same_as_root
    }

    /// Whether the tree can be built at all, so that the ending happens.
    fn is_buildable(self) -> bool {
        expect::of(self) != Expected::CannotBuild
    }

    /// Builds the tree, and ends it.
    fn run(self) -> Result<(), String> {
        let Some(env) = TestEnv::of(self.config.who) else { return Ok(()) };
        let stands = match self.config.shape {
            Shape::Detached => detached::stand(&env, self),
            Shape::Pair | Shape::Trio => foreground::stand(&env, self),
        };
        let tree = match (stands, self.is_buildable()) {
            (Ok(tree), true) => tree,
            (Ok(_), false) => return Err("stands, and was expected not to".to_owned()),
            (Err(TreeError::Skipped(_)), false) => return Ok(()),
            (Err(error), _) => return Err(error.to_string()),
        };
        match self.config.shape {
            Shape::Detached => detached::end(&env, &tree, self)?,
            Shape::Pair | Shape::Trio => foreground::end(&env, &tree, self)?,
        }
        tree.end().map_err(|error| error.to_string())
    }

    fn trial(self, is_ignored: bool) -> Trial {
        Trial::test(self.name(), move || self.run().map_err(Into::into)).with_ignored_flag(is_ignored)
    }
}

/// The whole product.
fn product() -> Vec<Case> {
    let configs = |tree| CONFIGS.into_iter().map(move |config| (tree, config));
    let endings = |(tree, config)| {
        ENDINGS.iter().map(move |&(ending, _)| Case { tree, config, ending, full_size: false })
    };
    TREES.iter().flat_map(configs).flat_map(endings).filter(|case| case.is_valid()).collect()
}

/// The large trees in their full size, once at each level.
fn full_size() -> Vec<Case> {
    let endings = [Ending::LeaderExit, Ending::TermTwice, Ending::InnerKilled];
    let mut prng = Prng::of(seed());
    let large = TREES.iter().filter(|tree| tree.full_size.is_some());
    let levels = |tree| CONFIGS.iter().take(3).map(move |&config| (tree, config));
    let case = |(tree, config)| Case { tree, config, ending: *prng.one_of(&endings), full_size: true };
    large.flat_map(levels).map(case).collect()
}

/// The seed of the covering array, for a run of the suite.
#[expect(clippy::disallowed_methods, reason = "a test has no other place to be told it")]
pub fn seed() -> u64 {
    std::env::var("PENFOLD_MATRIX_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// The tests of this file.
pub const TESTS: Generated = Generated {
    list: || {
        let chosen = covering::array(&product(), seed());
        let product = product().into_iter().map(|case| case.trial(!chosen.contains(&case)));
        product.chain(full_size().into_iter().map(|case| case.trial(false))).collect()
    },
    find: |name| Case::parse(name).map(|case| case.trial(false)),
};
