//! The same with `podman run -d`, where a conmon for each container does the work of a supervisor.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penfold_process::ProcFs;

use super::{Rates, not_measured};
use crate::error::Error;
use crate::footprint;
use crate::samples::millis;
use crate::table::Table;
use crate::tools::{Tools, find, last_words, running};
use crate::{Args, talk, wait};

/// The number of containers: each takes a hundred times as long as a sandbox.
const FEW: u32 = 20;

/// podman with a given runtime, and a store of its own.
struct Podman<'t> {
    tools: &'t Tools,
    program: PathBuf,
    runtime: PathBuf,
}

pub(super) fn measure(args: &Args, tools: &Tools, penfold: &Rates) -> String {
    let count = if args.quick { 2 } else { FEW };
    let mut table =
        Table::new(["tool", "count", "start, each", "`kill --all`, each", "PSS, each, without the command"]);
    let mut missing = String::new();
    let row = |name: &str, count: &str, rates: &Rates| {
        let ms = |time: Duration| format!("{} ms", millis(time));
        [name.to_owned(), count.to_owned(), ms(rates.start), ms(rates.end), format!("{} KiB", rates.pss)]
    };
    table.row(row("`penfold run -d`", "as above", penfold));
    for runtime in ["runc", "crun"] {
        let name = format!("podman run -d, conmon, {runtime}");
        let (Some(program), Some(path)) = (find("podman"), find(runtime)) else {
            not_measured(&mut missing, &name, &Error::odd("not installed"));
            continue;
        };
        talk(&format!("detached: {name}"));
        let podman = Podman { tools, program, runtime: path };
        match podman.measure(count) {
            Ok(rates) => table.row(row(&format!("`{name}`"), &count.to_string(), &rates)),
            Err(error) => not_measured(&mut missing, &name, &error),
        }
    }
    format!("\n{}{missing}", table.markdown())
}

impl Podman<'_> {
    fn place(&self, name: &str) -> PathBuf {
        let runtime = self.runtime.file_name().unwrap_or_default().to_string_lossy();
        self.tools.volatile().join(format!("podman-{runtime}-{name}"))
    }

    fn said(&self, words: &[&str]) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(self.place("store")).arg("--runroot").arg(self.place("run"));
        command
            .args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime"])
            .arg(&self.runtime);
        let mut child = command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| Error::io("cannot run `podman`", source))?;
        let status = wait::exit(&mut child, "`podman`")?;
        if status.success() {
            return Ok(());
        }
        let mut said = Vec::new();
        if let Some(mut pipe) = child.stderr.take() {
            // conmon may hold the pipe.
            let mut buffer = [0; 4096];
            while wait::readable(&pipe, Duration::from_millis(100)) {
                match std::io::Read::read(&mut pipe, &mut buffer) {
                    Ok(length) if length > 0 => said.extend_from_slice(&buffer[..length]),
                    _ => break,
                }
            }
        }
        Err(Error::Failed { program: "podman".to_owned(), status, said: last_words(&said) })
    }

    fn measure(&self, count: u32) -> Result<Rates, Error> {
        let root = self.place("rootfs");
        std::fs::create_dir(&root).map_err(Error::at("create", &root))?;
        let command = root.join("bench");
        std::fs::copy(&self.tools.bench, &command).map_err(Error::at("copy", &command))?;
        let rootfs = root.display().to_string();
        let limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1000:1000"];
        let mut words = vec!["run", "-d", "--network", "none"];
        words.extend(limits);
        words.extend(["--rootfs", &rootfs, "/bench", super::SLEEP]);
        let begun = Instant::now();
        let started = (0..count).try_for_each(|_| self.said(&words));
        let start = begun.elapsed() / count.max(1);
        let pss = started.and_then(|()| pss());
        let begun = Instant::now();
        let ended = self.said(&["kill", "--all"]);
        let end = begun.elapsed() / count.max(1);
        self.said(&["rm", "-f", "-a"])?;
        let pss = pss? / u64::from(count.max(1));
        ended.map(|()| Rates { start, pss, end })
    }
}

/// Adds up all running conmon processes, including those of other users.
fn pss() -> Result<u64, Error> {
    let conmon = find("conmon").ok_or_else(|| Error::odd("`conmon` is not installed"))?;
    let mut proc = ProcFs::open().map_err(|source| Error::io("cannot open `/proc`", source))?;
    Ok(footprint::print(&running(&mut proc, &conmon)?, Duration::ZERO)?.pss)
}
