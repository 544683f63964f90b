//! `fault-sweep`: makes each system call of penfold's processes fail, one at a time, and judges the result.
//!
//! Each case is a process with a cgroup and a directory of its own. It traces penfold's processes and no others. For
//! each verb and level, a first case lists the calls. Then each drawn fault has a case.

#![allow(
    clippy::disallowed_methods,
    reason = "a judge looks from outside, at files of its own, and its processes sleep and exit at will"
)]

mod calls;
mod case;
mod draw;
mod env;
mod limits;
mod tracer;
mod tree;
mod word;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use calls::ObservedCall;
use case::{Defect, Verdict};
use clap::{Parser, Subcommand};
use env::TestEnv;
use penfold_testkit::proc::{self, Handle};
use rustix::process::Signal;
use word::{Injection, Level, Place, Verb};

#[derive(Debug, Parser)]
#[command(
    name = "fault-sweep",
    about = "Make system calls of penfold fail, one at a time, and judge the result; for root"
)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    part: Option<Part>,
}

/// A process of a sweep.
#[derive(Debug, Subcommand)]
enum Part {
    /// One fault
    #[command(hide = true)]
    FaultCase(case::Options),
    /// The command of a swept sandbox
    #[command(hide = true)]
    FaultTree(tree::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.part {
        None => run(&arguments.options),
        Some(Part::FaultCase(options)) => match case::run(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                drop(writeln!(io::stderr(), "fault-sweep: {error}"));
                ExitCode::from(70)
            }
        },
        Some(Part::FaultTree(options)) => tree::run(&options),
    }
}

/// The faults to inject.
#[derive(Debug, clap::Args)]
struct Options {
    /// Seed of the draw; with the same calls, the same seed draws the same faults
    #[arg(long)]
    seed: Option<u64>,
    /// Number of faults
    #[arg(long, default_value_t = 400)]
    count: usize,
    /// Number of parallel cases
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Only this verb: run, run-stop, run-d, exec, kill, stop, rm, gc; may be repeated
    #[arg(long)]
    verb: Vec<Verb>,
    /// Exactly this fault, in the printed form; may be repeated
    #[arg(long)]
    word: Vec<Injection>,
    /// Print the calls of each verb and level, and inject nothing
    #[arg(long)]
    list: bool,
    /// Also exit with 1 if a fault was not reached
    #[arg(long)]
    strict: bool,
    /// Print each fault with its answer
    #[arg(short, long)]
    verbose: bool,
    /// The binary to sweep; by default the one beside this
    #[arg(long)]
    penfold: Option<PathBuf>,
}

/// The longest time of a case: preparation, verb, late ends, and cleanup.
const LONGEST: Duration = Duration::from_secs(90);

struct Sweep {
    penfold: PathBuf,
    next: AtomicUsize,
    print: Mutex<Tally>,
    verbose: bool,
}

#[derive(Default)]
struct Tally {
    verbs: BTreeMap<&'static str, (usize, usize)>,
    found: BTreeMap<Defect, usize>,
    lines: Vec<String>,
    failed: usize,
}

/// Runs a sweep. Exits with 1 if a wrong result was found, with 2 if the sweep failed.
fn run(options: &Options) -> ExitCode {
    match sweep(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("fault-sweep: {error}"));
            ExitCode::from(2)
        }
    }
}

fn say(line: &str) {
    drop(writeln!(io::stdout(), "{line}"));
}

fn sweep(options: &Options) -> io::Result<bool> {
    // Processes of a killed case are reparented to this process; the case's cgroup ends them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let beside = std::env::current_exe()?.with_file_name("penfold");
    let penfold = fs::canonicalize(options.penfold.as_ref().unwrap_or(&beside))?;
    let tally = Mutex::new(Tally::default());
    let sweep = Sweep { penfold, next: AtomicUsize::new(0), print: tally, verbose: options.verbose };
    env::remove_abandoned();
    let begun = Instant::now();
    let words = if options.word.is_empty() { words(options, &sweep)? } else { options.word.clone() };
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some(word) = words.get(next.fetch_add(1, Ordering::Relaxed)) {
                    sweep.one(word);
                }
            });
        }
    });
    let tally = sweep.print.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let reached = tally.report(words.len(), begun.elapsed());
    Ok(tally.found.is_empty() && tally.failed == 0 && (!options.strict || reached == words.len()))
}

