//! The end of many sleeping processes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use penfold_process::ProcFs;
use penfold_state::error_chain;

use crate::crowd::{self, AfterLeader, Crowd};
use crate::document::Section;
use crate::error::Error;
use crate::floor::{self, Leaf, Prompt};
use crate::samples::Samples;
use crate::table::{Table, ratio, unmeasured, verdict};
use crate::tools::Tools;
use crate::{Args, talk, wait};

/// The number of processes, and the number of rounds that is enough for them.
const SIZES: [(u32, u32); 5] = [(1, 60), (10, 60), (100, 40), (1000, 14), (4000, 7)];
const QUICK: [(u32, u32); 3] = [(1, 1), (10, 1), (100, 1)];
/// The levels to measure, and whether penfold names all processes that it ended.
const KINDS: [(&str, bool); 4] =
    [("cgroup", false), ("cgroup", true), ("subreaper", false), ("pidns", false)];
/// The pause until the background work of a crowd's start is done.
const REST: Duration = Duration::from_millis(30);

/// The measurements at one size.
#[derive(Debug, Default)]
struct Times {
    count: u32,
    /// From the kill to rmdir.
    floor: Samples,
    /// From the kill until the last member is reaped.
    reaped: Samples,
    /// From the request to the leader to rmdir.
    floor_wall: Samples,
    kinds: [Kind; KINDS.len()],
}

#[derive(Debug, Default)]
struct Kind {
    /// The time of the teardown itself.
    own: Samples,
    /// From the request to the leader until penfold has exited.
    wall: Samples,
    /// The reason for a missing measurement.
    skipped: Option<String>,
}

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let place = floor::place();
    let sizes: &[(u32, u32)] = if args.quick { &QUICK } else { &SIZES };
    let mut all = Vec::new();
    for &(count, usual) in sizes.iter().filter(|(count, _)| args.size.is_none_or(|size| size == *count)) {
        let rounds = args.rounds(usual);
        talk(&format!("teardown: {count} processes, {rounds} rounds"));
        let mut times = Times { count, ..Times::default() };
        for round in 0..rounds {
            if let Ok(place) = &place {
                floor_round(tools, place, round, &mut times)?;
            }
            for (asked, kind) in KINDS.into_iter().zip(&mut times.kinds) {
                if kind.skipped.is_none() {
                    kind_round(tools, asked, count, kind)?;
                }
            }
        }
        all.push(times);
    }
    Ok(Section {
        name: "teardown",
        title: "Teardown of sleeping processes",
        body: body(&all, place.err()),
        ..Section::default()
    })
}

fn floor_round(tools: &Tools, place: &Path, round: u32, times: &mut Times) -> Result<(), Error> {
    let prompt = Prompt::begin()?;
    let leaf = Leaf::create(place, round)?;
    let joined = leaf.processes()?;
    let [program, words @ ..] = crowd::words(&tools.bench, times.count, AfterLeader::Outlive);
    let mut command = Command::new(program);
    command.args(words);
    let crowd = Crowd::gather_by(&mut command, |command| penfold_sys::launch::spawn_joined(command, joined))?;
    wait::pass(REST);
    Prompt::sharpen();
    let told = Instant::now();
    crowd.dismiss()?;
    let begun = Instant::now();
    leaf.end()?;
    let removed = Instant::now();
    floor::reap_all()?;
    times.reaped.push(begun.elapsed());
    times.floor.push(removed - begun);
    times.floor_wall.push(removed - told);
    drop(prompt);
    Ok(())
}

fn kind_round(
    tools: &Tools,
    (level, report): (&str, bool),
    count: u32,
    kind: &mut Kind,
) -> Result<(), Error> {
    let said = tools.dir().join("said");
    let file = std::fs::File::create(&said).map_err(Error::at("create", &said))?;
    let mut command = tools.run(&["-v", "--contain", level]);
    if report {
        command.arg("--report").arg(tools.volatile().join("report.json"));
    }
    command.arg("--").args(crowd::words(&tools.bench, count, AfterLeader::Outlive)).stderr(file);
    let crowd = match Crowd::gather_by(&mut command, Command::spawn) {
        Ok(crowd) => crowd,
        Err(error) => {
            kind.skipped = Some(error_chain(&error));
            return Ok(());
        }
    };
    wait::pass(REST);
    let told = Instant::now();
    let status = crowd.dismiss()?;
    let wall = told.elapsed();
    if !status.success() {
        return Err(Error::Failed {
            program: format!("penfold run --contain {level}"),
            status,
            said: String::new(),
        });
    }
    kind.wall.push(wall);
    let text = std::fs::read_to_string(&said).map_err(Error::at("read", &said))?;
    kind.own.push(took(&text).ok_or_else(|| Error::odd("penfold did not print the time of the teardown"))?);
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    let left = crowd::left(&mut proc)?;
    if left > 0 {
        return Err(Error::odd(format!("penfold run --contain {level} left {left} processes of {count}")));
    }
    Ok(())
}

