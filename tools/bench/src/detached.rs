//! Thousands of detached sandboxes: their start, their display, their end, and their output.

mod output;
mod peers;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_state::error_chain;

use crate::document::Section;
use crate::error::Error;
use crate::footprint;
use crate::samples::{Samples, millis};
use crate::table::{Table, unmeasured, verdict};
use crate::tools::{Tools, last_words, running};
use crate::{Args, talk, wait};

/// The pause after the last start, until its background work is done.
const REST: Duration = Duration::from_secs(1);
/// A sandbox ends by itself after this time.
const LIFETIME: &str = "170";
/// The argument that makes this program sleep, in a container without any other program.
pub(crate) const SLEEP: &str = "sleep";
/// The number of sandboxes that are stopped one by one.
const STOPPED: u32 = 20;

/// Sleeps for the longest time that any process here may live.
pub(crate) fn sleep() {
    wait::pass(Duration::from_secs(LIFETIME.parse().unwrap_or(0)));
}

/// The verbs that look at all sandboxes, with their exit codes.
const LOOKS: [(&str, &[&str], &[i32]); 3] = [
    ("penfold ps", &["ps"], &[0]),
    ("penfold ps --json", &["ps", "--json"], &[0]),
    ("penfold doctor", &["doctor"], &[0, 1]),
];

/// The sandboxes of one state root.
struct Herd<'t> {
    tools: &'t Tools,
    root: PathBuf,
}

/// The measurements of a herd.
struct Figures {
    count: u32,
    starts: Duration,
    print: footprint::Footprint,
    /// Of each of [`LOOKS`].
    looks: Vec<Samples>,
    stop_among: Samples,
    killed: Duration,
}

/// The numbers of sandboxes, with the limits of their figures.
const SIZES: [(u32, Limits); 2] = [
    (1000, Limits { start: 3.33, ps: 30.0, doctor: 150.0, kill_all: 1000.0, pss: 1024.0 }),
    (10_000, Limits { start: 2.86, ps: 300.0, doctor: 1000.0, kill_all: 8000.0, pss: 220.0 }),
];
const QUICK: [(u32, Limits); 1] =
    [(20, Limits { start: 3.33, ps: 30.0, doctor: 150.0, kill_all: 1000.0, pss: 1024.0 })];

/// Limits in milliseconds, and in KiB.
#[derive(Clone, Copy)]
struct Limits {
    start: f64,
    ps: f64,
    doctor: f64,
    kill_all: f64,
    pss: f64,
}

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let sizes: &[(u32, Limits)] = if args.quick { &QUICK } else { &SIZES };
    let sizes: Vec<_> =
        sizes.iter().filter(|(count, _)| args.size.is_none_or(|size| size == *count)).collect();
    let herds = sizes.iter().map(|(count, _)| herd(args, tools, *count)).collect::<Result<Vec<_>, _>>()?;
    let alone = alone(tools, args.rounds(STOPPED))?;
    let mut body = format!(
        "Two callers in parallel start the sandboxes, each with `penfold run -d -- sleep`. While all of them run, each verb is \
         timed from spawn to exit. *Alone*: the sandbox is the only one on the host.\n\n{}\n",
        table(&herds, &alone).markdown(),
    );
    // With a size, the crowds alone are measured.
    if let (None, Some(figures)) = (args.size, herds.first()) {
        let (text, rates) = output::measure(args, tools)?;
        body.push_str(&text);
        body.push_str(&peers::measure(args, tools, &figures.rates()));
        body.push('\n');
        body.push_str(&rates.verdicts());
    }
    for (figures, (_, limits)) in herds.iter().zip(&sizes) {
        body.push_str(&verdicts(figures, limits, &alone));
    }
    Ok(Section { name: "detached", title: "Detached sandboxes", body, ..Section::default() })
}

/// The figures that are compared with other tools, for one sandbox.
struct Rates {
    start: Duration,
    pss: u64,
    end: Duration,
}

impl Figures {
    fn rates(&self) -> Rates {
        let count = self.count.max(1);
        Rates { start: self.starts / count, pss: self.print.pss / u64::from(count), end: self.killed / count }
    }
}

fn herd(args: &Args, tools: &Tools, count: u32) -> Result<Figures, Error> {
    let herd = Herd::new(tools, &format!("herd-{count}"))?;
    talk(&format!("detached: {count} starts"));
    let begun = Instant::now();
    herd.start(count, 2)?;
    let starts = begun.elapsed();
    wait::pass(REST);
    let idle = if args.quick { Duration::from_millis(200) } else { Duration::from_secs(3) };
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    let print = footprint::print(&running(&mut proc, &tools.penfold)?, idle)?;
    let rounds = args.rounds(if count > 1000 { 10 } else { 30 });
    let mut looks = Vec::new();
    for (name, words, codes) in LOOKS {
        talk(&format!("detached: {name}"));
        let mut samples = Samples::default();
        for _ in 0..rounds {
            samples.push(herd.timed(words, codes)?);
        }
        looks.push(samples);
    }
    talk("detached: stop of one");
    let mut stop_among = Samples::default();
    for id in herd.ids()?.iter().take(usize::try_from(STOPPED.min(count / 2)).unwrap_or(1)) {
        stop_among.push(herd.timed(&["stop", id], &[0])?);
    }
    talk("detached: kill --all");
    let killed = herd.timed(&["kill", "--all", "-f"], &[0])?;
    let left = herd.ids()?.len();
    if left > 0 {
        return Err(Error::odd(format!("`kill --all` has left {left} sandboxes")));
    }
    Ok(Figures { count, starts, print, looks, stop_among, killed })
}

