//! The output of a detached sandbox: the delay until a follower has it, and the throughput.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, mkfifoat};

use super::Herd;
use crate::error::Error;
use crate::samples::Samples;
use crate::table::{Table, verdict};
use crate::tools::Tools;
use crate::{Args, talk, wait};

/// The pause between two lines: the previous line has been handled completely.
const PAUSE: Duration = Duration::from_millis(5);

pub(super) struct Rates {
    line: Samples,
    through: Samples,
    plain: Samples,
}

impl Rates {
    pub(super) fn verdicts(&self) -> String {
        let late = Some(self.line.p50().as_secs_f64() * 1000.0);
        let mut text = verdict("a line through `logs -f`", " ms", 5.0, late);
        text.push_str(&verdict(
            "standard output through a sandbox (60 % of the speed into `cat`)",
            " × the time",
            1.67,
            self.through.times(&self.plain),
        ));
        text
    }
}

pub(super) fn measure(args: &Args, tools: &Tools) -> Result<(String, Rates), Error> {
    talk("detached: lines through logs -f");
    let line = lines(tools, args.rounds(200))?;
    talk("detached: standard output");
    let mebibytes = if args.quick { 16 } else { 1024 };
    let (mut through, mut plain) = (Samples::default(), Samples::default());
    for _ in 0..args.rounds(5) {
        plain.push(into_cat(mebibytes)?);
        through.push(into_log(tools, mebibytes)?);
    }
    let mut table = Table::new(["output", "p50 (p90) ms"]);
    table.row(["one line, from the write to the reader of `penfold logs -f`".to_owned(), line.cell()]);
    table.row([format!("{mebibytes} MiB by `dd bs=64K` into `cat >/dev/null`"), plain.cell()]);
    table.row([
        format!("{mebibytes} MiB by `dd bs=64K` in a detached sandbox, start and end included"),
        through.cell(),
    ]);
    Ok((format!("\n{}", table.markdown()), Rates { line, through, plain }))
}

/// Measures the time of a line from the command to the follower.
fn lines(tools: &Tools, rounds: u32) -> Result<Samples, Error> {
    let herd = Herd::new(tools, "lines")?;
    let path = tools.volatile().join("words");
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| Error::io("cannot make a pipe", errno.into()))?;
    // One descriptor holds both ends, so that neither open waits for the other.
    let mut words = File::options().read(true).write(true).open(&path).map_err(Error::at("open", &path))?;
    let name = path.display().to_string();
    let id = herd.said(&["run", "-d", "--on-owner-exit", "kill", "--", "cat", &name], &[0])?;
    let mut follower = Follower::of(&herd, id.trim())?;
    let mut samples = Samples::default();
    // When the first line arrives, all processes are ready.
    for round in 0..=rounds {
        let begun = Instant::now();
        words.write_all(b"word\n").map_err(Error::at("write to", &path))?;
        follower.hear(5)?;
        if round > 0 {
            samples.push(begun.elapsed());
        }
        wait::pass(PAUSE);
    }
    Ok(samples)
}

/// A running `penfold logs -f`.
struct Follower {
    child: Child,
    out: ChildStdout,
}

impl Follower {
    fn of(herd: &Herd<'_>, id: &str) -> Result<Follower, Error> {
        let mut command = herd.command(&["logs", "-f", id]);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| Error::io("cannot run `penfold logs -f`", source))?;
        let out = child.stdout.take().ok_or_else(|| Error::odd("there is no pipe"))?;
        Ok(Follower { child, out })
    }

    fn hear(&mut self, mut bytes: usize) -> Result<(), Error> {
        let mut buffer = [0; 64];
        while bytes > 0 {
            if !wait::readable(&self.out, wait::LIMIT) {
                return Err(wait::late("a line"));
            }
            match self.out.read(&mut buffer) {
                Ok(0) => return Err(Error::odd("`penfold logs -f` ended early")),
                Ok(length) => bytes = bytes.saturating_sub(length),
                Err(source) => return Err(Error::io("cannot read what `penfold logs -f` shows", source)),
            }
        }
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn writer(mebibytes: u32) -> String {
    format!("dd if=/dev/zero bs=64K count={} status=none", mebibytes * 16)
}

fn into_cat(mebibytes: u32) -> Result<Duration, Error> {
    let begun = Instant::now();
    let script = format!("{} | cat >/dev/null", writer(mebibytes));
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .spawn()
        .map_err(|source| Error::io("cannot run `sh`", source))?;
    wait::exit(&mut child, "`dd`")?;
    Ok(begun.elapsed())
}

fn into_log(tools: &Tools, mebibytes: u32) -> Result<Duration, Error> {
    let herd = Herd { tools, root: tools.volatile().join("output") };
    let script = writer(mebibytes);
    let begun = Instant::now();
    let id = herd.said(&["run", "-d", "--on-owner-exit", "kill", "--", "sh", "-c", &script], &[0])?;
    herd.said(&["wait", id.trim()], &[0])?;
    let took = begun.elapsed();
    herd.said(&["rm", id.trim()], &[0])?;
    Ok(took)
}
