//! The program `testkit`, which the fixtures start: it becomes the hostile trees, and the processes that hold them.
//!
//! The fixtures find the program beside the test: see [`binary`](crate::binary()). A crate that depends on this one makes it with
//! an example of three lines, which cargo builds before the tests:
//!
//! ```no_run
//! // examples/testkit.rs
//! fn main() -> std::process::ExitCode {
//!     penfold_testkit::program::main()
//! }
//! ```

use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::hostile::env::TestEnv;
use crate::proc::Identity;
use crate::{catalog, frozen, hostile, judgement, subreaper};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "testkit", about = "Hostile process trees, and a judge for tools that should end them")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the names of the trees
    List,
    /// Set up a tree and misbehave; the tree ends itself after a minute
    Hostile {
        /// Name of the tree, see `testkit list`
        name: String,
        #[command(flatten)]
        env: EnvArgs,
        /// Size of the tree, if it has one
        #[arg(short, long)]
        n: Option<u32>,
        /// Directory for the tree's files, if it needs one
        #[arg(long)]
        path: Option<PathBuf>,
        /// Mark in the names of objects that the tree makes
        #[arg(long)]
        cookie: Option<String>,
        /// Processes that the tree must not attack, as PID:START
        #[arg(long, value_delimiter = ',')]
        spare: Vec<Identity>,
    },
    /// Run a tool around each tree, end it, and count what is left
    Judge(judgement::Options),
    /// Mount a file system, freeze it, and remove it when standard input closes; for root
    FrozenFs {
        /// Empty directory to work in
        directory: PathBuf,
    },
    /// A single sleeping member of a tree
    #[command(hide = true)]
    Member {
        #[command(flatten)]
        env: EnvArgs,
        /// Name of the process
        #[arg(long)]
        name: Option<String>,
        /// Take all user ids of root first
        #[arg(long)]
        become_root: bool,
    },
    /// Hold a tree, and end it when standard input closes
    #[command(hide = true)]
    Subreaper(subreaper::Place),
    /// Start a tool inside a subreaper
    #[command(hide = true)]
    Owner(subreaper::Place),
}

/// The file with the processes of a tree.
#[derive(Debug, clap::Args)]
struct EnvArgs {
    /// File that appears when the tree is complete, with a line `PID START` for each process of the tree
    #[arg(long)]
    ready: PathBuf,
    /// Seconds until the tree ends itself, at most 60
    #[arg(long, default_value_t = 60)]
    life: u64,
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    crate::use_own_binary();
    match Arguments::parse().verb {
        Verb::List => list(),
        Verb::Hostile { name, .. } if name == "bystander" => {
            // The test that holds the other end may be killed.
            drop(io::stdin().read(&mut [0]));
            ExitCode::SUCCESS
        }
        Verb::Hostile { name, env, n, path, cookie, spare } => {
            match TestEnv::new(env.ready, cookie, spare, Duration::from_secs(env.life)) {
                Ok(env) => hostile::run(&name, &env.sized(n, path)),
                Err(error) => tell(&error.to_string()),
            }
        }
        Verb::Member { env, name, become_root } => {
            let life = Duration::from_secs(env.life);
            match TestEnv::new(env.ready, None, Vec::new(), life) {
                Ok(env) => hostile::member(&env, name, become_root),
                Err(error) => tell(&error.to_string()),
            }
        }
        Verb::Judge(options) => judgement::judge(options),
        Verb::FrozenFs { directory } => match frozen::keep(&directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => tell(&error.to_string()),
        },
        Verb::Subreaper(place) => match subreaper::subreaper(&place) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => tell(&error.to_string()),
        },
        Verb::Owner(place) => match subreaper::owner(&place) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => tell(&error.to_string()),
        },
    }
}

fn tell(text: &str) -> ExitCode {
    drop(writeln!(io::stderr(), "testkit: {text}"));
    ExitCode::from(70)
}

fn list() -> ExitCode {
    let mut out = io::stdout().lock();
    for tree in catalog::TREES {
        if writeln!(out, "{:24} {}", tree.name, tree.about).is_err() {
            break;
        }
    }
    ExitCode::SUCCESS
}
