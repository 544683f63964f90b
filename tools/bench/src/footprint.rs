//! Memory and wake-ups of the processes that run beside a command.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use penfold_process::{Pid, ProcFs};
use penfold_state::error_chain;

use crate::crowd::{self, AfterLeader, Crowd};
use crate::document::Section;
use crate::error::Error;
use crate::table::{Table, unmeasured, verdict};
use crate::tools::{Tools, last_words, running};
use crate::{Args, talk, wait};

/// The pause after a start, until its background work is done.
const REST: Duration = Duration::from_millis(500);
const MANY: u32 = 50;

/// The memory and the wake-ups of some processes.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Footprint {
    pub(crate) processes: usize,
    /// KiB, `Pss` of `smaps_rollup`: shared pages count in proportion.
    pub(crate) pss: u64,
    /// KiB, the part of `Pss` without a file: the certain cost of each further sandbox.
    pub(crate) anonymous: u64,
    /// Context switches while idle: a process that does not wake up has none.
    pub(crate) wakeups: u64,
}

pub(crate) fn measure(args: &Args, tools: &Tools) -> Result<Section, Error> {
    let idle = if args.quick { Duration::from_millis(200) } else { Duration::from_secs(3) };
    let many = if args.quick { 3 } else { MANY };
    let mut table =
        Table::new(["what", "sandboxes", "processes", "PSS", "PSS each", "anonymous each", "wake-ups"]);
    let mut missing = String::new();
    let mut row = |name: &str, count: u32, print: Footprint| {
        let count = u64::from(count.max(1));
        table.row([
            format!("`{name}`"),
            count.to_string(),
            print.processes.to_string(),
            print.pss.to_string(),
            (print.pss / count).to_string(),
            (print.anonymous / count).to_string(),
            print.wakeups.to_string(),
        ]);
    };
    let mut one = None;
    for (level, count) in [("auto", 1), ("subreaper", 1), ("pidns", 1), ("auto", many)] {
        let name = format!("penfold run --contain {level}");
        talk(&format!("memory: {name}, {count} at once"));
        let command = || {
            let mut command = tools.run(&["--contain", level]);
            command.arg("--");
            command
        };
        match look(tools, &tools.penfold, command, count, idle) {
            Ok(print) => {
                row(&name, count, print);
                one = one.or(Some(print));
            }
            Err(error) => unmeasured(&mut missing, &name, error_chain(&error)),
        }
    }
    for words in [&["timeout", "60"][..], &["tini", "-s", "--"], &["dumb-init", "--"], &BWRAP] {
        let (program, options) = words.split_first().unwrap_or((&"", &[]));
        let name = words.join(" ");
        let Some(path) = tools.borrow(program)? else {
            unmeasured(&mut missing, &name, "not installed");
            continue;
        };
        let command = || {
            let mut command = Command::new(&path);
            command.args(options);
            command
        };
        match look(tools, &path, command, 1, idle) {
            Ok(print) => row(&name, 1, print),
            Err(error) => unmeasured(&mut missing, &name, error_chain(&error)),
        }
    }
    let mut body = format!(
        "KiB, for the processes of the tool without its command: `Pss` and `Pss_Anon` of `smaps_rollup`. The \
         difference is pages of the binary, which sandboxes share. Wake-ups: context switches of all these processes \
         together during {} idle seconds.\n\n{}{missing}\n",
        idle.as_secs_f32(),
        table.markdown(),
    );
    body.push_str(&verdicts(one));
    Ok(Section { name: "memory", title: "Memory and wake-ups", body, ..Section::default() })
}

const BWRAP: [&str; 6] = ["bwrap", "--bind", "/", "/", "--unshare-pid", "--die-with-parent"];

fn verdicts(one: Option<Footprint>) -> String {
    let number = |value: u64| u32::try_from(value).map_or(f64::INFINITY, f64::from);
    let mut text = verdict("PSS of one sandbox", " KiB", 1024.0, one.map(|print| number(print.pss)));
    text.push_str(&verdict("wake-ups of an idle sandbox", "", 0.0, one.map(|print| number(print.wakeups))));
    text
}

/// Starts this number of a tool, each with one sleeping command, measures them, and ends them.
fn look(
    tools: &Tools,
    program: &Path,
    command: impl Fn() -> Command,
    count: u32,
    idle: Duration,
) -> Result<Footprint, Error> {
    let mut crowds = Vec::new();
    for _ in 0..count {
        let mut command = command();
        command.args(crowd::words(&tools.bench, 1, AfterLeader::Follow));
        crowds.push(Crowd::gather(&mut command)?);
    }
    wait::pass(REST);
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    let print = print(&running(&mut proc, program)?, idle)?;
    for crowd in crowds {
        let status = crowd.dismiss()?;
        if !status.success() {
            let program = program.display().to_string();
            return Err(Error::Failed { program, status, said: last_words(b"") });
        }
    }
    Ok(print)
}

/// Measures the memory of these processes, and their wake-ups during this time.
pub(crate) fn print(pids: &[Pid], idle: Duration) -> Result<Footprint, Error> {
    let mut print = Footprint { processes: pids.len(), ..Footprint::default() };
    let before = switches(pids)?;
    wait::pass(idle);
    print.wakeups = switches(pids)?.saturating_sub(before);
    for &pid in pids {
        let text = file(pid, "smaps_rollup")?;
        print.pss += sum(&text, &["Pss:"]);
        print.anonymous += sum(&text, &["Pss_Anon:"]);
    }
    Ok(print)
}

fn switches(pids: &[Pid]) -> Result<u64, Error> {
    let mut switches = 0;
    for &pid in pids {
        switches += sum(&file(pid, "status")?, &["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"]);
    }
    Ok(switches)
}

fn file(pid: Pid, name: &str) -> Result<String, Error> {
    let path = format!("/proc/{pid}/{name}");
    std::fs::read_to_string(&path).map_err(Error::at("read", Path::new(&path)))
}

/// Sums up all lines that begin with one of these keys.
fn sum(text: &str, keys: &[&str]) -> u64 {
    text.lines()
        .filter_map(|line| {
            let value = keys.iter().find_map(|key| line.strip_prefix(key))?;
            value.split_whitespace().next()?.parse::<u64>().ok()
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_whole_words_at_the_start_of_a_line() {
        let text = "Pss:  10 kB\nPss_Dirty: 7 kB\nSwapPss: 3 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty:\t2 kB\n";
        assert_eq!(sum(text, &["Pss:"]), 10);
        assert_eq!(sum(text, &["Private_Clean:", "Private_Dirty:"]), 3);
    }
}