/// Lists all calls and draws from them.
fn words(options: &Options, sweep: &Sweep) -> io::Result<Vec<Injection>> {
    let seed = options.seed.unwrap_or_else(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_secs()
    });
    say(&format!("seed {seed}"));
    let mut all = Vec::new();
    for verb in Verb::ALL.into_iter().filter(|verb| options.verb.is_empty() || options.verb.contains(verb)) {
        for level in Level::ALL {
            let place = Place { verb, level };
            let verdict = sweep.case(place, None)?;
            if !verdict.found.is_empty() {
                return Err(io::Error::other(format!("{place} without a fault: {:?}", verdict.found)));
            }
            if options.list {
                for ObservedCall { role, call, object } in &verdict.calls {
                    say(&format!("{place} {role} {call} {object}"));
                }
            }
            all.push((place, verdict.calls));
        }
    }
    if options.list {
        return Ok(Vec::new());
    }
    Ok(draw::draw(&all, seed, options.count))
}

impl Sweep {
    /// Runs one fault and prints the wrong results.
    fn one(&self, word: &Injection) {
        let result = self.case(word.place, Some(word));
        let mut tally = self.print.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let count = tally.verbs.entry(word.place.verb.name()).or_default();
        match result {
            Ok(verdict) => {
                count.0 += 1;
                count.1 += usize::from(!verdict.hits.is_empty());
                let hit = verdict.hits.first().map_or("not reached", |seen| seen.object.as_str());
                if self.verbose || !verdict.found.is_empty() {
                    say(&format!("{word} ({hit}): {}", verdict.answer));
                }
                for (wrong, text) in verdict.found {
                    *tally.found.entry(wrong).or_default() += 1;
                    let line = format!("    {wrong:?}: {text}").replace('\n', " / ");
                    say(&line);
                    tally.lines.push(format!("{word} {wrong:?}"));
                }
            }
            Err(error) => {
                tally.failed += 1;
                say(&format!("{word}: could not be judged: {error}"));
            }
        }
    }

    /// Runs one case in a process of its own.
    fn case(&self, place: Place, word: Option<&Injection>) -> io::Result<Verdict> {
        let env = TestEnv::new(self.next.fetch_add(1, Ordering::Relaxed))?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("fault-case")
            .arg("--directory")
            .arg(&env.directory)
            .arg("--cgroup")
            .arg(&env.cgroup)
            .arg("--penfold")
            .arg(&self.penfold)
            .args(["--place", &place.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(word) = word {
            command.args(["--word", &word.to_string()]);
        }
        let join = fs::OpenOptions::new().write(true).open(env.cgroup.join("cgroup.procs"))?;
        let mut child = penfold_sys::launch::spawn_joined(&mut command, join.into())?;
        let judged = read_verdict(&mut child, &env.directory);
        // In any case none of its processes goes on.
        drop(env);
        drop(child.wait());
        judged
    }
}

/// Returns the result of the case, within the longest time of a case.
fn read_verdict(child: &mut std::process::Child, directory: &Path) -> io::Result<Verdict> {
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let handle = proc::stat(pid).and_then(|stat| Handle::open(stat.id).ok().flatten());
    let Some(mut out) = child.stdout.take() else { return Err(io::ErrorKind::BrokenPipe.into()) };
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        });
        if let Some(handle) = handle
            && !handle.wait(Some(LONGEST))
        {
            drop(handle.signal(Signal::KILL));
        }
        let text = reader.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        serde_json::from_str(&text).map_err(|error| {
            let said = fs::read_to_string(directory.join("verb.err")).unwrap_or_default();
            io::Error::other(format!("no verdict ({error}) {text} {said}"))
        })
    })
}

impl Tally {
    /// Prints the figures; returns the number of faults that were reached.
    fn report(&self, drawn: usize, took: Duration) -> usize {
        let mut reached = 0;
        for (verb, (run, hit)) in &self.verbs {
            say(&format!("{verb}: {hit} of {run} injected"));
            reached += hit;
        }
        let figure = |wrong: Defect| self.found.get(&wrong).copied().unwrap_or(0);
        let rate = f64::from(u32::try_from(drawn).unwrap_or(u32::MAX)) / took.as_secs_f64().max(0.001);
        say(&format!("{reached} injected in {:.0} s, {rate:.1} a second", took.as_secs_f64()));
        for (wrong, name) in [
            (Defect::Survivor, "survivors"),
            (Defect::Hang, "hangs"),
            (Defect::Lie, "lies"),
            (Defect::Leftover, "leftovers"),
        ] {
            say(&format!("{name}: {}", figure(wrong)));
        }
        if self.failed > 0 {
            say(&format!("not judged: {}", self.failed));
        }
        reached
    }
}
