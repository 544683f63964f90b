//! A scan of all processes of a host.

use std::path::{Path, PathBuf};
use std::process::Command;

use penfold_state::error_chain;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::contender::{Contender, named, race};
use crate::crowd::{self, AfterLeader, Crowd};
use crate::document::Section;
use crate::error::Error;
use crate::table::{Table, ratio, unmeasured, verdict};
use crate::tools::{Tools, find, last_words};
use crate::{Args, talk};

const SOURCE: &str = include_str!("scan.c");
/// A variable of no process, so that the scan finds none.
const MARK: &str = "PENFOLD_BENCH_MARK=nobody";
const OURS: &str = "penfold reap --env K=V -n";
const PLAIN_C: &str = "C loop";

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let count = if args.quick { 200 } else { 4000 };
    let rounds = args.rounds(40);
    talk(&format!("scan: {count} processes, {rounds} rounds"));
    let [program, words @ ..] = crowd::words(&tools.bench, count, AfterLeader::Follow);
    let crowd = Crowd::gather(Command::new(program).args(words))?;
    let mut reap = Command::new(&tools.penfold);
    reap.args(["reap", "-n", "--env", MARK]);
    let mut contenders = vec![Contender::new(OURS, reap)];
    let mut missing = String::new();
    match compile(tools.dir()) {
        Ok(floor) => {
            let mut command = Command::new(floor);
            command.arg(MARK);
            contenders.insert(0, Contender::new(PLAIN_C, command));
        }
        Err(error) => unmeasured(&mut missing, PLAIN_C, error_chain(&error)),
    }
    let outcomes = on_one_cpu(|| race(contenders, rounds))?;
    crowd.dismiss()?;
    let floor = named(&outcomes, PLAIN_C).map(|outcome| &outcome.samples);
    let mut table = Table::new(["what", "p50 (p90) ms", "× C loop"]);
    for outcome in &outcomes {
        match &outcome.skipped {
            Some(reason) => unmeasured(&mut missing, &outcome.name, reason),
            None => table.row([
                format!("`{}`", outcome.name),
                outcome.samples.cell(),
                ratio(floor.and_then(|floor| outcome.samples.times(floor))),
            ]),
        }
    }
    let ours = named(&outcomes, OURS).and_then(|ours| ours.samples.times(floor?));
    let body = format!(
        "Milliseconds from spawn to exit, {rounds} rounds, on one core of a host with {count} additional \
         processes. The C loop reads `stat` and `environ` of each process, one read per file.\n\n{}{missing}\n{}",
        table.markdown(),
        verdict(OURS, &format!(" × {PLAIN_C}"), 1.1, ours),
    );
    Ok(Section { name: "scan", title: "A scan of all processes", body, ..Section::default() })
}

fn compile(dir: &Path) -> Result<PathBuf, Error> {
    let source = dir.join("scan.c");
    std::fs::write(&source, SOURCE).map_err(Error::at("write", &source))?;
    let binary = dir.join("scan");
    let compiler = find("cc").ok_or_else(|| Error::odd("no C compiler `cc`"))?;
    let output = Command::new(compiler)
        .args(["-O2", "-Wall", "-o"])
        .args([&binary, &source])
        .output()
        .map_err(|source| Error::io("cannot run `cc`", source))?;
    if output.status.success() { Ok(binary) } else { Err(Error::odd(last_words(&output.stderr))) }
}

/// Keeps this process and its later children on the first permitted CPU.
fn on_one_cpu<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let cannot = |errno: rustix::io::Errno| Error::io("cannot choose a CPU", errno.into());
    let all = sched_getaffinity(None).map_err(cannot)?;
    let mut one = CpuSet::new();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap_or(0);
    one.set(first);
    sched_setaffinity(None, &one).map_err(cannot)?;
    let result = work();
    sched_setaffinity(None, &all).map_err(cannot)?;
    result
}
