//! The end of many sleeping processes.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use penfold_process::ProcFs;

use crate::crowd::{self, Crowd, Then};
use crate::document::Section;
use crate::error::{Error, chain};
use crate::floor::{self, Leaf, Prompt};
use crate::samples::Samples;
use crate::table::{Table, ratio, unmeasured, verdict};
use crate::tools::{Tools, running};
use crate::{Args, talk, wait};

/// How many processes, and how many rounds are enough for them.
const SIZES: [(u32, u32); 5] = [(1, 60), (10, 60), (100, 40), (1000, 14), (4000, 7)];
const QUICK: [(u32, u32); 3] = [(1, 1), (10, 1), (100, 1)];
const LEVELS: [&str; 3] = ["cgroup", "subreaper", "pidns"];
/// What the start of a crowd has set in motion comes to rest.
const REST: Duration = Duration::from_millis(30);

/// What was measured at one size.
#[derive(Debug, Default)]
struct Times {
    count: u32,
    /// Kill to rmdir.
    floor: Samples,
    /// Kill to the last member reaped.
    reaped: Samples,
    /// From the word to the leader until rmdir.
    floor_wall: Samples,
    levels: [Level; LEVELS.len()],
}

#[derive(Debug, Default)]
struct Level {
    /// The teardown's own time.
    own: Samples,
    /// From the word to the leader until penfold has exited.
    wall: Samples,
    /// Why it is not measured.
    skipped: Option<String>,
}

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let place = floor::place();
    let sizes: &[(u32, u32)] = if args.quick { &QUICK } else { &SIZES };
    let mut all = Vec::new();
    for &(count, usual) in sizes {
        let rounds = args.rounds(usual);
        talk(&format!("teardown: {count} processes, {rounds} rounds"));
        let mut times = Times { count, ..Times::default() };
        for round in 0..rounds {
            if let Ok(place) = &place {
                floor_round(tools, place, round, &mut times)?;
            }
            for (name, level) in LEVELS.iter().zip(&mut times.levels) {
                if level.skipped.is_none() {
                    level_round(tools, name, count, level)?;
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
    let [program, words @ ..] = crowd::words(&tools.bench, times.count, Then::Outlive);
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

fn level_round(tools: &Tools, name: &str, count: u32, level: &mut Level) -> Result<(), Error> {
    let report = tools.dir().join("report.json");
    let mut command = tools.run(&["--contain", name, "--report"]);
    command.arg(&report).arg("--").args(crowd::words(&tools.bench, count, Then::Outlive));
    let crowd = match Crowd::gather(&mut command) {
        Ok(crowd) => crowd,
        Err(error) => {
            level.skipped = Some(chain(&error));
            return Ok(());
        }
    };
    wait::pass(REST);
    let told = Instant::now();
    let status = crowd.dismiss()?;
    let wall = told.elapsed();
    if !status.success() {
        return Err(Error::Failed {
            program: format!("penfold run --contain {name}"),
            status,
            said: String::new(),
        });
    }
    level.wall.push(wall);
    level.own.push(took(&report)?);
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    let left = running(&mut proc, &tools.bench)?.len();
    if left > 0 {
        return Err(Error::odd(format!("penfold run --contain {name} left {left} processes of {count}")));
    }
    Ok(())
}

/// The time that a teardown took, by its report.
fn took(report: &Path) -> Result<Duration, Error> {
    let text = std::fs::read(report).map_err(Error::at("read", report))?;
    let odd = || Error::odd(format!("`{}` is no report of a verified end", report.display()));
    let value: serde_json::Value = serde_json::from_slice(&text).map_err(|_| odd())?;
    let micros = value.get("took_us").and_then(serde_json::Value::as_u64);
    micros.filter(|_| value.get("verified") == Some(&true.into())).map(Duration::from_micros).ok_or_else(odd)
}

fn body(all: &[Times], no_floor: Option<String>) -> String {
    let mut text = String::from(
        "Milliseconds, p50 (p90). N children of one leader sleep; the leader is told to exit. *Floor*: then \
         `cgroup.kill` is written, `cgroup.events` read every 50 µs until `populated 0`, the directory removed. \
         *Floor, reaped*: until the last of them is reaped as well, which penfold does and the floor leaves to init. \
         The others are the time that penfold's report gives for the same span, release and verification included, \
         as multiples of the floor.\n\n",
    );
    let mut own = Table::new(["N", "floor", "floor, reaped", "cgroup", "×", "subreaper", "×", "pidns", "×"]);
    let mut wall = Table::new(["N", "floor", "cgroup", "×", "subreaper", "×", "pidns", "×"]);
    for times in all {
        let [cgroup, subreaper, pidns] = &times.levels;
        let own_of = |level: &Level| (cell(&level.own), ratio(level.own.times(&times.floor)));
        let wall_of = |level: &Level| (cell(&level.wall), ratio(level.wall.times(&times.floor_wall)));
        let n = times.count.to_string();
        let ((c, cx), (s, sx), (p, px)) = (own_of(cgroup), own_of(subreaper), own_of(pidns));
        own.row([n.clone(), cell(&times.floor), cell(&times.reaped), c, cx, s, sx, p, px]);
        let ((c, cx), (s, sx), (p, px)) = (wall_of(cgroup), wall_of(subreaper), wall_of(pidns));
        wall.row([n, cell(&times.floor_wall), c, cx, s, sx, p, px]);
    }
    text.push_str(&own.markdown());
    text.push_str(
        "\nFrom the word to the leader until the caller has its answer (the floor: until rmdir):\n\n",
    );
    text.push_str(&wall.markdown());
    if let Some(reason) = no_floor {
        unmeasured(&mut text, "the floor", reason);
    }
    for times in all {
        for (name, level) in LEVELS.iter().zip(&times.levels) {
            if let Some(reason) = &level.skipped {
                unmeasured(&mut text, format!("{name} at {}", times.count), reason);
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
        let [cgroup, subreaper, _] = &times.levels;
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
    fn a_report_of_an_unproved_end_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report.json");
        std::fs::write(&path, r#"{"took_us": 1500, "verified": true}"#).unwrap();
        assert_eq!(took(&path).unwrap(), Duration::from_micros(1500));
        std::fs::write(&path, r#"{"took_us": 1500, "verified": false}"#).unwrap();
        took(&path).unwrap_err();
    }
}
