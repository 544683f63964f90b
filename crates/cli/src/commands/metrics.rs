//! `penfold metrics`.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Args;
use penfold_state::counters::{self, Counters};
use penfold_state::record::SCHEMA;
use rustix::fs::OFlags;
use serde::Serialize;

use crate::args::usage;
use crate::args::verb::{Global, Places, Verb};
use crate::failure::{Failure, FailureKind, OrFail as _};
use crate::text::metrics;
use crate::{exit_codes, output, surroundings};

/// The verb `metrics`.
pub(crate) const VERB: Verb = Verb {
    name: "metrics",
    aliases: &[],
    about: "Print counters for a monitor: ends, leaks, teardown times",
    description: "Prints the counters of the state root in the text format of Prometheus, for the textfile collector of \
        node_exporter: ended sandboxes by cause and whether the end was verified, teardown times, leaks that gc and recoveries \
        found and mended, cgroups that the kernel refused to remove, and failed releases. The counters outlive events and \
        records; they begin again with zero only if the file `counters` in the state root is removed or damaged. A foreground \
        sandbox counts only if something went wrong. docs/metrics.md has the names; `GET /metrics` of a server has the same \
        counters.",
    examples: &[
        (
            "penfold metrics -o /var/lib/node_exporter/penfold.prom",
            "replace a file for node_exporter, as in a timer",
        ),
        (
            "penfold metrics > penfold.prom.$$ && mv penfold.prom.$$ penfold.prom",
            "the same, with a file that only a shell can write",
        ),
        ("penfold metrics --json", "print a JSON object"),
    ],
    usage_failure: FailureKind::Usage,
    define: MetricsArgs::augment_args,
    places: Places::Hosts,
    call: |global, matches| print(global, &usage::read(&VERB, matches)?),
};

/// The arguments of `penfold metrics`.
#[derive(Args, Clone, Debug)]
pub(crate) struct MetricsArgs {
    /// Write to this file, which is replaced as a whole, and readable for all users.
    #[arg(short, long, value_name = "FILE", value_parser = clap::value_parser!(PathBuf))]
    pub(crate) output: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct MetricsOutput {
    schema: u32,
    damaged: bool,
    counters: Vec<metrics::Shown>,
}

fn print(global: &Global, args: &MetricsArgs) -> Result<u8, Failure> {
    let root = surroundings::root(global);
    let counters = counters::read_counters(Path::new(&root))?;
    if counters.is_damaged {
        output::message(&format!(
            "penfold: the counters in `{}` are damaged, and begin again with zero\n",
            root.display()
        ));
    }
    let text = if args.json { json(&counters)? } else { metrics::text(&counters).into_bytes() };
    match &args.output {
        None => output::data(&text)?,
        Some(file) => {
            let failed = format!("cannot write `{}`", file.display());
            write(file, &text).or_fail(FailureKind::Other, &failed)?;
        }
    }
    Ok(exit_codes::SUCCESS)
}

/// Replaces a file as a whole, so that no reader sees half of it. The file that a link names is replaced, not the link. A pipe
/// or device stays, and gets the text.
fn write(file: &Path, text: &[u8]) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(meta) if !meta.is_file() => {
            // Without a reader, a pipe is an error, and no wait.
            let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
            File::options().write(true).custom_flags(flags).open(file)?.write_all(text)
        }
        Ok(_) => replace(&file.canonicalize()?, text),
        Err(_) => replace(file, text),
    }
}

fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let name = file.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    // A collector reads names that end with `.prom`; this name does not.
    let mut draft_name = OsString::from(".");
    draft_name.push(name);
    draft_name.push(format!(".{}", std::process::id()));
    let draft = file.with_file_name(draft_name);
    // A killed process with this pid may have left it.
    let _ = fs::remove_file(&draft);
    let written = File::options().write(true).create_new(true).open(&draft).and_then(|mut opened| {
        opened.set_permissions(Permissions::from_mode(0o644))?;
        opened.write_all(text)?;
        fs::rename(&draft, file)
    });
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

fn json(counters: &Counters) -> Result<Vec<u8>, Failure> {
    let answer =
        MetricsOutput { schema: SCHEMA, damaged: counters.is_damaged, counters: metrics::shown(counters) };
    let mut text = serde_json::to_vec(&answer).map_err(output::WriteError::Json)?;
    text.push(b'\n');
    Ok(text)
}