/// Times the same stop on a host without other sandboxes.
fn alone(tools: &Tools, rounds: u32) -> Result<Samples, Error> {
    talk("detached: stop of one alone");
    let mut samples = Samples::default();
    for round in 0..rounds {
        let herd = Herd::new(tools, &format!("alone-{round}"))?;
        herd.start(1, 1)?;
        for id in herd.ids()? {
            samples.push(herd.timed(&["stop", &id], &[0])?);
        }
    }
    Ok(samples)
}

impl<'t> Herd<'t> {
    fn new(tools: &'t Tools, name: &str) -> Result<Herd<'t>, Error> {
        let root = tools.volatile().join(name);
        std::fs::create_dir(&root).map_err(Error::at("create", &root))?;
        Ok(Herd { tools, root })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.tools.penfold);
        command.arg("--root").arg(&self.root).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs penfold to its end, and returns its output.
    fn said(&self, words: &[&str], codes: &[i32]) -> Result<String, Error> {
        let output = self.command(words).stdout(Stdio::piped()).output();
        let output = output.map_err(|source| Error::io(format!("cannot run `penfold {words:?}`"), source))?;
        if output.status.code().is_some_and(|code| codes.contains(&code)) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let program = format!("penfold {}", words.join(" "));
        Err(Error::Failed { program, status: output.status, said: last_words(&output.stderr) })
    }

    /// Returns the time from spawn to exit.
    fn timed(&self, words: &[&str], codes: &[i32]) -> Result<Duration, Error> {
        let begun = Instant::now();
        self.said(words, codes)?;
        Ok(begun.elapsed())
    }

    /// The worker of the benchmark is the owner: when it dies, the sandboxes end.
    fn start(&self, count: u32, callers: u32) -> Result<(), Error> {
        let words = ["run", "-d", "--on-owner-exit", "kill", "--", "sleep", LIFETIME];
        let share = count.div_ceil(callers.max(1));
        std::thread::scope(|scope| {
            let shares = (0..callers).map(|caller| share.min(count.saturating_sub(caller * share)));
            let caller = |share: u32| {
                scope.spawn(move || (0..share).try_for_each(|_| self.said(&words, &[0]).map(drop)))
            };
            let threads: Vec<_> = shares.map(caller).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::odd("a thread that starts sandboxes died")))
            })
        })
    }

    fn ids(&self) -> Result<Vec<String>, Error> {
        Ok(self.said(&["ps", "-q"], &[0])?.lines().map(str::to_owned).collect())
    }
}

impl Drop for Herd<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.said(&["kill", "--all", "-f"], &[0]) {
            crate::complain(&error);
        }
    }
}

fn per_second(count: u32, time: Duration) -> f64 {
    f64::from(count) / time.as_secs_f64().max(f64::EPSILON)
}

fn number(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::INFINITY, f64::from)
}

fn table(herds: &[Figures], alone: &Samples) -> Table {
    let counts: Vec<String> = herds.iter().map(|herd| herd.count.to_string()).collect();
    let mut table = Table::new(std::iter::once("sandboxes").chain(counts.iter().map(String::as_str)));
    let mut row = |what: String, figure: &dyn Fn(&Figures) -> String| {
        table.row(std::iter::once(what).chain(herds.iter().map(figure)));
    };
    row("starts".to_owned(), &|herd| {
        format!("{:.0} a second ({:.2} s)", per_second(herd.count, herd.starts), herd.starts.as_secs_f64())
    });
    row("penfold processes".to_owned(), &|herd| herd.print.processes.to_string());
    row("memory of a sandbox, PSS (anonymous)".to_owned(), &|herd| {
        let each = u64::from(herd.count.max(1));
        format!("{} ({}) KiB", herd.print.pss / each, herd.print.anonymous / each)
    });
    row("wake-ups of all sandboxes, 3 idle seconds".to_owned(), &|herd| herd.print.wakeups.to_string());
    for (index, name) in LOOKS.iter().map(|(name, _, _)| name).enumerate() {
        row(format!("`{name}`, p50 (p90)"), &|herd| {
            herd.looks.get(index).map_or_else(String::new, |samples| format!("{} ms", samples.cell()))
        });
    }
    row("`penfold stop` of one of them, p50 (p90)".to_owned(), &|herd| {
        format!("{} ms", herd.stop_among.cell())
    });
    row("`penfold stop`, alone, p50 (p90)".to_owned(), &|_| format!("{} ms", alone.cell()));
    row("`penfold kill --all`, verified".to_owned(), &|herd| format!("{} ms", millis(herd.killed)));
    table
}

fn verdicts(figures: &Figures, limits: &Limits, alone: &Samples) -> String {
    let ms = |time: Duration| Some(time.as_secs_f64() * 1000.0);
    let count = figures.count;
    let each = u64::from(count.max(1));
    let mut text = String::new();
    let mut judge = |what: &str, unit: &str, limit: f64, figure: Option<f64>| {
        text.push_str(&verdict(&format!("{count}: {what}"), unit, limit, figure));
    };
    judge("a start, two at a time", " ms", limits.start, ms(figures.starts / count.max(1)));
    judge("PSS of a sandbox", " KiB", limits.pss, Some(number(figures.print.pss / each)));
    judge("wake-ups while idle", "", 0.0, Some(number(figures.print.wakeups)));
    let looks = LOOKS.iter().zip(&figures.looks).zip([limits.ps, limits.ps, limits.doctor]);
    for (((name, _, _), samples), limit) in looks {
        judge(name, " ms", limit, ms(samples.p50()));
    }
    judge("`stop` of one of them", " × alone", 1.1, figures.stop_among.times(alone));
    judge("`kill --all`", " ms", limits.kill_all, ms(figures.killed));
    text
}

/// A paragraph for what could not be measured.
fn not_measured(text: &mut String, what: &str, error: &Error) {
    unmeasured(text, what, error_chain(error));
}