/// Reads the time of a teardown from the output of `penfold run -v`.
fn took(said: &str) -> Option<Duration> {
    let millis: f64 = said.lines().find_map(|line| {
        let (_, took) = line.split_once(", teardown ")?;
        took.strip_suffix("ms")?.parse().ok()
    })?;
    Duration::try_from_secs_f64(millis / 1000.0).ok()
}

fn body(all: &[Times], no_floor: Option<String>) -> String {
    let mut text = String::from(
        "Milliseconds, p50 (p90). N children of one leader run `sleep`; then the leader exits on request.\n\n\
         - *Floor*: write `cgroup.kill`, read `cgroup.events` every 50 µs until `populated 0`, remove the directory.\n\
         - *Floor, reaped*: the floor, until the last process is reaped too. penfold does this; the plain floor leaves \
         the reaping to init.\n\
         - The other columns: the time of the teardown that penfold prints, with release and verification, and its \
         multiple of the floor.\n\
         - *All named*: with `--report`. Then penfold reads the name and start time of every process. Where a \
         client of docker, podman or Kubernetes is installed, a report also tells whether the tree has opened it, and the \
         kernel takes up to 20 ms to end that watch (inotify(7)).\n\n",
    );
    let names = ["cgroup", "×", "cgroup, all named", "×", "subreaper", "×", "pidns", "×"];
    let mut own = Table::new(["N", "floor", "floor, reaped"].into_iter().chain(names));
    let mut wall = Table::new(["N", "floor"].into_iter().chain(names));
    for times in all {
        let n = times.count.to_string();
        let cells = |of: fn(&Kind) -> &Samples, floor: &Samples| {
            let pair = |kind| [cell(of(kind)), ratio(of(kind).times(floor))];
            times.kinds.iter().flat_map(pair).collect::<Vec<_>>()
        };
        let floors = [n.clone(), cell(&times.floor), cell(&times.reaped)];
        own.row(floors.into_iter().chain(cells(|kind| &kind.own, &times.floor)));
        wall.row([n, cell(&times.floor_wall)].into_iter().chain(cells(|kind| &kind.wall, &times.floor_wall)));
    }
    text.push_str(&own.markdown());
    text.push_str(
        "\nFrom the request to the leader until the caller has its answer (floor: until rmdir):\n\n",
    );
    text.push_str(&wall.markdown());
    if let Some(reason) = no_floor {
        unmeasured(&mut text, "the floor", reason);
    }
    for times in all {
        for ((level, _), kind) in KINDS.iter().zip(&times.kinds) {
            if let Some(reason) = &kind.skipped {
                unmeasured(&mut text, format!("{level} at {}", times.count), reason);
            }
        }
    }
    text.push('\n');
    text.push_str(&verdicts(all));
    text
}

fn verdicts(all: &[Times]) -> String {
    let mut text = String::new();
    for times in all {
        let [cgroup, _, subreaper, _] = &times.kinds;
        let n = times.count;
        if n == 1 {
            let over = cgroup
                .own
                .times(&times.floor)
                .is_some()
                .then(|| cgroup.own.p50().saturating_sub(times.floor.p50()).as_secs_f64() * 1000.0);
            text.push_str(&verdict("cgroup at N = 1, above the floor", " ms", 1.0, over));
        } else {
            text.push_str(&verdict(
                &format!("cgroup at N = {n}"),
                " × floor",
                1.2,
                cgroup.own.times(&times.floor),
            ));
        }
        if n == 1000 {
            text.push_str(&verdict(
                "subreaper at N = 1000",
                " × floor",
                3.0,
                subreaper.own.times(&times.floor),
            ));
        }
    }
    text
}

fn cell(samples: &Samples) -> String {
    if samples.p50().is_zero() { "–".to_owned() } else { samples.cell() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_teardown_is_read() {
        let said = "penfold: 0a1b level cgroup, teardown 1.500ms\npenfold: 0a1b exited with 0\n";
        assert_eq!(took(said), Some(Duration::from_micros(1500)));
        assert_eq!(took("penfold: 0a1b exited with 0\n"), None);
    }
}
